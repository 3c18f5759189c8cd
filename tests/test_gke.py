"""Jobs in pods of a cluster, from the cluster's making to its end, over berg's real command line."""

import base64
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pods
import pytest
from conftest import settle, wait_for
from local_kube import job
from machine.test_cluster import OLD_LAUNCHER, check_training, copy_torch_example
from pods import alive, cluster

from berg.gke import client, clusters
from berg.gke.pods import boot_map, failure_rules
from berg.laptop import ending

PLACE = "us-central1-a/pods"
needs_kubectl = pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster with room for two pods of two T4 each, and for Spot ones."""
    pool = {"gpu_type": "t4", "num_gpus": 2, "machine_type": "n1-standard-4"}
    with cluster(
        cloud, "pods", tmp_path_factory.mktemp("kube"), pool, {**pool, "spot": True}
    ) as made:
        yield made


@pytest.fixture(autouse=True)
def clean(request):
    yield
    if "kube" in request.fixturenames:
        pods.delete_jobs(request.getfixturevalue("kube"))


def running(berg, name: str) -> None:
    wait_for(lambda: berg.state(name)["state"] == "RUNNING", 60, f"{name} runs")


def listed(berg) -> dict[str, list[str]]:
    """The rows of `berg cluster list` by name: other tests of this process may have clusters."""
    rows = berg("cluster", "list").stdout.splitlines()[1:]
    return {row.split()[0]: row.split()[1:] for row in rows}


def run(berg, *words: str):
    return berg("run", "--cluster", "pods", *words)


# --- a cluster


@pytest.mark.slow
@needs_kubectl
def test_a_cluster_from_nothing_to_its_end_with_the_settings_of_old_scripts(berg, cloud, tmp_path):
    settle(cloud)
    size = [
        "--num-nodes",
        "2",
        "--machine-type",
        "n1-standard-4",
        "-t",
        "nvidia-tesla-t4",
        "-g",
        "2",
    ]
    disk = ["--disk-gb", "100", "--disk-type", "pd-ssd"]
    made = berg("cluster", "create", "gke-dist", *size, *disk)
    assert made.returncode == 0, made.stderr
    assert "Making the cluster gke-dist" in made.stderr and "about $0.13 an hour" in made.stderr
    place = made.stdout.strip()
    body = client.get_cluster(cloud.settings(), place)
    assert body["resourceLabels"]["berg"] == "1"
    pool = next(each for each in body["nodePools"] if each["name"] == "t4-x2")
    node = pool["config"]
    assert (node["machineType"], node["diskSizeGb"], node["diskType"]) == (
        "n1-standard-4",
        100,
        "pd-ssd",
    )
    assert node["accelerators"][0]["gpuDriverInstallationConfig"] == {"gpuDriverVersion": "LATEST"}
    assert pool["initialNodeCount"] == 0 and pool["autoscaling"]["maxNodeCount"] == 2
    try:
        again = berg("cluster", "create", "gke-dist", *size, *disk)
        assert (
            again.returncode == 0
            and "Making" not in again.stderr
            and "stays as it is" not in again.stderr
        )
        other = berg(
            "cluster",
            "create",
            "gke-dist",
            "-t",
            "t4",
            "-g",
            "2",
            "--machine-type",
            "n1-standard-8",
        )
        there = "The pool t4-x2 exists already, with 0 to 2 nodes of n1-standard-4 with 100 GB of pd-ssd"
        resize = "Its limits: berg cluster resize gke-dist --pool t4-x2 --max-nodes 2"
        assert f"{there}, and stays as it is. {resize}\n" in other.stderr
        assert other.returncode == 0 and "Making" not in other.stderr
        for more in (
            ["--num-nodes", "8"],
            ["--min-nodes", "1"],
            ["--disk-gb", "500"],
            ["--disk-type", "pd-balanced"],
        ):
            assert (
                "stays as it is"
                in berg("cluster", "create", "gke-dist", *size, *disk, *more).stderr
            ), more
        assert listed(berg)["gke-dist"][:2] == [place.split("/")[0], "RUNNING"]
        told = "python3 -c \"import os, socket; print(socket.gethostname(), os.environ['PET_NNODES'])\""
        done = berg(
            "run",
            "--cluster",
            "gke-dist",
            "-n",
            "ddp",
            "-m",
            "2",
            "-g",
            "2",
            "--each",
            "--tail",
            told,
        )
        assert done.returncode == 0, done.stderr
        assert {"ddp-0 | ddp-0 2", "ddp-1 | ddp-1 2"} <= set(done.stdout.splitlines())
        idle = lambda: (
            (t := berg("cluster", "status", "gke-dist").stdout)
            and "GPUs: 0 used, 4 free" in t
            and t
        )
        status = wait_for(idle, what="the end of its pods")
        assert "2 of 0 to 2" in status and "idle" in status
        assert re.search(r"Google installs \S+, 2 of 2 ", status), status
        assert berg("cluster", "resize", "gke-dist", "--max-nodes", "5").returncode == 0
        assert (
            json.loads(berg("cluster", "status", "gke-dist", "--json").stdout)["pools"][1][
                "max_nodes"
            ]
            == 5
        )
        file = tmp_path / "kubeconfig"
        others = {
            "clusters": [{"name": "mine", "cluster": {"server": "https://127.0.0.1:1"}}],
            "kind": "Config",
        }
        file.write_text(json.dumps({"apiVersion": "v1", **others}))
        assert (
            berg("cluster", "status", "gke-dist", "--kubectl", KUBECONFIG=str(file)).returncode == 0
        )
        assert "mine" in file.read_text()
        environment = berg.environment(KUBECONFIG=str(file))
        asked = subprocess.run(
            ["kubectl", "get", "jobs", "-o", "name"],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert asked.stdout == "job.batch/ddp\n", asked.stderr
        shown = berg(
            "run", "--cluster", "gke-dist", "-n", "dry", "-m", "2", "--dry-run", "--json", "true"
        ).stdout
        words = [
            "kubectl",
            "create",
            "--dry-run=server",
            "--validate=strict",
            "-o",
            "name",
            "-f",
            "-",
        ]
        body = json.dumps(json.loads(shown)["request"])
        made = subprocess.run(words, env=environment, input=body, capture_output=True, text=True)
        assert "job.batch/dry" in made.stdout, made.stderr
    finally:
        gone = berg("cluster", "delete", "gke-dist", "-y")
    assert gone.returncode == 0, gone.stderr
    assert "gke-dist" not in listed(berg)
    assert not [name for name in cloud.instances() if "gke-dist" in name]


@pytest.mark.slow
def test_an_interrupted_creation_is_named_and_goes_on(berg, cloud):
    settle(cloud)
    cloud.call("POST", "/_berg/settings", {"operation": 4.0})
    wishes = [
        "-g",
        "0",
        "--machine-type",
        "n1-standard-2",
        "--max-nodes",
        "3",
        "--spot",
        "--zone",
        "us-central1-b",
    ]
    process = berg.start("cluster", "create", "half", *wishes)
    clusters_path = "/container/v1/projects/berg-local/locations/-/clusters"
    wait_for(
        lambda: [
            c for c in cloud.call("GET", clusters_path).get("clusters", []) if c["name"] == "half"
        ]
    )
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "berg cluster delete half" in said
    go_on = shlex.split(said.partition("Continue:")[2].partition("\n")[0])
    assert " ".join(go_on) == (
        "berg cluster create half --max-nodes 3 --machine-type n1-standard-2 -g 0 --zone us-central1-b --spot"
    )
    done = berg(*go_on[1:])
    assert done.returncode == 0, done.stderr
    assert "which was running" not in done.stdout
    body = client.find_cluster(cloud.settings(), "half")
    assert [pool["name"] for pool in body["nodePools"]] == ["system", "n1-standard-2-spot"]
    assert (body["location"], client.most_nodes(body["nodePools"][1])) == ("us-central1-b", 3)
    cloud.call("POST", "/_berg/settings", {"operation": 0.2})
    assert berg("cluster", "delete", "half", "-y").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["interrupted", "without an answer"])
def test_a_deletion_goes_on(berg, cloud, lost):
    settle(cloud)
    cloud.call("POST", "/_berg/settings", {"operation": 0.2})
    assert (
        berg(
            "cluster", "create", "bucket-half", "-g", "0", "--machine-type", "n1-standard-2"
        ).returncode
        == 0
    )
    files = lambda: list((berg.home / "clusters").glob("*bucket-half*"))
    assert files()
    cloud.fault("container.projects.locations.clusters.nodePools.setSize", status=404)
    missing = berg("cluster", "resize", "bucket-half", "--num-nodes", "1")
    assert missing.returncode == 1 and "refused" in missing.stderr, "not the bucket of the settings"
    if lost == "interrupted":
        cloud.call("POST", "/_berg/settings", {"operation": 4.0})
        process = berg.start("cluster", "delete", "bucket-half", "-y")
        wait_for(
            lambda: client.find_cluster(cloud.settings(), "bucket-half")["status"] == "STOPPING"
        )
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
        assert process.returncode == 130
    else:
        berg.allowed.append(400)  # one operation at a time
        cloud.fault("container.projects.locations.clusters.delete", reset=True, after_handler=True)
    gone = berg("cluster", "delete", "bucket-half", "-y")
    assert gone.returncode == 0, gone.stderr
    assert "bucket-half" not in listed(berg) and not files()


# --- jobs


def test_a_job_in_a_pod_is_as_one_on_a_machine(berg, kube):
    done = run(
        berg, "-n", "ok", "--wait", "echo made > $BERG_RESULTS_DIR/out; echo gpus $BERG_NUM_GPUS"
    )
    assert done.returncode == 0, done.stderr
    assert berg.objects("berg_results/ok/")["berg_results/ok/out"] == b"made\n"
    assert "gpus 1" in berg("log", "ok").stdout
    assert run(berg, "-n", "seven", "--wait", "exit 7").returncode == 7
    state = berg.state("seven")
    assert (state["state"], state["exit_code"], state["job"]["place"]) == ("FAILED", 7, "gke")
    wait_for(lambda: not alive(kube, "seven"), what="the end of the pod")
    assert len(pods.of(kube, "seven")) == 1, "a job that is over gets no other pod"


def test_the_manifest_has_no_secret_and_is_taken_by_a_strict_server(berg, kube, monkeypatch):
    assert berg("gpus").returncode == 0
    image = "python:3.12"
    command = [
        "run",
        "--cluster",
        "pods",
        "-m",
        "2",
        "-n",
        "dry",
        "--secret",
        "KEY",
        "--dry-run",
        "--json",
        "true",
    ]
    shown = berg(*command, KEY="s3cret", BERG_DEFAULT_DOCKER_IMAGE=image)
    assert shown.returncode == 0, shown.stderr
    assert "Price     $0.90 an hour on demand" in shown.stderr, "two halves of a node"
    node = "its share of n1-standard-4 with 2 x t4; list price in us-central1 of "
    assert f"in 7d ({node}" in shown.stderr
    assert f"Defaults  docker = {image} (of BERG_DEFAULT_DOCKER_IMAGE)" in shown.stderr
    assert (
        "Price"
        not in berg("run", "--cluster", "pods", "-g", "0", "--dry-run", "--json", "true").stderr
    ), "of which node?"
    assert "s3cret" not in shown.stdout
    manifest = json.loads(shown.stdout)["request"]
    assert manifest["kind"] == "Job" and manifest["spec"]["completions"] == 2
    path = "/apis/batch/v1/namespaces/default/jobs"
    made = kube.call("POST", path, manifest, dryRun="All", fieldValidation="Strict")
    assert made["metadata"]["name"] == "dry"
    assert not alive(kube, "dry")
    done = berg(
        "run",
        "--cluster",
        "pods",
        "-n",
        "secret",
        "--secret",
        "KEY",
        "--wait",
        "echo $KEY | md5sum",
        KEY="s3cret",
    )
    assert done.returncode == 0, done.stderr
    assert "s3cret" not in json.dumps(kube.get("jobs")) and "s3cret" not in json.dumps(kube.pods())


SIDECAR = """
metadata:
  labels: {team: vision}
