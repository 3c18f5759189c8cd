"""`berg try`: its steps on the embedded cloud, what is unexpected, and that nothing stays."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import BERG, Cloud, until
from records import put

from berg import gce
from berg.clients import trial
from berg.config import Config


def left(cloud: Cloud) -> list[str]:
    machines = [machine.name for machine in gce.machines(cloud.config)]
    objects = [name for name in cloud.names() if "/try-" in name]
    return machines + [name for name in objects if not name.startswith(".berg/budget/")]


@pytest.mark.slow
def test_steps_prove_what_they_say_and_leave_nothing(cloud: Cloud, tmp_path: Path) -> None:
    words = ["try", "-y", "--json", "--only", "job", "--only", "spot", "--only", "devbox"]
    done = cloud.ok(*words, cwd=tmp_path)
    results = {row["step"]: row for row in json.loads(done.out)["results"]}
    assert {*results} == {"job", "spot", "devbox", "reap"}
    assert all(row["is_good"] for row in results.values()), results
    assert results["job"]["saw"].startswith("create "), results["job"]
    assert left(cloud) == [] and not [*tmp_path.iterdir()]


def test_what_is_unexpected_is_in_a_file_without_names(
    cloud: Cloud, tmp_path: Path, faults: Any
) -> None:
    cloud.fails("try", "--only", "jobs", says="there is no step 'jobs'")
    asked = cloud.run("try", "--only", "failing")
    assert asked.code == 1 and "answer with -y" in asked.err and "$0.0" in asked.out, asked.err
    message = f"{cloud.config.project} and 10.1.2.3 are refused"
    faults("compute.instances.insert", status=400, message=message)
    done = cloud.run("try", "-y", "--json", "--only", "failing", cwd=tmp_path)
    assert done.code == 1 and "not all is as promised" in done.err, done.err
    told = json.loads(done.out)
    step, reap = told["results"]
    assert not step["is_good"] and "10.1.2.3 are refused" in step["saw"] and reap["is_good"], told
    text = Path(told["file"]).read_text()
    assert "PROJECT and ADDRESS are refused" in text and cloud.config.project not in text
    assert '"--max-hours"' in text and left(cloud) == []


@pytest.mark.slow
def test_after_an_interruption_nothing_is_left(cloud: Cloud, tmp_path: Path) -> None:
    laptop = subprocess.Popen(
        [*BERG, "try", "-y", "--only", "killed", "--only", "two"],
        cwd=tmp_path, env=cloud.env, stderr=subprocess.PIPE, text=True,
        process_group=0,
    )  # fmt: skip
    until(lambda: laptop.poll() is not None or len(gce.machines(cloud.config)) == 2)
    assert laptop.returncode is None
    os.killpg(laptop.pid, signal.SIGINT)  # as a terminal does
    _, said = laptop.communicate(timeout=200)
    assert laptop.returncode == 130 and "cleaning up" in said, said
    assert left(cloud) == []


def test_what_is_not_as_promised_is_told(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in cloud.env.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "repo").mkdir()
    tried = trial.Trial(cloud.config, tmp_path, "try-x")
    assert tried.berg("list", "--json", BERG_USER="nobody-at-all") == "[]\n" and not tried.answers
    assert tried.berg("show", "no-such-job", code=1) == "" and not tried.answers
    with pytest.raises(
        trial.Unexpected, match="berg show exits with 1, not 0: Error: there is no job"
    ):
        tried.berg("show", "no-such-job")
    (answer,) = tried.answers
    assert answer["command"] == ["berg", "show", "no-such-job"] and answer["code"] == 1
    put(cloud, "try-x-ended", "FAILED", reason="broke", results={"a": b"1\n"})
    put(cloud, "try-x-runs", "RUNNING", ago=100)
    put(cloud, "try-x-soon", "SUBMITTED", ago=100)
    assert tried.is_running("try-x-runs") is True and tried.is_running("try-x-soon") is False
    with pytest.raises(trial.Unexpected, match="FAILED too early: broke"):
        tried.is_running("try-x-ended")
    assert tried.file("try-x-ended", "a") == "1\n" and tried.file("try-x-ended", "b") == ""
    with pytest.raises(trial.Unexpected, match="the end is 1, not 2"):
        trial.expect(1, 2, "the end")
    with pytest.raises(trial.Unexpected, match="not seen: a line"):
        trial.check(False, "a line")
    project, user = cloud.config.project, cloud.config.user
    said = trial.anonymous(tried, f"{project} of {user} at 10.0.0.1, in my-{project}")
    assert said == f"PROJECT of USER at ADDRESS, in my-{project}"
    monkeypatch.setattr(trial, "PATIENCE", 0)
    with pytest.raises(trial.Unexpected, match="not within 0 minutes: it"):
        tried.until("it", lambda: False)
    tried.is_over = True
    result = trial.take(tried, trial.Step(trial.killed, "x"))
    assert (result.step, result.is_good, result.saw) == ("killed", False, "interrupted")
    cloud.run("kill", "-y", "--now", "try-x-*")
    cloud.run("rm", "-y", "try-x-*")


def test_what_costs_more_is_tried_when_it_is_asked_for() -> None:
    basic = [step.name for step in trial.chosen("", "", "")]
    assert basic == ["job", "failing", "killed", "two", "spot", "devbox", "data", "secret"]
    more = trial.chosen("l4", "mine", "v6e-1")[len(basic) :]
    assert [(step.name, step.options) for step in more] == [
        ("gpu", ["-g", "1", "-t", "l4"]),
        ("pod", ["-g", "0", "--cluster", "mine"]),
        ("tpu", ["--tpu", "v6e-1"]),
    ]


def test_a_step_costs_as_long_and_as_many_machines_as_it_has() -> None:
    class Plans(trial.Trial):
        asked: int = 0

        def berg(self, *words: str, code: int = 0, **env: Any) -> str:
            self.asked += 1
            rate = {"--spot": 0.5, "-t": None}.get(words[-2], 2.0)
            return json.dumps({"usd_per_hour": rate})

    def step(run: Any, options: list[str], minutes: float, machines: int) -> trial.Step:
        return trial.Step(run, "x", options, minutes, machines)

    plans = Plans(Config(), Path(), "try-x")
    steps = [step(trial.job, ["a"], 3, 1), step(trial.two, ["a"], 6, 2),
             step(trial.spot, ["--spot"], 0.1, 1), step(trial.gpu, ["-t"], 3, 1)]  # fmt: skip
    assert trial.price(plans, steps) == {"job": 0.1, "two": 0.4, "spot": 0.01, "gpu": None}
    assert plans.asked == 3
