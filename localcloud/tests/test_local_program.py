"""The embedded cloud as a program of its own, and as a fixture in other people's tests."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import requests

ROOT = Path(__file__).parents[1]
PROGRAM = [sys.executable, "-m", "localcloud"]
FIXTURE = ["-p", "localcloud.pytest_plugin", "-p", "no:cacheprovider", "-q"]
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


def test_the_plugin_imports_nothing_of_the_cloud_or_of_google():
    code = (
        "import sys, pytest; before = set(sys.modules); import localcloud.pytest_plugin;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True
    )
    ours = [
        name for name in done.stdout.split() if name.startswith(("localcloud", "google", "aiohttp"))
    ]
    assert ours == ["localcloud", "localcloud.pytest_plugin"], done.stderr


FIXTURES = """
import os, subprocess, sys
import pytest
from google.cloud import compute_v1, storage
from google.api_core.exceptions import ServiceUnavailable


def test_what_the_fixture_gives(localcloud, caplog):
    buckets = storage.Client(project=localcloud.project, **localcloud.client_options)
    buckets.create_bucket("made")
    assert localcloud.seen("storage.buckets.insert") == 1
    assert localcloud.requests[-1]["path"].startswith("/storage/v1/b?project=test-project")
    zones = localcloud.client(compute_v1.ZonesClient)
    localcloud.faults.add("compute.zones.get", status=503)
    assert [each["method"] for each in localcloud.faults.all()] == ["compute.zones.get"]
    localcloud.faults.clear()
    assert zones.get(project=localcloud.project, zone="us-central1-a").status == "UP"
    localcloud.faults.add("storage.buckets.get", status=503, times=None)
    with pytest.raises(ServiceUnavailable):
        buckets.get_bucket("made", retry=None)
    code = "import google.auth; print(google.auth.default()[1])"
    shown = subprocess.check_output([sys.executable, "-c", code], env={**os.environ, **localcloud.environment}, text=True)
    assert shown.split() == [localcloud.project]
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


def test_each_test_has_a_cloud_of_its_own(localcloud, localcloud_session):
    for cloud in (localcloud, localcloud_session):
        buckets = storage.Client(project=cloud.project, **cloud.client_options)
        assert list(buckets.list_buckets()) == []
    assert localcloud.endpoint != localcloud_session.endpoint
"""


def test_what_the_fixture_gives_as_the_readme_says(tmp_path):
    page = (ROOT / "README.md").read_text()
    example = page.split("```python\n")[1].partition("```")[0]
    (tmp_path / "test_example.py").write_text(example)
    (tmp_path / "test_fixture.py").write_text(FIXTURES)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *FIXTURE, "."],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )
    assert "3 passed" in done.stdout, done.stdout


def test_every_control_route_is_documented():
    """By its last word, which the page has in backticks."""
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    page = (ROOT / "README.md").read_text().partition("## Faults on demand")[2]
    routes = {route.strip("/") for route in re.findall(r'"/_berg(/[\w/{}]+)"', source)}
    assert len(routes) > 8
    shown = {word.rpartition("/")[2] for word in re.findall(r"`(?:GET |POST )?([\w/]+)`", page)}
    assert [route for route in sorted(routes) if route.rpartition("/")[2] not in shown] == []
