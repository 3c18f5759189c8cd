"""Jobs of a sweep that end themselves where they are among the worst."""

import csv
import json
from types import SimpleNamespace

import pytest

from berg import job, states
from berg.google import events
from berg.machine import watchdogs
from berg.machine.outcome import Ending
from berg.spec import JobSpec


def lines(*rows: dict) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


TEXT = lines({"step": 1, "loss": 5}, {"step": 4, "acc": 0.5}, {"step": 6, "loss": 2, "acc": 0.7})


@pytest.mark.parametrize(
    ("text", "step", "metric", "value"),
    [
        (TEXT, 1, "loss", 5),
        (TEXT, 3, "loss", 2),  # the first line from there on that has it
        (TEXT, 3, "max:acc", -0.5),
        (TEXT, 7, "loss", None),
        (lines({"epoch": 3, "loss": 1}), 3, "loss", 1),
        ('{"step": 3, "loss": NaN}\n', 3, "loss", watchdogs.WORST),
        ('{"step": 3, "loss": "x"}\n', 3, "loss", watchdogs.WORST),
        ('{"step": 3, "lo', 3, "loss", None),
        ("[1]\n" + lines({"step": 3, "loss": 1}), 3, "loss", 1),
        (lines({"loss": 1}), 1, "loss", None),  # of no step
    ],
)
def test_the_value_at_a_rung(text, step, metric, value):
    assert watchdogs.value_at(text, step, metric) == value


@pytest.mark.parametrize(
    ("count", "rungs", "kept"),
    [(1, [3, 9], 1), (2, [3, 9], 1), (9, [3, 9], 3), (20, [1, 4], 5), (6, [5], 2)],
)
def test_how_many_go_on(count, rungs, kept):
    assert watchdogs.kept(count, rungs) == kept


class Sweep:
    """Jobs of a sweep with states in memory, each of which looks at its metrics."""

    def __init__(self, monkeypatch) -> None:
        self.states: dict[str, job.State] = {}
        listed = lambda bucket, prefix: [
            states.Stored(name, state, 1) for name, state in self.states.items()
        ]
        monkeypatch.setattr(watchdogs.states, "listed", listed)

    def look(
        self, name: str, text: str, metric: str = "loss", points: watchdogs.Points = ()
    ) -> Ending | None:
        found = self.states.setdefault(name, job.State(state="RUNNING", job=job.Summary(sweep="s")))
        stopping = SimpleNamespace(ending=None)
        writer = SimpleNamespace(write=lambda rungs: setattr(found, "rungs", rungs), flush=list)
        attempt = SimpleNamespace(
            name=name,
            sweep="s",
            bucket=None,
            state=found,
            states=writer,
            stopping=stopping,
            job=SimpleNamespace(spec=JobSpec(rungs="3,9", stop_worst=metric)),
            say=lambda text: None,
            stop=lambda ending: setattr(stopping, "ending", ending),
        )
        watchdogs.look(attempt, text, points)
        return stopping.ending


def test_the_best_third_of_those_that_came_goes_on(monkeypatch):
    sweep = Sweep(monkeypatch)
    endings = [sweep.look(f"s-{n}", lines({"step": 3, "loss": n})) for n in (5, 1, 4, 2, 3, 0)]
    stopped = [ending.reason if ending else "" for ending in endings]
    assert stopped == [
        "",  # the first one meets nobody
        "",
        "stopped at step 3: number 2 of 3 by loss",
        "stopped at step 3: number 2 of 4 by loss",
        "stopped at step 3: number 3 of 5 by loss",
        "",
    ]
    assert endings[2].state == "SUCCEEDED" and endings[2].exit_code == 0


def test_more_is_better_where_that_is_said(monkeypatch):
    sweep = Sweep(monkeypatch)
    assert sweep.look("s-0", lines({"step": 3, "acc": 0.9}), "max:acc") is None
    assert sweep.look("s-1", lines({"step": 3, "acc": 0.5}), "max:acc").state == "SUCCEEDED"


