"""show, rm, and `@` for the latest job, through the real command line."""

import json
import signal

import pytest
from conftest import Berg, wait_for

from berg import BergError, job, plan


def run(berg: Berg, name: str, command: str, *options: str) -> None:
    ran = berg("run", "-g", "0", "-n", name, "--wait", *options, command)
    assert f"{name} " in ran.stderr, ran.stderr


@pytest.mark.parametrize("note", ["two\nlines", "\x1b[31mred", "x" * 201])
def test_a_note_is_one_short_line(note):
    with pytest.raises(BergError, match="--note is one line of 200"):
        plan.JobSpec("true", note=note).check()
    plan.JobSpec("true", note="größer, zweiter Versuch").check()


def over(berg: Berg, name: str, results_dir: str, **details) -> None:
    """Put a job that is over into the bucket, with a file of results."""
    details = {
        "user": "tester",
        "created_at": job.now(),
        "results_dir": results_dir,
        **details,
    }
    text = job.State(state="SUCCEEDED", exit_code=0, job=job.Summary(**details)).to_json()
    berg.bucket.write(f".berg/jobs/{name}_state.json", text, metadata={"state": text})
    berg.bucket.write(f".berg/jobs/{name}_metadata.json", "{}")
    berg.bucket.write(f".berg/logs/{name}/{name}.20260101T000000000.log", f"log of {name}\n")
    berg.bucket.write(f".berg/folders/{name}/0123", b"", metadata={"folder": "elsewhere"})
    berg.bucket.write(f".berg/views/{name}/0123/00000001", b"")
    berg.bucket.write(f"berg_results/{results_dir}/{name}.txt", "results")


def test_show_tells_all_about_a_job_and_rm_deletes_it(berg):
    (berg.repo / "train.py").write_text("print('edited')\n")
    run(
        berg,
        "first",
        "echo one; head -c 3000 /dev/zero > $BERG_RESULTS_DIR/m.bin; echo '{\"loss\": 0.5}' > "
        "$BERG_RESULTS_DIR/metrics.jsonl; seq 30; exit 7",
        "--note",
        "with <warm-up>",
    )
    assert "    with <warm-up>\n" in berg("list").stdout
    page = berg("page", "--export", str(berg.home / "page"), "first")
    assert page.returncode == 0, page.stderr
    pages = [file.read_text() for file in (berg.home / "page").rglob("*.html")]
    assert any("with &lt;warm-up&gt;" in text for text in pages)
    shown = berg("show", "@")
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout
    for part in (
        "first",
        "FAILED: the command failed with exit code 7",
        "exit 7",
        "M train.py",
        "3,000  m.bin",
        "1 uncommitted change",
        "Note      with <warm-up>\n",
        "Metrics   loss 0.5\n",
        "berg rerun first --new-code\n",
    ):
        assert part in text, text
    assert "  30\n" in text and "  20\n" not in text, "the last lines of the log, and no more"
    assert "berg log first" in text and "berg rm first" in text and "berg kill" not in text
    found = json.loads(berg("show", "-", "--json").stdout)
    assert [word for word, _ in found["history"]] == [
        "SUBMITTED",
        "STARTING",
        "RUNNING",
        "UPLOADING",
        "FAILED",
    ]
    assert [begun for _, begun in found["history"]] == sorted(
        begun for _, begun in found["history"]
    )
    assert found["metadata"]["git_changed_files"] == ["M train.py"]
    assert {"path": "berg_results/first/m.bin", "bytes": 3000} in found["results"]
    assert berg("log", "@").stdout.splitlines() == berg("log", "first").stdout.splitlines()
    assert berg("fetch", "@").stdout.strip().endswith("berg_results/first")

    asked = berg("rm", "first", stdin="n\n")
    assert asked.returncode == 130 and "3 files of results" in asked.stderr
    assert asked.stderr.endswith("berg: nothing was done\n")
    unanswered = berg("rm", "first", stdin="")
    assert (
        unanswered.returncode == 1
        and "[y/N]: \nberg: there is no terminal to answer" in unanswered.stderr
    )
    assert berg.objects(".berg/jobs/first") != {}
    wait_for(lambda: berg.machines() == {}, what="the end of the machine")
    assert "first" in berg("list").stdout and (berg.home / "names").read_text() == "first\n"
    removed = berg("rm", "@", "-y")
    assert removed.returncode == 0 and "Deleted first" in removed.stderr
    assert (berg.home / "names").read_text() == "", "the shell completes it no more"
    left = [name for name in berg.objects() if not name.startswith((".berg/repos/", ".berg/dist/"))]
    assert left == [".berg/index/living/.complete"], (
        "that all jobs are in the index, which is empty"
    )
    run(berg, "first", "true")  # the name can be used again
    assert berg.state("first")["state"] == "SUCCEEDED"


