"""The embedded cloud as a program of its own."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import requests

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, "-m", "localcloud"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def started(folder: Path, *options: str) -> tuple[subprocess.Popen, list[str]]:
    """The program, and the lines that it printed by the time it listens."""
    process = subprocess.Popen(
        [*PROGRAM, "--port", "0", *options, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    lines = []
    while not (lines and lines[-1].startswith("Ctrl-C")):
        line = process.stdout.readline()
        assert line, "it ended at once"
        lines.append(line.strip())
    return process, lines


def test_it_says_how_clients_find_it_and_ends_at_ctrl_c(tmp_path):
    folder = tmp_path / "cloud"
    process, lines = started(folder, "--project", "my-project")
    try:
        url = re.search(r"http://127\.0\.0\.1:\d+", lines[0])[0]
        exports = dict(
            line.removeprefix("export ").split("=", 1)
            for line in lines
            if line.startswith("export ") and "$(" not in line
        )
        assert exports["CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE"] == f"{url}/compute/v1/"
        assert any(
            f'compute_v1.InstancesClient(client_options={{"api_endpoint": "{url}"}})' in line
            for line in lines
        )
        code = (
            "from google.cloud import storage, compute_v1 as c; options = {'api_endpoint': '%s'};"
            "print(c.ZonesClient(client_options=options).get(project='my-project', zone='us-central1-a').status);"
            "print(storage.Client(client_options=options).create_bucket('made').name)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code % url],
            env={**os.environ, **exports},
            capture_output=True,
            text=True,
        )
        assert done.stdout.split() == ["UP", "made"], done.stderr
        token = subprocess.run(
            [*PROGRAM, "--token", str(folder)], env=ENVIRONMENT, capture_output=True, text=True
        ).stdout.strip()
        headers = {"Authorization": f"Bearer {token}"}
        listed = requests.get(f"{url}/storage/v1/b?project=my-project", headers=headers).json()
        assert [each["name"] for each in listed["items"]] == ["made"]
        again = subprocess.run(
            [*PROGRAM, str(folder)], env=ENVIRONMENT, capture_output=True, text=True
        )
        assert again.returncode == 1 and "already running" in again.stderr
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        process.stdout.close()


def test_there_is_no_token_without_a_cloud(tmp_path):
    done = subprocess.run(
        [*PROGRAM, "--token", str(tmp_path / "none")],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "no embedded cloud yet" in done.stderr and not (tmp_path / "none").exists()


def test_without_what_it_needs_it_says_what_to_install(tmp_path):
    (tmp_path / "aiohttp.py").write_text("raise ModuleNotFoundError(\"No module named 'aiohttp'\")")
    done = subprocess.run(
        [*PROGRAM, str(tmp_path / "cloud")],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert (
        done.stderr
        == "No module named 'aiohttp'. Install what it needs: pip install '/path/to/localcloud'\n"
    )


def test_every_control_route_is_documented():
    """By its last word, which the page has in backticks."""
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "README.md").read_text().partition("## Faults on demand")[2]
    routes = {route.strip("/") for route in re.findall(r'"/_berg(/[\w/{}]+)"', source)}
    assert len(routes) > 8
    shown = {word.rpartition("/")[2] for word in re.findall(r"`(?:GET |POST )?([\w/]+)`", page)}
    assert [route for route in sorted(routes) if route.rpartition("/")[2] not in shown] == []
