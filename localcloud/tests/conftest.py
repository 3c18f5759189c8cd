"""One embedded cloud per test process.

The tests run in a network without a way out (loopback.py): a connection to anywhere else fails the
test that tried it.
"""

import empty_home
import loopback
import pytest
from cloud_fixtures import kube, session_cloud
from local_machines import Client

HOME = empty_home.enter()
WITNESS = loopback.enter()
__all__ = ["kube"]


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
        if WITNESS
        else "network: NOT closed (that takes root and iproute2)"
    )


@pytest.fixture(autouse=True)
def stays_on_loopback():
    yield
    if WITNESS:
        assert loopback.seen(WITNESS) == [], "a connection tried to leave this computer"


@pytest.fixture(autouse=True)
def undone(request):
    """What a test changes of the embedded cloud, the next one does not find."""
    yield
    if "cloud" in request.fixturenames:
        request.getfixturevalue("cloud").settle_down()


@pytest.fixture(scope="session")
def cloud(tmp_path_factory):
    with session_cloud(tmp_path_factory) as made:
        yield made


@pytest.fixture
def machines(cloud) -> Client:
    """Requests to Compute Engine of the cloud of this process."""
    return Client(cloud.folder)
