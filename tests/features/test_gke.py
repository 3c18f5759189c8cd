"""Jobs in pods of a cluster: as a user has them on machines."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, until

from berg import google
from berg.features.gke import clusters, kube, pods

RUN = ("run", "--cluster", "train", "-g", "0")


@pytest.fixture(scope="module")
def cluster(cloud: Cloud) -> Iterator[Cloud]:
    """A cloud with the cluster `train`, of small nodes without GPUs and one of two T4."""
    for words in (["--machine-type", "n1-standard-2", "--num-nodes", "4"], ["-t", "t4", "-g", "2"]):
        cloud.ok("cluster", "create", "train", "-y", *words)
    yield cloud
    assert cloud.run("cluster", "delete", "train", "-y").code == 0


def ask(cloud: Cloud, path: str) -> Any:
    """What the cluster has at a path."""
    row = kube.find(cloud.config, "train")
    return kube.look(cloud.config, kube.connect(cloud.config, row), path)


def names(cloud: Cloud, plural: str) -> list[str]:
    path = kube.JOBS if plural == "jobs" else f"{kube.CORE}/{plural}"
    return [row["metadata"]["name"] for row in ask(cloud, path)["items"]]


@pytest.mark.slow
def test_a_job_runs_in_a_pod_with_its_secret(cluster: Cloud, project: Path) -> None:
    words = ["-n", "pod1", "--secret", "TOKEN", "--env", "EXPECTED=hunter2", "--wait"]
    cmd = 'test "$TOKEN" = "$EXPECTED-x" && python3 train.py >$BERG_RESULTS_DIR/out && exit 7'
    done = cluster.run(*RUN, *words, cmd, cwd=project, TOKEN="hunter2-x")
    assert done.code == 7, done.err + cluster.log("pod1")
    assert cluster.read("berg_results/pod1/out") == b"hello from train\n"
    state = cluster.state("pod1")
    assert state["zone"].endswith("/train") and state["state"] == "FAILED"
    until(lambda: pods.has_ended(ask(cluster, f"{kube.JOBS}/pod1")))
    kinds = [row["type"] for row in ask(cluster, f"{kube.JOBS}/pod1")["status"]["conditions"]]
    assert "Failed" in kinds, "kubectl says what became of it"
    told = "".join(cluster.read(name).decode("latin1") for name in cluster.names(".berg/"))
    assert "hunter2-x" not in told
    assert cluster.run("run", "--resume", "pod1", "--secret", "TOKEN", "-y", "--wait", cwd=project,
                       TOKEN="other").code == 1  # fmt: skip
    assert cluster.state("pod1")["attempt"] == 2


@pytest.mark.slow
def test_kill_saves_the_results_of_a_pod_and_leaves_nothing(cluster: Cloud, project: Path) -> None:
    cmd = "trap 'echo saved >$BERG_RESULTS_DIR/last; exit 1' TERM; echo begun; sleep 300 & wait"
    words = ["-n", "pod2", "--secret", "TOKEN", cmd]
    assert cluster.run(*RUN, *words, cwd=project, TOKEN="x").code == 0
    until(lambda: "begun" in cluster.log("pod2"))
    assert cluster.shown("pod2")["instances"] == ["pod2"]
    done = cluster.run("kill", "pod2")
    assert done.code == 0 and "KILLED" in done.err, done.err
    assert cluster.read("berg_results/pod2/last") == b"saved\n", cluster.log("pod2")
    assert "pod2" not in names(cluster, "jobs")
    until(lambda: not [name for name in names(cluster, "secrets") if name.startswith("berg-")])


@pytest.mark.slow
def test_pods_that_are_taken_away_come_back(cluster: Cloud, project: Path) -> None:
    cmd = "cd $BERG_RESULTS_DIR; echo $BERG_NODE_RANK of $BERG_NUM_NODES at $MASTER_ADDR; "
    cmd += "test -e was-$BERG_NODE_RANK && exit; touch was-$BERG_NODE_RANK; sleep 300"
    cluster.ok(*RUN, "-n", "pod3", "-m", "2", "--each", cmd, cwd=project)
    until(lambda: cluster.log("pod3").count(" of 2 at ") == 2)
    pod = next(each for each in pods.machines(cluster.config, "pod3") if each.name == "pod3-1")
    cluster.call("POST", f"/_berg/pods/{pod.pod}/evict", {"grace": 60})
    done = cluster.run("wait", "pod3")
    assert done.code == 0, done.err + cluster.log("pod3")
    assert cluster.state("pod3")["attempt"] == 2


@pytest.mark.slow
def test_rows_of_a_sweep_run_in_pods(cluster: Cloud, project: Path) -> None:
    words = ["-n", "pod4", "--grid", "lr=1,2,3", "--parallel", "2", "--wait"]
    done = cluster.run(*RUN, *words, "echo lr is {lr} >$BERG_RESULTS_DIR/out", cwd=project)
    assert done.code == 0, done.err + cluster.log("pod4")
    assert cluster.read("berg_results/pod4/2/out") == b"lr is 3\n"


@pytest.mark.slow
def test_ssh_and_sync_reach_a_pod(cluster: Cloud, project: Path) -> None:
    cluster.ok("devbox", "--cluster", "train", "-g", "0", "-n", "pod5", cwd=project)
    until(lambda: "Ready for berg ssh" in cluster.log("pod5"))
    done = cluster.run("ssh", "pod5", "--", "echo $BERG_JOB; exit 3")
    assert (done.code, done.out) == (3, "pod5\n"), done.err
    (project / "train.py").write_text("print('new')\n")
    done = cluster.run("sync", "pod5", "--once", cwd=project)
    assert cluster.run("ssh", "pod5", "--", "python3 train.py").out == "new\n", done.err
    cluster.fails("stop", "pod5", says="berg kill pod5")
    assert cluster.run("kill", "-y", "pod5").code == 0
    assert "pod5" not in names(cluster, "jobs")


def test_a_token_for_kubectl_imports_no_module_of_the_current_folder(
    cloud: Cloud, tmp_path: Path
) -> None:
    (tmp_path / "click.py").write_text("raise SystemExit('this was imported')\n")
    done = subprocess.run(
        kube.program(), cwd=tmp_path, env=cloud.env, capture_output=True, text=True
    )
    assert '"ExecCredential"' in done.stdout, done.stderr


@pytest.mark.slow
def test_what_pods_cannot_have_is_refused(cluster: Cloud, project: Path) -> None:
    (project / "patch.json").write_text('{"spec": {"volumes": [{"name": "a", "emptyDir": {}}]}}')
    (project / "bad.json").write_text('{"spec": {"volums": []}}')
    run = ("run", "--cluster", "train", "--dry-run", "--json", "-y")
    done = cluster.run(*run, "--pod-patch", "patch.json", "-g", "1", "true", cwd=project)
    spec = json.loads(done.out)["request"]["spec"]["template"]["spec"]
    assert spec["volumes"][-1] == {"name": "a", "emptyDir": {}}
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    for words, reason in [
        (["--pod-patch", "bad.json"], "volums"),
        (["-g", "4"], "no node of the cluster train is for 4 x"),
        (["-t", "l4", "-g", "1"], "has no l4, but t4"),
        (["-m", "9", "-g", "1"], "room for 4 pods"),
        (["--zone", "us-central1-a"], "--zone is not for pods"),
        (["--local-ssd", "1"], "not for pods: --local-ssd. Leave"),
    ]:
        cluster.fails(*run, *words, "true", says=reason, cwd=project)
    missing = "there is no cluster 'none'"
    cluster.fails("run", "--cluster", "none", "true", says=missing, cwd=project)
    found = json.loads(cluster.run("cluster", "status", "train", "--json").out)
    assert {row["pool"] for row in found["pools"]} == {"system", "n1-standard-2", "t4-x2"}


def test_the_list_says_what_a_pod_waits_for(cluster: Cloud, project: Path, no_room: Any) -> None:
    def waits(name: str, says: str, *words: str) -> None:
        assert cluster.run(*RUN, "-n", name, *words, "true", cwd=project).code == 0
        until(lambda: says in cluster.run("list").out)
        assert says in cluster.run("show", name).out
        assert says in cluster.run("cluster", "status", "train").out
        assert cluster.run("kill", "-y", "--now", name).code == 0

    cluster.call("POST", "/_berg/clusters/train/images", {"image": "nosuch"})
    waits("no-image", "failed to resolve reference: not found", "--docker", "example.com/nosuch:1")
    no_room()
    waits("no-room", "waits for a node: FailedScaleUp", "-g", "2")


def test_a_cluster_that_refuses_names_the_right_and_a_role(
    cluster: Cloud, project: Path, faults: Any
) -> None:
    message = (
        'jobs.batch is forbidden: User "her@example.com" cannot create resource "jobs": requires '
        'one of ["container.jobs.create"] permission(s).'
    )
    faults("kubernetes.jobs.create", status=403, message=message)
    right = '["container.jobs.create"]'
    said = cluster.fails(*RUN, "-n", "refused", "true", says=right, cwd=project)
    assert "roles/container.developer" in said and "us-central1" in said
    assert not cluster.state("refused")


def test_clusters_are_made_listed_and_deleted_as_was_asked(cluster: Cloud, project: Path) -> None:
    place = "/container/v1/projects/berg-local/locations/us-central1-b/clusters"
    pool = {"name": "default-pool", "initialNodeCount": 1}
    cluster.call("POST", place, {"cluster": {"name": "theirs", "nodePools": [pool]}})

    def found() -> dict[str, Any]:
        listed = json.loads(cluster.run("cluster", "list", "--json").out)
        return {row["name"]: row for row in listed}

    until(lambda: found()["theirs"]["status"] == "RUNNING")
    assert found()["train"]["berg"] is True and found()["theirs"]["berg"] is False
    lines = {line.split()[0]: line for line in cluster.run("cluster", "list").out.splitlines()}
    assert " yes " in lines["train"] and " no " in lines["theirs"]
    for words in (
        ["cluster", "delete", "theirs", "-y"],
        ["run", "--cluster", "theirs", "-g", "0", "true"],
        ["cluster", "create", "theirs", "-y"],
    ):
        cluster.fails(*words, says="is not berg's", cwd=project)
    assert "-y" in cluster.fails("cluster", "delete", "train", says="no job runs there")
    create = ["cluster", "create", "train"]
    more = "--min-nodes is more than --num-nodes"
    cluster.fails(*create, "--min-nodes", "3", "-y", says=more)
    many = ["-t", "h100", "-g", "8", "--num-nodes", "90"]
    cluster.fails(*create, *many, says="All 90 nodes cost $", BERG_ASK_ABOVE="100")
    assert found()["train"]["pools"] == ["system", "n1-standard-2", "t4-x2"]
    done = cluster.run(*create, "-t", "t4", "-g", "2", "-y", "--json")
    assert "The pool t4-x2 is there, and stays as it is" in done.err, done.err
    assert json.loads(done.out) == {
        "name": "train",
        "place": kube.place(kube.find(cluster.config, "train")),
    }
    cluster.call("POST", place, {"cluster": {"name": "train", "nodePools": [pool]}})
    try:
        cluster.fails("cluster", "status", "train", says="Name the location, too: us-central1-")
    finally:
        for name in ("train", "theirs"):
            until(lambda name=name: is_deleted(cluster, f"{place}/{name}"))


def is_deleted(cloud: Cloud, path: str) -> bool:
    """Ask Google, which does one thing at a time to a cluster, to delete one; whether it is gone."""
    try:
        cloud.call("DELETE", path)
    except google.GoogleError as error:
        return error.status == 404
    return False


def test_a_busy_cluster_is_waited_for_and_one_that_is_gone_is_deleted(
    cloud: Cloud, faults: Any
) -> None:
    config, place = cloud.config, "us-central1-b/busy"
    path = "us-central1-b/clusters"
    body = {"cluster": clusters.cluster_body(config, "busy")}
    kube.change(config, place, "POST", path, body, "the cluster busy")
    assert kube.find(config, "busy")["status"] == "RUNNING", "it waited until that was so"
    assert kube.find(config, place)["name"] == "busy"
    assert [row["name"] for row in kube.clusters(config)].count("busy") == 1
    once = {"status": 400, "times": 1}
    faults("container.*.delete", message="The request is wrong.", **once)
    with pytest.raises(google.GoogleError, match="The request is wrong."):
        kube.change(config, place, "DELETE", f"{path}/busy", None, "deleting busy")
    for message in (
        "Cluster is running incompatible operation op-1.",
        'Service account "x" does not exist.',
    ):
        faults("container.*.delete", message=message, **once)
        kube.change(config, place, "DELETE", f"{path}/busy", None, "deleting busy")
    assert "busy" not in [row["name"] for row in kube.clusters(config)]
