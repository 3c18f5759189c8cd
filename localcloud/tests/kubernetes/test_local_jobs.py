"""Jobs on a cluster of the embedded cloud, over plain HTTP."""

from local_kube import job


def test_an_indexed_job_runs_its_pods_and_completes(kube):
    kube.create(job("two", "echo rank $JOB_COMPLETION_INDEX on $HOSTNAME; pwd", count=2))
    assert kube.ended("two")["type"] == "Complete"
    pods = sorted(kube.pods("two"), key=lambda pod: pod["metadata"]["name"])
    assert [kube.log(pod["metadata"]["name"]) for pod in pods] == [
        "rank 0 on two-0\n/\n",
        "rank 1 on two-1\n/\n",
    ]
    status = kube.get("jobs", "two")["status"]
    assert (status["succeeded"], status["completedIndexes"]) == (2, "0,1")


def test_gpu_pods_bring_nodes_from_zero(kube):
    kube.create(job("gpus", "echo here", count=2, gpus=2))
    assert kube.ended("gpus")["type"] == "Complete"
    pods = kube.pods("gpus")
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2
    told = {reason for pod in pods for reason, _ in kube.events(pod["metadata"]["name"])}
    assert {"FailedScheduling", "TriggeredScaleUp", "Scheduled", "Pulled", "Started"} <= told


def test_a_pod_has_its_nodes_metadata_server(kube):
    script = """python3 - <<'END'
import os, urllib.request
url = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/name"
print(urllib.request.urlopen(urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})).read().decode())
END"""
    kube.create(job("meta", script))
    kube.ended("meta")
    (pod,) = kube.pods("meta")
    assert kube.log(pod["metadata"]["name"]).strip() == pod["spec"]["nodeName"]


def test_kubectl_sees_and_reaches_pods(kube):
    kube.create(job("shell", "echo begun; sleep 60"))
    name = kube.pod("shell")["metadata"]["name"]
    assert "Running" in kube.kubectl("get", "pods")
    assert "begun" in kube.kubectl("logs", name)
    assert (
        kube.kubectl("exec", "-i", name, "--", "sh", "-c", "cat; echo $HOSTNAME", stdin="in\n")
        == "in\nshell-0\n"
    )
    assert kube.run("exec", name, "--", "sh", "-c", "exit 7").returncode == 7
    kube.kubectl("delete", "job", "shell", "--wait")
