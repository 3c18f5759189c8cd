"""What all tests have: an embedded cloud of each file's own, and an empty home.

The tests run in a network without a way out (loopback.py): a connection to anywhere else fails the
test that tried it.
"""

import empty_home
import local_kube
import loopback
import pytest
from local_cloud import served
from local_machines import LATE, Client

HOME = empty_home.enter()
IS_CLOSED = loopback.enter()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With a failure goes what the embedded cloud logged."""
    report = yield
    if report.failed and "cloud" in getattr(item, "funcargs", ()):
        log = item.funcargs["cloud"].folder / "server.log"
        lines = (
            log.read_text(errors="replace").splitlines()[-100:]
            if log.exists()
            else ["it is deleted already"]
        )
        report.sections.append(("log of the embedded cloud", "\n".join(lines)))
    return report


def pytest_report_header() -> str:
    return (
        "network: loopback only"
        if IS_CLOSED
        else "network: NOT closed (that takes root and iproute2)"
    )


@pytest.fixture(autouse=True)
def stays_on_loopback():
    before = IS_CLOSED and loopback.left()
    yield
    assert not IS_CLOSED or loopback.left() == before, "a connection tried to leave this computer"


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """A cloud in a hurry, whose grants and new accounts are late, as Google's are by minutes."""
    late = {"grant_delay": LATE, "account_delay": LATE}
    hurry = {"prepared": 1, "operation": 0.2, "backoff": 0.3, "scale_retry": 1}
    yield from served(tmp_path_factory, "berg-local", **late, **hurry)


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster: a small pool, and one with GPUs that scales from 0."""
    return local_kube.make_cluster(cloud, "kube", tmp_path_factory.mktemp("kube"))


@pytest.fixture
def machines(cloud) -> Client:
    """Requests to Compute Engine of the cloud of this file."""
    return Client(cloud.folder)
