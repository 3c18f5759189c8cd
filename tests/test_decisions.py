"""What Berg decides without a cloud, as tables."""

import json
import shlex
import socket
import struct
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import google_crc32c
import pytest
from inside import ALONE, job_of, state_of

from berg import (
    BergError,
    end,
    features,
    fetch,
    gce,
    metrics,
    moments,
    place,
    rows,
    ssh,
    table,
    terminal,
    usage,
)
from berg import job as jobs
from berg.bucket import Object
from berg.clients import api, costs, dashboard, diff, gpus, profile, tensorboard, top
from berg.clients.page import data as page
from berg.features import docker
from berg.fetch import Fetch, LeftOut
from berg.job import Job, State
from berg.jobs import exit_code, fitting, judged, unrecorded
from berg.logs import readable
from berg.moments import FINAL, PARTLY, Row, common, union
from berg.run import run

# --- results


def names(**moments: str) -> list[str]:
    """Objects of moments by rank: of "3 4? 7!" the second is partly whole, the last one final."""
    found = []
    for rank, numbers in moments.items():
        for number in numbers.split():
            kind = {"!": FINAL, "?": PARTLY}.get(number[-1], "")
            found.append(f".berg/moments/j/at/0001/{rank[1:]}/{int(number.strip('!?')):012}{kind}")
    return found


@pytest.mark.parametrize(
    ("moments", "machines", "number"),
    [
        ({}, 1, 0),
        ({"r0": "1 2 3"}, 1, 3),
        ({"r0": "1 2 3"}, 2, 0),  # another machine has none
        ({"r0": "1 2 3", "r1": "1 2"}, 2, 2),
        ({"r0": "1 3", "r1": "2 4"}, 2, 0),
        ({"r0": "5 6 9", "r1": "5 7!"}, 2, 9),  # one that has ended counts from then on
        ({"r0": "5 6", "r1": "7!"}, 2, 0),  # but not before
        ({"r0": "5!", "r1": "7!"}, 2, 7),
        ({"r0": "5 6", "r1": "5 6", "r2": "5"}, 3, 5),
        ({"r0": "5 6? 7", "r1": "5 6 7?"}, 2, 5),  # whole on all
        ({"r0": "5 16", "r1": "5 16?"}, 2, 16),  # but not if it is much older
        ({"r0": "5? 6?", "r1": "5 6 7"}, 2, 6),
        ({"r0": "5? 6?", "r1": "5!"}, 2, 6),
    ],
)
def test_the_newest_moment_is_one_that_all_machines_have(moments, machines, number):
    assert common(names(**moments), machines)[0] == number


def test_a_machine_that_has_ended_gives_its_last_moment():
    _, found = common(names(r0="5 6 9", r1="5 7!"), 2)
    assert found == {
        "0": ".berg/moments/j/at/0001/0/000000000009",
        "1": ".berg/moments/j/at/0001/1/000000000007-final",
    }


def moment(gone=None, **files: int) -> dict:
    listed = {path: list(Row(size=1, crc=n, generation=n)) for path, n in files.items()}
    return {"at_ns": 1, "rows": listed, "gone": gone or {}}


def test_of_two_machines_that_wrote_a_path_the_newer_object_counts():
    assert union({"0": moment(a=1, b=5), "1": moment(a=2)})["a"].generation == 2


def test_what_a_lower_rank_has_replaced_is_there_under_another_name():
    merged = union({"10": moment(a=1), "0": moment(a=3), "2": moment(a=2)})
    assert {path: row.crc for path, row in merged.items()} == {
        "a": 3,
        "a.~rank2~": 2,
        "a.~rank10~": 1,
    }


def test_what_one_machine_deleted_is_gone_unless_another_wrote_it_anew():
    deleted = moment(gone={"a": [1, 1, ""]})
    assert "a" not in union({"0": moment(a=1), "1": deleted})
    assert "a" in union({"0": moment(a=2), "1": deleted})


# --- sweeps