@pytest.mark.slow
def test_show_a_sweep_tells_how_each_job_went(berg):
    script = """[ {lr} = 3 ] && exit 4; printf '{"loss": 1}\\n{"loss": 0.%s}\\n' {lr} >$BERG_RESULTS_DIR/metrics.jsonl"""
    ran = berg("run", "-g", "0", "-n", "tune", "--grid", "lr=1,2,3", "--wait", script)
    assert ran.returncode == 4, ran.stderr
    rows = json.loads(berg("show", "tune", "--json").stdout)
    assert [(row["name"], row["state"], row["exit_code"], row["params"]["lr"]) for row in rows] == [
        ("tune-0", "SUCCEEDED", 0, "1"),
        ("tune-1", "SUCCEEDED", 0, "2"),
        ("tune-2", "FAILED", 4, "3"),
    ]
    assert [row["metrics"].get("loss") for row in rows] == [0.1, 0.2, None]
    text = berg("show", "@").stdout
    assert "3: 2 SUCCEEDED, 1 FAILED" in text and "berg rm tune" in text
    table = [line.split() for line in text.splitlines() if line.startswith(("JOB", "tune-"))]
    assert table == [
        ["JOB", "STATE", "EXIT_CODE", "lr", "loss", "REASON"],
        ["tune-0", "SUCCEEDED", "0", "1", "0.1"],
        ["tune-1", "SUCCEEDED", "0", "2", "0.2"],
        ["tune-2", "FAILED", "4", "3", "the", "command", "failed", "with", "exit", "code", "4"],
    ]


@pytest.mark.slow
def test_show_a_job_that_lives_and_rm_refuses_it(berg):
    assert berg("run", "-g", "0", "-n", "alive", "echo ready; sleep 100").returncode == 0
    wait_for(lambda: berg.state("alive")["state"] == "RUNNING", 60, "the command")
    text = berg("show", "alive").stdout
    assert "RUNNING in us-central1-" in text and "berg kill alive" in text and "berg rm" not in text
    refused = berg("rm", "alive", "-y")
    assert (
        refused.returncode == 1
        and "alive has not ended (RUNNING). End it first: berg kill alive" in refused.stderr
    )
    assert berg.objects(".berg/jobs/alive") != {}
    assert berg("kill", "--now", "@").returncode == 0
    assert [word for word, _ in berg.state("alive")["history"]][-1] == "KILLED"


@pytest.mark.slow
def test_list_watch_shows_changes_until_nothing_lives(berg):
    assert berg("run", "-g", "0", "-n", "short", "sleep 3").returncode == 0
    watched = berg("list", "--watch")
    assert watched.returncode == 0, watched.stderr
    shown = [line.split()[1] for line in watched.stdout.splitlines() if line.startswith("short ")]
    assert shown[-1].startswith("SUCCEEDED") and len(shown) == len(set(shown)) >= 2, shown
    assert berg("list", "--watch", "--json").returncode == 2
    assert berg("run", "-g", "0", "-n", "long", "sleep 300").returncode == 0
    process = berg.start("list", "--watch")
    wait_for(lambda: "long live" in (berg.home / "names").read_text(), 60, "a first look")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode in (0, 130) and "Traceback" not in err
    assert berg("kill", "--now", "long").returncode == 0


