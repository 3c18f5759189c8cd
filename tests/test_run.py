"""`berg run` and the commands around it, through the real command line, on machines of the embedded
cloud.

What is looked at is what a person would look at: what berg prints, what lies in the bucket, which
machines there are.
"""

import hashlib
import json
import os
import re
import resource
import shutil
import signal
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner
from conftest import WHEELHOUSE, Berg, commit, git, wait_for

from berg import cli
from berg.laptop import jobs
from localcloud.machines import sandbox


def job_of(berg: Berg, name: str) -> dict:
    return json.loads(berg.bucket.read(f".berg/jobs/{name}_metadata.json"))


def ulimit(number: int) -> str:
    """What a shell says of a limit that this computer allows, in kB."""
    most = resource.getrlimit(number)[1]
    return "unlimited" if most == resource.RLIM_INFINITY else str(most // 1024)


def results(berg: Berg, results_dir: str) -> dict[str, bytes]:
    prefix = f"berg_results/{results_dir}/"
    return {name.removeprefix(prefix): data for name, data in berg.objects(prefix).items()}


def check_ended(berg: Berg, name: str, state: str, exit_code: int | None) -> dict:
    """What holds for every job that is over; returns its state."""
    found = berg.state(name)
    assert (found["state"], found["exit_code"]) == (state, exit_code), found
    assert found["finished_at"] >= found["started_at"] > ""
    assert bool(found["reason"]) == (state != "SUCCEEDED")
    blob = berg.bucket.get(f".berg/jobs/{name}_state.json")
    assert json.loads(blob.metadata["state"]) == found, (
        "a list would show another state than the object holds"
    )
    wait_for(lambda: name not in berg.machines(), what="the end of the machine")
    return found


def begun(berg: Berg, name: str, marker: str = "ready", seconds: float = 60) -> None:
    """Wait until the command of a job printed a line that says `marker` and nothing else."""
    wait_for(lambda: f"\n{marker}\n" in berg.log(name), seconds, f"{marker!r} in the log of {name}")


JOB = """
echo "python $(command -v python)"
python -c "import google.auth" 2>&1 | tail -n 1
python -c "import berg.config" 2>&1 | tail -n 1
echo "head $(git rev-parse HEAD) on $(git branch --show-current)"
echo "status [$(git status --porcelain)]"
git log -1 --format="parent %P"
cat edited.txt "new folder/untracked.txt"
test -e junk.o || echo "no ignored files"
echo "wish $WISH, job $BERG_JOB, gpus $BERG_NUM_GPUS, bucket $BERG_BUCKET, attempt $BERG_ATTEMPT"
echo "to standard error" >&2
echo "to its file" >/dev/stderr
echo "files $(ulimit -Sn), locked $(ulimit -Sl)"
out=$BERG_RESULTS_DIR
head -c 3000000 /dev/urandom >$out/weights.bin
mkdir -p "$out/sub folder" && echo grüße >"$out/sub folder/ü.txt" && : >$out/empty
(cd $out && sha256sum weights.bin)
seq 200000
"""


@pytest.mark.default_image
def test_from_the_laptop_to_the_bucket_and_back(berg, tmp_path):
    """One job with everything that may lie in a repo, and every command about a job that is over."""
    head = git(berg.repo, "rev-parse", "HEAD")
    (berg.repo / "edited.txt").write_text("as committed\n")
    (berg.repo / ".gitignore").write_text("*.o\n")
    head = commit(berg.repo, "second")
    (berg.repo / "edited.txt").write_text("as edited\n")
    (berg.repo / "job.sh").write_text(JOB)
    (berg.repo / "junk.o").write_text("built here")
    (berg.repo / "new folder").mkdir()
    (berg.repo / "new folder/untracked.txt").write_text("never added\n")
    before = git(berg.repo, "status", "--porcelain"), git(berg.repo, "for-each-ref")
    host = {Path(home, "berg_results") for home in ("/root", Path.home(), berg.home)}
    there = [os.access(folder, os.F_OK) for folder in host]

    command = "bash job.sh --logdir=/root/berg_results/sweep1/one"
    ran = berg("run", "-g", "0", "-n", "one", "--env", "WISH=a b=c", "--tail", command)
    assert ran.returncode == 0, ran.stderr
    for shown in (
        command,
        "A job.sh",
        "M edited.txt",
        "junk.o (ignored by git)",
        "n1-standard-8",
        head[:12],
    ):
        assert shown in ran.stderr, shown
    assert "one SUCCEEDED with exit code 0" in ran.stderr
    assert (git(berg.repo, "status", "--porcelain"), git(berg.repo, "for-each-ref")) == before
    assert [os.access(folder, os.F_OK) for folder in host] == there, (
        "a machine wrote to a home of this computer"
    )

    job = job_of(berg, "one")
    log = berg.log("one")
    for line in (
        f"python {shutil.which('python', path=sandbox.PATH) or '/root/berg/bin/python'}",
        "ModuleNotFoundError: No module named 'google'",
        "ModuleNotFoundError: No module named 'berg.config'; 'berg' is not a package",
        f"head {job['git_snapshot']} on main",
        "status []",
        f"parent {head}",
        "as edited",
        "never added",
        "no ignored files",
        f"wish a b=c, job one, gpus 0, bucket {berg.bucket_name}, attempt 1",
        "to standard error\nto its file",
        f"files {min(1 << 20, resource.getrlimit(resource.RLIMIT_NOFILE)[1])}, "
        f"locked {ulimit(resource.RLIMIT_MEMLOCK)}",
    ):
        assert f"\n{line}\n" in log, log[:3000]
    assert job["git_commit"] == head != job["git_snapshot"] and job["git_dirty"]
    assert sorted(job["git_changed_files"]) == [
        "A job.sh",
        "A new folder/untracked.txt",
        "M edited.txt",
    ]
    assert "\n" + "".join(f"{n}\n" for n in range(1, 200_001)) in log
    assert log.endswith("[berg] Job one SUCCEEDED\n")
    assert ran.stdout == log
    assert berg("log", "one").stdout == log

    found = results(berg, "sweep1/one")
    assert sorted(found) == ["berg_job_metadata.json", "empty", "sub folder/ü.txt", "weights.bin"]
    assert json.loads(found["berg_job_metadata.json"]) == job
    assert found["empty"] == b"" and found["sub folder/ü.txt"] == "grüße\n".encode()
    assert f"\n{hashlib.sha256(found['weights.bin']).hexdigest()}  weights.bin\n" in log
    state = check_ended(berg, "one", "SUCCEEDED", 0)
    assert state["synced_until"] >= state["started_at"]

    tail = berg("log", "-f", "one")
    assert tail.stdout == log and "one SUCCEEDED" in tail.stderr and tail.returncode == 0
    (listed,) = json.loads(berg("list", "--json").stdout)
    assert (listed["name"], listed["state"], listed["exit_code"]) == ("one", "SUCCEEDED", 0)
    assert (listed["cmd"], listed["results_dir"], listed["machine_status"]) == (
        command,
        "sweep1/one",
        None,
    )
    table = berg("list", "-a", "-c").stdout
    assert (
        re.search(r"^one +tester +SUCCEEDED .* 0 +sweep1/one$", table, re.M)
        and f"$ {command}" in table
    )
    gone = berg("show", "one", "--ip")
    assert gone.returncode == 1 and "no machine any more (the job is SUCCEEDED)" in gone.stderr
    over = berg("kill", "one")
    assert over.returncode == 0 and "SUCCEEDED" in over.stderr

    fetched = berg("fetch", "one", str(tmp_path / "here"), "--json")
    assert json.loads(fetched.stdout) == {
        "folder": str(tmp_path / "here"),
        "files": 4,
        "fetched": 4,
    }
    assert (tmp_path / "here/weights.bin").read_bytes() == found["weights.bin"]
    again = berg("fetch", "sweep1", "--json")  # a folder of several jobs, to the default place
    assert json.loads(again.stdout)["folder"] == str(berg.home / "berg_results/sweep1")
    assert (berg.home / "berg_results/sweep1/one/sub folder/ü.txt").read_text() == "grüße\n"
    (tmp_path / "here/empty").unlink()
    assert json.loads(berg("fetch", "one", str(tmp_path / "here"), "--json").stdout)["fetched"] == 1


@pytest.mark.slow
def test_the_exit_code_comes_back_also_when_the_cloud_stumbles(berg, cloud):
    """Answers that get lost and servers that are busy change nothing: one machine, one job, one
    outcome.
    """
    for method in (
        "storage.objects.insert",
        "storage.objects.get",
        "compute.instances.aggregatedList",
    ):
        cloud.fault(method, status=503)
    cloud.fault("compute.instances.insert", reset=True, after_handler=True)
    cloud.fault("compute.zoneOperations.wait", status=503)
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    try:
        ran = berg("run", "-g", "0", "-n", "seven", "--wait", "--json", "echo before; exit 7")
    finally:
        cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "on": False})
    assert ran.returncode == 7, ran.stderr
    shown = json.loads(ran.stdout)
    assert (shown["name"], shown["zone"]) == ("seven", "us-central1-b")
    assert "us-central1-a: out of stock" in ran.stderr
    assert "seven FAILED: the command failed with exit code 7" in ran.stderr
    assert (
        "\nbefore\n" in berg.log("seven")
        and "\nbefore\n" in ran.stderr.partition("The end of the log")[2]
    )
    check_ended(berg, "seven", "FAILED", 7)
    assert berg("tail", "seven").returncode == 7
    counts = cloud.call("GET", "/_berg/requests")["counts"]
    assert counts["compute.instances.insert"] == 3, (
        "one in each zone, and the one whose answer was lost"
    )


