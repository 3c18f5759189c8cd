"""Two people, or one in a hurry, and one name: who has it keeps it, and nobody deletes another's."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from conftest import Berg, wait_for
from test_run import check_ended

from berg import BergError, config, job, states
from berg.google import secret as secrets
from berg.job import Machine, now
from berg.laptop import jobs, records, sweep

RUN = ["run", "-g", "0", "-n", "twin"]


def start_two(berg: Berg, *words: str) -> list[tuple[int, str]]:
    """Run a command twice at the same time; returns exit code and standard error of each."""
    both = [berg.start(*words) for _ in range(2)]
    errors = [each.communicate(timeout=120)[1] for each in both]
    return sorted((each.returncode, said) for each, said in zip(both, errors, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ("sweeps/twin.json", [*RUN, "--grid", "x=1,2", "sleep 3; echo {x}"]),
        ("jobs/twin_state.json", [*RUN, "sleep 3"]),
    ],
    ids=["sweep", "job"],
)
def test_of_two_equal_submits_one_runs_and_the_other_deletes_nothing(berg, cloud, claim, words):
    # Both have looked whether the name is free before either has it.
    cloud.fault("storage.objects.insert", match=f".berg/{claim}", delay=3, times=2)
    (code, _), (other_code, said) = start_two(berg, *words)
    assert (code, other_code) == (0, 1), said
    assert "already. Choose another name" in said and "Deleting what was created" not in said
    for name in ["twin-0", "twin-1"] if "{x}" in words[-1] else ["twin"]:
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 90)


@pytest.mark.slow
def test_who_lost_a_name_meanwhile_takes_nothing_back(berg, cloud):
    """A submit that fails after another one has its name leaves what is the other's."""
    cloud.fault("compute.instances.insert", delay=4)
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a", "left": 0})
    (berg.repo / "token").write_text("s3cret")
    secret = ["--secret", "TOKEN=token"]
    first = berg.start(*RUN, *secret, "--zone", "us-central1-a", "true")
    path = ".berg/jobs/twin_state.json"
    wait_for(lambda: berg.bucket.exists(path), 60, "the first one's claim")
    other = berg.bucket.read(path).decode().replace('"claim": "', '"claim": "another')
    berg.bucket.write(path, other, metadata={"state": other})
    _, said = first.communicate(timeout=90)
    assert first.returncode == 1 and "Deleting what was created" in said
    assert berg.bucket.read(path).decode() == other
    there = secrets.find(cloud.settings(berg.bucket_name))
    assert [each.name for each in there] == ["twin"]


@pytest.mark.slow
def test_resume_and_a_new_job_of_the_name_wait_for_the_machine_that_goes(berg, cloud):
    assert berg(*RUN, "--max-hours", "1", "exit 3").returncode == 0
    cloud.fault("compute.instances.delete", delay=6, times=None)
    wait_for(lambda: berg.state("twin")["state"] == "FAILED", 60)
    assert "twin" in berg.machines()
    resumed = berg("run", "--resume", "twin", "--wait")
    assert resumed.returncode == 3, resumed.stderr
    assert "Waiting for twin to go" in resumed.stderr
    removed = berg("rm", "--yes", "twin")
    assert removed.returncode == 0, removed.stderr
    anew = berg(*RUN, "--wait", "true")
    assert anew.returncode == 0, anew.stderr
    check_ended(berg, "twin", "SUCCEEDED", 0)


def test_a_group_that_waits_for_room_keeps_its_name_without_records(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {})
    words = ["run", "-g", "0", "-n", "waits", "--wait-for-capacity", "true"]
    assert berg(*words).returncode == 0
    path = "/compute/v1/projects/berg-local/regions/us-central1/instanceGroupManagers/waits"
    there = cloud.call("GET", path)["id"]
    berg.bucket.delete(*berg.objects(".berg/jobs/waits_"), *berg.objects(".berg/index/"))
    refused = berg(*words)
    assert refused.returncode == 1 and "Deleting" not in refused.stderr, refused.stderr
    assert "there is a group 'waits' in us-central1 already" in refused.stderr
    assert cloud.call("GET", path)["id"] == there


def test_rm_waits_for_the_machine_of_a_job_that_is_over(berg, cloud, monkeypatch):
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    assert berg(*RUN, "true").returncode == 0
    failed(berg, "twin")
    monkeypatch.setattr(jobs, "LEAVING", -1)
    with pytest.raises(BergError, match="twin could not be deleted. End it first: berg kill twin"):
        records.plan_removal(cloud.settings(berg.bucket_name), ["twin"])
    removing = berg.start("rm", "-y", "twin")
    assert removing.stderr.readline() == "Waiting for twin to go, as twin has ended\n"
    berg.end_machines()
    _, said = removing.communicate(timeout=60)
    assert removing.returncode == 0 and "Deleted twin" in said