def test_results_of_other_jobs_stay(berg):
    over(berg, "a", "shared")
    over(berg, "b", "shared")
    over(berg, "c", "shared/inner")
    over(berg, "d", "outer/of/d")
    over(berg, "e", "outer")
    said = berg("rm", "a", "-y").stderr
    assert "berg_results/shared stays: b has its results there, too" in said
    assert "berg_results/shared stays" in berg("rm", "b", "-y").stderr, "those of c are inside"
    assert "berg_results/outer/of/d stays: e" in berg("rm", "d", "-y").stderr
    kept = set(berg.objects("berg_results/"))
    assert kept == {
        f"berg_results/{path}.txt"
        for path in ("shared/a", "shared/b", "shared/inner/c", "outer/of/d/d", "outer/e")
    }
    gone = berg("rm", "c", "e", "-y")
    assert gone.returncode == 0 and "stays" not in gone.stderr
    assert sorted(berg.objects("berg_results/")) == [
        "berg_results/shared/a.txt",
        "berg_results/shared/b.txt",
    ]
    assert berg.objects(".berg/jobs/") == {} and berg.objects(".berg/logs/") == {}
    assert berg.objects(".berg/folders/") == {}
    assert berg.objects(".berg/views/") == {}


@pytest.mark.slow
def test_rm_takes_what_a_job_wrote_to_other_folders(berg):
    over(berg, "theirs", "theirs")
    command = "cd /root/berg_results; mkdir -p mine aside theirs; for d in mine aside theirs; do echo 1 > $d/new; done"
    run(berg, "wide", command, "-r", "mine")
    assert (
        "\n          It also wrote to other folders: berg_results/aside, berg_results/theirs\n"
        in berg("show", "wide").stdout
    )
    said = berg("rm", "wide", "-y")
    assert said.returncode == 0 and "  1 of them in berg_results/aside\n" in said.stderr, (
        said.stderr
    )
    left = set(berg.objects("berg_results/"))
    assert left == {"berg_results/theirs/new", "berg_results/theirs/theirs.txt"}, (
        "that goes with theirs"
    )


def test_rm_takes_sweeps_whole_and_patterns(berg):
    for index in range(3):
        over(berg, f"grid-{index}", f"grid/{index}", sweep="grid")
    over(berg, "grid-other", "elsewhere")  # named alike, but no job of the sweep
    over(berg, "try-1", "t1")
    over(berg, "try-2", "t2", user="somebody")
    berg.bucket.write(".berg/sweeps/grid.json", "{}")
    one = berg("rm", "grid-1", "-y")
    assert (
        one.returncode == 1
        and "a job of the sweep grid, which can only be deleted as a whole: berg rm grid"
        in one.stderr
    )
    assert "(3 jobs)" in berg("rm", "grid", "-y").stderr
    assert {
        name.split("/")[2] for name in berg.objects(".berg/jobs/") if name.endswith("state.json")
    } == {
        "grid-other_state.json",
        "try-1_state.json",
        "try-2_state.json",
    }
    assert berg.objects(".berg/sweeps/") == {} and list(berg.objects(".berg/logs/grid-")) == [
        ".berg/logs/grid-other/grid-other.20260101T000000000.log"
    ]
    assert berg("rm", "try-*", "-y").returncode == 0
    assert "try-2" in "".join(berg.objects(".berg/jobs/")) and "try-1" not in "".join(
        berg.objects(".berg/jobs/")
    )