@pytest.mark.slow
def test_a_command_runs_in_the_folder_where_it_was_typed_and_from_a_detached_head(berg):
    (berg.repo / "sub/deep").mkdir(parents=True)
    (berg.repo / "sub/deep/x").write_text("here\n")
    head = commit(berg.repo)
    git(berg.repo, "checkout", "-q", "--detach")
    show = "env | grep DISABLE_GCS; pwd; git status --porcelain --branch; git rev-parse HEAD"
    ran = berg("run", "-g", "0", "--tail", f"cat x; {show}", cwd=berg.repo / "sub/deep")
    assert ran.returncode == 0, ran.stderr
    assert (
        "Folder    sub/deep of the repo (--cwd)" in ran.stderr and "(detached HEAD)" in ran.stderr
    )
    assert f"\nhere\n/root/code/proj/sub/deep\n## HEAD (no branch)\n{head}\n" in ran.stdout
    (berg.repo / "sub/deep/x").write_text("changed\n")
    ran = berg("run", "-g", "0", "--tail", "--cwd", "sub", f"cat deep/x; {show}")
    assert "\nchanged\n/root/code/proj/sub\n## HEAD (no branch)\n" in ran.stdout, ran.stderr
    for wrong in ("nowhere", "..", "/etc", "sub/deep/x"):
        refused = berg("run", "-g", "0", "--cwd", wrong, "true")
        assert refused.returncode == 1 and f"--cwd {wrong} is no folder of" in refused.stderr


