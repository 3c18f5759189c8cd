"""Kubernetes Engine of the embedded cloud, over plain HTTP and with gcloud."""

import json
import subprocess

import pytest
from local_gcloud import Gcloud
from local_kube import PLACE, SYSTEM, Kube, delete_cluster, gpu_pool, make_cluster
from local_machines import until

ZONE = "--zone=us-central1-a"


@pytest.fixture(autouse=True)
def fast(cloud):
    cloud.call("POST", "/_berg/settings", {"give_up": 0.5})


@pytest.fixture(scope="module")
def cluster(cloud, tmp_path_factory):
    made = make_cluster(cloud, "made", tmp_path_factory.mktemp("made"))
    yield made
    delete_cluster(made)


def post(cloud, path: str, body: dict):
    return cloud.session.post(f"{cloud.url}/container/v1/{PLACE}/clusters{path}", json=body)


def message(answer) -> str:
    return answer.json()["error"]["message"]


def test_a_cluster_is_shown_with_its_nodes_and_certificate(cloud, cluster):
    found = cloud.call("GET", f"/container/v1/{PLACE}/clusters/made")
    assert (found["status"], found["currentNodeCount"]) == ("RUNNING", 1)
    assert cluster.call("GET", "/version")["gitVersion"] == f"v{found['currentMasterVersion']}"
    (node,) = cluster.get("nodes")["items"]
    assert node["metadata"]["labels"]["cloud.google.com/gke-nodepool"] == "system"
    instance = cloud.instances()[node["metadata"]["name"]]
    assert instance["labels"]["goog-k8s-cluster-name"] == "made" and instance[
        "machineType"
    ].endswith("e2-medium")


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        ({"name": "Upper"}, "Must be a match of regex"),
        (
            gpu_pool(config={"machineType": "e2-standard-4"}),
            "not supported on machine type e2-standard-4",
        ),
        (gpu_pool(config={"machineType": "n1-standard-64"}), "too many vCPUs"),
        (
            {"name": "x", "config": {"machineType": "n9-huge"}},
            "does not exist in zone us-central1-a",
        ),
        ({"name": "x", "config": {"diskSizeGb": 5}}, "at least 15 GB"),
        ({"name": "x", "autoscaling": {"enabled": True}}, "Max node count must be set"),
        (
            {
                "name": "x",
                "autoscaling": {"enabled": True, "maxNodeCount": 1, "totalMaxNodeCount": 1},
            },
            "mutually exclusive",
        ),
        (
            {"name": "x", "config": {"kubeletConfig": {"shutdownGracePeriodSeconds": 120}}},
            "only supported for Spot",
        ),
        ({"name": "system"}, "Already exists"),
        ({"name": "x", "initialNodeCount": -1}, "must not be negative"),
        ({"name": "x", "config": {"diskSizeGb": 70000}}, "at most 65536 GB"),
        ({"name": "x", "config": {"metadata": {"startup-script": "x"}}}, "is reserved for use by"),
        ({"name": "x", "config": {"metadata": {"a b": "x"}}}, "must match [a-zA-Z0-9-_]+"),
        ({"name": "x", "config": {"tags": ["Not_One"]}}, "must comply with RFC1035"),
        (
            {"name": "x", "config": {"taints": [{"key": "a b", "effect": "NO_SCHEDULE"}]}},
            "Invalid taint key",
        ),
        ({"name": "x", "config": {"machinetype": "e2-medium"}}, "Unknown name"),
    ],
)
def test_a_pool_that_google_refuses_is_refused(cloud, cluster, pool, words):
    answer = post(cloud, "/made/nodePools", {"nodePool": pool})
    assert answer.status_code in (400, 409) and words in message(answer)


def test_one_change_at_a_time(cloud, cluster):
    operation = post(cloud, "/made/nodePools", {"nodePool": gpu_pool("one")}).json()
    refused = post(cloud, "/made/nodePools", {"nodePool": gpu_pool("two")})
    assert refused.status_code == 400 and "incompatible operation" in message(refused)
    cluster.done(operation)
    deleted = cloud.call("DELETE", f"/container/v1/{PLACE}/clusters/made/nodePools/one")
    cluster.done(deleted)
    names = [
        pool["name"]
        for pool in cloud.call("GET", f"/container/v1/{PLACE}/clusters/made/nodePools")["nodePools"]
    ]
    assert names == ["system"]


def test_a_pool_of_fixed_size_without_stock_ends_in_an_error(cloud, cluster):
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    pool = {**gpu_pool("dry"), "initialNodeCount": 1}
    done = cluster.done(post(cloud, "/made/nodePools", {"nodePool": pool}).json())
    assert (
        done["error"]["code"] == 8 and "does not have enough resources" in done["error"]["message"]
    )
    found = cloud.call("GET", f"/container/v1/{PLACE}/clusters/made/nodePools/dry")
    assert (
        found["status"] == "RUNNING_WITH_ERROR" and found["conditions"][0]["code"] == "GCE_STOCKOUT"
    )
    cluster.done(cloud.call("DELETE", f"/container/v1/{PLACE}/clusters/made/nodePools/dry"))


