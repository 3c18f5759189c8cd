"""Results folders: a live job has its folder alone, and a later one begins with what is there."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from berg import BergError, places, states
from berg.job import Job, State
from berg.laptop import lookup


@pytest.fixture(autouse=True)
def no_machines(request, monkeypatch):
    if "berg" not in request.fixturenames:
        monkeypatch.setattr(places, "machines", lambda *_, **__: [])


def make(name: str, folder: str, sweep: str = "") -> Job:
    sha, url = "c" * 40, f"gs://b/berg_results/{folder}"
    return Job(name, "true", folder, url, "proj", sha, sha, sweep=sweep)


def submit(bucket, *new: Job, taken=None) -> tuple[list[states.Stored], dict[str, str]]:
    """Do what a submit does: look, take the folders, write the states, and look again."""
    wanted, begins_with = taken or lookup.owners_of(bucket.config, list(new))
    claim = states.new_claim()
    lookup.take_folders(bucket, wanted, claim)
    stored = [
        states.claim(bucket, this.job_name, State(job=this.summary()), token=claim) for this in new
    ]
    lookup.check_owners(bucket.config, wanted, claim)
    return stored, begins_with


def end(bucket, stored: states.Stored, started_at: str = "2026-01-01T00:00:00Z") -> None:
    ended = State("SUCCEEDED", started_at=started_at, job=stored.state.job)
    states.replaced(bucket, stored, ended)


@pytest.mark.parametrize(
    ("first", "second"), [("a", "a"), ("a", "a/b"), ("a/b/c", "a"), ("one", "one/x/y")]
)
def test_a_folder_of_a_live_job_is_refused(bucket, first, second):
    ((one,), _) = submit(bucket, make("one", first))
    says = f"berg_results/{first} is the results dir of one, which has not ended .SUBMITTED."
    with pytest.raises(BergError, match=f"{says}.*-r DIR.*berg kill one"):
        lookup.owners_of(bucket.config, [make("two", second)])
    for other in ("ab", "a-b/c", "b/a"):
        lookup.owners_of(bucket.config, [make("two", other)])
    assert lookup.owners_of(bucket.config, [make("one", first)]), "its own"
    end(bucket, one)
    submit(bucket, make("two", second))


@pytest.mark.parametrize("folders", [("a", "a"), ("a", "a/b")])
def test_two_submits_at_the_same_moment_do_not_share_a_folder(bucket, folders):
    new = [make(name, folder) for name, folder in zip(("one", "two"), folders, strict=True)]
    looked = [lookup.owners_of(bucket.config, [each]) for each in new]

    def attempt(number: int) -> bool:
        try:
            submit(bucket, new[number], taken=looked[number])
        except BergError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(attempt, (0, 1)))
    assert sum(done) == 1 if folders[0] == folders[1] else sum(done) < 2


def test_a_submit_that_took_a_folder_from_one_without_a_state_yet_is_refused(bucket):
    first, second = make("one", "a"), make("two", "a")
    wanted, _ = lookup.owners_of(bucket.config, [first])
    lookup.take_folders(bucket, wanted, "first")
    late, _ = lookup.owners_of(bucket.config, [second])  # the first one has no state yet
    states.claim(bucket, "one", State(job=first.summary()), token="first")
    lookup.check_owners(bucket.config, wanted, "first")
    lookup.take_folders(bucket, late, "second")
    states.claim(bucket, "two", State(job=second.summary()), token="second")
    with pytest.raises(BergError, match="results dir of one, which has not ended"):
        lookup.check_owners(bucket.config, late, "second")


def test_a_job_begins_with_the_last_one_that_began(bucket):
    ((one,), none) = submit(bucket, make("one", "a"))
    assert none == {"a": ""}
    end(bucket, one)
    ((two,), begins) = submit(bucket, make("two", "a"))
    assert begins == {"a": "one"}
    end(bucket, two, started_at="")
    _, begins = lookup.owners_of(bucket.config, [make("three", "a")])
    assert begins == {"a": "one"}, "two never began"
    looked = lookup.owners_of(bucket.config, [make("three", "a")])
    ((three,), _) = submit(bucket, make("three", "a"), taken=looked)
    states.withdraw(bucket, three)
    states.claim(bucket, "three", State(job=make("three", "b").summary()))
    assert lookup.owners_of(bucket.config, [make("four", "a")])[1] == {"a": "one"}
    assert lookup.owners_of(bucket.config, [make("inner", "a/b")])[1] == {"a/b": ""}


def test_jobs_of_a_sweep_share_an_owner_and_begin_each_with_its_own(bucket):
    old = [make(f"old-{number}", f"a/{number}", "old") for number in range(3)]
    stored, _ = submit(bucket, *old)
    assert [blob.name for blob in bucket.list(".berg/owners/")] == [".berg/owners/a/owner"]
    end(bucket, stored[0])
    new = [make(f"new-{number}", f"a/{number}", "new") for number in range(2)]
    with pytest.raises(BergError, match="berg_results/a is the results dir of old, .* kill old"):
        lookup.owners_of(bucket.config, new)
    for each in stored[1:]:
        end(bucket, each)
    assert lookup.owners_of(bucket.config, new)[1] == {"a/0": "old-0", "a/1": "old-1"}
    assert lookup.owners_of(bucket.config, [make("one", "a/2")])[1] == {"a/2": "old-2"}
    named = [make(f"lr-{number}", f"lr_{number}", "lr") for number in (1, 2)]
    submit(bucket, *named)
    with pytest.raises(BergError, match="results dir of lr-2"):
        lookup.owners_of(bucket.config, [make("two", "lr_2/deep")])
    states.forget_owners(bucket, ["a/0", "lr_1"], {"old", "lr-1"})
    left = [blob.name for blob in bucket.list(".berg/owners/")]
    assert left == [".berg/owners/lr_2/owner"]


def test_the_plan_says_whose_files_a_job_begins_with(berg):
    words = ["run", "-g", "0", "-r", "shared"]
    first = berg(*words, "-n", "first", "sleep 30; echo x > $BERG_RESULTS_DIR/x")
    assert first.returncode == 0, first.stderr
    refused = berg(*words, "-n", "second", "true")
    assert refused.returncode == 1 and "is the results dir of first" in refused.stderr
    assert not list(berg.bucket.list(".berg/jobs/second"))
    assert berg("kill", "--now", "first").returncode == 0
    killed = states.read(berg.bucket, "first")
    began = replace(killed.state, started_at="2026-01-01T00:00:00Z")  # as if it had had the time
    states.replaced(berg.bucket, killed, began)
    berg.bucket.write("berg_results/shared/x", b"x")
    berg.bucket.write("berg_results/shared/berg_job_metadata.json", b"{}")
    shown = berg(*words, "--dry-run", "--json", "true")
    assert "begins with 1 file of job first; --fresh begins empty" in shown.stderr
    assert json.loads(shown.stdout)["begins_with"] == "first"
    empty = berg(*words, "--fresh", "--dry-run", "true")
    assert "begins empty (--fresh)" in empty.stdout and not empty.stderr
    assert berg("rm", "-y", "first").returncode == 0
    assert not list(berg.bucket.list(".berg/owners/"))


def test_a_job_that_resumes_has_no_word_on_its_own_files(berg):
    failed = "echo x > $BERG_RESULTS_DIR/x; exit 1"
    assert berg("run", "-g", "0", "-n", "first", "--wait", failed).returncode == 1
    plan = berg("run", "--resume", "first", "--dry-run").stdout
    assert "Results" in plan and "begins with" not in plan, plan


def test_a_rerun_has_a_results_dir_of_its_own(berg):
    save = "mkdir -p berg_results/x && ls berg_results/x && echo $BERG_JOB >> berg_results/x/saved"
    assert berg("run", "-g", "0", "-n", "first", "--wait", save).returncode == 0
    assert berg.objects("berg_results/x/saved") == {"berg_results/x/saved": b"first\n"}
    again = berg("rerun", "first", "-n", "again", "--wait")
    assert again.returncode == 0 and "begins with" not in again.stderr, again.stderr
    assert save.replace("results/x", "results/again") in again.stderr
    saved = {name: data for name, data in berg.objects("berg_results/").items() if "saved" in name}
    assert saved == {"berg_results/x/saved": b"first\n", "berg_results/again/saved": b"again\n"}
    given = berg("rerun", "again", "-r", "x", "--dry-run")
    assert "mkdir -p berg_results/x " in given.stdout and "of job first; --fresh" in given.stdout


def test_a_relative_path_leads_to_the_results_unless_the_repo_has_such_a_folder(berg):
    inner = berg.repo / "sub"
    inner.mkdir()
    (inner / "file").touch()
    save = "mkdir -p berg_results/y && echo z > berg_results/y/z && git status --short"
    kept = berg("run", "-g", "0", "-n", "kept", "--cwd", "sub", "--wait", "--tail", save)
    assert kept.returncode == 0 and "??" not in kept.stdout, kept.stdout
    assert berg.bucket.read("berg_results/y/z") == b"z\n"
    (inner / "berg_results").mkdir()
    (inner / "berg_results/old").touch()
    words = ("run", "-g", "0", "-n", "own", "--cwd", "sub", "--dry-run")
    own = berg(*words, save).stdout
    assert "berg_results/own\n" in own
    assert "not berg_results/y, a folder of the repository: write to /root/berg_results/y" in own
    assert "/berg_results/y " in berg(*words, save.replace("berg_r", "/root/berg_r")).stdout
    assert "/berg_results/y " in berg(*words, "--cwd", ".", save).stdout
