"""One cluster for the tests of this folder in each process: a small pool, and one with GPUs that scales from 0."""

import pytest
from local_kube import delete_cluster, gpu_pool, make_cluster

from berg.local import control


@pytest.fixture(scope="session")
def kube(cloud, tmp_path_factory):
    fast = {"operation": 0.1, "backoff": 0.3, "restart": 0.3, "scale_retry": 1.0}
    cloud.call("POST", "/_berg/settings", fast)
    made = make_cluster(cloud, "kube", tmp_path_factory.mktemp("kube"), gpu_pool())
    yield made
    delete_cluster(made)


@pytest.fixture
def cloud_of_its_own(cloud, tmp_path_factory):
    """Another embedded cloud, to be killed; it shares the machines' image."""
    folder = tmp_path_factory.mktemp("own") / "local"
    folder.mkdir()
    (folder / "image").symlink_to((cloud.folder / "image").resolve())
    made = type(cloud)(folder, f"http://127.0.0.1:{control.start(folder)}")
    made.call("POST", "/_berg/settings", {"operation": 0.1, "grace": 5})
    yield made
    control.reset(folder)
