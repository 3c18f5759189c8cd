"""What Berg decides without a cloud, as tables."""

import json
import subprocess
import sys
import time

import pytest

from berg import BergError, features, gce, metrics, rows
from berg import job as jobs
from berg.features import docker
from berg.fetch import Fetch, LeftOut
from berg.job import Job, State
from berg.jobs import unrecorded
from berg.moments import FINAL, PARTLY, Row, common, union

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


def test_a_grid_is_every_combination():
    made = rows.make("train {lr} {bs}", ["lr=0.1,0.2", "bs=1,2,3"], "")
    assert len(made) == 6 and made[0] == {"lr": "0.1", "bs": "1"}


def test_rows_of_a_file_have_its_columns(tmp_path):
    (tmp_path / "a.csv").write_text('lr,word\n0.1,"a b"\n0.2,c\n')
    (tmp_path / "a.jsonl").write_text('{"lr": 0.1, "word": "a b"}\n\n{"lr": 0.2, "word": "c"}\n')
    expected = [{"lr": "0.1", "word": "a b"}, {"lr": "0.2", "word": "c"}]
    for file in ("a.csv", "a.jsonl"):
        assert rows.make("{lr} {word}", [], str(tmp_path / file)) == expected


@pytest.mark.parametrize(
    ("cmd", "grid", "says"),
    [
        ("train {lr}", ["lr"], "a value is empty"),
        ("train {lr}", ["lr=1,,2"], "a value is empty"),
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


def test_a_file_of_no_rows_is_refused(tmp_path):
    for name, text in {"a.csv": "lr\n", "b.jsonl": "[1]\n", "c.jsonl": "{"}.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(BergError, match=name):
            rows.make("{lr}", [], str(tmp_path / name))
    with pytest.raises(BergError, match="missing"):
        rows.make("{lr}", [], "missing.csv")


def test_a_row_is_a_job_with_its_values():
    values = [{"lr": "0.1"}, {"lr": "0.2"}]
    sweep = Job(name="s", cmd="train {lr}", repo="r", code={}, results="s", machines=2, rows=values)
    row = rows.row_job(sweep, 1)
    assert (row.name, row.cmd, row.results, row.machines) == ("s/1", "train 0.2", "s/1", 1)
    assert rows.number_of(row.name) == 1 and rows.number_of("s") is None
    assert jobs.state_path(row.name) == ".berg/rows/s/1.json"


# --- records


def state(**values) -> bytes:
    now = jobs.now()
    about = {"name": "j", "results": "j", "created_at": now, "times": {"SUBMITTED": now}}
    return json.dumps({**about, **values}).encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"null", b"{", state(name=7), state(name="../x"), state(results="../../x"),
     state(results="a/.Git/hooks"),  # a fetch would make a repository of ~/berg_results/a
     state(times={}), state(times={"SUBMITTED": "x"}), state(attempt="1"), state(missing=[1])],
    ids=range(12),  # else a time would be in their names, which two processes must agree on
)  # fmt: skip
def test_a_damaged_record_is_an_error_that_names_it(content):
    with pytest.raises(BergError, match="state.json"):
        jobs.parse(State, content, "state.json")


JOB = {"name": "j", "cmd": "true", "repo": "r", "results": "j"}
JOB["code"] = {"head": "", "commit": "", "changed": []}


def test_fields_of_a_later_berg_are_left_out():
    assert jobs.parse(State, state(unheard={"of": 1}), "x").name == "j"
    job = Job(**JOB)
    job.features = {"Spot": {"spot": True, "unheard": 1}, "Unheard": {}}
    assert [type(each).__name__ for each in features.of(job)] == ["Spot"]


@pytest.mark.parametrize("code", [{}, {"head": 7}, {"head": "", "commit": "", "changed": "no"}])
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
    assert metrics.finite({"a": float("nan"), "b": 1}) == {"a": None, "b": 1}


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
    ],
)
def test_the_results_folder_is_what_the_command_names(cmd, folder):
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