def test_a_sweep_that_is_over_waits_for_its_machines_before_it_is_resumed(monkeypatch):
    """They were counted as there, went, and the jobs that were submitted again never began."""
    monkeypatch.setattr(jobs.api.time, "sleep", lambda seconds: None)
    looks = [["RUNNING", "TERMINATED"], ["STOPPING", "TERMINATED"], ["TERMINATED"]]

    def members(*_, **__) -> list[Machine]:
        statuses = looks.pop(0) if len(looks) > 1 else looks[0]
        return [Machine(f"lr-machine-{n}", "", status) for n, status in enumerate(statuses)]

    monkeypatch.setattr(sweep.places, "machines", members)
    said: list[str] = []
    sweep.wait_until_gone(config.Config(), "lr", said.append)
    assert said == ["Waiting for lr-machine-0 to go, as the sweep lr has ended"] and len(looks) == 1
    monkeypatch.setattr(jobs, "LEAVING", -1)
    looks[:] = [["RUNNING"]]
    with pytest.raises(
        BergError, match="lr-machine-0 could not be deleted. Delete them: berg reap"
    ):
        sweep.wait_until_gone(config.Config(), "lr", said.append)


def start_together(berg: Berg, seed: int, *commands: list[str]) -> list[tuple[int, str]]:
    """Start commands at the same time, give or take what the seed says; exit code and standard
    error of each.
    """
    dice, started = random.Random(seed), []
    for words in dice.sample(list(enumerate(commands)), len(commands)):
        started.append((words[0], berg.start(*words[1])))
        time.sleep(dice.choice([0, 0, dice.uniform(0, 1.5)]))
    ended = [(number, each.communicate(timeout=150)[1], each) for number, each in started]
    return [(each.returncode, said) for _, said, each in sorted(ended, key=lambda row: row[0])]


@pytest.mark.slow
@pytest.mark.parametrize("words", [["--grid", "x=1,2", "true {x}"], ["true"]], ids=["sweep", "job"])
def test_two_submits_race(berg, seed, words):
    """`make chaos` runs it, and the next one, many times with other seeds."""
    (code, said), (other_code, other_said) = start_together(berg, seed, *[[*RUN, *words]] * 2)
    assert sorted([code, other_code]) == [0, 1], said + other_said
    for name in ["twin-0", "twin-1"] if len(words) > 1 else ["twin"]:
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 90)
        assert berg.bucket.exists(f".berg/jobs/{name}_metadata.json")


@pytest.mark.slow
def test_resume_and_rm_race(berg, seed):
    assert berg(*RUN, "--max-hours", "1", "--wait", "exit 3").returncode == 3
    resume, remove = ["run", "--resume", "twin"], ["rm", "-y", "twin"]
    (resumed, said), (removed, rm_said) = start_together(berg, seed, resume, remove)
    assert 0 in (resumed, removed), said + rm_said
    if removed == 0 and resumed != 0:
        wait_for(lambda: not berg.machines(), 60, "the machine's end")
        assert not berg.bucket.exists(".berg/jobs/twin_state.json")
    else:
        wait_for(lambda: berg.state("twin")["state"] == "FAILED", 90, "the end of what was resumed")
        assert (removed, berg.state("twin")["exit_code"]) == (1, 3), said + rm_said


SUBMITS = {  # NAME stands for the name that both want
    "sweep": ["run", "-g", "0", "-n", "NAME", "--grid", "x=1,2", "true {x}"],
    "job": ["run", "-g", "0", "-n", "NAME", "true"],
    "spot": ["run", "-g", "0", "-n", "NAME", "--spot", "true"],
    "several": ["run", "-g", "0", "-n", "NAME", "-m", "2", "true"],
    "devbox": ["devbox", "-g", "0", "-n", "NAME"],
    "rerun": ["rerun", "first", "-n", "NAME"],
}


