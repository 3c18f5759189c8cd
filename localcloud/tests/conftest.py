"""One embedded cloud per test process.

The tests run in a network without a way out (loopback.py): a connection to anywhere else fails the
test that tried it.
"""

from zlib import crc32

import empty_home
import loopback
import pytest
from cloud_fixtures import kube, own_cloud, session_cloud

HOME = empty_home.enter()
WITNESS = loopback.enter()
__all__ = ["kube"]


def pytest_addoption(parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the slow tests, and only those")
    parser.addoption("--all", action="store_true", help="run slow tests as well")
    parser.addoption(
        "--fifth", type=int, choices=range(5), help="run one fifth of the slow tests: 0 to 4"
    )


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "slow: runs with --slow, or when it is named")


def pytest_collection_modifyitems(config, items: list) -> None:
    """Leave out slow tests, or run only those."""
    if config.getoption("--all") or any("::" in each for each in config.args):
        return
    fifth = config.getoption("--fifth")
    kept, left_out = [], []
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        is_drawn = fifth is None or not is_slow or crc32(item.nodeid.encode()) % 5 == fifth
        is_wanted = is_slow == config.getoption("--slow") and is_drawn
        (kept if is_wanted else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


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
def cloud_of_its_own(cloud, tmp_path_factory):
    with own_cloud(cloud, tmp_path_factory) as made:
        yield made


@pytest.fixture(scope="session")
def account(cloud) -> str:
    """A service account without rights; returns its address."""
    path = "/iam/v1/projects/berg-local/serviceAccounts"
    return cloud.call("POST", path, {"accountId": "berg-worker"})["email"]
