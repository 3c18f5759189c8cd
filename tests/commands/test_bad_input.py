"""What bad input gets: one sentence that names the thing and the next step, exit code 1, and
nothing left behind.

Everything goes through the real command line, against the embedded cloud.
"""

import json
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from conftest import Berg, Cloud, git, wait_for

from berg.google import storage
from localcloud import control

RUN = ("run", "-g", "0", "true")


def nothing_is_left(berg: Berg) -> None:
    assert berg.machines() == {}
    assert berg.objects(".berg/jobs/") == {}


def check_sentence(result: subprocess.CompletedProcess, *says: str) -> None:
    """Exit code 1, nothing on standard output, no traceback, and one message that says all of
    `says`.
    """
    assert result.returncode == 1, (result.stdout, result.stderr)
    assert result.stdout == "" and "Traceback" not in result.stderr
    assert result.stderr.count("berg: ") == 1, f"one message, not several: {result.stderr}"
    message = result.stderr.partition("berg: ")[2]
    assert "an error in berg" not in message and "None" not in message, message
    for part in says:
        assert part in message, message


def refused(berg: Berg, *arguments: str, says: tuple[str, ...], cwd=None, **env: str) -> None:
    check_sentence(berg(*arguments, cwd=cwd, **env), *says)
    nothing_is_left(berg)


# --- the settings


def test_no_settings(berg):
    (berg.home / "berg.json").unlink()
    for command in (RUN, ("list",), ("kill", "x"), ("fetch", "x")):
        refused(berg, *command, says=(f"no {berg.home}/berg.json yet", "berg init --local"))
    berg.write_config(project="berg-local")
    refused(berg, *RUN, says=("has no bucket", "berg init"))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"project": "a",\n "bucket" "b"}', "not valid JSON at line 2"),
        (b"[]", "must hold one JSON object"),
        (b"\xff\xfe", "cannot read"),
        (b'{"project": "p", "bucket": "b", "zones": "us-central1-a"}', "'zones' must be a list"),
        (b'{"project": "p", "bucket": ["b"]}', "'bucket' must be text"),
    ],
)
def test_unreadable_settings(berg, content, says):
    (berg.home / "berg.json").write_bytes(content)
    refused(berg, *RUN, says=(str(berg.home / "berg.json"), says, "Fix "))


def test_an_unknown_key_warns_and_does_no_harm(berg):
    settings = json.loads((berg.home / "berg.json").read_text())
    berg.write_config(**settings, colour="blue")
    listed = berg("list")
    assert listed.returncode == 0 and "unknown key 'colour'" in listed.stderr


# --- the repo


def test_no_repo(berg, tmp_path):
    folder = tmp_path / "loose"
    folder.mkdir()
    refused(berg, *RUN, cwd=folder, says=(str(folder), "not in a git repo", "git init"))
    git(folder, "init", "-q", "-b", "main")
    refused(berg, *RUN, cwd=folder, says=(str(folder), "no commit yet", "git commit"))


def test_a_command_without_quotes(berg):
    for words in (
        ["python", "train.py", "--lr=3"],
        ["-g", "0", "python", "train.py", "--lr", "3"],
        ["python", "train.py"],
    ):
        result = berg("run", *words)
        assert result.returncode == 2 and "Quote the command" in result.stderr, result.stderr
    assert "Quote" not in berg("run", "--gpus", "3", "python train.py").stderr
    after = berg(
        "run", "--dry-run", "--json", "-g", "0", "--", "python", "train.py", "--lr=3", "a b"
    )
    assert "Command   python train.py --lr=3 'a b'\n" in after.stderr, after.stderr
    assert (
        "Command   echo $HOME | cat\n"
        in berg("run", "--dry-run", "--json", "-g", "0", "--", "echo $HOME | cat").stderr
    )


def test_a_conflict(berg):
    blob = git(berg.repo, "rev-parse", "HEAD:train.py")
    stages = "".join(f"100644 {blob} {stage}\ttrain.py\n" for stage in (1, 2, 3))
    subprocess.run(
        ["git", "update-index", "--index-info"], cwd=berg.repo, input=stages, text=True, check=True
    )
    refused(berg, *RUN, says=("merge conflicts", "git status"))


