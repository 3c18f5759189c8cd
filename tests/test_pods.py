"""What berg's commands do with jobs in pods, as with those on machines: bring, run again, log in,
wait, refuse.
"""

import json
import os
import pty
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pods
import pytest
from conftest import POLICY_3, Berg, commit, settle, wait_for
from pods import clean, cluster  # noqa: F401 (a fixture)
from rendezvous import TRAINING, check_attempts
from watch.test_profile import SPIN

from berg.gke import client
from berg.gke.pods import ensure_account
from berg.google import iam
from berg.laptop import jobs
from localcloud.identity.tokens import Tokens

PROJECT = "/cloudresourcemanager/v1/projects/berg-local"
T4 = {"gpu_type": "t4", "num_gpus": 1, "machine_type": "n1-standard-4"}


REPORTS = "import berg; berg.report(7, loss=0.5)"


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster with nodes of one T4, and Spot nodes without GPUs."""
    spot = {"num_gpus": 0, "machine_type": "n1-standard-2", "spot": True, "num_nodes": 3}
    with cluster(cloud, "verbs", tmp_path_factory.mktemp("kube"), T4, spot) as made:
        yield made


def run(berg: Berg, *words: str, gpus: str = "0"):
    done = berg("run", "--cluster", "verbs", "-g", gpus, *words)
    assert done.returncode == 0, done.stderr
    return done


def running(berg: Berg, name: str) -> None:
    wait_for(lambda: berg.state(name)["state"] == "RUNNING", 60, f"{name} runs")


# --- results, and again


@pytest.mark.slow
def test_results_are_fetched_and_a_job_runs_again(berg, kube, tmp_path):
    run(
        berg,
        "-n",
        "first",
        "--env",
        "A=7",
        "--wait",
        "mkdir -p $BERG_RESULTS_DIR/d; echo a is $A >$BERG_RESULTS_DIR/d/a",
    )
    fetched = berg("fetch", "first", str(tmp_path / "here"))
    assert fetched.returncode == 0, fetched.stderr
    assert (tmp_path / "here/d/a").read_text() == "a is 7\n"
    again = berg("rerun", "first", "-n", "second", "--spot", "--wait")
    assert again.returncode == 0, again.stderr
    state = berg.state("second")
    assert (state["state"], state["job"]["place"]) == ("SUCCEEDED", "gke")
    spec = kube.get("jobs", "second")["spec"]["template"]["spec"]
    assert spec["nodeSelector"]["cloud.google.com/gke-spot"] == "true"
    assert berg.objects("berg_results/second/d/")["berg_results/second/d/a"] == b"a is 7\n"
    removed = berg("rm", "-y", "first")
    assert removed.returncode == 0 and not berg.objects("berg_results/first/"), removed.stderr


@pytest.mark.slow
def test_a_command_that_fails_runs_again_in_its_pod(berg, kube):
    script = "n=$(cat n 2>/dev/null || echo 0); echo $((n + 1)) >n; echo try $n as $BERG_ATTEMPT; test $n = 2 || exit 1$n"
    run(berg, "-n", "again", "--restart-on-failure", "5", "--wait", script)
    state = berg.state("again")
    assert (state["attempt"], state["failures"], state["restarts"]) == (3, 2, 0)
    tries = [line for line in berg.log("again").splitlines() if line.startswith("try")]
    assert tries == ["try 0 as 1", "try 1 as 2", "try 2 as 3"]
    assert len(pods.of(kube, "again")) == 1, "in one pod"


@pytest.mark.slow
def test_a_command_that_fails_runs_again_in_all_pods(berg, kube):
    (berg.repo / "train.py").write_text(TRAINING)
    commit(berg.repo)
    options = ("-n", "all", "--spot", "-m", "3", "--each", "--restart-on-failure", "3")
    run(berg, *options, "python train.py")
    check_attempts(berg, "all")
    assert len(pods.of(kube, "all")) == 3, "in the same pods"


@pytest.mark.slow
def test_a_sweep_on_spot_pods_goes_on_after_a_preemption(berg, kube, cloud):
    script = "echo a is {a}; [ {a} != 2 ] || { echo x >>$BERG_RESULTS_DIR/tries; sleep 5; }"
    run(berg, "-n", "sweep", "--grid", "a=1,2,3", "--parallel", "2", "--spot", script)
    names = [f"sweep-{index}" for index in range(3)]
    wait_for(lambda: any("a is 2" in berg.log(name) for name in names), 60, "the second job")
    victims = [pod for pod in kube.pods() if pod["status"]["phase"] == "Running"]
    cloud.call("POST", f"/_berg/instances/{victims[0]['spec']['nodeName']}/preempt", {"grace": 20})
    done = berg("wait", "sweep")
    assert done.returncode == 0, done.stderr
    assert [f"a is {n + 1}" in berg("log", f"sweep/{n}").stdout for n in range(3)] == [True] * 3
    wait_for(
        lambda: not [p for p in kube.pods() if p["status"]["phase"] in ("Pending", "Running")],
        60,
        "the pods' end",
    )


# --- pods that wait


@pytest.mark.slow
def test_a_pod_without_quota_says_so_wherever_one_looks(berg, kube, cloud):
    quota = {"metric": "NVIDIA_T4_GPUS", "region": "us-central1"}
    before = cloud.call("POST", "/_berg/quotas", {**quota, "limit": 0})
    assert before
    try:
        run(berg, "-n", "poor", "true", gpus="1")
        words = "no quota for another node: "
        wait_for(
            lambda: words in " ".join(berg("list").stdout.split()), 60, "the reason in the list"
        )
        assert f"poor waits: {words}" in " ".join(berg("cluster", "status", "verbs").stdout.split())
        follower = berg.start("tail", "poor")
        heard = pods.hear(follower, words)
        assert "https://console.cloud.google.com/iam-admin/quotas" in heard
        follower.send_signal(signal.SIGINT)
        follower.communicate(timeout=20)
    finally:
        cloud.call("POST", "/_berg/quotas", {**quota, "limit": 16})
    assert berg("wait", "poor").returncode == 0, "with quota it runs"


# --- people


@pytest.fixture
def sshd():
    if not shutil.which("sshd", path="/usr/sbin") or os.geteuid():
        pytest.skip("pods run an ssh server only for root")


@pytest.mark.slow
def test_plain_ssh_knows_pods_and_reaches_their_ports(berg, kube, sshd):
    made = berg("devbox", "--cluster", "verbs", "-g", "0", "-n", "box")
    assert made.returncode == 0, made.stderr
    assert berg("ssh", "box", "--", "true").returncode == 0
    file = str(berg.home / "ssh/box")
    environment = berg.environment()
    words = ["ssh", "-F", file, "box", "cat; exit 4"]
    plain = subprocess.run(words, env=environment, input=b"\0\xff", capture_output=True, timeout=60)
    assert (plain.returncode, plain.stdout) == (4, b"\0\xff"), plain.stderr
    (berg.home / "file").write_text("by rsync")
    words = ["rsync", "-e", f"ssh -F {file}", str(berg.home / "file"), "box:/root/file"]
    assert subprocess.run(words, env=environment, capture_output=True, timeout=60).returncode == 0
    assert berg("ssh", "box", "--", "cat /root/file").stdout == "by rsync"
    inside, outside = free_port(), free_port()
    serve = f"cd /root; exec python3 -m http.server {inside} --bind 127.0.0.1"
    server = berg.start("ssh", "box", "--", serve)
    forward = berg.start("ssh", "box", "-N", "-L", f"{outside}:localhost:{inside}")
    try:
        found = wait_for(lambda: fetched(outside), 60, "the page")
        assert found == b"by rsync"
    finally:
        for process in (forward, server):
            process.terminate()
            process.communicate(timeout=20)
    assert berg("kill", "box").returncode == 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def fetched(port: int) -> bytes:
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/file", timeout=10) as answer:
            return answer.read()
    except OSError:
        return b""


@pytest.mark.slow
def test_a_pod_without_an_ssh_server_gives_a_terminal(berg, kube):
    run(berg, "-n", "bare", "sleep 1000")
    running(berg, "bare")
    path = ".berg/machines/bare/bare.json"
    wait_for(
        lambda: path in berg.objects(".berg/machines/bare/"), what="what the pod says of itself"
    )
    berg.bucket.write(path, json.dumps({**json.loads(berg.bucket.read(path)), "host_keys": []}))
    said, code = at_terminal(berg, ["ssh", "bare"], b"tty; stty size; echo job $BERG_JOB; exit 6\n")
    assert code == 6 and b"/dev/pts/" in said and b"24 80" in said and b"job bare" in said, said
    said, code = at_terminal(berg, ["ssh", "bare", "-t", "--", "tty; exit 7"], b"")
    assert code == 7 and b"/dev/pts/" in said, said
    plain = berg("ssh", "bare", "--", "tty")
    assert plain.returncode == 1 and "not a tty" in plain.stdout
    assert berg("kill", "--now", "bare").returncode == 0


def at_terminal(berg: Berg, words: list[str], typed: bytes) -> tuple[bytes, int]:
    """What a command shows on a terminal of 80 columns on which somebody types, and its exit code."""
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(berg.repo)
        os.execve(sys.executable, [sys.executable, "-m", "berg", *words], berg.environment())
    import fcntl
    import struct
    import termios

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    said, end = b"", time.monotonic() + 60
    while time.monotonic() < end:
        if typed and b"# " in said:
            os.write(terminal, typed)
            typed = b""
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                said += os.read(terminal, 1 << 16)
            except OSError:  # the program has ended
                break
    else:
        os.kill(pid, signal.SIGKILL)
    return said, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- no rights


def somebody(berg: Berg, cloud, *roles: str) -> dict[str, str]:
    """The environment of a person with these roles in the project."""
    name = f"p-{uuid.uuid4().hex[:9]}"
    email = cloud.call("POST", "/iam/v1/projects/berg-local/serviceAccounts", {"accountId": name})[
        "email"
    ]
    policy = cloud.call("POST", f"{PROJECT}:getIamPolicy", POLICY_3)
    policy.setdefault("bindings", []).extend(
        {"role": role, "members": [f"serviceAccount:{email}"]} for role in roles
    )
    cloud.call("POST", f"{PROJECT}:setIamPolicy", {"policy": policy})
    settle(cloud)
    file = berg.home / f"{name}.json"
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(file, email)
    return {"BERG_CREDENTIALS_FILE": str(file)}


GROUP = "rbac.authorization.k8s.io"
RIGHTS = "roles/compute.instanceAdmin.v1", "roles/storage.admin", "roles/iam.serviceAccountUser"


@pytest.mark.slow
def test_who_may_not_see_clusters_is_told_which_role_it_takes(berg, kube, cloud, monkeypatch):
    her = somebody(berg, cloud, *RIGHTS)
    words = ["run", "--cluster", "verbs", "-g", "0", "true"]
    for command in (
        words,
        ["cluster", "list"],
        ["cluster", "status", "verbs"],
        ["cluster", "create", "hers"],
    ):
        done = berg(*command, **her)
        assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
        said = done.stderr.strip().splitlines()[-1]
        assert (
            "container.clusters.list" in said
            and "roles/container." in said
            and "bucket" not in said
        ), said
    run(berg, "-n", "hidden", "sleep 1000")
    running(berg, "hidden")
    monkeypatch.setattr("berg.laptop.jobs.LOST_AFTER", 0)
    her_settings = replace(
        cloud.settings(berg.bucket_name), credentials_file=her["BERG_CREDENTIALS_FILE"]
    )
    (found,) = jobs.overview(her_settings, None)
    assert found.state.state == "RUNNING", "what she cannot see is not lost"
    assert berg("list", **her).returncode == 0
    assert berg("kill", "--now", "hidden").returncode == 0


@pytest.mark.slow
def test_who_may_see_a_cluster_but_not_its_pods_is_told_so(berg, kube, cloud):
    run(berg, "-n", "theirs", "sleep 1000")
    running(berg, "theirs")
    her = somebody(berg, cloud, *RIGHTS, "roles/container.clusterViewer")
    done = berg("run", "--cluster", "verbs", "-g", "0", "true", **her)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "the cluster us-central1-a/verbs does not let you" in done.stderr, done.stderr
    assert "roles/container.developer" in done.stderr
    listed = berg("list", **her)
    assert (
        listed.returncode == 0
        and "the cluster us-central1-a/verbs does not let you" in listed.stderr
    )
    (found,) = [
        each
        for each in json.loads(berg("list", "--json", **her).stdout)
        if each["name"] == "theirs"
    ]
    assert found["state"] == "RUNNING", "what she cannot see is not lost"
    status = berg("cluster", "status", "verbs", **her)
    assert status.returncode == 0 and "does not let you" in status.stdout + status.stderr, status
    assert berg("kill", "theirs", **her).returncode == 1
    assert berg("kill", "--now", "theirs").returncode == 0


@pytest.mark.slow
def test_doctor_names_the_rights_that_jobs_in_clusters_take(berg, kube, cloud):
    def look(*roles: str) -> dict[str, dict]:
        her = somebody(berg, cloud, *RIGHTS, *roles) if roles else {}
        return {each["check"]: each for each in json.loads(berg("doctor", "--json", **her).stdout)}

    assert look()["rights: clusters"]["status"] == "ok"
    unseen = look("roles/compute.viewer")["clusters"]
    assert unseen["status"] == "warning" and unseen["fix"].endswith(
        "--role roles/container.developer"
    )
    found = look("roles/container.clusterViewer")["rights: clusters"]
    assert found["status"] == "warning" and found["fix"].endswith(
        "--role roles/container.developer"
    )
    assert (
        "container.jobs.create" in found["found"] and "container.clusters.get" not in found["found"]
    )
    binding = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
    everybody = {"apiGroup": GROUP, "kind": "Group", "name": "system:authenticated"}
    admin = {"apiGroup": GROUP, "kind": "ClusterRole", "name": "cluster-admin"}
    about = {"metadata": {"name": "everybody"}, "roleRef": admin, "subjects": [everybody]}
    path = f"/apis/{GROUP}/v1/clusterrolebindings"
    kube.call("POST", path, {**binding, **about})
    try:
        assert look("roles/container.clusterViewer")["rights: clusters"]["status"] == "ok"
    finally:
        kube.call("DELETE", f"{path}/everybody")
    assert look("roles/container.developer")["rights: clusters"]["status"] == "ok"


def test_pods_get_an_account_only_from_somebody_who_may_give_rights(berg, kube, cloud):
    settings = cloud.settings(berg.bucket_name)
    server = client.connect(settings, "us-central1-a/verbs")
    kube.call("DELETE", f"{client.CORE}/serviceaccounts/{iam.ACCOUNT}")
    her = somebody(berg, cloud, *RIGHTS, "roles/container.developer")
    theirs = replace(settings, credentials_file=her["BERG_CREDENTIALS_FILE"])
    hers = client.connect(theirs, "us-central1-a/verbs")
    with pytest.raises(client.Refused, match="does not let you"):
        ensure_account(theirs, hers)
    assert ensure_account(settings, server) == ensure_account(theirs, hers) == "default"


# --- what runs


@pytest.mark.slow
def test_a_command_in_a_pod_is_watched_and_profiled(berg, kube):
    (berg.repo / "spin.py").write_text(SPIN)
    commit(berg.repo)
    run(berg, "-n", "spins", "--sample-seconds", "1", "python3 spin.py 60")
    running(berg, "spins")
    (file,) = json.loads(berg("profile", "spins", "-s", "1", "--json").stdout)["files"]
    assert "busy" in [
        frame["name"] for frame in json.loads(Path(file).read_text())["shared"]["frames"]
    ]
    shown = wait_for(
        lambda: "%" in (text := berg("top", "spins", "--once").stdout) and text, 30, "samples"
    )
    assert shown.splitlines()[1].startswith("spins "), shown
    assert berg("kill", "spins").returncode == 0


@pytest.mark.slow
def test_of_several_pods_the_first_reports_metrics(berg, kube):
    code = f"python3 -c '{REPORTS}'"
    words = ("--cluster", "verbs", "-g", "0", "-m", "2", "--each", "-n", "told", "--wait")
    done = berg("run", *words, code)
    assert done.returncode == 0, (done.stderr, berg.log("told"))
    assert json.loads(berg.bucket.read("berg_results/told/metrics.jsonl")) == {
        "step": 7,
        "loss": 0.5,
    }


@pytest.mark.slow
def test_mpi_is_refused_clearly(berg, kube):
    done = berg(
        "run", "--cluster", "verbs", "-g", "0", "-m", "2", "-n", "mpi", "--wait", "mpi hostname"
    )
    assert done.returncode == 1
    assert "mpi needs ssh from machine to machine, which pods do not have" in berg.log("mpi"), (
        berg.log("mpi")
    )
