"""`--keep-failed`: the machines of a job that failed stay for a while, as they are."""

from dataclasses import replace

import pytest
from conftest import wait_for
from test_ssh import needs_sshd

from berg import job
from berg.job import State, Summary
from berg.laptop import ending, jobs, records

HOUR = ["-g", "0", "--keep-failed", "1h"]


def state_of(minutes: float) -> State:
    """A job on two machines of $2 an hour that failed just now, and is kept for so long."""
    summary = Summary(machines=2, rates={"us-central1": 2.0})
    now = job.clock()
    ended, until = (job.timestamp(at) for at in (now, now + minutes * 60))
    return State("FAILED", job=summary, zone="us-central1-a", finished_at=ended, kept_until=until)


def test_lists_say_until_when_and_what_it_costs(monkeypatch):
    state, begun = state_of(30), job.clock()
    machine = job.Machine("kept", "us-central1-a", "RUNNING")
    entry = jobs.Entry("kept", state, [machine])
    assert entry.left == f"kept until {state.kept_until[11:16]} UTC, $2.00"
    seen = ending.Seen([entry], [], job.age_seconds)
    monkeypatch.setattr(job, "clock", lambda: begun + 29 * 60)
    assert ending.why_left(seen, entry) == "" and not records.is_over(entry)
    monkeypatch.setattr(job, "clock", lambda: begun + 30 * 60 + 1)
    assert state.kept_seconds == 0 and entry.left == ""
    monkeypatch.setattr(job, "clock", lambda: begun + 36 * 60)
    assert "still running" in entry.left, "it should have deleted itself"
    assert ending.why_left(seen, entry) == "the job is FAILED"
    assert replace(state, state="SUBMITTED").kept_seconds == 0, "it was resumed"


def test_where_it_is_refused(berg):
    for more, why in (
        (["--cluster", "pods"], "keeps machines of Compute Engine"),
        (["--no-kill"], "keeps machines of Compute Engine, and for a time"),
        (["--grid", "x=1,2"], "is not for sweeps"),
    ):
        done = berg("run", *HOUR, *more, "echo {x}" if "--grid" in more else "true")
        assert done.returncode and why in done.stderr, done.stderr
    done = berg("run", "-g", "0", "--secrets-too", "true")
    assert done.returncode and "--secrets-too needs --keep-failed" in done.stderr


@needs_sshd
@pytest.mark.parametrize("secrets", [True, False])
def test_a_login_has_what_the_command_had(berg, tmp_path, secrets):
    (berg.repo / "deep").mkdir()
    (tmp_path / "token").write_text("s3cret")
    wishes = ["--env", "WISH=w", "--secret", f"TOKEN={tmp_path}/token", "--cwd", "deep"]
    wishes += ["--secrets-too"] * secrets
    ran = berg("run", *HOUR, *wishes, "-n", "kept", "--wait", "echo 1 >left; exit 3")
    assert ran.returncode == 3, ran.stderr
    state = job.state_from_json(berg.bucket.read(job.state_path("kept")))
    assert state.state == "FAILED" and 3500 < state.kept_seconds <= 3600
    assert "1 machine kept until" in ran.stderr and "berg ssh kept" in ran.stderr
    assert "kept until" in berg("list").stdout
    assert "Kept until" in berg.log("kept")
    inside = berg("ssh", "kept", "--", "bash -lic 'pwd; cat left; echo $WISH:$TOKEN:$BERG_JOB'")
    here, left, values = inside.stdout.splitlines()[-3:]
    assert here.endswith("/deep") and left == "1", inside.stderr
    assert values == f"w:{'s3cret' if secrets else ''}:kept"
    assert "has not ended" in berg("rm", "-y", "kept").stderr
    assert berg("kill", "kept").returncode == 0
    assert berg.machines() == {} and berg.state("kept")["state"] == "FAILED"


def test_it_deletes_itself_at_its_time(berg):
    ran = berg("run", "-g", "0", "--keep-failed", "4s", "-n", "soon", "--wait", "exit 1")
    assert ran.returncode == 1 and "1 machine kept until" in ran.stderr
    assert [*berg.machines()] == ["soon"]
    wait_for(lambda: not berg.machines(), what="the end of its time")


@pytest.mark.slow
@pytest.mark.parametrize(
    "where", [["-g", "0", "-m", "2"], ["-g", "0", "-m", "2", "--spot"], ["--tpu", "v6e-2x4"]]
)
def test_all_machines_of_a_job_stay_and_go(berg, where):
    ran = berg("run", *where, "--keep-failed", "8s", "-n", "two", "--wait", "exit 1")
    machines = f"{berg.state('two')['job']['machines']} machine"
    assert ran.returncode == 1 and machines in ran.stderr and "kept until" in ran.stderr
    assert berg.machines()
    wait_for(lambda: not berg.machines(), what="the end of their time")


def test_only_failed_jobs_are_kept(berg):
    assert berg("run", *HOUR, "-n", "good", "--wait", "true").returncode == 0
    berg("run", *HOUR, "-n", "killed", "sleep 1000")
    berg("run", *HOUR, "-n", "spot", "--spot", "--max-restarts", "0", "sleep 1000")
    for name in ("killed", "spot"):
        wait_for(lambda name=name: berg.state(name)["state"] == "RUNNING", what=name)
    berg.cloud.call("POST", "/_berg/instances/spot/preempt", {})
    assert berg("kill", "killed").returncode == 0
    wait_for(lambda: berg.state("spot")["state"] == "FAILED")
    wait_for(lambda: not berg.machines(), what="the machines' deletion")
    for name in ("good", "killed", "spot"):
        assert berg.state(name)["kept_until"] == "", name


def test_the_time_limit_covers_it(berg):
    ran = berg("run", *HOUR, "--max-hours", "5m", "-n", "short", "--wait", "exit 1")
    state = job.state_from_json(berg.bucket.read(job.state_path("short")))
    assert ran.returncode == 1 and 200 < state.kept_seconds <= 300
    berg("kill", "short", "--now")