RACES = {  # test -> its row in the table of faults: what happens in one moment, and the promises
    "test_of_two_submits_at_a_barrier_one_has_the_name": ("two submits of one name", "5"),
    "test_a_command_right_after_a_failure_meets_the_end_of_the_machine": (
        "--resume, rm or a new job of the name, and the end of the machine of a job that failed",
        "1 5",
    ),
    "test_of_resume_and_another_at_a_barrier_one_has_the_job": (
        "--resume, and rm or another --resume",
        "4 5",
    ),
    "test_a_fetch_that_meets_rm_brings_all_or_says_that_it_did_not": ("fetch and rm", "2"),
    "test_two_fetches_at_a_barrier_leave_one_whole_folder": ("two fetches to one folder", "2"),
}


@pytest.fixture
def rounds(request, record_property) -> range:
    """Numbers of the rounds of each race whose two processes meet at a barrier."""
    found = range(max(20, request.config.getoption("--rounds")))
    if "kind" in request.fixturenames and request.getfixturevalue("kind") not in ("sweep", "job"):
        found = found[::5]  # what they are is all that differs
    name, promises = RACES[request.node.originalname]
    record_property("fault", (f"in one moment: {name}", promises))
    record_property("tries", len(found))
    return found


def failed(berg: Berg, name: str) -> None:
    """Write that a job failed, as the worker of its machine would."""
    there = states.read(berg.bucket, name)
    over = replace(there.state, state="FAILED", started_at=now(), finished_at=now())
    states.replaced(berg.bucket, there, over)


def race(
    berg: Berg, path: str, *commands: list[str], method: str = "storage.objects.insert"
) -> list[tuple[int, str]]:
    """Start two commands that both have looked at an object before either writes it: their requests
    come in one moment. Returns exit code and standard error of each.
    """
    berg.cloud.fault(method, match=path, together=2, times=2)
    with ThreadPoolExecutor(2) as pool:
        ended = list(pool.map(lambda words: berg(*words), commands))
    faults = berg.cloud.call("GET", "/_berg/faults")["faults"]
    assert [each["hits"] for each in faults if each["together"]] == [2], ended
    berg.cloud.call("DELETE", "/_berg/faults")
    return [(each.returncode, each.stderr) for each in ended]


@pytest.mark.slow
@pytest.mark.parametrize("kind", SUBMITS)
def test_of_two_submits_at_a_barrier_one_has_the_name(berg, cloud, kind, rounds):
    cloud.call("POST", "/_berg/settings", {"boot": 0})  # nothing runs: who has what is the question
    is_sweep = kind == "sweep"
    if kind == "rerun":
        assert berg("run", "-g", "0", "-n", "first", "true").returncode == 0
        berg.end_machines()
    for number in rounds:
        name = f"twin{number}"
        submit = [name if word == "NAME" else word for word in SUBMITS[kind]]
        ended = race(berg, f".berg/owners/{name}/", submit, submit)
        assert sorted(code for code, _ in ended) == [0, 1], ended
        (said,) = [said for code, said in ended if code]
        assert "already. Choose another name" in said and "Deleting what was created" not in said, (
            said
        )
        jobs = [f"{name}-0", f"{name}-1"] if is_sweep else [name]
        assert {berg.state(each)["state"] for each in jobs} == {"SUBMITTED"}
        assert all(berg.bucket.exists(f".berg/jobs/{each}_metadata.json") for each in jobs)
        wanted = 2 if kind in ("sweep", "several") else 1
        assert len(berg.machines()) == wanted
        berg.end_machines()


@pytest.mark.slow
@pytest.mark.parametrize(("second", "path"), [("a", "owners/a/"), ("a/b", "jobs/")])
def test_of_two_submits_at_a_barrier_one_has_the_folder(berg, cloud, second, path):
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    folders = {"one": "a", "two": second}
    submits = [["run", "-g", "0", "-n", name, "-r", each, "true"] for name, each in folders.items()]
    ended = race(berg, f".berg/{path}", *submits)
    won = [name for name, (code, _) in zip(folders, ended, strict=True) if code == 0]
    assert len(won) == 1 or (second != "a" and not won), ended
    assert [*berg.machines()] == won
    left = [blob.name for blob in berg.bucket.list(".berg/jobs/") if "state" in blob.name]
    assert left == [f".berg/jobs/{name}_state.json" for name in won]
    berg.end_machines()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["resume", "rm", "run"])