@pytest.mark.parametrize(
    ("cmd", "grid", "says"),
    [
        ("train {lr}", ["lr"], "a value is empty"),
        ("train {lr}", ["l r=1"], "NAME=VALUE"),
        ("train {bs}", ["lr=1"], "has no 'bs'"),
        ("train", ["lr=1"], "does not name 'lr'"),
        ("train {lr", ["lr=1"], "does not name 'lr'"),
        ("train {}", ["lr=1"], "does not name 'lr'"),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused(cmd, grid, says):
    with pytest.raises(BergError, match=says):
        rows.make(cmd, grid, "")


# --- records


def state(**values) -> bytes:
    now = jobs.now()
    about = {"name": "j", "results": "j", "created_at": now, "times": {"SUBMITTED": now}}
    return json.dumps({**about, **values}).encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{", state(name=7), state(name="../x"), state(results="../../x"),
     state(results="a/.Git/hooks"),  # a fetch would make a repository of ~/berg_results/a
     state(times={}), state(times={"SUBMITTED": "x"}), state(attempt="1"), state(missing=[1]),
     state(synced_until="x"), state(kept_until="x"), state(name="j/x")],
    ids=range(15),  # else a time would be in their names, which two processes must agree on
)  # fmt: skip
def test_a_damaged_record_is_an_error_that_names_it(content):
    with pytest.raises(BergError, match="state.json is no record of Berg's"):
        jobs.parse(State, content, "state.json")


JOB = {"name": "j", "cmd": "true", "repo": "r", "results": "j"}
JOB["code"] = {"head": "", "commit": "", "changed": []}


def test_fields_of_a_later_berg_are_left_out():
    assert jobs.parse(State, state(name="j/7", unheard={"of": 1}), "x").name == "j/7"
    job = Job(**JOB)
    job.features = {"Spot": {"spot": True, "unheard": 1}, "Unheard": {}}
    assert [type(each).__name__ for each in features.of(job)] == ["Spot"]


@pytest.mark.parametrize(
    "code",
    [{}, {"head": 7}, {"head": "", "changed": []}, {"head": "", "commit": "", "changed": "no"}],
)
def test_a_job_whose_code_is_none_is_an_error(code):
    content = Job(**{**JOB, "code": code}).content()
    with pytest.raises(BergError, match=r"j\.json"):
        jobs.parse(Job, content, "j.json")


@pytest.mark.parametrize(
    ("synced", "kept", "seconds"),
    [
        (900, None, 100),  # it does not wait
        (30, -600, 1000),  # it waits, and said so 30 seconds ago
        (700, 700, 300),  # the wait is over
        (700, -600, 480),  # its machine vanished: nothing was said for long
        (700, 100, 480),
    ],
)
def test_a_machine_that_waits_costs_as_long_as_it_says_that_it_is_there(synced, kept, seconds):
    now = time.time()
    times = {"STARTING": jobs.now(now - 1000), "SUCCEEDED": jobs.now(now - 900)}
    made = State("j", "SUCCEEDED", times=times, synced_until=jobs.now(now - synced))
    made.kept_until = "" if kept is None else jobs.now(now - kept)
    assert made.seconds == pytest.approx(seconds, abs=3)


# --- metrics


def test_damaged_lines_of_metrics_are_left_out_and_counted():
    lines = [
        b'{"step": 1, "loss": 0.5, "word": "a", "list": [1]}', b"{oops", b"[1, 2]", b"",
        b'{"step": 2, "loss": NaN}', b'{"step": 3, "loss": 1e999, "lr": true}', b"\xff\xfe",
        b"[" * 100_000, b'{"step": 4, "loss": 0.25}', b'{"step": 5, "lo',
    ]  # fmt: skip
    found = metrics.parse(b"\n".join(lines))
    assert found.damaged == 4 and len(found.lines) == 4
    assert found.last == {"step": 4, "loss": 0.25, "word": "a", "lr": True}
    assert found.series()["loss"] == [(1, 0.5, 0), (4, 0.25, 0)]


# --- what hears a token of Google's


@pytest.mark.parametrize(
    ("host", "hears"),
    [
        ("gcr.io", True), ("eu.gcr.io", True), ("us-docker.pkg.dev", True), ("docker.io", False),
        ("evilgcr.io", False), ("us-docker.pkg.dev.evil.com", False), ("gcr.io.evil.com", False),
        ("pkg.dev", False), ("", False),
    ],
)  # fmt: skip
def test_only_googles_registries_hear_its_token(host, hears):
    assert docker.is_google(host) is hears


# --- results folders and fetch


@pytest.mark.parametrize(
    ("cmd", "folder"),
    [
        ("train --logdir=/root/berg_results/sweep1/bs_256", "sweep1/bs_256"),
        ("train --logdir /root/berg_results/a --x", "a"),
        ("train", ""),
        ("cat berg_results/$X", ""),
        ("train >/root/berg_results/a/log.txt", "a/log.txt"),
        ("train --to 'berg_results/a/$SEED'", "a"),
        ("train --to berg_results/a-$SEED", ""),
        ("train --to=berg_results/a/ && x", "a"),
        ('train --to "/root/berg_results/a.b";', "a.b"),
        ("train --to berg_results/a:b", ""),
    ],
)
def test_the_results_folder_is_what_the_command_names_up_to_a_variable(cmd, folder):
    assert jobs.results_of(cmd) == folder


@pytest.mark.parametrize(
    "path", ["../x", "a/../../x", "/etc/x", ".git/hooks/x", "a/.GIT/x", "a//b", ".berg-fetched", ""]
)
def test_no_result_comes_to_a_place_outside_or_one_that_programs_obey(tmp_path, path):
    with pytest.raises(LeftOut):
        Fetch(None, "berg_results/", "j", tmp_path).place(path, {})


@pytest.mark.parametrize("link", ["/etc", "../out", "a/../../out", "../../x", ".git"])
def test_no_link_leads_out_of_the_results(tmp_path, link):
    with pytest.raises(LeftOut):
        Fetch(None, "berg_results/", "j", tmp_path).link("link", tmp_path / "link", Row(link=link))
    assert not (tmp_path / "link").is_symlink()


def test_a_package_that_is_made_otherwise_is_taken_whole():
    """In a process of its own: a process makes each message of google-cloud-compute once."""
    code = """from berg import narrow
narrow.NEEDED = ("NoSuchRequest",)
instances, types = narrow.load()
print(instances.InstancesClient.__name__, types.Zone.__name__)"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert made.stdout == "InstancesClient Zone\n", made.stderr


@pytest.mark.parametrize(
    ("status", "state"),
    [("RUNNING", ["RUNNING"]), ("TERMINATED", ["STOPPED"]), ("STOPPING", [])],
)
def test_a_machine_whose_job_is_deleted_is_listed_unless_it_leaves(
    status: str, state: list[str]
) -> None:
    machine = gce.Instance("a", "us-east1-b", status, "a", created_at="2026-01-01T00:00:00Z")
    assert [each.state for each in unrecorded([], [machine])] == state
    assert unrecorded([State("a")], [machine]) == []


# --- names, folders and states of jobs


@pytest.mark.parametrize(
    ("name", "is_fit"),
    [("a", True), ("a" * 58, True), ("a" * 59, False), ("a-1", True), ("a-", False), ("1a", False),
     ("A", False), ("a_b", False), ("", False), ("a/b", False), ("a\n", False)],
)  # fmt: skip
def test_a_name_is_one_that_google_takes(name, is_fit):
    if is_fit:
        assert jobs.check_name(name) == name
        return
    with pytest.raises(BergError, match="-n NAME"):
        jobs.check_name(name)


@pytest.mark.parametrize(
    ("repo", "begins"),
    [("My_Repo.2", "my-repo-2-"), ("123", "job-123-"), ("é", "job-"), ("a" * 90, "a" * 40 + "-")],
)
def test_a_job_is_called_as_its_repository_and_never_as_another(repo, begins):
    first, second = jobs.new_name(repo), jobs.new_name(repo)
    assert jobs.check_name(first).startswith(begins) and len(first) <= 58
    assert len({first, second, *(jobs.new_name(repo) for _ in range(3))}) > 1


@pytest.mark.parametrize(
    ("folder", "is_at"),
    [("/root/berg_results/a/b/", "a/b"), ("a b", "a b"), ("a/.gitignore", "a/.gitignore"),
     ("", None), ("..", None), ("a/../b", None), ("a//b", None), ("./a", None), ("x/.HG", None),
     ("a\x1b", None)],
)  # fmt: skip
def test_a_results_folder_is_below_the_others(folder, is_at):
    if is_at:
        assert jobs.check_results(folder) == is_at
        return
    with pytest.raises(BergError, match="is no folder below"):
        jobs.check_results(folder)


def test_a_list_of_jobs_gets_the_beginning_of_a_long_reason():
    made = State("j", reason="x" * 1000, missing={"/tmp": "much"}, note="n")
    about = json.loads(made.about()["state"])
    assert about["reason"] == "x" * 300 and "missing" not in about and about["note"] == "n"
    assert json.loads(made.content())["reason"] == "x" * 1000


def test_a_machine_waits_until_it_was_kept():
    now = time.time()
    assert State("j").waits == 0 == State("j", kept_until=jobs.now(now - 9)).waits
    assert 80 < State("j", kept_until=jobs.now(now + 90)).waits <= 90
    assert jobs.login_file("sweep/3", "17") == "/dev/shm/berg-17-sweep.sh"
    made = Job(**{**JOB, "name": "j", "machines": 3})
    assert made.machine_names == ["j-0", "j-1", "j-2"]
    made.machines = 1
    assert made.machine_names == ["j"] and not made.is_devbox


def test_the_exit_code_is_the_commands_or_says_that_there_was_none():
    cases = [("SUCCEEDED", 0, 0), ("FAILED", 7, 7), ("KILLED", None, 1), ("LOST", None, 1),
             ("KILLED", 0, 1)]  # fmt: skip
    for outcome, code, exits in cases:
        assert exit_code(State("j", outcome, exit_code=code)) == exits, outcome


@pytest.mark.parametrize(
    ("width", "lost"),
    [(0, []), (71, ["USER"]), (70, ["USER", "ZONE"]), (55, ["USER", "ZONE", "COST"]),
     (48, ["USER", "ZONE", "COST", "GPUS"])],
)  # fmt: skip
def test_a_narrow_terminal_lacks_the_columns_that_matter_least(width, lost):
    names = ["NAME", "STATE", "ZONE", "GPUS", "COST", "USER", "ABOUT"]
    lines = [["digits", "RUNNING", "us-central1-a", "1 x l4", "$1.00", "", ""]]
    kept = [names[number] for number in fitting(names, lines, width)]
    assert kept == [name for name in names if name not in lost]


def test_a_job_whose_machine_may_come_again_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "is_coming", lambda *_: True)
    waits = state_of(job_of("comes"), ago=400, returns=True)
    assert judged(ALONE, waits, []) is waits
    for is_devbox in (False, True):
        alone = replace(waits, returns=False, is_devbox=is_devbox)
        assert judged(ALONE, alone, []).state == "LOST"


def test_a_job_that_was_submitted_after_a_command_began_is_not_meant():
    for ago in (60, -60):  # of another clock
        end.check_meant(state_of(job_of("j"), ago=ago), time.time() - 30)
    with pytest.raises(BergError, match="repeat the command"):
        end.check_meant(state_of(job_of("j"), ago=5), time.time() - 30)


# --- what is printed


def test_a_log_keeps_colors_on_request_and_steers_nothing() -> None:
    line = "a\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b[2J\x1b[5Aup \x9b31m\u202e\u200b\U000e0041\x00b"
    assert readable(line, has_colors=False) == "ared up b"
    assert readable(line, has_colors=True) == "a\x1b[31mred\x1b[0m up b\x1b[0m"
    bar = "10 %\r50 %\r100 %\r"
    assert readable(bar, True, is_terminal=True) == "100 %"
    assert readable(bar, False) == "10 %\n50 %\n100 %"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (86399, "23h"),
     (86400, "1d"), (190000, "2d")],
)  # fmt: skip
def test_a_duration_has_one_unit(seconds, text):
    assert terminal.duration(seconds) == text


def test_money_is_dollars_and_cents_or_a_question():
    assert [terminal.dollars(usd) for usd in (None, 0, 1234.567)] == ["?", "$0.00", "$1,234.57"]
    assert [costs.price(usd) for usd in (None, 0, 0.0123, 0.1)] == [
        "?",
        "$0.00",
        "$0.0123",
        "$0.10",
    ]
    assert [gpus.number(value) for value in (None, 0, 16.0)] == ["?", "0", "16"]


def test_no_text_steers_a_terminal():
    assert terminal.clean("a\x1b[31m\tb\x07\n\u202e\u200b\u00a0é\r\x9b1m") == "a[31m\tb\n\u00a0é1m"


@pytest.mark.parametrize(
    ("variables", "is_so"),
    [({}, False), ({"CLAUDECODE": "1"}, True), ({"CODEX_CI": ""}, False),
     ({"BERG_FORMAT": "agent"}, True), ({"BERG_FORMAT": "human", "CLAUDECODE": "1"}, False)],
)  # fmt: skip
def test_tables_are_for_people_or_for_programs(monkeypatch, capsys, variables, is_so):
    for name in (*terminal.AGENTS, "BERG_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    terminal.show_table(
        ["NAME", "B", "C"], [["long name", "1\x1b", ""], ["x", "a\n b", "z"]], is_cut=True
    )
    tabs, spaces = (
        "NAME\tB\tC\nlong name\t1\t\nx\ta b\tz\n",
        "NAME       B    C\nlong name  1\nx          a b  z\n",
    )
    assert capsys.readouterr().out == (tabs if is_so else spaces)


def test_data_and_messages_go_their_ways(capsys, monkeypatch):
    terminal.show_fields({"A": "1\n2\x1b", "Longer": "", "B": "x"})
    terminal.show("data\x07")
    terminal.say("told\x07")
    terminal.warn("warned\x07")
    said = capsys.readouterr()
    assert said.out == "A       1\n        2\nLonger  \nB       x\ndata\n"
    assert (
        said.err.splitlines()[0] == "told" and "berg: warned" in said.err and "\x07" not in said.err
    )
    assert terminal.confirm("Sure?", True, "-y") is True
    monkeypatch.setattr(terminal, "SOON", 0.05)
    with terminal.waiting("Asking"):
        time.sleep(0.2)
    assert capsys.readouterr().err == "Asking\n"


@pytest.mark.parametrize(
    ("value", "cell"),
    [("=1+1", "'=1+1"), ("+a", "'+a"), ("-0.5", "-0.5"), ("+1e3", "+1e3"), ("@x", "'@x"), ("-", "'-"),
     ("\tx", "'\tx"), ("＝1", "'＝1"), ("a=1", "a=1"), ("", ""), (-5, -5), (None, None)],
)  # fmt: skip
def test_a_spreadsheet_runs_no_cell(value, cell):
    assert table.harmless(value) == cell


def test_a_csv_file_has_a_column_for_all_that_any_row_has(tmp_path):
    made = [
        table.Row("s/0", "SUCCEEDED", 0, "", {"lr": "1"}, {"loss": 0.5, "=x": 1}),
        table.Row("s/1", "FAILED", 3, "exit, code", {"bs": "2"}, {"acc": "-y", "half": "\ud800"}),
    ]
    table.write_csv(made, tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text().splitlines() == [
        "name,state,exit_code,reason,param.lr,metric.loss,metric.=x,param.bs,metric.acc,metric.half",
        "s/0,SUCCEEDED,0,,1,0.5,1,,,",
        's/1,FAILED,3,"exit, code",,,,2,\'-y,?',
    ]
    with pytest.raises(BergError, match="cannot write .*Name another file"):
        table.write_csv(made, tmp_path)
    made[0].metrics = {"loss": float("inf")}
    assert made[0].record()["metrics"] == {"loss": None} and made[0].record()["params"] == {
        "lr": "1"
    }


# --- how busy machines are


def test_samples_are_what_changed_and_no_unknown_number_counts():
    before = dict.fromkeys(("time", "idle", "cpu", "memory", "memory_total", "received", "sent"), 0)
    before |= {"sent": 900, "time": 100}
    now = {
        "time": 110,
        "idle": 25,
        "cpu": 100,
        "memory": 1,
        "memory_total": 4,
        "received": 50,
        "sent": 9,
    }
    made = usage.changes(before, now)
    assert 0 < made.pop("disk_percent") <= 100
    assert made == {
        "time": 110, "cpu_percent": 75.0, "memory_percent": 25.0, "memory_bytes": 1,
        "received_per_second": 5, "sent_per_second": 0,
    }  # fmt: skip
    read = usage.gpus("0, 98, 1024, 4096, 350.5, 61\nno row\n1, [N/A], 3072, 4096, [N/A], 30\n")
    assert [gpu["percent"] for gpu in read] == [98, None] and read[1]["celsius"] == 30
    made |= {"gpus": read, "disk_percent": 10}
    assert usage.shares(made) == {"GPU": 98, "GPU memory": 50, "CPU": 75, "memory": 25, "disk": 10}
    calm = {**made, "gpus": [], "cpu_percent": 25.04, "memory_percent": None}
    assert usage.summary({"m": [made], "n": [calm]}) == {
        "GPU": {"mean": 98, "peak": 98}, "GPU memory": {"mean": 50, "peak": 50},
        "CPU": {"mean": 50.0, "peak": 75}, "memory": {"mean": 25, "peak": 25},
        "disk": {"mean": 10, "peak": 10},
    }  # fmt: skip
    assert usage.memory({"memory_mb": 5, "memory_total_mb": None}) is None


def test_the_kernels_counters_are_of_this_machine():
    found = usage.counters()
    assert 0 < found["memory"] < found["memory_total"] and 0 < found["idle"] < found["cpu"]
    names = [line.split(":")[0].strip() for line in open("/proc/net/dev")]
    if not [name for name in names[2:] if not name.startswith(usage.VIRTUAL)]:
        assert found["received"] == found["sent"] == 0
    lines = {line.split(":")[0]: line.split()[1] for line in open("/proc/meminfo")}
    assert found["memory_total"] == int(lines["MemTotal"]) * 1024 and bool(found["sent"]) == any(
        int(line.split()[-8])
        for line in [*open("/proc/net/dev")][2:]
        if not line.strip().startswith(usage.VIRTUAL)
    )


def test_a_line_of_top_is_the_last_half_hour():
    now = time.time()
    gpu = {
        "index": 1,
        "percent": 50,
        "memory_mb": 1,
        "memory_total_mb": 2,
        "watt": 99.6,
        "celsius": None,
    }
    busy = {"time": now - 30, "gpus": [gpu], "cpu_percent": 10, "memory_percent": None, "disk_percent": 1,
            "received_per_second": 1_500_000, "sent_per_second": None}  # fmt: skip
    row = top.Row("m", "j", "RUNNING", [{**busy, "gpus": [{**gpu, "percent": 100}]}, busy])
    assert row.cells() == ["m", "██    50%", "██    50%", "      10%", "-", "1.5 MB", "█▅"]
    assert row.gpu_cells() == [["  GPU 1", "██    50%", "██    50%", "", "", "", "100 W"]]
    row.samples = [{**busy, "gpus": []}]
    assert row.about() == "▁"  # of the CPU
    row.samples[0]["time"] = now - 200
    assert row.about() == "RUNNING: 3m ago"
    row.samples = []
    assert row.cells() == ["m", "-", "-", "-", "-", "-", "RUNNING: no sample yet"]
    assert top.percent(130).startswith("████") and not row.gpu_cells()


# --- clients


def test_a_week_begins_on_monday_and_is_of_one_user():
    def made(user: str, at: str, hours: int, **more) -> State:
        day = f"2026-03-{at}"
        times = {"RUNNING": f"{day}T00:00:00Z", "FAILED": f"{day}T{hours:02}:00:00Z"}
        return State("j", "FAILED", user, created_at=f"{day}T23:59:59Z", times=times, **more)

    found = costs.weeks([
        made("ada", "02", 2, rate=1.0, machines=2), made("ada", "08", 1, rate=0.5), made("ada", "03", 3),
        made("bob", "04", 1, rate=9.0), made("ada", "09", 1, rate=1.0),
    ])  # fmt: skip
    assert [(w.begins, w.user, w.jobs, w.hours, w.usd, w.unknown) for w in found] == [
        ("2026-03-09", "ada", 1, 1.0, 1.0, 0),
        ("2026-03-02", "bob", 1, 1.0, 9.0, 0),
        ("2026-03-02", "ada", 3, 8.0, 4.5, 1),
    ]


def test_a_line_to_draw_keeps_its_peaks():
    points = [(float(number), 5.0) for number in range(5000)]
    points[1234], points[3210] = (1234.0, 99.0), (3210.0, -7.0)
    thin = page.thin(points)
    assert len(thin) <= page.POINTS and {(1234.0, 99.0), (3210.0, -7.0)} <= {*thin}
    assert thin == sorted(thin) and page.thin(points[:600]) == points[:600]


@pytest.mark.parametrize(
    ("path", "is_so"),
    [("events.out.tfevents.1", True), ("a/plugins/profile/x.pb", True), ("plugins/profile/x", True),
     ("metrics.jsonl", True), ("a/metrics.jsonl", True), ("my-metrics.jsonl", False), ("a.txt", False),
     (".git/tfevents", False), ("a/.GIT/tfevents", False), ("../tfevents", False),
     ("a\ntfevents", False)],
)  # fmt: skip
def test_tensorboard_gets_what_it_shows(path, is_so):
    assert tensorboard.is_shown(path) is is_so


def events(file) -> list[tuple[str, int, float]]:
    """The scalars of an event file, whose checksums are right."""
    found, content = [], file.read_bytes()
    while content:
        (size,) = struct.unpack("<Q", content[:8])
        body = content[12 : 12 + size]
        assert tensorboard.record(body) == content[: size + 16]
        content = content[size + 16 :]
        if b"brain" in body:
            continue
        step, shift, at = 0, 0, 10
        while True:
            step |= (body[at] & 127) << shift
            at, shift = at + 1, shift + 7
            if body[at - 1] < 128:
                break
        (value,) = struct.unpack("<f", body[-4:])
        length = body[at + 5]
        found.append((body[at + 6 : at + 6 + length].decode(), step, value))
    return found


def test_metrics_become_scalars_once(tmp_path):
    source, made = tmp_path / "metrics.jsonl", {}
    source.write_text('{"step": 1, "loss": 0.5}\n{"step": 300, "loss": 0.25, "acc": 1e99}\n')
    tensorboard.convert(source, made)
    (file,) = tmp_path.glob("events*")
    first = [("acc", 300, pytest.approx(3e38)), ("loss", 1, 0.5), ("loss", 300, 0.25)]
    assert events(file) == first
    source.write_text(source.read_text() + '{"step": -4, "loss": 2, "time": 1700000000}\n')
    tensorboard.convert(source, made)
    assert [*tmp_path.glob("events*")] == [file] and (
        events(file) == [*first, ("loss", 0, 2.0)] and struct.pack("<d", 1.7e9) in file.read_bytes()
    )
    source.write_text('{"step": 7, "loss": 8}\n')  # begun anew
    tensorboard.convert(source, made)
    (other,) = tmp_path.glob("events*")
    assert other != file and events(other) == [("loss", 7, 8.0)]


def test_two_sets_of_jobs_have_two_folders():
    names = [tensorboard.folder_name(names) for names in (("A/1", "b"), ("b", "A/1"), ("A/1",))]
    assert names[0].startswith("a-1-") and names[1].startswith("b-")
    assert names[0].split("-")[-1] == names[1].split("-")[-1] != names[2].split("-")[-1]


def test_the_lines_that_took_the_most_time_are_named():
    frames = [{"name": "f", "file": "/a/x.py", "line": 3}, {"name": "g", "file": "y.py", "line": 9}]
    parts = [
        {"samples": [[1, 0], [1], []], "weights": [6, 1, 3]},
        {"samples": [[0]], "weights": [10]},
    ]
    told = profile.hottest(json.dumps({"shared": {"frames": frames}, "profiles": parts}))
    assert told == [" 80.0 %  f (x.py:3)", "  5.0 %  g (y.py:9)"]
    assert profile.hottest("Thread 1 (active)") == profile.hottest('{"shared": 1}') == []


def test_facts_of_a_job_that_differ():
    job = Job(**{**JOB, "gpus": 2, "gpu_type": "l4", "image": "a/b/c", "env": {"A": "1"}})
    job.code, job.options = (
        {"head": "0123456789abcdef"},
        {"env": ["A=1"], "spot": True, "zones": []},
    )
    at = {"RUNNING": "2026-01-01T00:00:00Z", "FAILED": "2026-01-01T00:05:00Z"}
    facts = diff.facts(job, State("j", "FAILED", exit_code=3, times=at))
    assert facts == {
        "state": "FAILED", "exit code": 3, "ran": "5m", "command": "true", "repo": "r",
        "commit": "0123456789ab", "machines": 1, "machine type": "", "gpus": "2 x l4", "image": "c",
        "user": "", "env A": "1", "option spot": True, "option zones": [],
    }  # fmt: skip
    assert diff.facts(job, State("j", "RUNNING", times=at))["ran"] is None
    other = {**facts, "exit code": None, "option zones": ["a"], "env B": "", "ran": "6m"}
    del other["env A"]
    assert [(each.what, each.first, each.second) for each in diff.differing(facts, other)] == [
        ("exit code", "3", ""), ("ran", "5m", "6m"), ("env A", "1", ""), ("option zones", "", "['a']"),
    ]  # fmt: skip


def test_a_chart_has_rates_of_what_is_counted_and_means_of_the_rest():
    tiles = dashboard.body()["mosaicLayout"]["tiles"]
    assert [(tile["xPos"], tile["yPos"]) for tile in tiles] == [(0, 0), (24, 0), (0, 14)]
    for metric, how in (("cpu/utilization", "MEAN"), ("disk/read_bytes_count", "RATE")):
        line = dashboard.line(metric, " x")
        query = line["timeSeriesQuery"]["timeSeriesFilter"]
        assert query["aggregation"]["perSeriesAligner"] == f"ALIGN_{how}"
        reducer = query["aggregation"]["crossSeriesReducer"]
        assert reducer == ("REDUCE_MEAN" if how == "MEAN" else "REDUCE_SUM")
        assert (
            f"instance/{metric}" in query["filter"] and 'user_labels."berg"="1"' in query["filter"]
        )
        assert line["legendTemplate"].endswith("} x")


def test_options_in_python_are_those_of_the_command_line():
    words = api.words_of(run, {"zones": ["a", "b"], "spot": True, "env": {"A": "1"}, "gpus": 0,
                               "gpu_type": None, "each": False})  # fmt: skip
    assert words == ["--zone", "a", "--zone", "b", "--spot", "--env", "A=1", "--num-gpus", "0"]


# --- logins


def test_a_login_begins_in_the_repository_with_the_variables():
    job = Job(**{**JOB, "repo": "a b", "cwd": "sub"})
    own = gce.Instance("j", "z", "RUNNING", "j", id="17")
    begin = "cd '/root/code/a b/sub' 2>/dev/null; . /dev/shm/berg-17-j.sh 2>/dev/null; "
    assert ssh.remote(job, (), own) == f"{begin}exec bash"
    assert ssh.remote(job, ("ls", "-l | wc"), own) == f"{begin}ls -l | wc"
    host = gce.Instance("h", "z", "RUNNING", "h", id="17")
    guest = ssh.remote(job, ("ls",), host)
    assert guest.startswith('nsenter -m -t "$(cat ') and guest.endswith(shlex.quote(f"{begin}ls"))
    assert "/j/lock" in guest
    assert ssh.remote(None, (), host).startswith("cd /root 2>/dev/null; . /dev/shm/berg-17-h.sh")


def test_ssh_knows_the_machine_by_its_keys_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    monkeypatch.setenv("BERG_SSH_PORT", "2222")
    machine = gce.Instance(
        "j", "z", "RUNNING", "j", id="17", address="1.2.3.4", inner_address="10.0.0.2"
    )
    words = ssh.words(machine, ["ed25519 AAA", "rsa BBB"], tmp_path / "known")
    assert (tmp_path / "known").read_text() == "berg-17 ed25519 AAA\nberg-17 rsa BBB\n"
    assert words[:3] == ["ssh", "-F", "none"] and words[-3:] == ["-p", "2222", "root@1.2.3.4"]
    assert f'IdentityFile="{tmp_path / "ssh/id_ed25519"}"' in words
    odd = tmp_path / "a 'b\" %h \\ü"
    shown = subprocess.run(
        ["ssh", "-G", *ssh.words(machine, [], odd)[1:]], capture_output=True, text=True
    ).stdout
    assert f"\nuserknownhostsfile {odd}\n" in shown and "HostKeyAlias=berg-17" in words
    assert {"StrictHostKeyChecking=yes", "IdentitiesOnly=yes"} < {*words}
    machine.address = ""
    assert ssh.words(machine, [], tmp_path / "known")[-1] == "root@10.0.0.2"
    key = ssh.public_key()
    assert key.startswith("ssh-ed25519 ") and key == ssh.public_key()
    assert (tmp_path / "ssh").stat().st_mode & 0o77 == 0


def test_a_port_that_is_in_use_is_another_one():
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert ssh.free("127.0.0.1", taken) not in (0, taken)
    assert ssh.free("127.0.0.1", taken) == taken


# --- how steps and times of metrics are found, and how values are shown


@pytest.mark.parametrize(
    ("lines", "series"),
    [
        (['{"loss": 1}', '{"loss": 2}'], {"loss": [(0, 1, 0), (1, 2, 0)]}),
        (['{"iter": 5, "loss": 1, "epoch": 2}'], {"epoch": [(5, 2, 0)], "loss": [(5, 1, 0)]}),
        (['{"epoch": 2, "loss": 1}'], {"loss": [(2, 1, 0)]}),
        (['{"step": 7, "iter": 5, "loss": 1}'], {"loss": [(7, 1, 0)]}),
        (['{"step": 7, "time": 90, "loss": 1}'], {"loss": [(7, 1, 90)]}),
        (
            ['{"step": "x", "wall_time": 80, "b": 1, "a": 2}'],
            {"a": [(0, 2, 80)], "b": [(0, 1, 80)]},
        ),
        (['{"loss": true, "acc": 1e400, "x": null, "y": 1e300}'], {}),
        (['{"global_step": 3, "step": 2, "loss": 1}'], {"loss": [(2, 1, 0)]}),
        (
            ['{"iteration": 4, "iter": 2, "timestamp": 60, "wall_time": 50, "loss": 1}'],
            {"loss": [(4, 1, 60)]},
        ),
    ],
)
def test_metrics_have_their_step_and_time(lines, series):
    found = metrics.parse("\n".join(lines).encode())
    assert found.series() == series and [*found.series()] == sorted(series)


def test_values_are_short_and_damage_is_said():
    assert [metrics.text(each) for each in (0.123456789, 1e-9, 12345678, "word", True)] == [
        "0.123457", "1e-09", "12345678", "word", "True"
    ]  # fmt: skip
    notes = [metrics.Metrics(damaged=count).note("j") for count in (0, 1, 2)]
    assert notes[0] == "" and notes[1].startswith("1 line of j's") and "2 lines of" in notes[2]
    assert metrics.parse(b"{half\r\n{half").damaged == metrics.parse(b"{half\rx").damaged == 1
    odd = {"a": float("-inf"), "b": "nan", "c": float("nan"), "d": 1}
    assert metrics.finite(odd) == {"a": None, "b": "nan", "c": None, "d": 1}


# --- more of sweeps


@pytest.mark.parametrize(
    "text, values",
    [
        ("x=1,2", ["1", "2"]),
        ("x=[64,32],[128,16]", ["[64,32]", "[128,16]"]),
        ('x={"a": 1, "b": [2]}, {}', ['{"a": 1, "b": [2]}', "{}"]),
        ("x='a,b',c", ["a,b", "c"]),
        (r'x="say \"hi\"",', None),
        ("x='',a", ["", "a"]),
        ("x=", None),
        ("x=1,2,", None),
        ("x=1,,2", None),
        ("x=,1", None),
        ("x=[64,32", None),
        ("x=[1]2", None),
        ("x='a", None),
        ("x=1,1", None),
        ("=1,2", None),
    ],
)
def test_a_list_of_values_is_read_or_refused(text: str, values: list[str] | None) -> None:
    if values is None:
        with pytest.raises(BergError, match="--grid"):
            rows.make("train {x}", [text], "")
    else:
        assert [row["x"] for row in rows.make("train {x}", [text], "")] == values


def test_values_are_words_and_other_braces_are_the_shells() -> None:
    cmd = "awk '{print $1}' ${x} {{x}} --x={x} {model.lr}"
    assert rows.placeholders(cmd) == {"x", "model.lr"}
    filled = rows.fill(cmd, {"x": "a b; rm", "model.lr": "0.1"})
    assert filled == "awk '{print $1}' ${x} {x} --x='a b; rm' 0.1"


def test_tasks_have_a_row_in_each_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufefflr,word\r\n0.1,"a\nb"\r\n'.encode())
    (tmp_path / "b.jsonl").write_text('{"lr": 1e-5, "word": "x"}\n\n{"lr": true, "word": [1]}\n')
    read = [rows.make("{lr} {word}", [], str(tmp_path / name)) for name in ("a.csv", "b.jsonl")]
    assert read[0] == [{"lr": "0.1", "word": "a\nb"}]
    assert read[1] == [{"lr": "1e-05", "word": "x"}, {"lr": "true", "word": "[1]"}]
    (tmp_path / "c.jsonl").write_text('{"lr": 1}\n{oops\n')
    with pytest.raises(BergError, match="line 2"):
        rows.make("{lr}", [], str(tmp_path / "c.jsonl"))
    with pytest.raises(BergError, match="rows 0 and 1 would write to one folder"):
        rows.make("t {x} --out /root/berg_results/same", ["x=1,2"], "")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "a,a\n1,2\n", "a column is named twice"),
        ("a.csv", "a,b\n1,2\n3\n", "row 1 has 1 values for 2 columns"),
        ("a.csv", "", "a.csv has no rows"),
        ("a.csv", "a\n", "a.csv has no rows"),
        ("a.jsonl", "\n", "a.jsonl has no rows"),
        ("a.jsonl", "{", "a.jsonl: line 1"),
        ("a.jsonl", '{"a": 1}\n7\n', "line 2 is no object"),
        ("a.csv", "b,a\n1,2\n", "does not name 'b'"),
        ("a.jsonl", '{"a": 1}\n{"b": 1}\n', "row 1 has no 'a'"),
    ],
)
def test_a_file_of_rows_says_what_is_wrong(tmp_path, name, text, says):
    (tmp_path / name).write_text(text)
    with pytest.raises(BergError, match=says):
        rows.make("t {a}", [], str(tmp_path / name))


def test_a_file_and_a_grid_are_every_combination_up_to_a_limit(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n\n2\n")
    made = rows.make("t {a} {b} {c}", ["b=x,y", "c=7"], str(tmp_path / "a.csv"))
    assert [rows.describe(row) for row in made] == [
        "a=1 b=x c=7", "a=1 b=y c=7", "a=2 b=x c=7", "a=2 b=y c=7"
    ]  # fmt: skip
    numbers = ",".join(map(str, range(101)))
    with pytest.raises(BergError, match="10201 rows are more than 10000"):
        rows.make("t {a} {b}", [f"a={numbers}", f"b={numbers}"], "")
    with pytest.raises(BergError, match="missing.csv: No such file"):
        rows.make("t {a}", [], str(tmp_path / "missing.csv"))
    with pytest.raises(BergError, match="--grid a is given twice"):
        rows.make("t {a}", ["a=1", "a=2"], "")


def test_a_row_is_a_job_with_its_values():
    sweep = Job(**{**JOB, "name": "s", "cmd": "t --out /root/berg_results/of-{a}", "machines": 2})
    sweep.rows = [{"a": "1"}, {"a": "2"}]
    row = rows.row_job(sweep, 1)
    assert (row.name, row.machines, row.results) == ("s/1", 1, "of-2")
    assert row.cmd == "t --out /root/berg_results/of-2"
    assert rows.number_of(row.name) == 1 and rows.number_of("s") is None
    assert jobs.state_path(row.name) == ".berg/rows/s/1.json"
    begun = State("s/1", "RUNNING")
    assert rows.state_of(sweep, {1: (begun, 5)}, 1) is begun
    waiting = rows.state_of(sweep, {1: (begun, 5)}, 0)
    assert (waiting.name, waiting.state, waiting.results) == ("s/0", "SUBMITTED", "of-1")


# --- where the content of a file is


def there(size: int, crc: int, name: str = "x") -> Object:
    return Object(name, size, crc, 1)


@pytest.mark.parametrize(
    ("plain", "kept", "grows", "found"),
    [
        (None, [], False, []),
        (there(5, 7), [], False, ["plain"]),
        (there(5, 8), [], False, ["plain"]),  # it may have grown
        (there(4, 8), [], False, []),
        (there(4, 8), [there(5, 7, "k-9")], False, ["k-9"]),
        (there(5, 7), [there(5, 7, "k-9")], False, ["plain", "k-9"]),
        (there(9, 8), [there(5, 7, "k-9")], False, ["k-9", "plain"]),
        (None, [there(8, 8, "k-10")], False, []),
        (None, [there(8, 8, "k-10")], True, ["k-10"]),
        (None, [there(4, 8, "k-10")], True, []),
    ],
)
def test_a_file_is_looked_for_where_its_content_may_be(plain, kept, grows, found):
    row = Row(size=5, crc=7, generation=9, grows=grows)
    assert moments.sources("plain", plain, kept, row) == found


@pytest.mark.parametrize(
    ("name", "machines", "expected"),
    [
        ("a.~rank1~", 2, ("a", "1")),
        ("a.~rank2~", 2, ("a.~rank2~", "")),  # no machine has that rank
        ("a.~rank0~", 2, ("a.~rank0~", "")),
        ("a.~rank1~", 1, ("a.~rank1~", "")),
        ("a.~rank1~/b", 2, ("a.~rank1~/b", "")),
        ("a\nb.~rank1~", 2, ("a\nb", "1")),
    ],
)
def test_the_name_of_a_ranks_file_is_taken_apart(name, machines, expected):
    assert moments.split_name(name, machines) == expected
    assert not expected[1] or moments.rank_name(*expected) == name


def test_names_that_no_file_and_no_object_can_have():
    assert [moments.is_plain(name) for name in ("a/b", "a//b", "a/../b", "./a", "a\0", "a/")] == [
        True, False, False, False, False, False
    ]  # fmt: skip
    wrong = ("a\n", "a\r", "a\tb", "a\x1b", "a\x7f", "a" * 1025, "\udc80")
    assert all(map(moments.misnamed, wrong)) and not moments.misnamed("a b")
    assert not moments.misnamed("é" * 512) and "too long" in moments.misnamed("é" * 513)


def test_of_files_and_links_with_one_path_the_file_counts():
    link = {"at_ns": 1, "gone": {}, "rows": {"a": list(Row(generation=9, link="b"))}}
    assert union({"0": link, "1": moment(a=1)})["a"].link == ""
    assert union({"0": moment(a=1), "1": link})["a"].link == ""
    alike = union({"0": moment(a=1), "1": moment(a=1)})
    assert [*alike] == ["a"]


def test_a_file_that_is_here_is_known_by_its_content(tmp_path):
    (tmp_path / "file").write_bytes(b"content")
    right = Row(size=7, crc=google_crc32c.value(b"content"))
    (tmp_path / "link").symlink_to("file")
    assert moments.is_there(tmp_path / "file", right)
    assert not moments.is_there(tmp_path / "file", right._replace(crc=1))
    assert not moments.is_there(tmp_path / "file", right._replace(size=6))
    assert not moments.is_there(tmp_path / "none", right)
    assert not moments.is_there(tmp_path / "link", right)


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        ("2026-01-02T03:04:05Z", "2026-01-02T03:04:05.999999999"),
        ("2026-01-02T03:04:05", "2026-01-02T03:04:05.999999999"),  # UTC, wherever the laptop is
        ("2026-01-02T05:04:05+02:00", "2026-01-02T03:04:05.999999999"),
    ],
)
def test_a_view_is_the_last_instant_of_its_second(text, ends, monkeypatch):
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    whole, _, rest = ends.partition(".")
    seconds = datetime.fromisoformat(f"{whole}+00:00").timestamp()
    assert fetch.view(text) == int(seconds) * 10**9 + int(rest)
    monkeypatch.undo()
    time.tzset()