def test_the_latest_job_is_mine_and_newest(berg):
    for command in (
        ("show", "@"),
        ("tail", "-"),
        ("rm", "@", "-y"),
        ("kill", "@"),
        ("show", "@", "--ip"),
    ):
        refused = berg(*command)
        assert (
            refused.returncode == 1 and "your latest job, and you have none yet" in refused.stderr
        )
    over(berg, "old", "old", created_at="2026-01-01T00:00:00Z")
    over(berg, "new", "new", created_at="2026-01-02T00:00:00Z")
    over(berg, "theirs", "theirs", created_at="2026-01-03T00:00:00Z", user="somebody")
    assert berg("log", "@").stdout == "log of new\n"
    for index in range(2):
        over(
            berg, f"grid-{index}", f"grid/{index}", sweep="grid", created_at="2026-01-04T00:00:00Z"
        )
    assert berg("log", "@/1").stdout == "log of grid-1\n"
    berg.bucket.write(".berg/sweeps/grid.json", "{}")
    assert "grid is a sweep" in berg("log", "@").stderr


def test_show_what_is_damaged_or_not_there(berg):
    over(berg, "odd", "odd")
    shown = berg("show", "odd")
    assert (
        shown.returncode == 0 and "cannot be read" in shown.stdout and "log of odd" in shown.stdout
    )
    assert "log of odd" not in berg("show", "odd", "--lines", "0").stdout
    berg.bucket.write(".berg/logs/odd/odd.20990101T000000000.log", "of its last attempt\n")
    again = berg("show", "odd").stdout
    assert "of its last attempt" in again and "log of odd" not in again
    assert "no job or machine 'nobody'" in berg("show", "nobody").stderr
    berg.bucket.write(".berg/jobs/bare_state.json", "{")
    assert "LOST" in berg("show", "bare").stdout
    assert berg("rm", "bare", "odd", "-y").returncode == 0
    assert berg.objects() == {}


def test_show_asks_for_nothing_that_a_job_does_not_need(berg, cloud):
    over(berg, "one", "one")
    cloud.call("DELETE", "/_berg/requests")
    assert berg("show", "one").returncode == 0
    counts = cloud.call("GET", "/_berg/requests")["counts"]
    looks = {method: count for method, count in counts.items() if method.startswith("storage")}
    assert looks == {
        "storage.buckets.get": 1,
        "storage.objects.get": 4,
        "storage.objects.list": 3,
    }, "its state, metadata, log and view; logs, results, views"


@pytest.mark.parametrize("times", [3, 100])
def test_history_fits_the_custom_metadata_of_an_object(times):
    state = job.State()
    for _ in range(times):
        for word in ("STARTING", "INSTALLING", "RUNNING", "UPLOADING", "SUBMITTED"):
            state.state = word
            state.to_json()
            state.to_json()  # a second write of the same state is no change
    words = [word for word, _ in job.state_from_json(state.to_json()).history]
    assert len(words) == min(5 * times, job.HISTORY)
    assert words[-2:] == ["UPLOADING", "SUBMITTED"] and len(state.to_json()) < 2500


@pytest.mark.slow
def test_rerun_takes_the_same_code_and_options(berg):
    (berg.repo / "train.py").write_text("print('first code')\n")
    options = (
        "--disk-gb",
        "60",
        "--zone",
        "us-central1-b",
        "--env",
        "WISH=granted",
        "-c",
        "2",
        "-r",
        "shared",
    )
    run(
        berg,
        "first",
        'python train.py; echo "wish $WISH"; echo x > $BERG_RESULTS_DIR/$BERG_JOB',
        *options,
    )
    (berg.repo / "train.py").write_text("print('second code')\n")
    # no repo around
    again = berg("rerun", "@", "-n", "again", "--wait", "--json", "--spot", cwd=berg.home)
    assert again.returncode == 0, again.stderr
    assert "60 GB disk" in again.stderr and "spot" in again.stderr and "M train.py" in again.stderr
    assert "/berg_results/again\n" in again.stderr
    ended = json.loads(again.stdout)
    assert (ended["name"], ended["state"], ended["exit_code"]) == ("again", "SUCCEEDED", 0)
    assert "\nfirst code\nwish granted\n" in berg.log("again")
    described = {
        name: json.loads(berg.bucket.read(f".berg/jobs/{name}_metadata.json"))
        for name in ("first", "again")
    }
    assert described["again"]["machine_type"] == "n1-standard-2"
    for key in (
        "cmd",
        "git_commit",
        "git_snapshot",
        "snapshot",
        "git_changed_files",
        "env",
    ):
        assert described["again"][key] == described["first"][key], key
    more = ["--env", "MORE=too"]
    new = berg("rerun", "first", "-n", "new", "--new-code", "--wait", "-r", "mine", *more)
    env = json.loads(berg.bucket.read(".berg/jobs/new_metadata.json"))["env"]
    assert env == {"WISH": "granted", "MORE": "too"}
    assert new.returncode == 0 and "berg_results/mine\n" in new.stderr
    assert "\nsecond code\nwish granted\n" in berg.log("new")
    assert sorted(berg.objects("berg_results/shared/")) == [
        f"berg_results/shared/{name}" for name in ("berg_job_metadata.json", "first")
    ]