def test_a_command_right_after_a_failure_meets_the_end_of_the_machine(berg, cloud, command, rounds):
    """The state says FAILED, and the machine deletes itself while the command looks for it."""
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    for number in rounds:
        name = f"twin{number}"
        assert berg("run", "-g", "0", "-n", name, "true").returncode == 0
        failed(berg, name)
        if command == "run":  # the name is free, and its machine is there
            states.delete(berg.bucket, states.read(berg.bucket, name))
            berg.bucket.delete(f".berg/jobs/{name}_metadata.json")
        words = {
            "resume": ["run", "--resume", name],
            "rm": ["rm", "-y", name],
            "run": ["run", "-g", "0", "-n", name, "true"],
        }
        old = berg.machines()[name]
        cloud.fault("compute.instances.*", match="instances", together=2, times=2)
        with ThreadPoolExecutor(2) as pool:
            path = old["selfLink"].partition("/compute/")[2]
            going = pool.submit(cloud.call, "DELETE", f"/compute/{path}")
            ran = pool.submit(berg, *words[command]).result()
            going.result()
        (fault,) = cloud.call("GET", "/_berg/faults")["faults"]
        assert (ran.returncode, fault["hits"]) == (0, 2), ran.stderr
        cloud.call("DELETE", "/_berg/faults")
        there = {each: berg.machines()[each]["id"] for each in berg.machines()}
        assert (
            list(there) == ([] if command == "rm" else [name]) and old["id"] not in there.values()
        )
        assert berg.bucket.exists(f".berg/jobs/{name}_state.json") == (command != "rm")
        berg.end_machines()


@pytest.mark.slow
@pytest.mark.parametrize("other", ["rm", "resume"])
def test_of_resume_and_another_at_a_barrier_one_has_the_job(berg, cloud, other, rounds):
    """The other one deletes the job, or lets it go on as well."""
    cloud.call("POST", "/_berg/settings", {"boot": 0})
    for number in rounds:
        name = f"twin{number}"
        assert berg("run", "-g", "0", "-n", name, "true").returncode == 0
        berg.end_machines()
        failed(berg, name)
        resume = ["run", "--resume", name]
        second = {"rm": ["rm", "-y", name], "resume": resume}[other]
        path = f"owners/{name}/" if other == "resume" else f"jobs/{name}_state.json"
        ended = race(berg, f".berg/{path}", resume, second)
        assert sorted(code for code, _ in ended) == [0, 1], ended
        is_there = berg.bucket.exists(f".berg/jobs/{name}_state.json")
        is_resumed = ended[0][0] == 0 or other == "resume"
        assert is_there == is_resumed and len(berg.machines()) == int(is_resumed), ended
        if is_resumed:
            assert berg.state(name)["state"] == "SUBMITTED"
            assert berg.bucket.exists(f".berg/jobs/{name}_metadata.json")
        berg.end_machines()


def over(berg: Berg, name: str, files: int) -> list[str]:
    """Put a job that is over into the bucket, with so many files; return their paths."""
    summary = job.Summary("tester", now(), "true", results_dir=name)
    states.claim(berg.bucket, name, job.State("SUCCEEDED", 0, started_at=now(), job=summary))
    paths = [f"berg_results/{name}/{number:02}" for number in range(files)]
    for path in paths:
        berg.bucket.write(path, path)
    return paths


@pytest.mark.slow
def test_a_fetch_that_meets_rm_brings_all_or_says_that_it_did_not(berg, rounds):
    """It counted what was left as all that there was."""
    for number in rounds:
        name, folder = f"gone{number}", berg.home / f"gone{number}"
        paths = over(berg, name, 30)
        berg.cloud.fault("storage.objects.get", match=f"berg_results/{name}/2", delay=0.3, times=5)
        commands = ["fetch", name, str(folder)], ["rm", "-y", name]
        (code, said), (removed, rm_said) = race(
            berg, f"{name}/{number % 20:02}", *commands, method="storage.objects.*"
        )
        assert removed == 0, rm_said
        here = sorted(each.name for each in folder.glob("*"))
        assert code == 1 or len(here) == len(paths), (code, here, said)
        assert code == 0 or "deleted" in said, said
        assert all((folder / each).read_text().endswith(f"{name}/{each}") for each in here)


@pytest.mark.slow
def test_two_fetches_at_a_barrier_leave_one_whole_folder(berg, rounds):
    for number in rounds:
        name, folder = f"both{number}", berg.home / f"both{number}"
        paths = over(berg, name, 10)
        fetch = ["fetch", name, str(folder)]
        ended = race(berg, f"{name}/05", fetch, fetch, method="storage.objects.get")
        assert [code for code, _ in ended] == [0, 0], ended
        here = {each.name: each.read_text() for each in folder.glob("*")}
        assert here == {path.rpartition("/")[2]: path for path in paths}
        assert "0 of 10 files new or changed" in berg(*fetch).stderr