spec:
  volumes: [{name: shared, emptyDir: {}}]
  tolerations: [{key: mine, operator: Exists}]
  containers:
  - name: main
    volumeMounts: [{name: shared, mountPath: /shared}]
  initContainers:
  - name: beside
    image: debian:12
    restartPolicy: Always
    command: [bash, -c, "echo from beside >/shared/word; sleep 1000"]
    volumeMounts: [{name: shared, mountPath: /shared}]
"""


@pytest.mark.slow
def test_a_patch_brings_volumes_and_a_sidecar(berg, kube, tmp_path):
    (tmp_path / "pod.yaml").write_text(SIDECAR)
    options = ["-g", "0", "-n", "patched", "--pod-patch", str(tmp_path / "pod.yaml")]
    dry = run(berg, *options, "--dry-run", "--json", "true")
    assert dry.returncode == 0, dry.stderr
    assert "patched: metadata.labels, spec.volumes, spec.tolerations" in dry.stderr
    assert (
        json.loads(dry.stdout)["request"]["spec"]["template"]["metadata"]["labels"]["team"]
        == "vision"
    )
    done = run(berg, *options, "--wait", "until cat /shared/word; do sleep 0.1; done")
    assert done.returncode == 0, done.stderr
    assert "from beside" in berg.log("patched")
    phases = lambda: [pod["status"]["phase"] for pod in pods.of(kube, "patched")]
    wait_for(lambda: phases() == ["Succeeded"], what="the end of the pod with its sidecar")
    refused = berg("rerun", "patched", "--dry-run", "--json")
    assert refused.returncode == 1 and "Give it again: --pod-patch FILE" in refused.stderr
    again = berg("rerun", "patched", "--dry-run", "--json", *options[4:])
    assert again.returncode == 0 and "patched: metadata.labels" in again.stderr, again.stderr
    assert (
        json.loads(again.stdout)["request"]["spec"]["template"]["metadata"]["labels"]["team"]
        == "vision"
    )
    (tmp_path / "pod.yaml").write_text(SIDECAR.replace("/shared}]", "/shared}]\n    wings: 2"))
    berg.allowed.append(400)
    for more in (["--dry-run", "--json"], []):
        refused = run(berg, *options[:3], "wings", *options[4:], *more, "true")
        assert refused.returncode == 1, refused.stderr
        *_, said = refused.stderr.splitlines()
        said = json.loads(said)["error"] if more else said
        assert 'unknown field "spec.template.spec.containers[0].wings"' in said
    assert not berg.objects(".berg/jobs/wings")


@pytest.mark.slow
def test_a_pod_without_gpus_takes_a_node_for_jobs(berg, cloud, tmp_path):
    with cluster(
        cloud, "plain", tmp_path, {"gpu_type": None, "num_gpus": 0, "machine_type": "n1-standard-4"}
    ):
        pools = client.find_cluster(cloud.settings(), "plain")["nodePools"]
        taint = {"key": "berg", "value": "true", "effect": "NO_SCHEDULE"}
        assert [pool["config"].get("taints", []) for pool in pools] == [[], [taint]]
        done = berg("run", "--cluster", "plain", "-n", "plainly", "-c", "2", "--wait", "true")
        assert done.returncode == 0 and "plainly in gke-plain-n1-standard-4-" in done.stderr, (
            done.stderr
        )
        assert (
            "gives a pod 4 CPUs: its nodes for this are n1-standard-4"
            in berg("run", "--cluster", "plain", "-c", "4", "true").stderr
        )


def test_of_a_long_log_the_last_is_shown(berg, kube):
    kube.create(
        job("talks", "yes $(head -c 1000 /dev/zero | tr '\\0' x) | head -n 2000; echo the end")
    )
    kube.ended("talks")
    settings = berg.cloud.settings()
    text = client.log(client.connect(settings, PLACE), kube.pods("talks")[0]["metadata"]["name"])
    assert text.endswith("x\nthe end\n") and len(text) == client.MOST_LOG


def test_the_plan_says_what_becomes_of_lost_pods(berg, kube):
    plan = lambda *words: (
        berg(*words, "--cluster", "pods", "-g", "1", "-n", "planned", "--dry-run", "--json").stderr
    )
    alone = plan("run", "true")
    assert (
        "20 after pods that were taken away" in alone
        and "7d, then Kubernetes ends the pod" in alone
    )
    several = " ".join(plan("run", "-m", "2", "true").split())
    assert (
        "pods that were taken away; the others wait 15m for the replacement (--replacement-timeout)"
        in several
    )
    assert "none: the loss of a pod ends it\n" in plan("devbox")


@pytest.mark.slow
def test_a_killed_job_ends_with_its_results_and_its_pods(berg, kube):
    assert run(berg, "-n", "long", "echo a > $BERG_RESULTS_DIR/a; sleep 1000").returncode == 0
    running(berg, "long")
    wait_for(lambda: "Running:" in berg.log("long"), what="its log")
    assert berg("kill", "long").returncode == 0
    state = berg.state("long")
    assert (state["state"], state["reason"]) == ("KILLED", "killed by tester")
    assert "berg_results/long/a" in berg.objects("berg_results/long/")
    assert not alive(kube, "long")
    assert run(berg, "-n", "now", "-m", "2", "sleep 1000").returncode == 0
    running(berg, "now")
    assert berg("kill", "--now", "now").returncode == 0
    assert berg.state("now")["state"] == "KILLED" and not alive(kube, "now")


def test_a_pod_that_cannot_start_says_why_and_is_killed(berg, kube, cloud):
    cloud.call("POST", "/_berg/clusters/pods/images", {"image": "nosuch"})
    assert run(berg, "-n", "noimage", "--docker", "example.com/nosuch:1", "true").returncode == 0
    why = "its image example.com/nosuch:1 cannot be pulled"
    wait_for(lambda: why in berg("list").stdout, 30, "the reason in the list")
    status = berg("cluster", "status", "pods").stdout
    assert "noimage waits: its image" in status
    follower = berg.start("tail", "noimage")
    pods.hear(follower, why)
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=20)
    assert berg("kill", "noimage").returncode == 0
    assert berg.state("noimage")["state"] == "KILLED" and not alive(kube, "noimage")
    assert not [each for each in kube.get("jobs")["items"] if each["metadata"]["name"] == "noimage"]


@pytest.mark.slow
def test_a_job_whose_image_has_no_python_is_lost_at_once_and_says_why(berg, kube, cloud):
    """The Job is made again with a program that is not there: its image here has all of this host."""
    path = "/apis/batch/v1/namespaces/default/jobs"
    cloud.call("POST", "/_berg/clusters/pods/images", {"image": "no-python"})
    assert run(berg, "-n", "nopy", "--docker", "example.com/no-python:1", "true").returncode == 0
    made = kube.get("jobs", "nopy")
    kube.call("DELETE", f"{path}/nopy", propagationPolicy="Foreground")
    wait_for(lambda: not kube.raw("GET", f"{path}/nopy").ok, 30, "the end of its Job")
    spec, template = made["spec"], made["spec"]["template"]
    template["spec"]["containers"][0]["command"][0] = "python3.nowhere"
    template["spec"]["containers"][0]["image"] = "debian:12"
    own = [key for key in template["metadata"]["labels"] if not key.startswith("berg")]
    for labels in (template["metadata"]["labels"], made["metadata"]["labels"]):
        for key in own:
            labels.pop(key, None)
    del spec["selector"]
    about = {"name": "nopy", "labels": made["metadata"]["labels"]}
    kube.create({"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec})
    assert kube.ended("nopy")["reason"] == "PodFailurePolicy"
    why = "1 pod ended before; the last: the pod nopy-0-"
    how = 'exec: "python3.nowhere": executable file not found in $PATH'
    (found,) = [row for row in json.loads(berg("list", "--json").stdout) if row["name"] == "nopy"]
    assert found["state"] == "LOST" and why in found["reason"], found
    assert found["reason"].count(how) == 1 and "end it: berg kill" in found["reason"]
    for command in ("show", "log"):
        said = berg(command, "nopy")
        assert how in said.stdout + said.stderr, said
    assert berg("kill", "nopy").returncode == 0 and not kube.raw("GET", f"{path}/nopy").ok
    state = berg.state("nopy")
    assert state["state"] == "LOST" and how in state["reason"], state
    assert state["reason"].endswith("; ended by tester")


@pytest.mark.slow
def test_a_pod_without_room_waits_in_words_and_is_given_up_when_told_so(berg, cloud, tmp_path):
    pool = {"gpu_type": "t4", "num_gpus": 2, "machine_type": "n1-standard-4"}
    with cluster(cloud, "full", tmp_path, pool) as kube:
        cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
        wishes = ["-n", "wide", "-m", "2", "-g", "2", "--queue-timeout", "0.006h"]
        assert berg("run", "--cluster", "full", *wishes, "true").returncode == 0
        text = wait_for(
            lambda: (t := berg("list").stdout) and "no stock" in t and t,
            30,
            "the reason in the list",
        )
        assert "no pool can grow" not in text, (
            "one pod is told of the shortage, the other that a try had failed"
        )
        bucket_says = wait_for(
            lambda: (t := berg("list").stdout) and "LOST" in t and t, 90, "its end in the list"
        )
        assert "not all of its pods or machines were up within --queue-timeout" in " ".join(
            bucket_says.split()
        )
        assert berg("kill", "wide").returncode == 0
        assert not alive(kube, "wide")


@pytest.mark.slow
def test_a_pod_that_comes_too_late_gives_up_and_no_other_takes_its_place(berg, kube, cloud):
    image = {"image": "debian:12-late"}
    cloud.call("POST", "/_berg/clusters/pods/images", image)
    wishes = ["-n", "late", "-g", "0", "--docker", "debian:12-late", "--queue-timeout", "0.001h"]
    assert run(berg, *wishes, "echo ran").returncode == 0
    wait_for(lambda: "cannot be pulled" in berg("list").stdout, 30, "the reason in the list")
    time.sleep(3)
    cloud.call("POST", "/_berg/clusters/pods/images", {**image, "on": False})
    wait_for(lambda: berg.state("late")["state"] == "FAILED", 90, "the end of the job")
    assert (
        "not all of its pods or machines were up within --queue-timeout"
        in berg.state("late")["reason"]
    )
    assert "ran" not in berg.log("late").split()
    assert kube.ended("late")["reason"] == "PodFailurePolicy"


@pytest.mark.slow
def test_the_limit_of_the_wait_ends_with_it(berg, kube):
    wishes = ["-n", "slow", "-m", "2", "-g", "0", "--queue-timeout", "0.01h", "--wait"]
    done = run(berg, *wishes, "sleep 37")
    assert done.returncode == 0, done.stderr
    assert "activeDeadlineSeconds" not in kube.get("jobs", "slow")["spec"]


@pytest.mark.slow
def test_a_preempted_pod_is_made_anew_and_goes_on(berg, kube, cloud):
    script = "echo x >> $BERG_RESULTS_DIR/tries; [ $(wc -l < $BERG_RESULTS_DIR/tries) = 2 ] || sleep 1000"
    assert run(berg, "-n", "spot", "--spot", script).returncode == 0
    running(berg, "spot")
    wait_for(
        lambda: "berg_results/spot/tries" in berg.objects("berg_results/spot/"),
        40,
        "its first results",
    )
    pod = alive(kube, "spot")[0]
    cloud.call("POST", f"/_berg/instances/{pod['spec']['nodeName']}/preempt")
    wait_for(lambda: berg.state("spot")["state"] == "SUCCEEDED", 90, "the end of the job")
    assert berg.objects("berg_results/spot/")["berg_results/spot/tries"] == b"x\nx\n"
    assert berg.state("spot")["attempt"] == 2


@pytest.mark.slow
def test_a_job_on_several_pods_is_resumed_under_its_name(berg, kube):
    script = "echo x >> $BERG_RESULTS_DIR/tries; [ $(wc -l < $BERG_RESULTS_DIR/tries) = 2 ]"
    assert run(berg, "-n", "again", "-m", "2", "-g", "1", "--wait", script).returncode == 1
    done = berg("run", "--resume", "again", "--wait")
    assert done.returncode == 0, done.stderr
    assert berg.objects("berg_results/again/")["berg_results/again/tries"] == b"x\nx\n"


@pytest.mark.slow
def test_a_sweep_takes_its_jobs_in_pods(berg, kube):
    done = run(
        berg, "-n", "grid", "--grid", "a=1,2,3", "--parallel", "2", "--wait", "echo a is {a}"
    )
    assert done.returncode == 0, done.stderr
    assert [f"a is {n + 1}" in berg("log", f"grid/{n}").stdout for n in range(3)] == [True] * 3
    wait_for(
        lambda: not [p for p in kube.pods() if p["status"]["phase"] == "Running"],
        what="the end of the pods",
    )


@pytest.mark.slow
def test_what_the_api_cannot_answer_at_once_is_asked_again(berg, kube, cloud):
    cloud.fault("kubernetes.jobs.create", status=429)
    cloud.fault("kubernetes.pods.list", status=503)
    began = time.monotonic()
    done = run(berg, "-n", "tried", "--wait", "true")
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - began > 0.8
    assert (
        len([each for each in kube.get("jobs")["items"] if each["metadata"]["name"] == "tried"])
        == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", ["torchrun train.py", OLD_LAUNCHER], ids=["torchrun", "launch"])
def test_torch_trains_on_two_pods(berg, kube, program):
    copy_torch_example(berg)
    wishes = ["-m", "2", "-g", "2", "-n", "ddp", "--each", "--install-script", "setup.sh", "--wait"]
    done = run(berg, *wishes, f"{program} --epochs=1")
    assert done.returncode == 0, done.stderr + berg("log", "--machine", "ddp-1", "ddp").stdout
    check_training(berg, "ddp", is_told_its_number=program == OLD_LAUNCHER)


# --- people


@pytest.mark.slow
def test_people_live_in_pods(berg, kube, tmp_path):
    if not shutil.which("sshd", path="/usr/sbin") or os.geteuid():
        pytest.skip("pods run an ssh server only for root")
    wishes = ["--env", "WISH=two words", "--secret", "TOKEN"]
    options = ["--cluster", "pods", "-m", "2", "-g", "1", "-n", "box"]
    made = berg("devbox", *options, *wishes, TOKEN="s3cret")
    assert made.returncode == 0, made.stderr
    done = berg("ssh", "box", "--", "hostname; echo $BERG_NODE_RANK; exit 3")
    assert (done.returncode, done.stdout.split()) == (3, ["box-0", "0"]), done.stderr
    assert berg("ssh", "box", "--worker", "1", "--", "hostname").stdout == "box-1\n"
    check_shells(berg, kube)
    blob = os.urandom(300_000)
    words = [*berg_words(), "ssh", "box", "--", "cat"]
    echo = subprocess.run(
        words, cwd=berg.repo, env=berg.environment(), input=blob, capture_output=True, check=True
    )
    assert echo.stdout == blob
    (berg.repo / "new.py").write_text("print('new')\n")
    pushed = berg("sync", "box", "--once")
    assert pushed.returncode == 0, pushed.stderr
    assert berg("ssh", "box", "--all", "--", "python3 new.py").stdout.count("| new") == 2
    refused = berg("ssh", "box", "--", "mpi hostname")
    assert refused.returncode == 1 and "mpi needs ssh from machine to machine" in refused.stderr
    assert berg("kill", "box").returncode == 0
    wait_for(lambda: not alive(kube, "box"), what="the end of the pods")


def check_shells(berg, kube) -> None:
    """Who comes to the devbox `box` finds its variables, over ssh as with kubectl."""
    show = 'echo "$BERG_JOB,$BERG_NODE_RANK,$MASTER_ADDR,$WISH,$TOKEN"'
    first, second = alive(kube, "box")
    told = f"box,1,{first['status']['podIP']},two words,s3cret\n"
    assert berg("ssh", "box", "--worker", "1", "--", show).stdout == told
    enter = ["exec", "-i", second["metadata"]["name"], "--"]
    assert kube.kubectl(*enter, "bash", "-c", show) == told
    assert kube.kubectl(*enter, "bash", "-i", stdin=f"{show}\n") == told
    assert kube.kubectl(*enter, "sh", "-i", stdin=f"{show}\n") == told
    mine = kube.kubectl(*enter, "env", "BERG_JOB=mine", "WISH=other", "bash", "-c", "echo $WISH")
    assert mine == "other\n", "what is in the environment stays"
    assert "s3cret" not in json.dumps(kube.get("jobs")) + json.dumps(kube.pods())


def berg_words() -> list[str]:
    import sys

    return [sys.executable, "-m", "berg"]


@pytest.mark.slow
def test_a_pod_without_an_ssh_server_is_entered_by_exec(berg, kube):
    assert run(berg, "-n", "bare", "sleep 1000").returncode == 0
    running(berg, "bare")
    path = ".berg/machines/bare/bare.json"
    wait_for(
        lambda: path in berg.objects(".berg/machines/bare/"), what="what the pod says of itself"
    )
    berg.bucket.write(path, json.dumps({**json.loads(berg.bucket.read(path)), "host_keys": []}))
    done = berg("ssh", "bare", "--", "echo in $HOSTNAME; exit 5")
    assert done.returncode == 5 and "in bare" in done.stdout, done.stderr
    assert "runs no ssh server" in done.stderr
    assert berg("ssh", "bare", "-N").returncode == 1
    assert berg("kill", "--now", "bare").returncode == 0


# --- what is not needed, or not possible


def test_an_idle_cluster_is_named_with_its_cost_and_stays(berg, kube):
    reaped = berg("reap", "-y")
    assert (
        "the cluster pods in us-central1-a is idle, and costs about $0.13 an hour" in reaped.stderr
    )
    assert "berg cluster delete pods" in reaped.stderr
    rows = [
        row for row in json.loads(berg("doctor", "--json").stdout) if row["check"] == "clusters"
    ]
    assert [row["status"] for row in rows] == ["warning"] and "is idle" in rows[0]["found"]
    assert client.running_clusters(client.clusters(berg.cloud.settings())) == [PLACE]


@pytest.mark.slow
def test_pods_whose_job_is_gone_are_reaped(berg, cloud, kube, monkeypatch):
    monkeypatch.setattr("berg.laptop.ending.SETTLED", 0)
    assert run(berg, "-n", "orphan", "sleep 1000").returncode == 0
    running(berg, "orphan")
    berg.bucket.delete(".berg/jobs/orphan_state.json")
    settings = cloud.settings(berg.bucket_name)
    found = ending.leftovers(settings, None)
    assert [(each.kind, each.name, each.where) for each in found] == [("group", "orphan", PLACE)]
    ending.delete_leftovers(settings, found)
    assert not alive(kube, "orphan") and not ending.leftovers(settings, None)


@pytest.mark.slow
def test_the_boot_py_of_earlier_versions_is_reaped(berg, cloud, kube, monkeypatch):
    monkeypatch.setattr("berg.laptop.ending.SETTLED", -1)
    body = {**boot_map(), "data": {"boot.py": "print('old')\n"}}
    names = ["berg-boot-0000000000", "berg-boot-1111111111"]
    for name in names:
        kube.create({**body, "metadata": {"name": name, "labels": {"berg": "1"}}})
    kube.create({**body, "metadata": {"name": "berg-boot-theirs"}})
    settings = cloud.settings(berg.bucket_name)
    assert [
        each.name for each in ending.leftovers(settings, None) if each.kind == "configmap"
    ] == names
    dry = json.loads(
        berg(
            "run",
            "--cluster",
            "pods",
            "-n",
            "older",
            "-g",
            "2",
            "--spot",
            "--dry-run",
            "--json",
            "true",
        ).stdout
    )["request"]
    dry["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"] = names[1]
    dry["spec"]["template"]["spec"]["nodeSelector"]["berg/none"] = "here"  # it waits
    dry["metadata"]["labels"]["berg-bucket"] = "somebody-elses"
    # and with it the present boot.py
    assert run(berg, "-n", "made", "-g", "0", "--wait", "true").returncode == 0
    kube.create(dry)
    found = [each for each in ending.leftovers(settings, None) if each.kind == "configmap"]
    assert [(each.name, each.where) for each in found] == [(names[0], PLACE)]
    ending.delete_leftovers(settings, found)
    left = {each["metadata"]["name"] for each in kube.get("configmaps")["items"]}
    assert {
        boot_map()["metadata"]["name"],
        "berg-boot-theirs",
        names[1],
    } <= left and names[0] not in left
    for name in ("berg-boot-theirs", names[1]):
        kube.call("DELETE", f"/api/v1/namespaces/default/configmaps/{name}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--cluster", "nosuch", "true"],
            "there is no cluster 'nosuch' in project berg-local. Make it: berg cluster",
        ),
        (
            ["--cluster", "pods", "-t", "v100", "true"],
            "the cluster pods has no v100: its nodes have 2 x t4",
        ),
        (
            ["--cluster", "pods", "-g", "4", "true"],
            "no node of the cluster pods has 4 GPUs: its nodes have 2 x t4",
        ),
        (
            ["--cluster", "pods", "-g", "2", "-m", "5", "true"],
            "room for 2 pods, not for 5. Let it grow: berg cluster",
        ),
        (
            ["--cluster", "pods", "-g", "1", "-c", "4", "true"],
            "no node of the cluster pods gives a pod 4 CPUs: its nodes",
        ),
        (
            ["--cluster", "pods", "-g", "0", "-c", "1", "true"],
            "its nodes for this are e2-medium, of which Kubernetes",
        ),
        (["--cluster", "pods", "-c", "0", "true"], "-c 0 is not possible: give 1 or more CPUs"),
        (
            ["--cluster", "pods", "--docker", "Bad Image", "true"],
            "--docker 'Bad Image' is not an image name",
        ),
        (["--cluster", "pods", "-t", "gtx", "true"], "unknown GPU type 'gtx'"),
        (["--cluster", "pods", "--zone", "us-east1-b", "true"], "leave out --zone"),
        (["--cluster", "pods", "--disk-gb", "500", "true"], "leave out --disk-gb"),
        (["--cluster", "pods", "--no-kill", "true"], "leave out --no-kill"),
        (["--cluster", "pods", "--no-external-ip", "true"], "leave out --no-external-ip"),
        (
            ["--cluster", "pods", "--queue-timeout", "1e9h", "true"],
            "--queue-timeout 3600000000000s is not possible",
        ),
        (
            ["--cluster", "pods", "-n", "n" * 62, "true"],
            f"'{'n' * 62}-0' is longer than 63 characters",
        ),
        (
            ["--cluster", "pods", "-n", "n" * 52, "--grid", "a=1,2", "{a}"],
            "nnn-machine-1-1' is longer than 63 char",
        ),
    ],
)
def test_what_a_cluster_cannot_do_is_said_in_a_sentence(berg, kube, words, says):
    done = berg("run", *words)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert not berg.objects(".berg/jobs/")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["create", "Bad"], "'Bad' cannot be the name of a cluster"),
        (["create", "x", "--num-nodes", "0"], "--num-nodes 0 is not possible"),
        (["create", "x", "--min-nodes", "3"], "--min-nodes 3 is not possible: give 0 to 2"),
        (["create", "x", "--disk-gb", "5"], "--disk-gb 5 is not possible"),
        (["create", "x", "--disk-type", "floppy"], "--disk-type floppy: there are pd-standard"),
        (["create", "x", "-t", "v100", "--zone", "us-central1-x"], "us-central1-x"),
        (
            ["create", "x", "-t", "h200", "--spot", "--zone", "us-central1-ai1a"],
            "us-central1-ai1a is a zone for accelerators only",
        ),
        (["status", "nosuch"], "there is no cluster 'nosuch'"),
        (["status", "us-central1-a/nosuch"], "berg cluster create nosuch --zone us-central1-a;"),
        (["delete", "nosuch", "-y"], "there is no cluster 'nosuch'"),
        (["status", "nosuch", "--kubectl"], "there is no cluster 'nosuch'"),
    ],
)
def test_clusters_that_cannot_be_are_refused_in_a_sentence(berg, words, says):
    done = berg("cluster", *words)
    assert done.returncode == 1 and says in done.stderr, done.stderr
    assert "Traceback" not in done.stderr


def test_a_zone_for_accelerators_alone_is_not_the_place_of_a_cluster(cloud):
    """It sorts before the region's other zone that has these GPUs."""
    wanted = clusters.Wanted(gpu_type="h200", spot=True)
    try:
        place = clusters.create(cloud.settings("any"), "beside-ai", wanted, print)
        assert place == "us-central1-b/beside-ai"
    finally:
        clusters.delete(cloud.settings("any"), "beside-ai", print)


