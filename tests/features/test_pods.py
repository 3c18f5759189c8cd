"""What a pod of a job is made of, and which nodes it asks for, without a cluster."""

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from inside import job_of

from berg import BergError
from berg.config import Config
from berg.features.gke import clusters, kube, pods
from berg.gce import Shape


def pool(name: str, kind: str, gpus: Any = None, **more: Any) -> dict[str, Any]:
    accelerators = [{"acceleratorType": gpus[0], "acceleratorCount": str(gpus[1])}] if gpus else []
    nodes, spot = more.pop("nodes", 2), more.pop("spot", False)
    config = {"machineType": kind, "accelerators": accelerators, "spot": spot}
    scaling = {"enabled": True, "minNodeCount": 0, "maxNodeCount": nodes}
    return {"name": name, "config": config, "autoscaling": scaling, "initialNodeCount": 0, **more}


T4, L4 = "nvidia-tesla-t4", "nvidia-l4"
MIXED = {
    "name": "mixed",
    "nodePools": [
        pool("system", "e2-medium", nodes=9),
        pool("small", "n1-standard-2"),
        pool("large", "n1-standard-16", nodes=3),
        pool("t4-x2", "n1-standard-8", (T4, 2), nodes=3),
        pool("t4-x4-spot", "n1-standard-16", (T4, 4), nodes=2, spot=True),
        pool("still", "n1-standard-8", (T4, 1), nodes=50, autoscaling={}, initialNodeCount=1),
    ],
}
WITH_L4 = {"name": "l4s", "nodePools": [*MIXED["nodePools"], pool("l4", "g2-standard-4", (L4, 1))]}


@pytest.mark.parametrize(
    ("cluster", "asked", "machine_type", "gpu_type", "room"),
    [
        (MIXED, (0, "l4", None, ""), "n1-standard-16", "", 3000),
        (MIXED, (0, "l4", 2, ""), "n1-standard-16", "", 3000),  # Kubernetes keeps a part of two
        (MIXED, (0, "l4", None, "n1-standard-2"), "n1-standard-2", "", 2000),
        (MIXED, (None, "l4", None, ""), "n1-standard-16", "t4", 8),  # one of whatever there is
        (MIXED, (2, "t4", None, ""), "n1-standard-16", "t4", 4),
        (MIXED, (2, "t4", None, "n1-standard-8"), "n1-standard-8", "t4", 3),
        (MIXED, (1, "t4", None, "", True), "n1-standard-16", "t4", 8),
        (WITH_L4, (1, "l4", None, ""), "g2-standard-4", "l4", 2),
        (WITH_L4, (None, "t4", None, ""), "n1-standard-16", "t4", 8),
    ],
)
def test_a_pod_comes_from_the_pool_with_the_most_room(
    cluster: Any, asked: Any, machine_type: str, gpu_type: str, room: int
) -> None:
    shape, found = pods.choose(cluster, *asked)
    assert (shape.machine_type, shape.gpu_type, found) == (machine_type, gpu_type, room)
    assert shape.gpus == (1 if asked[0] is None else asked[0])


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((1, "v99", None, ""), "no GPU type 'v99'"),
        ((8, "t4", None, ""), "for 8 x t4; its pools: 9 of e2|for 8 x t4; its pools: 2 of n1"),
        ((4, "t4", 16, ""), "4 x t4 with 16 vCPUs"),
        ((0, "l4", 16, ""), "pods without GPUs with 16 vCPUs"),
        ((0, "l4", None, "", True), "no Spot node .* -g 0 --spot"),
        ((1, "t4", None, "g2-standard-4"), "1 x t4 on g2-standard-4"),
        ((1, "a100", None, ""), "-t a100 -g 1"),
    ],
)
def test_what_no_pool_has_is_named_with_the_pools(asked: Any, says: str) -> None:
    with pytest.raises(BergError, match=says) as refused:
        pods.choose(MIXED, *asked)
    assert "e2-medium" not in str(refused.value), "that node is Kubernetes' own"


