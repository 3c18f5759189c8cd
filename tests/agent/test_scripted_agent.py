"""A scripted agent that knows only a shell and the SKILL.md that berg installs.

It follows the page to the letter, in a fresh home, from the embedded cloud's first start on. Whether
it succeeded is asked of that cloud, not of the agent. Not covered: what a language model makes of
the page.
"""

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cloud_fixtures import WHEELHOUSE, Cloud, shared
from conftest import commit, git

from localcloud import control

TRAIN = """
import sys, berg
lr = float(sys.argv[1].partition("=")[2])
for step in range(3):
    berg.report(step, loss=(lr - 0.01) ** 2)
"""
SKILL = ".claude/skills/berg/SKILL.md"


class Agent:
    """Runs commands in a shell, in one folder, and keeps what it exported."""

    def __init__(self, home: Path, folder: Path) -> None:
        self.folder, self.exports = folder, ""
        environment = {key: os.environ[key] for key in ("LANG", "TMPDIR") if key in os.environ}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELHOUSE)}
        agent = {"CLAUDECODE": "1", "GIT_CONFIG_NOSYSTEM": "1"}
        self.environment = {**environment, **pip, **agent, "HOME": str(home), "PATH": path}

    def run(self, line: str) -> str:
        """Return what a command prints; fail if it fails, asks or prints a traceback."""
        if line.startswith("export "):
            self.exports += f"{line}\n"
            return ""
        done = self.done(line)
        assert done.returncode == 0, (line, done.stderr)
        return done.stdout

    def fails(self, line: str) -> str:
        """Return what a command prints on standard error that fails."""
        done = self.done(line)
        assert done.returncode == 1, (line, done.stderr)
        return done.stderr

    def done(self, line: str) -> subprocess.CompletedProcess:
        """Return how a command ended, which prints no traceback and no colors."""
        done = subprocess.run(
            ["bash", "-c", self.exports + line],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert "Traceback" not in done.stderr, (line, done.stderr)
        assert "\x1b" not in done.stdout + done.stderr, "a program gets no colors"
        return done

    def follow(self, heading: str, **names: str) -> dict[str, str]:
        """Run the commands below a heading of the page, and return what each printed."""
        page = (self.folder / SKILL).read_text()
        section = page.partition(f"\n## {heading}")[2].partition("\n## ")[0]
        blocks = re.findall(r"^```bash\n(.*?)^```$", section, re.M | re.S)
        lines = "".join(blocks).splitlines()
        assert lines, f"no command below {heading}"
        printed = {}
        for line in lines:
            for word, name in names.items():
                line = re.sub(rf"\b{word}\b", name, line)
            printed[line.partition("#")[0].strip()] = self.run(line)
        return printed


@pytest.fixture
def agent(tmp_path, packages, tmp_path_factory):
    """An agent with an empty home, and a repository; the image of the machines is shared."""
    home, repo = tmp_path / "home", tmp_path / "repo"
    cloud = home / ".berg-rehearsal"
    (cloud / "local").mkdir(parents=True)
    (cloud / "local/image").symlink_to(shared(tmp_path_factory, "image"))
    for name in ("packages", "wheels", "uv"):
        (cloud / name).symlink_to(packages / name)
    repo.mkdir()
    (repo / "train.py").write_text(TRAIN)
    git(repo, "init", "-q", "-b", "main")
    commit(repo)
    yield Agent(home, repo)
    control.stop(cloud / "local")


def test_an_agent_that_follows_the_page_gets_its_results_and_leaves_nothing(agent):
    agent.run("berg skill --install")
    assert (agent.folder / SKILL).read_text() == agent.run("berg skill")
    agent.follow("Set up")
    agent.run("berg purse create agent1 --usd 6")  # a person, who then starts the agent
    agent.run("export BERG_PURSE=agent1")
    agent.follow("One job")
    done = agent.follow("Several runs")

    plan, _ = (text for line, text in done.items() if line.startswith("berg run"))
    assert "at most $2.06 in 2 machine-hours" in plan and "2 jobs on 2 machines" in plan, plan
    # All that is left is reserved by one job, and the next is refused, whatever it says.
    agent.run('berg run --json -n rest "sleep 1000"')
    why = agent.fails('berg run --json -n more -y "true"')
    assert "the purse agent1 has left is too little" in json.loads(why.splitlines()[-1])["error"]
    assert "draws on a purse" in agent.fails("berg purse top-up agent1 --usd 100")
    agent.run("berg kill rest")
    shown = done["berg show grid1"].partition("\n\n")[2].partition("\n\n")[0].splitlines()
    rows = list(csv.DictReader(shown, delimiter="\t"))
    best = min(rows, key=lambda row: float(row["loss"]))
    assert {row["STATE"] for row in rows} == {"SUCCEEDED"} and best["lr"] == "0.01"
    (fetched,) = (json.loads(text) for line, text in done.items() if line.startswith("berg fetch"))
    table = {
        row["name"]: row for row in csv.DictReader(Path(fetched["table"]).read_text().splitlines())
    }
    assert float(table[best["JOB"]]["metric.loss"]) == float(best["loss"]) == 0

    folder = Path(agent.environment["HOME"], ".berg-rehearsal/local")
    port = json.loads((folder / "server.json").read_text())["port"]
    cloud = Cloud(folder, f"http://127.0.0.1:{port}")
    ended = agent.follow("End, and leave nothing behind", NAME="grid1")
    assert cloud.instances() == {}
    for kind in ("disks", "instanceGroupManagers"):
        scopes = cloud.call("GET", f"/compute/v1/projects/berg-local/aggregated/{kind}")
        assert not [scope for scope in scopes.get("items", {}).values() if kind in scope], kind
    assert json.loads(ended["berg costs --json"])["now"] == []
    assert json.loads(ended["berg reap --json"]) == []
    assert {row["name"] for row in json.loads(agent.run("berg list --json"))} == {"try1", "rest"}
    (purse,) = json.loads(agent.run("berg purse --json"))
    assert purse["held"] == [] and 0 < purse["spent"] < 1
    agent.run("berg local stop -y")
    assert not control.is_running(folder)