def test_a_cluster_that_is_not_bergs_is_left_alone(berg, cloud, kube):
    cluster = {
        "name": "theirs",
        "nodePools": [{"name": "p", "initialNodeCount": 1, "config": {"machineType": "e2-medium"}}],
    }
    kube.done(
        kube.google(
            "POST", "projects/berg-local/locations/us-central1-a/clusters", {"cluster": cluster}
        )
    )
    for words in (
        ["run", "--cluster", "theirs", "true"],
        ["cluster", "delete", "theirs", "-y"],
        ["cluster", "create", "theirs"],
    ):
        done = berg(*words)
        assert done.returncode == 1 and "the cluster theirs is not berg's" in done.stderr, (
            done.stderr
        )
        assert "--update-labels berg=1" in done.stderr
    kube.done(kube.google("DELETE", "projects/berg-local/locations/us-central1-a/clusters/theirs"))


@needs_kubectl
def test_a_kubeconfig_that_is_broken_stays_as_it_is(berg, kube, tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text("{ broken")
    done = berg("cluster", "status", "pods", "--kubectl", KUBECONFIG=str(file))
    assert done.returncode == 1 and str(file) in done.stderr
    assert file.read_text() == "{ broken"


@pytest.mark.slow
@needs_kubectl
def test_what_gcloud_wrote_of_a_cluster_makes_room_for_the_public_endpoint(
    berg, kube, tmp_path, monkeypatch
):
    """gcloud writes the cluster's address and own authority, which has not signed the certificate
    of its name.
    """
    file = tmp_path / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(file))
    settings = berg.cloud.settings()
    there = clusters.context(settings, PLACE)
    authority = [f"--certificate-authority={kube.ca}", "--embed-certs=true"]
    for name in (there, "mine"):
        clusters.kubectl("set-cluster", name, "--server=https://127.0.0.1:1", *authority)
    # as if what the endpoint has now were such a name
    monkeypatch.setattr("berg.gke.client.PUBLIC", "")
    for _ in range(2):
        assert clusters.credentials(settings, "pods") == there
        told = json.loads(clusters.kubectl("view", "--raw", "-o", "json"))
        known = {each["name"]: each["cluster"] for each in told["clusters"]}
        assert (
            known[there] == {"server": kube.server}
            and "certificate-authority-data" in known["mine"]
        )
        assert told["current-context"] == there