def test_a_rung_is_decided_once_also_after_a_restart(monkeypatch):
    sweep = Sweep(monkeypatch)
    assert sweep.look("s-0", lines({"step": 3, "loss": 2})) is None
    assert sweep.look("s-1", lines({"step": 3, "loss": 1})) is None
    assert sweep.look("s-0", lines({"step": 3, "loss": 2})) is None, "it would be number 2 of 2"
    both = lines({"step": 3, "loss": 2}, {"step": 9, "loss": 2})
    assert sweep.look("s-0", both) is None, "the first at the next rung"
    assert sweep.states["s-0"].rungs == {"3": 2.0, "9": 2.0}


def test_tensorboard_s_events_are_taken_where_metrics_have_none(monkeypatch, tmp_path):
    sweep = Sweep(monkeypatch)
    for name, loss in (("s-0", 1.0), ("s-1", 2.0)):
        folder = tmp_path / name / "logs"
        folder.mkdir(parents=True)
        points = [(4, loss, 0.0), (2, 9.0, 0.0)]
        events.write(folder / "events.out.tfevents.1.host", {"loss": points, "other": points})
    first, second = (watchdogs.EventFiles(tmp_path / name) for name in ("s-0", "s-1"))
    assert sweep.look("s-0", lines({"step": 4, "acc": 1}), points=first.series("loss")) is None
    assert sweep.states["s-0"].rungs == {"3": 1.0}
    assert sweep.look("s-1", "", points=second.series("loss")).reason.startswith("stopped at step")
    assert not first.series("none")


def test_event_files_are_read_again_when_they_have_grown(monkeypatch, tmp_path):
    monkeypatch.setattr(watchdogs, "EVENTS_LOOK", 0)
    files, file = watchdogs.EventFiles(tmp_path), tmp_path / "events.out.tfevents.1.host"
    events.write(file, {"loss": [(1, 5.0, 0.0)]})
    assert [point[:2] for point in files.series("loss")] == [(1, 5.0)]
    monkeypatch.setattr(watchdogs.events, "scalars", lambda path: pytest.fail("it is as it was"))
    assert len(files.series("loss")) == 1
    monkeypatch.undo()
    files.due = 0
    events.write(file, {"loss": [(2, 4.0, 0.0)]})
    assert [point[:2] for point in files.series("loss")] == [(1, 5.0), (2, 4.0)]


@pytest.mark.slow
def test_jobs_of_a_sweep_end_at_their_rungs_and_hand_on_their_machine(berg, tmp_path):
    (berg.repo / "train.sh").write_text(
        'for step in 1 2 3; do echo "{\\"step\\": $step, \\"loss\\": $1}" '
        ">>$BERG_RESULTS_DIR/metrics.jsonl; done\n[ $1 != 3 ] || sleep 60\nsleep 2\n"
    )
    sweep = ("--grid", "x=2,3,1", "--parallel", "1", "--stop-worst", "loss", "--rungs", "2,4")
    ran = berg("run", "-g", "0", "-n", "asha", *sweep, "--wait", "bash train.sh {x}")
    assert ran.returncode == 0, ran.stderr + berg.log("asha-1")
    rows = json.loads(berg("show", "asha", "--json").stdout)
    assert [(each["state"], each["exit_code"]) for each in rows] == [("SUCCEEDED", 0)] * 3
    stopped = "stopped at step 2: number 2 of 2 by loss"
    assert [each["reason"] for each in rows] == ["", stopped, ""]
    assert stopped in berg("show", "asha").stdout
    assert b'"loss": 3' in berg.objects("berg_results/asha/1/")["berg_results/asha/1/metrics.jsonl"]
    assert berg("fetch", "asha", str(tmp_path / "here")).returncode == 0
    table = list(csv.DictReader((tmp_path / "here/results.csv").open()))
    assert [each["reason"] for each in table] == ["", stopped, ""]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--stop-worst", "loss"), "--stop-worst needs --rungs"),
        (("--stop-worst", "loss", "--rungs", "3,x"), "give steps"),
        (("--stop-worst", "loss", "--rungs", "9,3"), "above the one before"),
    ],
)
def test_rungs_that_are_none(berg, options, says):
    refused = berg("run", "-g", "0", "--grid", "x=1,2", *options, "echo {x}")
    assert refused.returncode == 1 and says in refused.stderr


def test_one_job_has_no_siblings(berg):
    refused = berg("run", "-g", "0", "--stop-worst", "loss", "--rungs", "3", "true")
    assert refused.returncode == 2 and "is for sweeps" in refused.stderr