# --- what was asked for


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["-g", "4", "-t", "rtx5090"], ("unknown GPU type 'rtx5090'", "p100", "h100")),
        (["-g", "3", "-t", "v100"], ("3 x v100", "choose -g 1, 2, 4, 8")),
        (["-g", "1", "-t", "p100", "-c", "64"], ("1 to 16 vCPUs", "choose -c")),
        (
            ["-g", "1", "-t", "p100"],
            (
                "6.0",
                "7.5 and up",
                "--image common-cu124-v20250325-debian-11-py310",
                "cu126",
                "-t l4",
            ),
        ),
        (["-g", "1", "-t", "h100"], ("a3-highgpu-1g cannot be had on demand", "--spot", "-g 8")),
        (
            ["-g", "8", "-t", "b200"],
            ("a4-highgpu-8g cannot be had on demand", "reservation", "--spot"),
        ),
        (
            ["-g", "4", "-t", "gb200", "--spot"],
            ("a4x-highgpu-4g", "reservations only", "Arm", "-t b200"),
        ),
        (["-n", "Bad_Name"], ("'Bad_Name'", "lower-case", "-n bs-256")),
        (["-n", "a" * 64], ("longer than 63 characters", "-n bs-256")),
        (["-r", "../outside"], ("'../outside'", "sweep1/bs_256")),
        (["--env", "NOVALUE"], ("--env 'NOVALUE'", "NAME=VALUE", "set here")),
        (["--env-file", "nope.env"], ("nope.env", "No such file")),
        (["-g", "2", "-t", "a100:4"], ("-t a100:4", "one number with -g")),
        (["-g", "2", "-t", "a100:x"], ("-t a100:x", "one number with -g")),
        (["--env", "BERG_JOB=x"], ("BERG_JOB", "set by berg")),
        (["--install-script", "nope.sh"], ("nope.sh", "is not a file in")),
        (["--max-hours", "0"], ("--max-hours 0", "30 seconds to 120 days")),
        (["--disk-gb", "1"], ("--disk-gb 1", "10 to 65536")),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_wishes_that_cannot_be(berg, arguments, says):
    wishes = arguments if "-g" in arguments else ["-g", "0", *arguments]
    refused(berg, "run", *wishes, "true", says=says)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--zone", "mars-east1-a"], ("mars-east1-a", "us-central1-a")),
        (
            ["-g", "8", "-t", "h200", "--spot", "--zone", "us-central1-a"],
            ("a3-ultragpu-8g with 8 x h200 in us-central1-a", "us-central1-b"),
        ),
        (
            ["--image", "no-such-image"],
            ("'no-such-image'", "deeplearning-platform-release", "gcloud compute images"),
        ),
        (["--image", "no-such-project/some"], ("no-such-project", "gcloud compute images")),
        (["--machine-type", "n9-huge-3"], ("n9-huge-3", "no zone")),
        (["--disk-gb", "20"], ("disk", "50 GB")),
    ],
    ids=lambda value: " ".join(value)[:30] if isinstance(value, list) else "",
)
def test_wishes_that_google_does_not_have(berg, arguments, says):
    berg.allowed = [400]
    wishes = arguments if {"-g", "--machine-type"} & set(arguments) else ["-g", "0", *arguments]
    refused(berg, "run", *wishes, "true", says=says)


def test_a_nul_that_no_program_takes(berg, tmp_path):
    (tmp_path / "key").write_bytes(b"a\0b")
    words = ("run", "-g", "0", "--secret", f"KEY={tmp_path}/key", "true")
    refused(berg, *words, says=("--secret KEY has a NUL byte, which no variable can hold",))
    (berg.repo / "pyproject.toml").write_text('[tool.berg.env]\nLR = "\\u0000"\n')
    refused(berg, *RUN, says=("a variable of --env has a NUL byte, which no program takes",))


def test_a_name_that_is_taken(berg):
    berg.bucket.write(".berg/jobs/mine_state.json", "{}", metadata={"state": "{}"})
    before = berg.objects()
    check_sentence(
        berg("run", "-g", "0", "-n", "mine", "true"), "there is a job 'mine' already", "-n NAME"
    )
    assert berg.objects() == before and berg.machines() == {}


def test_names_that_do_not_exist(berg):
    for command in ("tail", "log", "kill"):
        refused(berg, command, "nobody", says=("no job or machine 'nobody'", "berg list"))
    refused(berg, "fetch", "nobody", says=("berg_results/nobody", "berg list"))
    refused(berg, "fetch", "../nobody", says=("'../nobody'",))


def test_a_damaged_state(berg):
    """Whatever lies in the bucket, no reader of it falls over; `kill` may do away with it."""
    berg.bucket.write(".berg/jobs/odd_state.json", "{", metadata={"state": "[]"})
    berg.bucket.write(".berg/jobs/bare_state.json", "{")
    listed = berg("list", "-a")
    assert listed.returncode == 0 and listed.stdout.count("is damaged") == 2, listed.stderr
    for name in ("odd", "bare"):
        check_sentence(berg("log", name), f"{name} left no log")
        check_sentence(berg("fetch", name), f".berg/jobs/{name}_state.json", "damaged")
        tail = berg("tail", name)
        assert (
            tail.returncode == 1
            and f"{name} LOST" in tail.stderr
            and "Traceback" not in tail.stderr
        )