def test_a_program_gets_a_token_as_kubectl_wants_it(berg, kube):
    told = json.loads(berg("cluster", "token").stdout)
    assert (
        told["kind"] == "ExecCredential"
        and told["apiVersion"] == "client.authentication.k8s.io/v1beta1"
    )
    assert kube.raw("GET", "/version", token=told["status"]["token"]).status_code == 200


def test_a_certificate_of_somebody_else_is_refused_at_once(berg, kube, monkeypatch):
    body = client.find_cluster(berg.cloud.settings(), "pods")
    other = Path(client.ca_file(berg.cloud.settings(), "x/y"))
    body["masterAuth"]["clusterCaCertificate"] = base64.b64encode(b"not one").decode()
    began = time.monotonic()
    with pytest.raises(Exception, match="does not answer|certificate|CA"):
        client.call(client.server_of(berg.cloud.settings(), body), "GET", "/version")
    assert time.monotonic() - began < 5
    other.unlink(missing_ok=True)
    client.ca_file(berg.cloud.settings(), PLACE).unlink()


def test_threads_that_find_a_cluster_at_once_write_its_certificate_once(
    tmp_path, cloud, monkeypatch
):
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    certificate = base64.b64encode(b"x" * 100_000).decode()
    body = {
        "name": "c",
        "location": "z",
        "endpoint": "127.0.0.1",
        "masterAuth": {"clusterCaCertificate": certificate},
    }
    settings = cloud.settings()
    for _ in range(20):
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda _: client.server_of(settings, body), range(16)))
        assert [path.read_bytes() for path in (tmp_path / "clusters").iterdir()] == [b"x" * 100_000]
        Path(found[0].ca).unlink()


def test_kubernetes_gives_up_by_itself_on_an_image_without_python(kube):
    """At once: no laptop has to look, and no node is held for more pods of the same."""
    rules = {"rules": failure_rules(20)}
    command = {"command": ["python3.nowhere", "/etc/berg/boot/boot.py"]}
    kube.create(job("nopython", "", backoffLimit=20, podFailurePolicy=rules, container=command))
    ended = kube.ended("nopython")
    assert (ended["type"], ended["reason"]) == ("Failed", "PodFailurePolicy")
    assert "exit code 128" in ended["message"] and len(kube.pods("nopython")) == 1
    path = "/apis/batch/v1/namespaces/default/jobs/nopython"
    kube.call("DELETE", path, propagationPolicy="Background")
