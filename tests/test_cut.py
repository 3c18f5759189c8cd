"""A laptop that is killed while it submits: what it began runs, or is found and can be begun again."""

import itertools
import signal

import pytest
from conftest import Berg, wait_for

from berg.laptop import ending, index, jobs

SUBMITS = {
    "job": ["run", "-g", "0", "true"],
    "sweep": ["run", "-g", "0", "--grid", "x=1,2", "true {x}"],
    "cluster": ["run", "-g", "0", "-m", "2", "true"],
    "spot": ["run", "-g", "0", "--spot", "-m", "2", "--each", "true"],
    "devbox": ["devbox", "-g", "0"],
    "secret": ["run", "-g", "0", "--secret", "TOKEN=token", "true"],
}


def names(berg: Berg) -> set[str]:
    """Return the objects by which a job or a sweep has its name."""
    taken = (".berg/jobs/", ".berg/sweeps/")
    return {blob.name for prefix in taken for blob in berg.bucket.list(prefix)}


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=[pytest.mark.slow][: each != "sweep"]) for each in SUBMITS]
)
def test_a_submit_that_is_cut_anywhere_runs_or_is_found(berg, monkeypatch, kind):
    for place in (jobs, "LOST_AFTER"), (ending, "SETTLED"), (index, "SETTLED"):
        monkeypatch.setattr(*place, -1)
    (berg.repo / "token").write_text("s3cret")
    settings, found = berg.cloud.settings(berg.bucket_name), 0
    index.look(settings, "tester", 0).tidy()  # makes the index

    def is_clean() -> bool:
        left = ending.leftovers(settings, "tester")
        ending.delete_leftovers(settings, left)
        return not left

    for number in itertools.count(1):
        submit = berg.start(*SUBMITS[kind], "-n", "cut", dies_at=number)
        _, said = submit.communicate(60)
        if submit.returncode == 0:
            break
        assert submit.returncode == -signal.SIGKILL, said
        if berg.machines():
            first = "cut-0" if kind == "sweep" else "cut"
            wanted = "RUNNING" if kind == "devbox" else "SUCCEEDED"
            wait_for(lambda: berg.state(first)["state"] == wanted, 90)  # noqa: B023
            assert berg("kill", "--now", "cut").returncode == 0
            wait_for(lambda: not berg.machines())
            assert berg("rm", "-y", "cut").returncode == 0
        elif names(berg):
            listed = index.look(settings, "tester", 0).entries
            assert {each.sweep or each.name for each in listed} == {"cut"}
            left = ending.leftovers(settings, "tester")
            found += ("job", "cut") in {(each.kind, each.name) for each in left}
        wait_for(is_clean)
        assert not names(berg), f"after a cut at write {number}"
    assert found
