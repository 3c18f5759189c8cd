"""From a command to a job: what a plan says, what is repeated, refused and taken back; without machines where that can be."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, git, until
from inside import fresh
from records import put

from berg import BergError, gce
from berg import job as jobs
from berg.job import Job
from berg.run import variables

CPU = ["run", "-g", "0"]


def planned(cloud: Cloud, project: Path, *words: str, **env: str) -> dict[str, Any]:
    done = cloud.ok(*words, "--dry-run", "--json", cwd=project, **env)
    return dict(json.loads(done.out))


def shown(cloud: Cloud, project: Path, *words: str, **env: str) -> dict[str, str]:
    """The rows of a plan."""
    done = cloud.ok(*words, "--dry-run", cwd=project, **env)
    rows = [line.partition("  ") for line in done.out.splitlines() if line[:1].strip()]
    return {name: text.strip() for name, _, text in rows}


def ended(
    cloud: Cloud, project: Path, name: str, state: str = "FAILED", ago: float = 100, **about: Any
) -> Job:
    """A job that has ended, by its records alone."""
    head = git(project, "rev-parse", "HEAD")
    code = {"commit": head, "head": head, "changed": [], "branch": "main"}
    code |= {"object": "none", "shallow": [], "tags": {}, "settings": {}, "submodules": {}}
    image = gce.find_image(cloud.config, cloud.config.default_image)
    kind = {"machine_type": "n1-standard-8", "image": image, "max_seconds": 7200}
    job = {"cmd": "python train.py", "repo": "proj", "code": code, **kind, **about}
    where = about.get("results", name)
    return put(cloud, name, state, ago=ago, took=0, job=job, folder=where, attempt=2)


# --- the plan


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["run", ""], 1, "CMD is empty. For a machine without a command: berg devbox"),
        (["run", "  "], 1, "CMD is empty"),
        (["run", "--new-code", "true"], 2, "--new-code is for --resume NAME"),
        (["run", "-m", "2", "--grid", "a=1,2", "true {a}"], 1, "row of a sweep runs on one machine"),
        (["run", "-n", "x" * 57, "-m", "100", "true"], 1, "a name for the job's last machine"),
        (["run", "-n", "Upper", "true"], 1, "Upper"), (["run", "-r", "../x", "true"], 1, "../x"),
        (["run", "-r", "a/.git", "true"], 1, ".git"), (["run", "-m", "0", "true"], 2, "-m"),
        (["run", "-c", "0", "true"], 2, "-c"), (["run", "-g", "-1", "true"], 2, "-g"),
        (["run", "--max-hours", "0", "true"], 2, "--max-hours"),
        (["run", "--max-hours", "2881", "true"], 2, "--max-hours"),
        (["run", "--disk-gb", "9", "true"], 2, "--disk-gb"),
        (["run", "--image", "no-such-image", "true"], 1, "no image or image family 'no-such-image'"),
        (["run", "-t", "l5", "true"], 1, "no GPU type 'l5'"),
        (["run", "-n", "-x-", "true"], 1, "-x-"), (["run", "-n", "../x", "true"], 1, "../x"),
        (["run", "--cwd", "nowhere", "true"], 1, "--cwd nowhere"), (["run"], 1, "CMD is empty"),
        (["run", "-g", "many", "true"], 2, "many"), (["run", "-g", "7", "-t", "a100", "true"], 1, "7"),
        (["run", "-m", "-3", "true"], 2, "-m"), (["run", "-c", "-4", "true"], 2, "-c"),
        (["run", "--max-hours", "soon", "true"], 2, "soon"),
        (["run", "--max-cost", "-1", "true"], 2, "--max-cost"),
        (["run", "--keep-failed", "a while", "true"], 2, "a while"),
        (["run", "--zone", "mars-west1-a", "true"], 1, "mars-west1-a"),
        (["run", "--region", "mars-west1", "true"], 1, "mars-west1"),
        (["run", "--machine-type", "z9-mega-1", "true"], 1, "z9-mega-1"),
        (["run", "--cluster", "no-such-one", "true"], 1, "no-such-one"),
        (["run", "--branch", "no-such-one", "true"], 1, "no-such-one"),
        (["run", "--grid", "a=1,2", "--parallel", "0", "true {a}"], 2, "--parallel"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_exists(
    cloud: Cloud, project: Path, words: list[str], code: int, says: str
) -> None:
    cloud.fails(*words, "--dry-run", cwd=project, says=says, code=code)


def test_what_is_asked_is_answered_before_anything_is_sent(cloud: Cloud, project: Path) -> None:
    (project / ".env").write_text("TOKEN=1")
    words = [*CPU, "-n", "asked", "true"]
    before = cloud.names()
    said = cloud.fails(*words, cwd=project, says=".env looks like a secret")
    assert "Continue?" in said and cloud.names() == before
    done = cloud.run(*words, "--dry-run", cwd=project)
    assert done.code == 0 and "Created" not in done.err and cloud.names() == before


# --- what a machine is made of


T4 = ["-t", "t4", "-g", "2"]
ATTACHED = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 2}


def part(whole: Any, path: str) -> Any:
    for key in path.split("."):
        whole = whole[int(key)] if key.isdigit() else whole.get(key)
    return whole


@pytest.mark.parametrize(
    ("words", "path", "value"),
    [
        (["-g", "0"], "machineType", "n1-standard-8"),
        (["-g", "0", "-c", "16"], "machineType", "n1-standard-16"),
        (["--machine-type", "e2-standard-4"], "machineType", "e2-standard-4"),
        ([], "machineType", "g2-standard-12"),
        (["-g", "2"], "machineType", "g2-standard-24"),
        (T4, "guestAccelerators.0", ATTACHED),
        (["-t", "h100", "-g", "8"], "machineType", "a3-highgpu-8g"),
        (["-t", "h100", "-g", "8"], "networkInterfaces.0.nicType", "GVNIC"),
        (["--disk-gb", "300"], "disks.0.initializeParams.diskSizeGb", "300"),
        (["--disk-gb", "300"], "disks.0.autoDelete", True),
        (["--max-hours", "2"], "scheduling.maxRunDuration.seconds", "7200"),
        (["--max-hours", "2"], "scheduling.instanceTerminationAction", "DELETE"),
        (["--spot", "-m", "2"], "scheduling.instanceTerminationAction", "DELETE"),
        (["--spot", "--max-hours", "1.5"], "scheduling.maxRunDuration.seconds", "5400"),
        (["devbox", "-g", "0"], "scheduling.instanceTerminationAction", "STOP"),
        (["devbox", "-g", "0", "--max-hours", "3"], "scheduling.maxRunDuration.seconds", "10800"),
        ([], "scheduling.onHostMaintenance", "TERMINATE"),
        (["-g", "0"], "scheduling.onHostMaintenance", None),
    ],
)
def test_options_of_a_machine(
    cloud: Cloud, project: Path, words: list[str], path: str, value: Any
) -> None:
    words = words if words[:1] == ["devbox"] else ["run", *words, "true"]
    assert part(planned(cloud, project, *words)["request"], path) == value


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("SERVICE_ACCOUNT", "me@here.com", "serviceAccounts.0.email", "me@here.com"),
        ("NETWORK", "inner", "networkInterfaces.0.network", "global/networks/inner"),
        ("USER", "ada", "labels.berg-user", "ada"),
        ("GPUS", "0", "machineType", "n1-standard-8"),
        ("GPU_TYPE", "t4", "guestAccelerators.0.acceleratorType", "nvidia-tesla-t4"),
    ],
)
def test_a_variable_is_stronger_than_the_file(
    cloud: Cloud, project: Path, name: str, text: str, path: str, value: str
) -> None:
    env = {f"BERG_{name}": text}
    assert part(planned(cloud, project, "run", "true", **env)["request"], path) == value


# --- variables


def test_variables_of_a_file_come_before_those_of_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HERE", "a b")
    file = tmp_path / "env"
    file.write_text("\ufeffA=file\nexport B='x  # y'  # c\n\nC=a#b\nHERE\nD=\nE=a=b\n")
    found = variables(str(file), ["A=option", "HERE", "F="])
    assert found == {"A": "option", "B": "x  # y", "C": "a#b", "HERE": "a b", "D": "",
                     "E": "a=b", "F": ""}  # fmt: skip
    for text, says in (("A=1\nB=x y\n", "line 2: put quotes"), ("A='1\n", "No closing quotation"),
                       ("ok=1\n1A=2\n", "line 2: 1A=2: give NAME=VALUE")):  # fmt: skip
        file.write_text(text)
        with pytest.raises(BergError, match=says):
            variables(str(file), [])
    with pytest.raises(BergError, match="--env-file /no/file: No such file"):
        variables("/no/file", [])
    for text, says in {
        "BERG_X=1": "BERG_X: names that", "PATH=/x": "a machine has its own", "HOME=/x": "its own",
        "a-b=1": "NAME=VALUE", "=1": "NAME=VALUE", "NOT_SET_HERE": "Give NOT_SET_HERE=VALUE",
    }.items():  # fmt: skip
        with pytest.raises(BergError, match=f"--env .*{says}"):
            variables("", [text])
    assert variables("", ["BERGX=1", "PATHS=1"]) == {"BERGX": "1", "PATHS": "1"}


# --- a job that is resumed or runs again


def test_a_job_is_resumed_as_it_was(cloud: Cloud, project: Path) -> None:
    about = {"options": {"disk_gb": 333, "zones": ["us-central1-c"], "regions": ["us-east1"]},
             "gpus": 2, "gpu_type": "t4", "install": "make deps"}  # fmt: skip
    ended(cloud, project, "goes-on", results="its/own", env={"A": "1"}, **about)
    resume = ["run", "--resume", "goes-on"]
    plan = planned(cloud, project, *resume)
    request = plan["request"]
    assert plan["results"].endswith("/its/own/") and plan["max_run_seconds"] == 7200
    assert request["machineType"] == "n1-standard-8"
    assert request["guestAccelerators"][0]["acceleratorCount"] == 2
    assert request["disks"][0]["initializeParams"]["diskSizeGb"] == "333"
    rows = shown(cloud, project, *resume)
    assert rows["Job"] == "goes-on, attempt 3" and rows["Command"] == "python train.py"
    assert rows["Install"] == "make deps" and rows["Variables"] == "A" and "Code" not in rows
    assert rows["Limit"] == "2h, then Google deletes the machine (by the job's record)"
    assert rows["Machine"] == "n1-standard-8 with 2 x t4"
    (project / "pyproject.toml").write_text("[tool.berg]\nspot = true\n")  # of other jobs
    rows = shown(cloud, project, *resume, "--new-code")
    assert "with 1 changed file" in rows["Code"]
    for words, says in [
        (["true"], "berg rerun goes-on"), (["-g", "1"], "berg rerun goes-on"),
        (["--disk-gb", "10"], "continues a job with the command and the options that it had"),
        (["--spot"], "goes-on keeps its options when it is resumed"),
    ]:  # fmt: skip
        cloud.fails(*resume, *words, "--dry-run", cwd=project, says=says)
    (project / ".env").touch()
    cloud.fails(*resume, "--new-code", cwd=project, says=".env looks like a secret")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("SUCCEEDED", "has SUCCEEDED. To run it again: berg rerun is-SUCCEEDED".lower()),
        ("RUNNING", "is running. end it first: berg kill"),
        ("KILLED", ""), ("LOST", ""),
    ],
)  # fmt: skip
def test_only_what_has_not_succeeded_is_resumed(
    cloud: Cloud, project: Path, state: str, says: str
) -> None:
    name = f"is-{state.lower()}"
    ended(cloud, project, name, state)
    done = cloud.run("run", "--resume", name, "--dry-run", cwd=project)
    assert done.code == bool(says) and says in done.err.lower(), done.err


def test_a_row_is_not_resumed_and_does_not_run_again(cloud: Cloud, project: Path) -> None:
    ended(cloud, project, "rowed", cmd="true {x}", rows=[{"x": "1"}])
    for words in (["rerun", "rowed/0"], ["run", "--resume", "rowed/0"]):
        cloud.fails(*words, "--dry-run", cwd=project, says="rowed/0 is a row")


def test_a_job_runs_again_with_its_options_but_under_its_own_name(
    cloud: Cloud, project: Path
) -> None:
    options = {"gpus": 0, "cpus": 4, "disk_gb": 333, "name": "first", "results": "first-results",
               "env": ["A=1"], "max_hours": 3.0, "note": "a note"}  # fmt: skip
    command = "python train.py --out=/root/berg_results/mine --log berg_results/mine-2"
    ended(
        cloud, project, "first-one", ago=50, cmd=command, options=options, env={"A": "1", "B": "2"}
    )
    rows = shown(cloud, project, "rerun", "@")
    assert rows["Job"].startswith("proj-") and "first" not in str(rows)
    (project / "train.py").write_text("edited")
    again = ["rerun", "first-one", "-n", "second-one"]
    rows = shown(cloud, project, *again, "--env", "B=3", "--env", "C=4")
    assert rows["Machine"] == "n1-standard-4, 333 GB disk" and rows["Limit"].startswith("3h, ")
    assert rows["Variables"] == "A, B, C" and "changed" not in rows["Code"]
    out = "/root/berg_results/second-one --log berg_results/mine-2"
    assert rows["Command"] == f"python train.py --out={out}"
    assert rows["Results"].endswith("/berg_results/second-one/")
    rows = shown(cloud, project, *again, "--new-code", "-c", "8", "-r", "else")
    assert "with 1 changed" in rows["Code"] and rows["Machine"].startswith("n1-standard-8, ")
    assert rows["Results"].endswith("/else/") and "berg_results/else --log" in rows["Command"]
    ended(cloud, project, "spots-one", ago=40, options={"spot": True})
    assert shown(cloud, project, "rerun", "spots-one")["Machine"].endswith(", Spot")
    rows = shown(cloud, project, "rerun", "@")
    assert rows["Job"].startswith("proj-") and "first" not in str(rows)
    ended(cloud, project, "odd-one", options={"disk_gb": "many"})
    again = ["rerun", "odd-one", "--dry-run"]
    cloud.fails(*again, cwd=project, says="record of odd-one has no disk_gb that fits")
    cloud.ok(*again, "--disk-gb", "50", cwd=project)


def test_a_resume_without_room_leaves_the_job_as_it_was(
    cloud: Cloud, project: Path, no_room: Any
) -> None:
    ended(cloud, project, "no-room")
    paths = [f".berg/jobs/no-room_{kind}.json" for kind in ("metadata", "state")]
    before = [cloud.read(path) for path in paths]
    (project / "new").touch()
    no_room()
    for more in ([], ["--new-code"]):
        cloud.fails("run", "--resume", "no-room", *more, cwd=project, says="out of stock")
        assert [cloud.read(path) for path in paths] == before
    words = [*CPU, "-n", "roomless", "--secret", "TOKEN", "true"]
    cloud.fails(*words, cwd=project, TOKEN="x", says="none was left behind")
    assert not cloud.read(".berg/jobs/roomless_state.json") and not cloud.secrets("roomless")


def test_a_record_chooses_no_file_of_this_computer(cloud: Cloud, project: Path) -> None:
    rows = [{"x": "1"}, {"x": "2"}]
    ended(cloud, project, "of-a-file", cmd="true {x}", rows=rows, options={"tasks": "all.csv"})
    (project / "all.csv").write_text("x\nprivate\n")
    again = shown(cloud, project, "rerun", "of-a-file", "-n", "rows-again")
    assert again["Rows"].startswith("2: x=1, ")
    assert shown(cloud, project, "rerun", "of-a-file", "--grid", "x=7")["Rows"].startswith("1: x=7")


# --- submit


@pytest.mark.slow
def test_a_job_that_is_submitted_is_known_at_once_and_has_its_name_alone(
    cloud: Cloud, project: Path, no_room: Any
) -> None:
    words = ["-t", "t4", "-g", "2", "-m", "2", "-n", "known", "--note", "why", "-y", "--json"]
    no_room(zone="us-central1-a")
    done = cloud.run("run", *words, "--install", "none", "sleep 300", cwd=project)
    assert done.code == 0 and "Created known in us-central1-" in done.err, done.err
    said = json.loads(done.out)
    zone = said["zone"]
    assert said["name"] == "known" and zone in done.err and "Follow it" not in done.err
    found, record = cloud.state("known"), json.loads(cloud.read(jobs.job_path("known")))
    assert (found["gpus"], found["machines"], found["note"]) == ("2 x t4", 2, "why")
    assert found["id"] == record["id"] and found["user"] == cloud.config.user
    assert record["gpu_type"] == "t4" and record["options"]["note"] == "why"
    taken = cloud.run(*CPU, "-n", "known", "true", cwd=project)
    assert taken.code == 1 and "there is a job 'known' already" in taken.err
    assert "berg rm known" in taken.err
    says = f"there is a machine 'known-1' in {zone} already"
    cloud.fails(*CPU, "-n", "known-1", "true", cwd=project, says=says)
    assert cloud.state("known")["id"] == found["id"]


@pytest.mark.slow
def test_of_two_submits_at_one_moment_one_has_the_name(
    cloud: Cloud, project: Path, faults: Any
) -> None:
    late = {"match": "twins_state", "times": 2, "delay": 3, "after_handler": True}
    faults("storage.objects.get", **late)  # both see none
    words = [*CPU, "-n", "twins", "--install", "none"]
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(cloud.run, *words, f"sleep 30{n}", cwd=project) for n in (0, 1)]
    done = [each.result() for each in both]
    assert sorted(each.code for each in done) == [0, 1], [each.err for each in done]
    winner, loser = sorted(range(2), key=lambda n: done[n].code)
    assert "there is a job 'twins' already" in done[loser].err
    record = json.loads(cloud.read(jobs.job_path("twins")))
    assert record["cmd"] == f"sleep 30{winner}" and cloud.state("twins")["id"] == record["id"]
    assert len(gce.machines(cloud.config, "twins")) == 1


FAILED_BUT_MADE = {"code": "RESOURCE_NOT_FOUND", "message": "not found", "instance_lives": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault", "options"),
    [
        ("instances", {"operation_error": FAILED_BUT_MADE}, []),
        ("instances", {"reset": True, "after_handler": True}, []),
        ("regionInstanceGroupManagers", {"reset": True, "after_handler": True}, ["--spot"]),
    ],
)
def test_whatever_the_answer_to_a_create_a_job_runs_once(
    cloud: Cloud, project: Path, faults: Any, kind: str, fault: Any, options: list[str]
) -> None:
    name = fresh("answers")
    faults(f"compute.{kind}.insert", **fault)
    run = 'echo x >"$BERG_RESULTS_DIR/ran-$(date +%s%N)"; sleep 2'
    done = cloud.run(*CPU, "-n", name, *options, "--wait", run, cwd=project)
    assert done.code == 0 and len(cloud.names(f"berg_results/{name}/ran-")) == 1, done.err
    until(lambda: not gce.machines(cloud.config, name))


@pytest.mark.slow
def test_an_installation_that_fails_ends_the_job_with_its_code(cloud: Cloud, project: Path) -> None:
    own = 'echo "has $A in $PWD"; (exit 7) | cat'
    words = [*CPU, "-n", "no-install", "--env", "A=1", "--install", own, "--wait", "echo ran"]
    cloud.fails(*words, cwd=project, says="the installation failed (exit code 7)", code=7)
    log = cloud.log("no-install")
    assert "\nhas 1 in /root/code/proj\n" in log and "\nran\n" not in log
    until(lambda: not gce.machines(cloud.config, "no-install"))