@pytest.mark.slow
def test_rerun_of_what_cannot_run_again(berg):
    assert "no job or machine 'nobody'" in berg("rerun", "nobody").stderr
    over(berg, "old", "old")
    refused = berg("rerun", "old")
    assert refused.returncode == 1 and "damaged (it has no cmd, " in refused.stderr
    run(berg, "first", "true", "--secret", f"TOKEN={berg.repo / 'train.py'}")
    (berg.repo / "train.py").unlink()
    unasked = berg("rerun", "first")
    assert unasked.returncode == 1 and "Give them again: --secret TOKEN" in unasked.stderr
    gone = berg("rerun", "first", "--secret", f"TOKEN={berg.repo / 'train.py'}")
    assert gone.returncode == 1 and "--secret TOKEN: cannot read" in gone.stderr
    run(berg, "second", "true")
    for name in berg.objects(".berg/repos/"):
        berg.bucket.delete(name)
    lost = berg("rerun", "second")
    assert lost.returncode == 1 and "is not in the bucket any more" in lost.stderr
    assert "berg rerun second --new-code" in lost.stderr
    wait_for(lambda: berg.machines() == {}, what="the end of the machines")
    assert berg("rerun", "second", "--new-code", "--wait").returncode == 0


@pytest.mark.slow
def test_rerun_reads_no_file_of_this_computer_that_the_record_names(berg):
    """Whoever may write the bucket may change what a job was asked for with."""
    (berg.home / "id_rsa").write_text("PRIVATE")
    run(berg, "mine", "true")
    path = ".berg/jobs/mine_metadata.json"
    record = json.loads(berg.bucket.read(path))
    record["spec"] |= {"secrets": [f"X={berg.home}/id_rsa", "HOME"], "notify": "HOOK"}
    berg.bucket.write(path, json.dumps(record))
    cloud = berg.cloud
    again = berg("rerun", "mine", "-n", "yours", "--wait", HOOK="https://hooks.example.com/x")
    assert again.returncode == 0, again.stderr
    assert "Secrets" not in again.stderr and "Notify" not in again.stderr
    job = json.loads(berg.bucket.read(".berg/jobs/yours_metadata.json"))
    assert job["secrets"] == [] and job["spec"]["secrets"] == [] and not job["notify"]
    asked = cloud.call("GET", "/_berg/requests")["counts"]
    assert "secretmanager.projects.secrets.create" not in asked, "nothing was sent"


@pytest.mark.slow
def test_a_job_of_a_sweep_runs_again_on_its_own(berg):
    ran = berg(
        "run",
        "-g",
        "0",
        "-n",
        "grid",
        "--grid",
        "lr=1,2",
        "--parallel",
        "2",
        "--wait",
        "echo lr={lr}",
    )
    assert ran.returncode == 0, ran.stderr
    again = berg("rerun", "grid/1", "--wait", "-n", "alone")
    assert again.returncode == 0, again.stderr
    assert "\nlr=2\n" in berg.log("alone") and berg.state("alone")["job"].get("sweep") is None
