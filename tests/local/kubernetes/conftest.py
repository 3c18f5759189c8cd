"""One cluster for the tests of this folder in each process: a small pool, and one with GPUs that scales from 0."""

import pytest
from local_kube import delete_cluster, gpu_pool, make_cluster


@pytest.fixture(scope="session")
def kube(cloud, tmp_path_factory):
    fast = {"operation": 0.1, "backoff": 0.3, "restart": 0.3, "scale_retry": 1.0}
    cloud.call("POST", "/_berg/settings", fast)
    made = make_cluster(cloud, "kube", tmp_path_factory.mktemp("kube"), gpu_pool())
    yield made
    delete_cluster(made)