# --- the bucket and the project


def test_buckets_that_cannot_be_used(berg, cloud):
    settings = json.loads((berg.home / "berg.json").read_text())
    for command in (RUN, ("list",)):
        refused(
            berg,
            *command,
            says=("bucket 'no-such-bucket'", "does not exist", "berg init"),
            BERG_BUCKET="no-such-bucket",
        )

    cloud.call("POST", "/_berg/projects", {"project": "neighbour", "access": True})
    theirs = f"their-{berg.bucket_name}"
    cloud.call("POST", "/storage/v1/b?project=neighbour", {"name": theirs})
    refused(
        berg, *RUN, says=(f"bucket '{theirs}'", "another project", "berg init"), BERG_BUCKET=theirs
    )
    cloud.call("POST", "/_berg/projects", {"project": "neighbour", "access": False})
    try:
        for command in (RUN, ("list",)):
            says = (f"bucket '{theirs}'", "forbidden", "roles/storage.objectAdmin", "berg init")
            refused(berg, *command, says=says, BERG_BUCKET=theirs)
        refused(berg, *RUN, says=("project 'neighbour'", "berg init"), BERG_PROJECT="neighbour")
    finally:
        cloud.call("POST", "/_berg/projects", {"project": "neighbour", "access": True})
    refused(
        berg, *RUN, says=("project 'no-such-project'", "berg init"), BERG_PROJECT="no-such-project"
    )
    assert json.loads((berg.home / "berg.json").read_text()) == settings


# --- credentials and the network


def test_no_credentials(berg):
    settings = json.loads((berg.home / "berg.json").read_text())
    for endpoint in (None, settings["endpoint"]):
        berg.write_config(**{**settings, "credentials_file": None, "endpoint": endpoint})
        refused(berg, *RUN, says=("no Google credentials", "gcloud auth application-default login"))
    berg.write_config(**{**settings, "credentials_file": str(berg.home / "gone.json")})
    refused(berg, *RUN, says=("gone.json", "berg init"))
    (berg.home / "gone.json").write_text('{"type": "what"}')
    refused(berg, "list", says=("gone.json", "berg init"))


def test_credentials_that_were_revoked(cloud, repo, tmp_path):
    """On a cloud of the test's own: it is the laptop's token that goes."""
    home = tmp_path / "home"
    (home / "local").mkdir(parents=True)
    (home / "local/image").symlink_to(cloud.folder / "image")
    try:
        berg = Berg(cloud, home, repo, "berg-local-results")
        assert berg("init", "--local").returncode == 0
        own = Cloud(home / "local", json.loads((home / "berg.json").read_text())["endpoint"])
        own.call("POST", "/_berg/tokens/expire", {"revoke": True})
        for command in (RUN, ("list",)):
            check_sentence(
                berg(*command), "credentials have expired or were revoked", "berg local stop"
            )
        assert berg("local", "stop", "-y").returncode == 0
        listed = berg("list")
        assert listed.returncode == 0, f"the step that was named does not help: {listed.stderr}"
        assert list(storage.Bucket(own.settings("berg-local-results")).list(".berg/jobs/")) == []
    finally:
        control.reset(home / "local")


def test_a_dead_network(berg, cloud):
    settings = json.loads((berg.home / "berg.json").read_text())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, but not listening: connections are refused
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        credentials = json.loads((cloud.folder / "credentials.json").read_text())
        (berg.home / "cloud.json").write_text(
            json.dumps({**credentials, "token_url": f"{endpoint}/token"})
        )
        berg.write_config(
            **{**settings, "endpoint": endpoint, "credentials_file": str(berg.home / "cloud.json")}
        )
        began = time.monotonic()
        for command in (RUN, ("list",)):
            refused(
                berg, *command, says=(f"cannot reach {endpoint}", "network", "berg init --local")
            )
        assert time.monotonic() - began < 20, (
            "nobody waits for minutes to hear that there is no network"
        )


# --- no room