def test_drivers_come_late(cloud, cluster):
    cloud.call("POST", "/_berg/settings", {"driver_delay": 1.0})
    pool = {**gpu_pool("late"), "initialNodeCount": 1}
    cluster.done(post(cloud, "/made/nodePools", {"nodePool": pool}).json())
    (node,) = [each for each in cluster.get("nodes")["items"] if "late" in each["metadata"]["name"]]
    assert "nvidia.com/gpu" not in node["status"]["allocatable"]
    gpus = lambda: cluster.get("nodes", node["metadata"]["name"])["status"]["allocatable"].get(
        "nvidia.com/gpu"
    )
    assert until(gpus, "its GPUs") == "2"
    cloud.call("POST", "/_berg/settings", {"driver_delay": 0})
    cluster.done(cloud.call("DELETE", f"/container/v1/{PLACE}/clusters/made/nodePools/late"))
    assert not [name for name in cloud.instances() if "late" in name]


def test_what_is_not_there_is_not_found(cloud):
    answer = cloud.session.get(f"{cloud.url}/container/v1/{PLACE}/clusters/none")
    assert answer.status_code == 404 and "No cluster named 'none'" in message(answer)
    assert cloud.session.get(f"{cloud.url}/container/v1/{PLACE}/operations/none").status_code == 404
    elsewhere = "projects/berg-local/locations/mars-west1/clusters"
    assert cloud.session.get(f"{cloud.url}/container/v1/{elsewhere}").status_code == 400


@pytest.mark.slow
def test_gcloud_makes_and_deletes_a_cluster(cloud, tmp_path):
    cloud.session.get(f"{cloud.url}/container/v1/{PLACE}/clusters")
    gcloud = Gcloud(cloud.url, "berg-local", cloud.session.credentials.token, tmp_path)
    gcloud(
        "container",
        "clusters",
        "create",
        "seeds",
        ZONE,
        "--num-nodes=1",
        "--machine-type=n1-standard-4",
        "--quiet",
    )
    assert "seeds" in gcloud("container", "clusters", "list")
    assert (
        json.loads(gcloud("container", "clusters", "describe", "seeds", ZONE, "--format=json"))[
            "status"
        ]
        == "RUNNING"
    )
    more = [
        "--machine-type=n1-standard-4",
        "--num-nodes=0",
        "--enable-autoscaling",
        "--min-nodes=0",
        "--max-nodes=2",
    ]
    gpus = "--accelerator=type=nvidia-tesla-t4,count=2,gpu-driver-version=latest"
    gcloud(
        "container", "node-pools", "create", "gpus", "--cluster=seeds", ZONE, gpus, "--spot", *more
    )
    assert "gpus" in gcloud("container", "node-pools", "list", "--cluster=seeds", ZONE)
    gcloud(
        "container",
        "clusters",
        "resize",
        "seeds",
        ZONE,
        "--node-pool=default-pool",
        "--num-nodes=2",
    )
    kube = Kube(cloud, "seeds", tmp_path)
    assert len(kube.get("nodes")["items"]) == 2
    check_credentials(gcloud, kube, tmp_path)
    gcloud("container", "node-pools", "delete", "gpus", "--cluster=seeds", ZONE)
    gcloud("container", "clusters", "delete", "seeds", ZONE)
    assert "seeds" not in gcloud("container", "clusters", "list")
    assert not [name for name in cloud.instances() if name.startswith("gke-seeds")]


def check_credentials(gcloud: Gcloud, kube: Kube, folder) -> None:
    """What get-credentials writes leads kubectl to the cluster; the token stands for the plugin
    that is not here.
    """
    gcloud.settings["KUBECONFIG"] = str(folder / "kubeconfig")
    gcloud("container", "clusters", "get-credentials", "seeds", ZONE)
    words = [
        "kubectl",
        "--kubeconfig",
        str(folder / "kubeconfig"),
        "--token",
        kube.token,
        "get",
        "nodes",
        "-o",
        "name",
    ]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("node/gke-seeds") == 2, done.stderr


def test_a_cluster_needs_a_node(cloud):
    answer = post(
        cloud,
        "",
        {"cluster": {"name": "empty", "nodePools": [{"name": "none", "initialNodeCount": 0}]}},
    )
    assert answer.status_code == 400 and "must be greater than zero" in message(answer)
    answer = post(
        cloud,
        "",
        {"cluster": {"name": "auto", "autopilot": {"enabled": True}, "nodePools": [SYSTEM]}},
    )
    assert answer.status_code == 501


@pytest.mark.parametrize(
    ("zones", "words"),
    [
        (["europe-west4-a"], "is not in the region us-central1"),
        (["us-central1-a", "us-central1-a"], "must be distinct"),
        (["nowhere-a"], 'Location "nowhere-a"'),
    ],
)
def test_a_clusters_nodes_are_in_its_region(cloud, zones, words):
    body = {"cluster": {"name": "apart", "nodePools": [SYSTEM], "locations": zones}}
    answer = post(cloud, "", body)
    assert answer.status_code == 400 and words in message(answer)