REQUEST = {
    "labels": {"berg-user": "ada", "berg-kind": "job", "berg-job": "ignored"},
    "scheduling": {"maxRunDuration": {"seconds": "3600"}},
    "metadata": {"items": [{"key": "startup-script", "value": "long"},
                           {"key": "berg-job", "value": "made"}]},
}  # fmt: skip
CONFIG = Config(project="p", bucket="my.bucket-")


def made(request: Any = REQUEST, patch: Any = (), secrets: bool = False, **about: Any) -> Any:
    about = {"image": "python:3.12", "returns": True, **about}
    job = job_of("made", **about)
    return pods.manifest(CONFIG, job, request, "us-central1-a/train", dict(patch), secrets)


LABELS = {"berg": "1", "berg-bucket": "my-bucket", "berg-job": "made", "berg-user": "ada"}
LABELS |= {"berg-kind": "job"}
MAIN = {
    "name": "main",
    "image": "python:3.12",
    "command": ["python3", "/etc/berg/boot/pod.py"],
    "env": [
        {"name": "BERG_FACTS", "value": '{"berg-job": "made", "place": "us-central1-a/train"}'},
        {"name": "BERG_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "BERG_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ],
    "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}},
    "resources": {  # no limit of memory
        "limits": {"nvidia.com/gpu": "2"}, "requests": {"nvidia.com/gpu": "2", "cpu": "3"},
    },
    "volumeMounts": [
        {"name": "berg-boot", "mountPath": "/etc/berg/boot", "readOnly": True},
        {"name": "berg-pod", "mountPath": "/etc/berg/pod", "readOnly": True},
        {"name": "berg-shm", "mountPath": "/dev/shm"},
    ],
}  # fmt: skip
WORDS = {"path": "annotations", "fieldRef": {"fieldPath": "metadata.annotations"}}


def test_a_pod_has_what_its_job_asks_for_and_no_more() -> None:
    job, boot = made(gpus=2, gpu_type="t4", options={"cpus": 3}), pods.boot_map()
    about = {"berg-machines": "1", "berg-machine-type": "n1-standard-8"}
    about |= {"berg-job-sha256": job["metadata"]["annotations"]["berg-job-sha256"]}
    assert job["metadata"] == {"name": "made", "labels": LABELS, "annotations": about}
    about |= {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    template = job["spec"]["template"]
    assert template["metadata"] == {"labels": LABELS, "annotations": about}
    toleration = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
    assert template["spec"] == {
        "restartPolicy": "Never", "automountServiceAccountToken": False,
        "shareProcessNamespace": True, "terminationGracePeriodSeconds": 120,
        "enableServiceLinks": False, "activeDeadlineSeconds": 3600 + 600,
        "nodeSelector": {"cloud.google.com/gke-accelerator": T4},
        "tolerations": [toleration], "containers": [MAIN],
        "volumes": [
            {"name": "berg-boot", "configMap": {"name": boot["metadata"]["name"]}},
            {"name": "berg-pod", "downwardAPI": {"items": [WORDS]}},
            {"name": "berg-shm", "emptyDir": {"medium": "Memory"}},
        ],
    }  # fmt: skip
    content = hashlib.sha256("".join(boot["data"].values()).encode()).hexdigest()
    assert boot["metadata"]["name"] == f"berg-boot-{content[:10]}" and boot["immutable"]
    assert {*boot["data"]} == {"boot.py", "pod.py"}


def test_a_pod_without_gpus_or_on_spot_goes_to_such_nodes_alone() -> None:
    label, every = "cloud.google.com/gke-spot", {"operator": "Exists", "effect": "NoSchedule"}
    selector = {"node.kubernetes.io/instance-type": "n1-standard-8"}
    spot = {**REQUEST, "scheduling": {**REQUEST["scheduling"], "provisioningModel": "SPOT"}}
    for request, more, keys in ((REQUEST, {}, []), (spot, {label: "true"}, [label])):
        spec = made(request)["spec"]["template"]["spec"]
        assert spec["nodeSelector"] == {**selector, **more}
        assert spec["tolerations"] == [{"key": key, **every} for key in ("berg", *keys)]
        assert spec["containers"][0]["resources"] == {"limits": {}, "requests": {}}


@pytest.mark.parametrize(
    ("about", "again", "action", "kept", "success"),
    [
        ({"machines": 3}, 5, "Ignore", 86400, {"rules": [{"succeededIndexes": "0"}]}),
        (
            {"cmd": "", "returns": False},
            0,
            "FailJob",
            86400,
            {"rules": [{"succeededIndexes": "0"}]},
        ),
        ({"machines": 2, "rows": [{"x": "1"}] * 2}, 5, "Ignore", 86400, None),  # all of them work
        ({"secrets": True}, 5, "Ignore", 60, {"rules": [{"succeededIndexes": "0"}]}),
    ],
)
def test_which_pods_kubernetes_makes_again(
    about: Any, again: int, action: str, kept: int, success: Any
) -> None:
    job, number = made(**about)["spec"], about.get("machines", 1)
    codes = {"containerName": "main", "operator": "In"}
    taken = [{"type": "DisruptionTarget", "status": "True"}]
    assert {**job, "template": None} == {
        "completionMode": "Indexed", "completions": number, "parallelism": number,
        "backoffLimit": again, "podReplacementPolicy": "Failed", "template": None,
        "ttlSecondsAfterFinished": kept, **({"successPolicy": success} if success else {}),
        "podFailurePolicy": {"rules": [
            {"action": "FailJob", "onExitCodes": {**codes, "values": [42, 126, 127, 128]}},
            {"action": action, "onExitCodes": {**codes, "values": [43]}},
            {"action": action, "onPodConditions": taken},
        ]},
    }  # fmt: skip


def test_secrets_of_a_pod_are_mounted_for_root_alone_and_go_with_its_job() -> None:
    job = made(secrets=True)
    spec = job["spec"]["template"]["spec"]
    volume, mount = spec["volumes"][-1], spec["containers"][0]["volumeMounts"][-1]
    source = {"secretName": volume["secret"]["secretName"], "defaultMode": 0o400}
    assert volume == {"name": "berg-secrets", "secret": source}
    place = "/etc/berg/secrets"
    assert mount == {"name": "berg-secrets", "mountPath": place, "readOnly": True}
    job["metadata"]["uid"] = "u-1"
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "made", "uid": "u-1"}
    about = {"name": source["secretName"], "labels": LABELS, "ownerReferences": [owner]}
    assert pods.secret(job, {"TOKEN": "x"}) == {
        "apiVersion": "v1", "kind": "Secret", "immutable": True, "metadata": about,
        "stringData": {"values": '{"TOKEN": "x"}'},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "patch", "new"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"args": [1, 2]}, {"args": [3]}, {"args": [3]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]},
         {"tolerations": [{"key": "a"}, {"key": "b"}]}),
        ({"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
         {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
         {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"},
                  {"name": "C", "value": "4"}]}),
        ({"volumeMounts": [{"mountPath": "/a", "name": "x"}]},
         {"volumeMounts": [{"mountPath": "/a", "$patch": "delete"}]}, {"volumeMounts": []}),
        ({"containers": [{"name": "main", "image": "a"}]},
         {"containers": [{"name": "main", "tty": True}]},
         {"containers": [{"name": "main", "image": "a", "tty": True}]}),
    ],
)  # fmt: skip
def test_a_patch_is_merged_as_kubernetes_does(old: Any, patch: Any, new: Any) -> None:
    assert pods.merge(old, patch) == new


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"spec": {"hostNetwork": true}}', ""),
        ("spec:\n  hostNetwork: true\n", ""),
        ('{"metadata": {"labels": {"team": "a"}}, "spec": {}}', ""),
        ('{"kind": "Pod", "spec": {"containers": [{"name": "main", "tty": true}]}}', ""),
        ('{"spec": {}, "status": {}}', "status is no part of a pod"),
        ('{"metadata": {}}', "is no part of a pod. Give its spec"),
        ("[1]", "is no part of a pod. Give its spec"),
        ('{"spec": {"shareProcessNamespace": false}}', "shareProcessNamespace is Berg's"),
        ('{"spec": {"restartPolicy": "Always"}}', "restartPolicy is Berg's"),
        ('{"spec": {"containers": [{"name": "main", "command": ["x"]}]}}', "command is Berg's"),
        ('{"spec": {"containers": [{"name": "main", "args": ["x"]}]}}', "args is Berg's"),
        ('{"spec": {}, "metadata": {"labels": {"berg-job": "x"}}}', "berg-job is Berg's"),
        ('{"spec": {}, "metadata": {"annotations": {"Berg-kill": "x"}}}', "Berg-kill is Berg's"),
        ('{"spec": {"containers": [{"name": "main", "env": [{"name": "BERG_FACTS"}]}]}}',
         "BERG_FACTS is Berg's"),
        ("spec: [", "is not valid YAML"),
    ],
)  # fmt: skip
def test_a_patch_of_a_pod_is_read_or_refused(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "patch"
    file.write_text(text)
    if says:
        with pytest.raises(BergError, match=says):
            pods.read_patch(str(file))
    else:
        assert pods.read_patch(str(file)).keys() <= {"metadata", "spec"}
    with pytest.raises(BergError, match="cannot read"):
        pods.read_patch(str(tmp_path / "none"))
    with pytest.raises(BergError, match="has no name"):
        pods.merge({}, {"env": [{"value": "1"}]})


def row(phase: str, node: str = "", **more: Any) -> dict[str, Any]:
    labels = {"berg-job": "job1", "berg-user": "ada", pods.INDEX: "2"}
    own = {"berg-machines": "3", "berg-job-sha256": "f00", "berg-machine-type": "n1-standard-8"}
    about = {"name": "job1-2-xyz", "uid": "u-9", "creationTimestamp": "2026-01-01T00:00:00Z",
             "labels": labels, "annotations": own,
             "ownerReferences": [{"name": "job1", "uid": "u-1"}]}  # fmt: skip
    about |= more.pop("metadata", {})
    spec = {"nodeName": node} if node else {}
    return {
        "metadata": about,
        "spec": spec,
        "status": {"phase": phase, "podIP": "10.4.0.1", **more},
    }


def event(reason: str, at: str, uid: str = "u-9") -> dict[str, Any]:
    return {"involvedObject": {"uid": uid}, "reason": reason, "message": f"said {at}\n twice",
            "lastTimestamp": at}  # fmt: skip


WAITING = [{"state": {"waiting": {"reason": "ErrImagePull", "message": "no such\n image"}}}]
CREATING = [{"state": {"waiting": {"reason": "ContainerCreating"}}}]


@pytest.mark.parametrize(
    ("pod", "status", "note"),
    [
        (row("Running", "node-1"), "RUNNING", ""),
        (row("Running", "node-1", metadata={"deletionTimestamp": "x"}), "STOPPING", ""),
        (row("Pending", "node-1"), "STAGING", "its node node-1 pulls the image"),
        (
            row("Pending", "node-1", containerStatuses=WAITING),
            "STAGING",
            "ErrImagePull: no such image",
        ),
        (row("Pending", "n", containerStatuses=CREATING), "STAGING", "its node n pulls the image"),
        (row("Pending"), "PROVISIONING", "waits for a node: NotTriggerScaleUp said 2 twice"),
    ],
)
def test_a_pod_is_a_machine_that_says_what_it_waits_for(
    pod: dict[str, Any], status: str, note: str
) -> None:
    events = [
        event("NotTriggerScaleUp", "2"), event("FailedScheduling", "2"),
        event("FailedScheduling", "1"), event("FailedScaleUp", "3", "another"),
        event("Pulled", "4"),
    ]  # fmt: skip
    assert pods.pod_of(pod, "us-central1-a/train", events) == pods.Pod(
        "job1-2", "us-central1-a/train", status, "job1", "u-9", has_disk=False, user="ada",
        created_at="2026-01-01T00:00:00Z", inner_address="10.4.0.1", note=note, pod="job1-2-xyz",
        machine_type="n1-standard-8", labels=pod["metadata"]["labels"], owner="job1",
        owner_uid="u-1",
    )  # fmt: skip
    alone = row("Running", metadata={"annotations": {"berg-machines": "1"}})
    assert pods.pod_of(alone, "x/y", []).name == "job1"
    assert pods.pod_of(row("Pending"), "x/y", []).note == "waits for a node"


@pytest.mark.parametrize(
    ("conditions", "metadata", "is_over"),
    [
        ([], {}, False),
        ([{"type": "Complete", "status": "True"}], {}, True),
        ([{"type": "FailureTarget", "status": "True"}], {}, True),
        ([{"type": "Failed", "status": "False"}], {}, False),
        ([{"type": "Suspended", "status": "True"}], {}, False),
        ([], {"deletionTimestamp": "x"}, True),
    ],
)
def test_when_a_job_makes_no_more_pods(conditions: Any, metadata: Any, is_over: bool) -> None:
    assert pods.has_ended({"status": {"conditions": conditions}, "metadata": metadata}) == is_over
    assert [pods.is_alive(row(phase)) for phase in ("Pending", "Running", "Failed")] == [1, 1, 0]


# --- clusters


def nodes(**about: Any) -> clusters.Nodes:
    return clusters.Nodes(**{"num_nodes": 3, "min_nodes": 1, "disk_gb": 120, **about})


NODE = {"oauthScopes": ["https://www.googleapis.com/auth/cloud-platform"], "labels": {"berg": "1"}}
NODE |= {"resourceLabels": {"berg": "1"}}
MANAGED = {"autoUpgrade": True, "autoRepair": True}
KUBELET = {"singleProcessOomKill": True}
SPOT = {"shutdownGracePeriodSeconds": 120, "shutdownGracePeriodCriticalPodsSeconds": 15}


def cards(kind: str, count: str, drivers: str) -> list[dict[str, Any]]:
    own = {"gpuDriverVersion": drivers}
    about = {"acceleratorType": kind, "acceleratorCount": count}
    return [{**about, "gpuDriverInstallationConfig": own}]


@pytest.mark.parametrize(
    ("spot", "shape", "name", "more"),
    [
        (False, Shape("n1-standard-8", 2, "t4"), "t4-x2",
         {"kubeletConfig": KUBELET, "accelerators": cards(T4, "2", "LATEST")}),
        (True, Shape("n1-standard-8", 1, "v100"), "v100-x1-spot",
         {"kubeletConfig": {**KUBELET, **SPOT}, "spot": True,
          "accelerators": cards("nvidia-tesla-v100", "1", "DEFAULT")}),
        (False, Shape("n2-standard-4", 0, ""), "n2-standard-4",
         {"kubeletConfig": KUBELET,
          "taints": [{"key": "berg", "value": "true", "effect": "NO_SCHEDULE"}]}),
    ],
)  # fmt: skip
def test_a_pool_is_what_was_asked_for(spot: bool, shape: Shape, name: str, more: Any) -> None:
    config = Config(project="p", bucket="b", service_account="w@p", user="ada")
    disk = {"diskSizeGb": 120, "diskType": "pd-ssd", "machineType": shape.machine_type}
    limits = {"enabled": True, "locationPolicy": "ANY", "minNodeCount": 1, "maxNodeCount": 3}
    assert clusters.pool_body(config, nodes(spot=spot), shape, "pd-ssd") == {
        "name": name, "initialNodeCount": 0, "autoscaling": limits, "management": MANAGED,
        "config": {**NODE, **disk, "serviceAccount": "w@p", **more},
    }  # fmt: skip


@pytest.mark.parametrize("is_private", [False, True])
def test_a_cluster_has_one_small_node_and_is_private_if_machines_are(is_private: bool) -> None:
    config = Config(project="p", bucket="b", user="ada", network="inner")
    config.no_external_ip = "true" if is_private else ""
    small = {"machineType": "e2-medium", "diskSizeGb": 30, "diskType": "pd-standard", **NODE}
    private = {"networkConfig": {"defaultEnablePrivateNodes": True}} if is_private else {}
    outside = {"dnsEndpointConfig": {"allowExternalTraffic": True}}
    system = {"name": "system", "initialNodeCount": 1, "config": small, "management": MANAGED}
    assert clusters.cluster_body(config, "train") == {
        "name": "train", "network": "inner", "releaseChannel": {"channel": "REGULAR"},
        "ipAllocationPolicy": {"useIpAliases": True}, "controlPlaneEndpointsConfig": outside,
        "resourceLabels": {"berg": "1", "berg-user": "ada"}, "nodePools": [system],
        "addonsConfig": {"httpLoadBalancing": {"disabled": True}},
        "autoscaling": {"autoscalingProfile": "OPTIMIZE_UTILIZATION"}, **private,
    }  # fmt: skip


def test_a_cluster_is_reached_by_its_name_or_with_its_own_authority(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def request(*_: Any, verify: Any, **more: Any) -> None:
        raise BergError(f"asked, verify {verify}")

    monkeypatch.setattr(kube.google, "session", lambda *_: SimpleNamespace(request=request))
    monkeypatch.setattr(Config, "credentials", "none")
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    dns = {"dnsEndpointConfig": {"allowExternalTraffic": True, "endpoint": "x.gke.goog"}}
    about = {"name": "c", "location": "z", "endpoint": "1.2.3.4", "status": "RUNNING",
             "masterAuth": {"clusterCaCertificate": base64.b64encode(b"pem").decode()}}  # fmt: skip
    found = kube.connect(CONFIG, {**about, "controlPlaneEndpointsConfig": dns})
    assert (found.place, found.url, found.ca) == ("z/c", "https://x.gke.goog", "")
    with pytest.raises(BergError, match="asked, verify True"):  # by a public authority
        kube.ask(CONFIG, found, "GET", "/api")
    for allows, endpoint in ((True, "x.evil.com"), (False, "x.gke.goog")):
        dns["dnsEndpointConfig"] = {"allowExternalTraffic": allows, "endpoint": endpoint}
        found = kube.connect(CONFIG, {**about, "controlPlaneEndpointsConfig": dns})
        assert found.url == "https://1.2.3.4" and Path(found.ca).read_bytes() == b"pem"
        assert Path(found.ca).parent == tmp_path / "clusters"
    with pytest.raises(BergError, match="the cluster c is PROVISIONING"):
        kube.connect(CONFIG, {"name": "c", "location": "z", "status": "PROVISIONING"})


BOOT = """
import os, sys
def main():
    sys.exit(int(os.environ["CODE"]) if "CODE" in os.environ else delete_machine())
"""


@pytest.mark.parametrize(
    ("code", "ended", "index", "facts", "exits"),
    [
        ("0", "SUCCEEDED", "0", {}, 0),
        ("0", "FAILED", "0", {}, 42),
        ("0", "FAILED", "1", {}, 0),  # the first pod says how the job ended
        ("0", "", "0", {}, 42),
        ("75", "SUCCEEDED", "0", {}, 43),  # another pod goes on
        ("75", "FAILED", "0", {"berg-rows": "3"}, 43),
        ("0", "FAILED", "0", {"berg-rows": "3"}, 0),
        ("1", "", "0", {}, 42),
        (None, "", "0", {}, 42),  # no worker could work
    ],
)
def test_the_exit_code_of_a_pod_says_whether_another_one_is_to_come(
    tmp_path: Path, code: str | None, ended: str, index: str, facts: Any, exits: int
) -> None:
    (tmp_path / "boot.py").write_text(BOOT)
    shutil.copy(pods.__file__.replace("pods.py", "pod.py"), tmp_path)
    (tmp_path / "berg").mkdir()
    if ended:
        (tmp_path / "berg/ended").write_text(json.dumps({"state": ended}))
    own = {
        "BERG_ROOT": str(tmp_path),
        "JOB_COMPLETION_INDEX": index,
        "BERG_FACTS": json.dumps(facts),
    }
    env = {**os.environ, **own, **({"CODE": code} if code else {})}
    assert subprocess.run([sys.executable, str(tmp_path / "pod.py")], env=env).returncode == exits


def test_a_pod_that_is_taken_before_its_worker_began_is_made_again(tmp_path: Path) -> None:
    (tmp_path / "boot.py").write_text(
        "import time\ndef main():\n    print('up', flush=True)\n    time.sleep(60)\n"
    )
    shutil.copy(pods.__file__.replace("pods.py", "pod.py"), tmp_path)
    env = {**os.environ, "BERG_ROOT": str(tmp_path)}
    words = [sys.executable, str(tmp_path / "pod.py")]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as pod:
        assert pod.stdout and pod.stdout.readline() == b"up\n"
        pod.terminate()
        assert pod.wait(30) == 43