def test_dry_run_shows_the_request_and_sends_nothing(berg, cloud):
    wishes = [
        "-g",
        "2",
        "-t",
        "t4",
        "-c",
        "12",
        "--spot",
        "--zone",
        "us-central1-f",
        "--max-hours",
        "2",
    ]
    ran = berg(
        "run", "--dry-run", "--json", *wishes, "--disk-gb", "50", "-n", "dry", "python train.py"
    )
    assert ran.returncode == 0, ran.stderr
    asked = json.loads(ran.stdout)["request"]
    zones = [
        each["zone"].rpartition("/")[2] for each in asked["group"]["distributionPolicy"]["zones"]
    ]
    assert zones == ["us-central1-f"]
    others = json.loads(
        berg("run", "--dry-run", "--json", *wishes, "--region", "us-central1", "true").stdout
    )["request"]["group"]["distributionPolicy"]
    zones = [each["zone"].rpartition("/")[2] for each in others["zones"]]
    assert zones[0] == "us-central1-f" and len(zones) > 1, "then the region's others"
    far = berg(
        "run",
        "--dry-run",
        "--json",
        "-g",
        "0",
        "--zone",
        "europe-west4-b",
        "--zone",
        "us-central1-a",
        "true",
    )
    assert far.returncode == 0, far.stderr
    assert "europe-west4: not in us, where the bucket is" in far.stderr
    body = asked["template"]["properties"]
    script = next(
        each["value"] for each in body["metadata"]["items"] if each["key"] == "startup-script"
    )
    assert re.fullmatch(r"<berg's boot.py, \d+ bytes, sha256 [0-9a-f]{12}…>", script)
    assert body["machineType"] == "custom-12-46080"
    assert body["guestAccelerators"][0]["acceleratorCount"] == 2
    assert body["scheduling"]["provisioningModel"] == "SPOT"
    assert body["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    assert body["scheduling"]["maxRunDuration"] == {"seconds": "7200"}
    assert body["disks"][0]["initializeParams"]["diskSizeGb"] == "50"
    assert "custom-12-46080 with 2 x t4, spot, 50 GB disk" in ran.stderr
    requests = cloud.call("GET", "/_berg/requests")["requests"]
    changes = {each["method"] for each in requests if each["verb"] != "GET"}
    assert changes == {"compute.advice.capacity"}, "which asks for the odds of Spot machines"
    assert berg.objects() == {} and berg.machines() == {}


@pytest.mark.parametrize(
    ("wishes", "machine_type", "gpus"),
    [
        ([], "g2-standard-12", ""),
        (["-t", "t4", "-g", "4"], "n1-standard-32", "nvidia-tesla-t4:4"),
        (
            ["-t", "p100", "--image", "common-cu124-v20250325-debian-11-py310"],
            "n1-standard-8",
            "nvidia-tesla-p100:1",
        ),
        (["-t", "a100", "-g", "8"], "a2-highgpu-8g", ""),
        (["-t", "h100", "-g", "8"], "a3-highgpu-8g", ""),
        (["-t", "rtx-pro-6000"], "g4-standard-48", ""),
        (["--machine-type", "c4-standard-8"], "c4-standard-8", ""),
        (["--machine-type", "n4-standard-16"], "n4-standard-16", ""),
        (
            [
                "--machine-type",
                "n2-standard-2",
                "--image",
                "debian-cloud/debian-12",
            ],
            "",
            "",
        ),
    ],
)
def test_requests_for_gpus_are_ones_that_google_takes(berg, cloud, wishes, machine_type, gpus):
    """The request that --dry-run prints, sent as it is but for the script that would look for its
    job.
    """
    ran = berg("run", "--dry-run", "--json", *wishes, "true")
    assert ran.returncode == 0, ran.stderr
    body = json.loads(ran.stdout)["request"]
    zone = body["machineType"].split("/")[1]
    body["metadata"]["items"] = [
        item for item in body["metadata"]["items"] if item["key"] != "startup-script"
    ]
    cloud.call("POST", f"/compute/v1/projects/berg-local/zones/{zone}/instances", body)
    machine = berg.machines()[body["name"]]
    assert machine["machineType"].endswith(machine_type or "n2-standard-2")
    asked = [
        (g["acceleratorType"].rpartition("/")[2], g["acceleratorCount"])
        for g in body.get("guestAccelerators", [])
    ]
    assert [f"{kind}:{count}" for kind, count in asked] == ([gpus] if gpus else [])


def test_a_right_that_somebody_lacks_is_not_put_on_the_bucket(berg, cloud):
    for method in ("machineTypes.aggregatedList", "instances.aggregatedList"):
        cloud.fault(
            f"compute.{method}",
            status=403,
            message=f"Required 'compute.{method}' permission",
            times=None,
        )
    for arguments in (["run", "true"], ["list"]):
        done = berg(*arguments)
        assert done.returncode == 1
        assert "you lack a right in the project 'berg-local': Required 'compute." in done.stderr, (
            done.stderr
        )
        assert "See: berg doctor" in done.stderr and "bucket" not in done.stderr
    cloud.call("DELETE", "/_berg/faults")
    cloud.fault("storage.buckets.get", status=403, times=None)
    done = berg("run", "-g", "0", "true")
    assert f"access to bucket '{berg.bucket_name}' is forbidden" in done.stderr, done.stderr


def test_a_zone_whose_name_ends_otherwise(berg):
    wishes = ["-t", "h200", "--spot", "--region", "us-central1", "--zone", "us-central1-ai1a"]
    ran = berg("run", "--dry-run", "--json", *wishes, "true")
    assert ran.returncode == 0, ran.stderr
    group = json.loads(ran.stdout)["request"]["group"]
    zones = [each["zone"].rpartition("/")[2] for each in group["distributionPolicy"]["zones"]]
    assert zones == ["us-central1-ai1a", "us-central1-b"], "both are of us-central1"


LIVE = """
trap 'echo "told to stop"; sleep 1; echo late >$BERG_RESULTS_DIR/last.txt; exit 0' TERM
echo early >$BERG_RESULTS_DIR/first.txt
for n in $(seq 1000); do echo "now $(date +%s.%N)"; sleep 0.5; done
"""


def test_a_running_job_is_seen_and_ends_in_time(berg):
    """What comes out while a job runs, and its limit: it is stopped early enough to save its
    results.
    """
    (berg.repo / "live.sh").write_text(LIVE)
    ran = berg("run", "-g", "0", "-n", "live", "--max-hours", "0.0084", "bash live.sh")
    assert ran.returncode == 0 and ran.stdout == "live\n", ran.stderr
    for command in ("berg tail live", "berg kill live", "berg fetch live"):
        assert command in ran.stderr
    tail = berg.start("tail", "live")
    stopped = berg.start("tail", "live")
    assert stopped.stdout and stopped.stdout.readline(), "it follows"

    delays = []
    for _ in range(3):
        count = berg.log("live").count("\nnow ")
        log = wait_for(
            lambda count=count: (text := berg.log("live")).count("\nnow ") > count and text
        )
        delays.append(time.time() - float(re.findall(r"now (\d+\.\d+)\n", log)[-1]))
    assert max(delays) < 5, "a line must be in the bucket within 5 s of being printed"

    (listed,) = json.loads(berg("list", "--json").stdout)
    assert (listed["state"], listed["machine_status"]) == ("RUNNING", "RUNNING")
    assert berg("show", "live", "--ip").stdout == listed["external_ip"] + "\n"
    assert berg("show", "live", "--ip").stdout == listed["external_ip"] + "\n"
    assert "now " in berg("log", "live").stdout
    stopped.send_signal(signal.SIGINT)
    assert stopped.wait(10) == 130, "Ctrl-C ends the following, not the job"

    found = wait_for(lambda: "first.txt" in results(berg, "live") and results(berg, "live"), 30)
    assert berg.state("live")["state"] == "RUNNING" and found["first.txt"] == b"early\n"
    out, err = tail.communicate(timeout=60)
    assert tail.returncode != 0 and "live FAILED" in err and "--max-hours" in err
    state = check_ended(berg, "live", "FAILED", berg.state("live")["exit_code"])
    assert "time limit" in state["reason"]
    assert results(berg, "live")["last.txt"] == b"late\n", (
        "what the command saves when it is told to stop"
    )
    assert out == berg.log("live") and "told to stop" in out


STOPPABLE = """
trap 'echo "told to stop"; echo saved >$BERG_RESULTS_DIR/last.txt; exit 3' TERM
(setsid sh -c 'while :; do date +%N >$BERG_RESULTS_DIR/clock; sleep 0.1; done' >/dev/null 2>&1 &)
echo ready
while :; do sleep 0.1; done
"""


def test_kill_lets_the_command_save_its_work(berg):
    (berg.repo / "stoppable.sh").write_text(STOPPABLE)
    ran = berg(
        "run",
        "-g",
        "2",
        "-t",
        "t4",
        "--spot",
        "--zone",
        "us-central1-f",
        "-n",
        "gentle",
        "bash stoppable.sh",
    )
    assert ran.returncode == 0, ran.stderr
    machine = berg.machines()["gentle"]
    assert machine["name"].startswith("gentle-"), "a group names its machine"
    assert (
        machine["zone"].endswith("/us-central1-f")
        and machine["scheduling"]["provisioningModel"] == "SPOT"
    )
    assert machine["guestAccelerators"][0]["acceleratorCount"] == 2
    begun(berg, "gentle")
    killed = berg("kill", "gentle")
    assert killed.returncode == 0 and "gentle: KILLED" in killed.stderr
    assert "gentle" not in berg.machines(), "kill returns when the machine is gone"
    state = check_ended(berg, "gentle", "KILLED", 3)
    assert state["reason"] == "killed by tester"
    assert results(berg, "gentle")["last.txt"] == b"saved\n"
    assert "clock" in results(berg, "gentle"), "what went on writing was ended, too"
    assert "still writes" not in berg.log("gentle") and not state["lost"]
    assert "\ntold to stop\n" in berg.log("gentle")
    assert re.search(r"gentle +KILLED .* 2 x t4 ", berg("list").stdout)


@pytest.mark.slow
def test_kill_now_and_preemption(berg, cloud):
    """Two jobs at once: one is deleted without a word, the other loses its spot machine."""
    (berg.repo / "stoppable.sh").write_text(STOPPABLE)
    once = ["--spot", "--max-restarts", "0"]
    jobs = [
        berg.start("run", "-g", "0", "-n", name, *once, "bash stoppable.sh")
        for name in ("now", "spot")
    ]
    assert [job.wait(60) for job in jobs] == [0, 0]
    for name in ("now", "spot"):
        begun(berg, name)
    cloud.call("POST", "/_berg/instances/spot/preempt", {})
    killed = berg("kill", "now", "--now")
    assert (
        killed.returncode == 0 and "now: KILLED" in killed.stderr and "now" not in berg.machines()
    )
    assert (berg.state("now")["state"], berg.state("now")["reason"]) == (
        "KILLED",
        "killed by tester",
    )
    wait_for(lambda: berg.state("spot")["state"] in ("FAILED", "KILLED"))
    assert "preempted" in check_ended(berg, "spot", "FAILED", 3)["reason"]
    assert results(berg, "spot")["last.txt"] == b"saved\n"


@pytest.mark.slow
def test_no_kill_keeps_the_machine_of_a_command_that_a_signal_killed(berg):
    ran = berg("run", "-g", "0", "-n", "kept", "--no-kill", "--wait", "sleep 100 & kill -KILL $$")
    assert ran.returncode == 137, ran.stderr
    assert "killed by SIGKILL" in berg.state("kept")["reason"]
    assert "berg kill kept" in ran.stderr, "a machine that goes on costing money is to be named"
    assert berg.machines()["kept"]["status"] == "RUNNING"
    assert re.search(r"kept +FAILED, machine RUNNING", berg("list").stdout)
    path = f"/compute/v1/projects/berg-local/zones/{berg.machines()['kept']['zone'].rpartition('/')[2]}/instances/kept"
    berg.cloud.call("POST", f"{path}/stop")
    wait_for(lambda: berg.machines()["kept"]["status"] == "TERMINATED")
    berg.cloud.call("POST", f"{path}/start")
    ended = "FAILED already; nothing to do"
    wait_for(lambda: ended in berg.cloud.call("GET", f"{path}/serialPort")["contents"])
    time.sleep(2)
    assert berg.machines()["kept"]["status"] == "RUNNING", "who restarts a kept machine wants it"
    killed = berg("kill", "kept")
    assert killed.returncode == 0, killed.stderr
    check_ended(berg, "kept", "FAILED", 137)


@pytest.mark.slow
def test_waiting_for_a_job_lists_its_logs_rarely(berg):
    """A list costs as much as a write."""
    ran = berg(
        "run",
        "-g",
        "0",
        "-n",
        "slow",
        "--tail",
        "for i in $(seq 50); do echo line $i; sleep 0.5; done",
    )
    assert ran.returncode == 0 and all(f"line {number}\n" in ran.stdout for number in range(1, 51))
    sent = berg.cloud.call("GET", "/_berg/requests")["requests"]
    lists = [
        each for each in sent if each["method"] == "storage.objects.list" and "logs" in each["path"]
    ]
    reads = [
        each for each in sent if each["method"] == "storage.objects.get" and "logs" in each["path"]
    ]
    assert len(lists) <= 18 and len(reads) >= 25, (len(lists), len(reads))


def bare_machine(
    berg: Berg, name: str, user: str = "tester", labels: dict[str, str] | None = None
) -> None:
    """A machine of berg's without a job, such as a laptop leaves that died at the wrong moment."""
    disk = {"boot": True, "autoDelete": True}
    disk["initializeParams"] = {
        "sourceImage": "projects/debian-cloud/global/images/family/debian-12"
    }
    metadata = {
        "berg-bucket": berg.bucket_name,
        "startup-script": "#!/bin/sh\necho hello from the console\n",
    }
    body = {
        "name": name,
        "machineType": "zones/us-central1-a/machineTypes/n1-standard-1",
        "labels": {
            "berg": "1",
            "berg-user": user,
            "berg-bucket": berg.bucket_name,
            **(labels or {}),
        },
        "networkInterfaces": [{}],
        "metadata": {"items": [{"key": key, "value": value} for key, value in metadata.items()]},
        "disks": [disk],
    }
    berg.cloud.call("POST", "/compute/v1/projects/berg-local/zones/us-central1-a/instances", body)
    wait_for(lambda: berg.machines()[name]["status"] == "RUNNING", 90)


def test_globs_and_all_ask_first(berg):
    for name in ("sweep-1", "sweep-2", "other"):
        bare_machine(berg, name)
    bare_machine(berg, "sweep-3", user="somebody-else")
    listed = berg("list").stdout
    assert re.search(r"^sweep-1 +no job, machine RUNNING", listed, re.M) and "sweep-3" not in listed
    assert "sweep-3" in berg("list", "-a").stdout
    assert "other is a machine without a job (" in berg("wait", "other").stderr

    assert "to skip it: -y" in berg("kill", "sweep-*").stderr
    for refused in (berg("kill", "sweep-*", stdin="n\n"), berg("kill", "sweep-*")):
        assert refused.returncode != 0 and len(berg.machines()) == 4, (
            "without a yes nothing is killed"
        )
        assert sorted(refused.stderr.split()[:2]) == ["sweep-1", "sweep-2"], refused.stderr
    assert berg("kill", "sweep-*", stdin="y\n").returncode == 0
    assert sorted(berg.machines()) == ["other", "sweep-3"]
    everything = berg("kill", "--all", "-y")
    assert everything.returncode == 0 and list(berg.machines()) == ["sweep-3"], everything.stderr
    assert "nothing to kill" in berg("kill", "--all", "-y").stderr
    console = berg("log", "sweep-3")
    assert console.returncode == 0 and "startup-script: hello from the console" in console.stdout
    nothing = berg("kill", "sweep-*", "-y")
    assert nothing.returncode == 1 and "matches none of your jobs and machines" in nothing.stderr
    assert berg("kill", "sweep-3").returncode == 0, "a name in full is enough for somebody else's"


@pytest.mark.slow
def test_a_file_without_an_ending_is_no_folder(berg):
    (berg.repo / "save.py").write_text("import sys; open(sys.argv[2], 'w').write('weights')\n")
    ran = berg(
        "run", "-g", "0", "-n", "saver", "--wait", "python save.py --out /root/berg_results/x/model"
    )
    assert ran.returncode == 0, ran.stderr
    assert "berg_results/x (taken from the command; to change it: -r)" in ran.stderr
    assert berg.objects("berg_results/x/")["berg_results/x/model"] == b"weights"


@pytest.mark.slow
def test_what_a_command_wrote_beside_its_results_dir_is_named_and_fetched(berg, tmp_path):
    berg.bucket.write("berg_results/beside/foreign", "not of this job")
    command = "cd /root/berg_results; mkdir -p beside own; echo b >beside/b; echo a >own/a; ln -s a own/l; ln -s a own/k"
    ran = berg("run", "-g", "0", "-n", "two", "-r", "own", "--wait", command)
    assert ran.returncode == 0, ran.stderr
    says = "It also wrote to other folders: berg_results/beside"
    assert says in ran.stderr and says in berg("list").stdout
    assert "Results that are not in berg_results/own: berg_results/beside\n" in berg.log("two")
    assert berg.state("two")["elsewhere"] == "berg_results/beside"
    for folder, arguments in (
        (tmp_path / "here", [str(tmp_path / "here")]),
        (berg.home / "berg_results", []),
    ):
        fetched = berg("fetch", "two", *arguments)
        assert fetched.returncode == 0 and "1 of its files is in other folders" in fetched.stderr, (
            fetched.stderr
        )
        assert (folder / "beside/b").read_text() == "b\n" and not (
            folder / "beside/foreign"
        ).exists()
        assert (folder / ("a" if arguments else "own/a")).exists()


def test_of_many_files_fetch_names_the_first(berg):
    for number in range(30):
        berg.bucket.write(f"berg_results/many/{number:02}", "12345")
    said = berg("fetch", "many").stderr.splitlines()
    assert len(said) == 22 and all("berg_results/many/" in line for line in said[:20]), said
    assert said[20].split()[:4] == ["150", "in", "30", "files"], said


def test_a_job_whose_machine_is_gone_is_lost(berg, cloud, monkeypatch):
    """A crash leaves no word; a minute after the last one, every reader comes to the same
    conclusion.
    """
    assert berg("run", "-g", "0", "-n", "crashed", "echo ready; sleep 100").returncode == 0
    begun(berg, "crashed")
    cloud.call("POST", "/_berg/instances/crashed/crash", {})
    wait_for(lambda: berg.machines().get("crashed", {}).get("status") in (None, "TERMINATED"))
    (listed,) = json.loads(berg("list", "--json").stdout)
    assert listed["state"] == "RUNNING", "its state was written seconds ago: too early to tell"
    monkeypatch.setattr(jobs, "LOST_AFTER", 0)
    monkeypatch.setenv("BERG_HOME", str(berg.home))
    lost = CliRunner().invoke(cli.cli, ["list"])
    assert re.search(r"crashed\s+LOST", lost.output), lost.output
    assert "its machine is gone without a final state; it was RUNNING on crashed" in " ".join(
        lost.output.split()
    )
    assert "ready\n" in CliRunner().invoke(cli.cli, ["log", "crashed"]).output
    tail = CliRunner().invoke(cli.cli, ["tail", "crashed"])
    assert tail.exit_code == 1 and "crashed LOST" in tail.output


def make_wheel(folder: Path, name: str) -> None:
    """The smallest package that pip installs."""
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", f"print('{name} imported')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(
            f"{info}/WHEEL",
            "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr(f"{info}/RECORD", "")


PROJECT = '[build-system]\nrequires = ["setuptools"]\n[project]\nname = "{name}"\nversion = "1"\n'


@pytest.mark.parametrize(
    ("files", "imports"),
    [
        (
            {
                "setup.py": 'from setuptools import setup\nsetup(name="proj", install_requires=["tinyone"])\n',
                "requirements.txt": "tinytwo\n",
                "prepare.sh": "echo prepared in $PWD for $BERG_JOB\ntouch $PREPARED\n",
            },
            ["tinyone", "tinytwo"],
        ),
        pytest.param(
            {"pyproject.toml": PROJECT.format(name="proj") + 'dependencies = ["tinytwo"]\n'},
            ["tinytwo"],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["setup.py and requirements.txt", "pyproject.toml"],
)
def test_what_the_repo_requires_is_installed(berg, files, imports):
    for name in imports:
        make_wheel(berg.repo / "wheels", name)
    for name, content in files.items():
        (berg.repo / name).write_text(content)
    script = ["--install-script", "prepare.sh"] if "prepare.sh" in files else []
    # only a real root may write there
    prepared = "/usr/local/prepared" if os.getuid() == 0 else "/root/prepared"
    check = f"ls {prepared}; " if script else ""
    command = check + f'python -c "import {", ".join(imports)}" && git status --porcelain'
    command += ' && [ "$PIP_BREAK_SYSTEM_PACKAGES" = 1 ]'  # pip works in the command, too
    more = ["--env", f"PREPARED={prepared}"]
    wheels = f"PIP_FIND_LINKS={WHEELHOUSE} /root/code/proj/wheels"
    ran = berg(
        "run", "-g", "0", "-n", "installs", *script, "--env", wheels, *more, "--wait", command
    )
    log = berg.log("installs")
    assert ran.returncode == 0, log
    for name in imports:
        assert f"\n{name} imported\n" in log
    if script:
        assert "\nprepared in /root/code/proj for installs\n" in log and f"\n{prepared}\n" in log
        assert not os.access(prepared, os.F_OK)
    assert "??" not in log.rpartition("Running:")[2], "an installation left the checkout dirty"


@pytest.mark.slow
def test_a_failed_installation_ends_the_job(berg):
    (berg.repo / "setup.sh").write_text("echo beginning\nmkdir /proc/nowhere\necho never here\n")
    ran = berg(
        "run",
        "-g",
        "0",
        "-n",
        "broken",
        "--install-script",
        "setup.sh",
        "--wait",
        "echo never here",
    )
    assert ran.returncode == 1, ran.stderr
    state = check_ended(berg, "broken", "FAILED", 1)
    said = "the installation failed with exit code 1: bash -e setup.sh: mkdir: cannot create"
    assert state["reason"].startswith(said), state["reason"]
    assert state["reason"].endswith("choose what to run instead: --install uv|pip|none|COMMAND")
    log = berg.log("broken")
    assert (
        "\nbeginning\nmkdir: " in log
        and "\nnever here\n" not in log
        and log.endswith(f"{state['reason']}\n")
    )


@pytest.mark.slow
def test_damage_in_the_bucket_is_named(berg, cloud):
    """Two jobs whose machines find less than the laptop had sent."""
    cloud.call("POST", "/_berg/settings", {"delay": 8})
    starts = [berg.start("run", "-g", "0", "-n", name, "true") for name in ("packless", "damaged")]
    wait_for(lambda: len(berg.machines()) == 2, 60, "both machines")
    berg.bucket.delete(*[blob.name for blob in berg.bucket.list(".berg/repos/")])
    berg.bucket.write(".berg/jobs/damaged_metadata.json", '{"job_name": "dam')
    commit_sent = job_of(berg, "packless")["git_snapshot"]
    assert [start.wait(60) for start in starts] == [0, 0]
    for name in ("packless", "damaged"):
        wait_for(lambda name=name: berg.state(name)["finished_at"], what="the end of the job")
    packless, damaged = (
        check_ended(berg, name, "FAILED", None) for name in ("packless", "damaged")
    )
    assert f"commit {commit_sent} is missing" in packless["reason"]
    assert (
        ".berg/jobs/damaged_metadata.json is not what was submitted" in damaged["reason"]
        and "submit the job again" in damaged["reason"]
    )
    assert berg.log("damaged").endswith(f"FAILED: {damaged['reason']}\n")


def worker_of(name: str, address: str = "") -> int | None:
    """Process id, as this computer counts, of the worker that runs a job, on the machine with this
    internal address if other tests' jobs may have the same name.
    """
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
            variables = path.with_name("environ").read_bytes()
        except OSError:
            continue
        is_there = f"GCE_METADATA_HOST={address}".encode() in variables
        is_worker = b"berg.worker" in b" ".join(words)
        if is_there and is_worker and words[-3:] == [b"run", name.encode(), b""]:
            return int(path.parent.name)
    return None


@pytest.mark.slow
def test_a_worker_that_dies_is_survived(berg):
    (berg.repo / "stoppable.sh").write_text(STOPPABLE)
    assert berg("run", "-g", "0", "-n", "orphan", "bash stoppable.sh").returncode == 0
    begun(berg, "orphan")
    os.kill(worker_of("orphan"), signal.SIGKILL)
    wait_for(lambda: berg.state("orphan")["finished_at"], 60, "the end of the job")
    state = check_ended(berg, "orphan", "FAILED", None)
    assert "berg's worker was killed by signal 9" in state["reason"]
    assert results(berg, "orphan")["last.txt"] == b"saved\n" and "\ntold to stop\n" in berg.log(
        "orphan"
    )


@pytest.mark.slow
def test_a_full_disk_is_named(berg):
    (berg.repo / "small.sh").write_text("mount -t tmpfs -o size=4m tmpfs /root/berg_results\n")
    command = (
        "mkdir -p $BERG_RESULTS_DIR && head -c 9000000 /dev/zero >$BERG_RESULTS_DIR/checkpoint"
    )
    ran = berg("run", "-g", "0", "-n", "full", "--install-script", "small.sh", "--wait", command)
    assert ran.returncode == 1, ran.stderr
    reason = check_ended(berg, "full", "FAILED", 1)["reason"]
    assert "the machine's disk is full (/root/berg_results): ask for more with --disk-gb" in reason
    assert "No space left on device" in berg.log("full")
    assert len(results(berg, "full")["checkpoint"]) > 3_000_000, (
        "what could be written is in the bucket"
    )


def test_settings_are_shown(berg):
    assert berg("config", "path").stdout == f"{berg.home}/berg.json\n"
    values = json.loads(berg("config", "show", "--json", BERG_REGION="europe-west4").stdout)
    assert (values["bucket"], values["region"]) == (berg.bucket_name, "europe-west4")
    assert re.search(
        f'^bucket +"{berg.bucket_name}"\n +# bucket for', berg("config", "show").stdout, re.M
    )


def test_the_embedded_cloud_of_a_user(cloud, repo, tmp_path):
    """Set up, stopped, started by the command that needs it, deleted."""
    home = tmp_path / "home"
    (home / "local").mkdir(parents=True)
    (home / "local/image").symlink_to(cloud.folder / "image")
    berg = Berg(cloud, home, repo, "berg-local-results")
    try:
        made = berg("init", "--local")
        assert made.returncode == 0 and "berg run" in made.stderr, made.stderr
        first = json.loads(berg("local", "status", "--json").stdout)
        assert first["running"] and first["buckets"] == 1
        assert berg("local", "stop", "-y").returncode == 0
        assert not json.loads(berg("local", "status", "--json").stdout)["running"]
        listed = berg("list")
        assert listed.returncode == 0 and listed.stdout == "", listed.stderr
        assert f"Starting the embedded cloud at http://127.0.0.1:{first['port']}" in listed.stderr
        assert "Nothing yet" in listed.stderr
        assert berg("local", "reset", stdin="n\n").returncode != 0 and (home / "local").exists()
        assert berg("local", "reset", "-y").returncode == 0 and not (home / "local").exists()
        after = berg("list")
        assert after.returncode == 1 and "berg init --local" in after.stderr, (
            "the next step after a reset"
        )
    finally:
        berg("local", "reset", "-y")


@pytest.mark.slow
def test_kill_counts_what_is_still_to_come_of_a_slow_upload(berg, cloud):
    cloud.fault("storage.objects.insert", match="heavy/big", delay=12)
    script = "head -c 20M /dev/urandom >$BERG_RESULTS_DIR/big; echo written; sleep 600"
    assert berg("run", "-g", "0", "-n", "heavy", script).returncode == 0
    wait_for(lambda: "\nwritten" in berg.log("heavy"), 60, "the file")
    killed = berg("kill", "heavy")
    assert killed.returncode == 0 and "heavy: KILLED" in killed.stderr, killed.stderr
    told = re.search(
        r"heavy has been uploading its results since \S+: (\d+) files, ([\d,]+) bytes are left",
        killed.stderr,
    )
    assert told and int(told[1]) == 1 and int(told[2].replace(",", "")) == 20 << 20, killed.stderr
    assert len(berg.objects("berg_results/heavy/")["berg_results/heavy/big"]) == 20 << 20
