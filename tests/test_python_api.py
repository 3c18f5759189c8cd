"""berg.run and berg.Job in a Python program of their own, against the embedded cloud."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Berg

ROOT = Path(__file__).parent.parent


def python(berg: Berg, program: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, cwd=cwd or berg.repo, env=berg.environment(), capture_output=True, text=True
    )


def test_a_job_from_its_start_to_its_results(berg, tmp_path):
    (berg.repo / "berg.toml").write_text('disk-gb = 60\nenv = {WISH = "repo"}\n')
    program = f"""
import json, logging, sys
import berg
assert not any(name.startswith(("google", "git", "requests")) for name in sys.modules), "import berg is cheap"
logging.basicConfig(level=logging.INFO)
job = berg.run("echo $WISH $LR; echo x > $BERG_RESULTS_DIR/x; exit 3", {str(berg.repo)!r}, num_gpus=0, name="one",
               env={{"LR": 0.1}}, zones=["us-central1-b"])
first = job.state.state
state = job.wait(120)
log = job.logs()
folder = job.fetch({str(tmp_path / "here")!r})
print(json.dumps([job.name, first, state.state, state.exit_code, state.zone, log, str(folder), berg.Job("@").name]))
"""
    ran = python(berg, program, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    name, first, state, code, zone, log, folder, latest = json.loads(ran.stdout)
    assert (name, latest, state, code, zone) == ("one", "one", "FAILED", 3, "us-central1-b")
    assert first in ("SUBMITTED", "STARTING", "RUNNING", "UPLOADING", "FAILED")
    assert "\nrepo 0.1\n" in log
    assert (Path(folder) / "x").read_text() == "x\n"
    assert "INFO:berg:Creating the machine in us-central1-b" in ran.stderr
    assert json.loads(berg.bucket.read(".berg/jobs/one_metadata.json"))["spec"]["disk_gb"] == 60


@pytest.mark.slow
def test_waiting_has_an_end_and_so_has_the_job(berg):
    program = """
import berg
job = berg.run("sleep 100", num_gpus=0)
try:
    job.wait(1)
except TimeoutError as error:
    print(error)
print(job.kill(now=True).state)
"""
    ran = python(berg, program)
    assert ran.returncode == 0, ran.stderr
    timed_out, killed = ran.stdout.splitlines()
    assert timed_out.endswith("after 1 s") and killed == "KILLED"


def test_what_goes_wrong_is_a_sentence(berg):
    program = """
import berg
for wrong in (lambda: berg.run("true", gpus=1), lambda: berg.run("true", num_gpus=0, zones=["mars-east1-a"]),
              lambda: berg.run("true", folder="/"), lambda: berg.Job("nobody").state, lambda: berg.Job("@"),
              lambda: berg.Job("nobody").fetch(), lambda: berg.nonsense):
    try:
        wrong()
    except (berg.BergError, TypeError, AttributeError) as error:
        print(type(error).__name__, error)
"""
    ran = python(berg, program)
    assert ran.returncode == 0, ran.stderr
    said = ran.stdout.splitlines()
    assert (
        said[0].startswith("TypeError berg.run() has no option 'gpus'. It has: branch, ")
        and "gpu_type, " in said[0]
    )
    assert said[1].startswith("BergError ") and "mars-east1-a" in said[1]
    assert "is not in a git repo" in said[2]
    assert "no job or machine 'nobody'" in said[3]
    assert "you have none yet" in said[4]
    assert "results of nobody could not be downloaded" in said[5]
    assert said[6] == "AttributeError module 'berg' has no attribute 'nonsense'"
    assert berg.machines() == {} and berg.objects(".berg/jobs/") == {}


def test_berg_is_found_next_to_a_clone_of_its_repo(tmp_path):
    (tmp_path / "berg").mkdir()
    code = "import berg; print([getattr(berg, each).__name__ for each in berg.__all__])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout == "['BergError', 'Job', 'report', 'run']\n", done.stderr


def test_the_loop_of_the_page_keeps_the_best_run_and_stops_at_its_purse(berg):
    """Two runs of the ten; then with a purse that pays for none."""
    berg("purse", "create", "agent1", "--usd", "5")
    page = (ROOT / "docs/python.md").read_text().partition("## A loop with a limit")[2]
    (loop,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    assert len(loop.splitlines()) < 25
    lines = "import berg, sys\nrate = float(sys.argv[1].partition('=')[2])\n"
    (berg.repo / "train.py").write_text(f"{lines}berg.report(1, loss=rate)\n")
    two = python(berg, loop.replace("range(10)", "range(2)"))
    assert two.returncode == 0, two.stderr
    *runs, last = two.stdout.splitlines()
    losses = {run.split()[0]: float(re.search(r"'loss': ([\d.]+)", run)[1]) for run in runs}
    assert len(losses) == 2 and all(" SUCCEEDED " in run for run in runs)
    assert last.startswith(f"best: {min(losses, key=losses.__getitem__)} ")
    (row,) = Path(last.split()[-1], "metrics.jsonl").read_text().splitlines()
    assert json.loads(row)["loss"] == min(losses.values())
    seconds = [json.loads(berg.bucket.read(f".berg/jobs/{each}_metadata.json")) for each in losses]
    assert all(0 < each["max_run_seconds"] < 3600 for each in seconds), "a dollar is not an hour"
    (purse,) = json.loads(berg("purse", "--json").stdout)
    ledger = json.loads(berg.bucket.read(".berg/purses/agent1/ledger.json"))  # in less than cents
    assert 0 < ledger["spent"] + sum(each["usd"] for each in ledger["held"]) <= 5
    assert purse["spent"] + purse["reserved"] <= 5
    berg("purse", "create", "agent2", "--usd", "0.05")
    none = python(berg, loop.replace("agent1", "agent2"))
    assert none.stdout.startswith("what the purse agent2 has left is too little"), none.stderr
    assert none.returncode == 0 and "best" not in none.stdout


def test_the_page_names_every_option():
    from berg.api import OPTIONS

    page = (ROOT / "docs/python.md").read_text()
    assert [option for option in sorted(OPTIONS) if f"`{option}`" not in page] == []
