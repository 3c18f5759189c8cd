"""What `--pod-patch` takes, and what comes of it; on a cluster: test_gke.py."""

import json

import pytest

from berg import BergError
from berg.gke import pods
from berg.spec import JobSpec
from localcloud.kubernetes import patches

TEMPLATE = {
    "metadata": {"labels": {"berg": "1"}, "annotations": {"a": "b"}},
    "spec": {
        "containers": [
            {
                "name": "main",
                "env": [{"name": "BERG_FACTS", "value": "{}"}],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
        "nodeSelector": {"gpu": "t4"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "enableServiceLinks": False,
    },
}
PATCH = """
apiVersion: v1
kind: Pod
metadata:
  labels: {team: vision}
spec:
  nodeSelector: {disk: ssd}
  enableServiceLinks: null
  containers:
  - name: main
    env: [{name: MODE, value: fast}]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
  - {name: shm, emptyDir: {sizeLimit: 1Gi}}
"""


def written(folder, text: str) -> str:
    (folder / "pod.yaml").write_text(text)
    return str(folder / "pod.yaml")


def test_a_patch_is_merged_as_kubernetes_merges_it(tmp_path):
    patch = pods.read_patch(written(tmp_path, PATCH))
    made = pods.patched(TEMPLATE, patch)
    spec = made["spec"]
    main = spec["containers"][0]
    assert made["metadata"] == {
        "labels": {"berg": "1", "team": "vision"},
        "annotations": {"a": "b"},
    }
    assert [each["name"] for each in main["env"]] == ["BERG_FACTS", "MODE"]
    assert [each["mountPath"] for each in main["volumeMounts"]] == ["/dev/shm", "/data"]
    assert spec["volumes"][0]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
    assert spec["nodeSelector"] == {"gpu": "t4", "disk": "ssd"} and "enableServiceLinks" not in spec
    # As a server merges it that shares no code with berg.
    assert made == patches.merge(json.loads(json.dumps(TEMPLATE)), patch)
    assert "team" not in TEMPLATE["metadata"]["labels"]


def test_items_go_and_tolerations_come():
    patch = {
        "spec": {
            "volumes": [{"name": "shm", "$patch": "delete"}],
            "tolerations": [{"key": "mine", "operator": "Exists"}],
        }
    }
    spec = pods.patched(TEMPLATE, patch)["spec"]
    assert spec["volumes"] == []
    assert [each["key"] for each in spec["tolerations"]] == ["nvidia.com/gpu", "mine"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("spec: [", "is not valid YAML"),
        ("[1]", "is not part of a pod"),
        ("3", "is not part of a pod"),
        ("spec: {containers: 3}", "is not part of a pod"),
        ("spec: {containers: [{image: x}]}", "is not part of a pod"),
        ("volumes: []", "volumes is not part of a pod"),
        ("spec: {restartPolicy: Always}", "restartPolicy is berg's"),
        ("spec: {containers: [{name: main, command: [sh]}]}", "command is berg's"),
        ("spec: {containers: [{name: main, $patch: delete}]}", "$patch is berg's"),
        ("spec: {containers: [{name: main, env: [{name: BERG_POD}]}]}", "BERG_POD is berg's"),
        ("metadata: {labels: {berg-job: other}}", "berg-job is berg's"),
    ],
)
def test_what_is_no_patch_is_refused(tmp_path, text, why):
    with pytest.raises(BergError) as error:
        pods.read_patch(written(tmp_path, text))
    assert why in error.value.message


def test_items_without_a_name_and_directives_are_refused():
    for spec in ({"volumes": [{"emptyDir": {}}]}, {"$retainKeys": ["a"]}):
        with pytest.raises(BergError, match="--pod-patch"):
            pods.patched(TEMPLATE, {"spec": spec})


@pytest.mark.parametrize("spec", [{"volumes": 3}, {"volumes": [3]}, {"securityContext": {"a": 1}}])
def test_what_fits_nowhere_in_a_pod_is_refused(spec):
    """As Python gives it, without a file that was looked at."""
    template = {"spec": {**TEMPLATE["spec"], "securityContext": 7}}
    with pytest.raises(BergError, match="--pod-patch: what it holds is not part of a pod"):
        pods.patched(template, {"spec": spec})


def test_a_missing_file_and_a_patch_without_a_cluster(tmp_path):
    with pytest.raises(BergError, match="cannot read it"):
        pods.read_patch(str(tmp_path / "none"))
    with pytest.raises(BergError, match="--pod-patch needs --cluster"):
        JobSpec(cmd="true", pod_patch={"spec": {}}).check()