def test_stockout_and_quota_name_every_zone(berg, cloud):
    zones = ("us-central1-c", "us-central1-f")
    stockout = {
        "code": "ZONE_RESOURCE_POOL_EXHAUSTED",
        "message": "The zone does not have enough resources.",
    }
    cloud.fault("compute.instances.insert", operation_error=stockout, times=2)
    says = (*(f"{zone}: out of stock" for zone in zones), "--zone")
    p100 = ("run", "-t", "p100", "--image", "common-cu124-v20250325-debian-11-py310", "true")
    refused(berg, *p100, says=says)
    quota = {
        "code": "QUOTA_EXCEEDED",
        "message": "Quota 'NVIDIA_P100_GPUS' exceeded.  Limit: 1.0 in region us-central1.",
    }
    cloud.fault("compute.instances.insert", operation_error=quota)
    refused(berg, *p100, says=("NVIDIA_P100_GPUS", "Limit: 1.0", "us-central1", "quotas"))
    counts = cloud.call("GET", "/_berg/requests")["counts"]
    assert counts["compute.instances.insert"] == 3, (
        "a quota of the region holds in all of its zones"
    )
    quota["message"] = "Quota 'CPUS_ALL_REGIONS' exceeded.  Limit: 32.0 globally."
    cloud.fault("compute.instances.insert", operation_error=quota)
    elsewhere = ("--zone", "us-central1-c", "--zone", "us-west1-b")
    refused(
        berg,
        *p100[:-1],
        *elsewhere,
        "true",
        says=("quota of the whole project", "Limit: 32.0 globally"),
    )
    counts = cloud.call("GET", "/_berg/requests")["counts"]
    assert counts["compute.instances.insert"] == 4, "a quota of the project holds in all regions"


def test_a_machine_that_lives_although_its_creation_failed(berg, cloud):
    error = {"code": "INTERNAL_ERROR", "message": "Something broke late.", "instance_lives": True}
    cloud.fault("compute.instances.insert", operation_error=error)
    refused(berg, *RUN, says=("Something broke late.", "none was left behind"))


# --- interruptions


def interrupt(berg: Berg, process: subprocess.Popen) -> str:
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err and err.endswith("berg: interrupted\n")
    wait_for(lambda: berg.machines() == {}, what="the end of the machine")
    nothing_is_left(berg)
    return err


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("compute.images.getFromFamily", marks=pytest.mark.slow),
        pytest.param("storage.objects.insert", marks=pytest.mark.slow),
        "compute.instances.insert",
    ],
)
def test_ctrl_c_while_google_is_asked(berg, cloud, method):
    """While the plan is made, while code is sent, while the request for the machine is on its way."""
    cloud.fault(method, delay=3)
    process = berg.start_python(*RUN)
    wait_for(
        lambda: cloud.call("GET", "/_berg/faults")["faults"][0]["hits"], 60, f"a call of {method}"
    )
    interrupt(berg, process)


@pytest.mark.parametrize("match", ["_state.json", "repos"])
def test_ctrl_c_while_the_name_is_claimed_and_the_code_sent(berg, cloud, match):
    """The one or the other has arrived, and its answer is on its way."""
    cloud.fault("storage.objects.insert", match=match, delay=2, after_handler=True)
    process = berg.start(*RUN)
    wait_for(lambda: cloud.call("GET", "/_berg/faults")["faults"][0]["hits"], 60, "the request")
    interrupt(berg, process)


@pytest.mark.slow
def test_ctrl_c_while_the_machine_starts(berg, cloud):
    cloud.call("POST", "/_berg/settings", {"delay": 3})
    process = berg.start_python(*RUN)
    wait_for(berg.machines, 60, "the machine")
    assert "Deleting what was created" in interrupt(berg, process)


# --- tracebacks


def test_tracebacks_only_when_asked_for(berg):
    for arguments, variable in ((RUN, {"BERG_BUCKET": "no-such-bucket"}), (("log", "nobody"), {})):
        shown = berg(*arguments, BERG_DEBUG="1", **variable)
        assert shown.returncode == 1 and shown.stderr.count("Traceback") >= 1
        check_sentence(berg(*arguments, **variable))


def test_git_is_missing(berg, tmp_path):
    path = tmp_path / "bin"
    path.mkdir()
    refused(berg, *RUN, says=("git is not installed", "apt-get install git"), PATH=str(path))
    assert shutil.which("git")


def test_a_name_that_no_disk_holds(berg):
    refused(berg, "fetch", "n" * 300, says=("File name too long. Give a shorter name",))


# --- standard output


@pytest.mark.parametrize(
    ("to", "code", "says"),
    [
        (">&-", 0, ""),
        ("2>&- >&-", 0, ""),
        ("| true", 0, ""),
        (">/dev/full", 1, "berg: No space left on device. Free some space"),
    ],
)
def test_what_nobody_can_read(berg, to, code, says):
    """As of a service without standard output, of `| head -1`, and of a full disk."""
    line = f"{sys.executable} -m berg config show {to}; echo ${{PIPESTATUS[0]}} >>code"
    environment = berg.environment()
    done = subprocess.run(
        ["bash", "-c", line], cwd=berg.repo, env=environment, capture_output=True, text=True
    )
    assert (berg.repo / "code").read_text() == f"{code}\n", done.stderr
    assert done.stderr.startswith(says) and bool(done.stderr) == bool(says), done.stderr
    assert "Exception ignored" not in done.stderr
