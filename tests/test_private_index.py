"""Repos whose packages are behind a password: the installation has it, and nothing else does."""

import base64
import functools
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import WHEELHOUSE, Berg, commit, git
from repositories import UV, make_index, project, write

USER, PASSWORD = "me", "hush-7Qx2"
CODED = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
# Looks for the password where a command could: in the environment of all processes, and on the
# disk. The words are in halves, so that it does not find itself.
LOOK = f"""
import glob, subprocess
words = ["".join(halves) for halves in {[(word[:5], word[5:]) for word in (PASSWORD, CODED)]}]
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        text = open(path, "rb").read()
    except OSError:  # it has ended
        continue
    assert not any(word.encode() in text for word in words), path
patterns = [part for word in words for part in ("-e", word)]
found = subprocess.run(["grep", "-rl", *patterns, "/root"], capture_output=True, text=True)
print("on the disk:", found.stdout.split())
"""
SHOW = """
from importlib.metadata import version
print("has", *(f"{name} {version(name)}" for name in open("names.txt").read().split()))
"""


@dataclass
class Index:
    """A package index at /simple and a git server at /git, both with a password, and an index at
    /open of what builds packages.
    """

    folder: Path
    url: str = ""
    refused: list[str] = field(default_factory=list)
    served: list[str] = field(default_factory=list)

    @property
    def with_password(self) -> str:
        return self.url.replace("://", f"://{USER}:{PASSWORD}@")


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder, and lists of links, by basic authentication."""

    def __init__(self, index: Index, *arguments):
        self.index = index
        super().__init__(*arguments, directory=str(index.folder))

    def do_GET(self) -> None:
        is_open = self.path.startswith("/open/")
        if self.headers.get("Authorization") != f"Basic {CODED}" and not is_open:
            self.index.refused.append(self.path)
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="packages"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.index.served.append(self.path)
        super().do_GET()

    do_HEAD = do_GET

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def index(tmp_path) -> Iterator[Index]:
    folder = tmp_path / "served"
    wheels = make_index(tmp_path / "wheels")
    for wheel in wheels.glob("*.whl"):
        place = folder / "simple" / wheel.name.partition("-")[0]
        place.mkdir(parents=True, exist_ok=True)
        wheel.rename(place / wheel.name)
    for wheel in WHEELHOUSE.glob("*.whl"):
        if (name := wheel.name.partition("-")[0]) in ("packaging", "pip", "setuptools", "wheel"):
            for place in (folder / "simple" / name, folder / "open" / name):
                place.mkdir(parents=True)
                (place / wheel.name).symlink_to(wheel)
    found = Index(folder)
    handler = functools.partial(Handler, found)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield found
        server.shutdown()


def serve_git(index: Index, folder: Path) -> str:
    """Serve a repo of a package with one module; return its commit."""
    write(folder, {"pyproject.toml": project("small", ""), "small.py": "VERSION = 'from git'\n"})
    with (folder / "pyproject.toml").open("a") as file:
        file.write(
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        )
        file.write('[tool.setuptools]\npy-modules = ["small"]\n')
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    bare = index.folder / "git/small.git"
    git(folder, "clone", "-q", "--bare", folder, bare)
    git(bare, "update-server-info")  # for clients that fetch files
    return git(folder, "rev-parse", "HEAD").strip()


def make_lock(folder: Path, **variables: str) -> None:
    """Make a lock of a repo, as its author does who has the password."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent), "UV_NO_CONFIG": "1"}
    command = [str(UV), "lock", "--quiet", "--python", sys.executable]
    subprocess.run(command, cwd=folder, env={**environment, **variables}, check=True)


def install(berg: Berg, names: str, *options: str, **variables: str) -> str:
    """Run a job that prints versions of packages; return its log once nothing has the password."""
    write(berg.repo, {"show.py": SHOW, "names.txt": names, "look.py": LOOK})
    given = ["--env", "PIP_NO_INDEX=0"]
    command = "python show.py && python look.py && git --version"
    ran = berg("run", "-g", "0", "-n", "private", *given, *options, "--wait", command, **variables)
    log = berg.log("private")
    assert ran.returncode == 0, f"{ran.stderr}\n{log}"
    assert "on the disk: []\n" in log, log
    for word in (PASSWORD, CODED):
        assert word not in ran.stdout + ran.stderr
        assert not [path for path, text in berg.objects().items() if word.encode() in text]
    return log


def secrets(*names: str) -> list[str]:
    return [word for name in names for word in ("--install-secret", name)]


def test_uv_takes_the_password_of_a_named_index(berg, index):
    named = f"""
[tool.uv.sources]
iniconfig = {{ index = "corp" }}
[[tool.uv.index]]
name = "corp"
url = "{index.url}/simple"
default = true
"""
    write(berg.repo, {"pyproject.toml": project("proj", more=named)})
    known = {"UV_INDEX_CORP_USERNAME": USER, "UV_INDEX_CORP_PASSWORD": PASSWORD}
    make_lock(berg.repo, **known)
    index.served.clear()
    options = ["--env", f"UV_INDEX_CORP_USERNAME={USER}", *secrets("UV_INDEX_CORP_PASSWORD")]
    log = install(berg, "iniconfig", *options, UV_INDEX_CORP_PASSWORD=PASSWORD)
    assert "has iniconfig 2.1.0\n" in log
    assert "/simple/iniconfig/iniconfig-2.1.0-py3-none-any.whl" in index.served


@pytest.mark.parametrize("way", ["PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "NETRC"])
def test_pip_takes_the_password_of_an_index(berg, index, tmp_path, way):
    write(berg.repo, {"requirements.txt": "pluggy\n"})
    url, options, variables = f"{index.with_password}/simple", secrets(way), {}
    variables[way] = url
    if way == "PIP_EXTRA_INDEX_URL":
        (tmp_path / "empty").mkdir()
        options += ["--env", f"PIP_INDEX_URL=file://{tmp_path}/empty"]
    if way == "NETRC":
        (tmp_path / "netrc").write_text(f"machine 127.0.0.1 login {USER} password {PASSWORD}\n")
        options = [
            *secrets(f"NETRC={tmp_path}/netrc"),
            "--env",
            f"PIP_INDEX_URL={index.url}/simple",
        ]
        variables = {}
    log = install(berg, "pluggy", *options, **variables)
    assert "has pluggy 1.5.0\n" in log
    assert "/simple/pluggy/pluggy-1.5.0-py3-none-any.whl" in index.served


def test_git_takes_its_credential_from_variables(berg, index, tmp_path):
    serve_git(index, tmp_path / "small")
    by_git = f"""
[tool.uv.sources]
small = {{ git = "{index.url}/git/small.git" }}
"""
    write(berg.repo, {"pyproject.toml": project("proj", '"small"', by_git)})
    header = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"http.{index.url}/.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: Basic {CODED}",
    }
    make_lock(berg.repo, UV_DEFAULT_INDEX=f"{index.url}/open", **header)
    index.served.clear()
    options = ["--env", f"UV_DEFAULT_INDEX={index.url}/open", *secrets(*header)]
    log = install(berg, "small", *options, **header)
    assert (
        "has small 0.1.0\n" in log
        and "/git/small.git/info/refs?service=git-upload-pack" in index.served
    )


def test_without_the_password_the_installation_says_what_it_lacks(berg, index):
    write(berg.repo, {"requirements.txt": "pluggy\n"})
    given = ["--env", "PIP_NO_INDEX=0", "--env", f"PIP_INDEX_URL={index.url}/simple"]
    ran = berg("run", "-g", "0", "-n", "lacks", *given, "--wait", "true")
    assert ran.returncode == 1
    assert "--install-secret NAME" in berg.state("lacks")["reason"], berg.log("lacks")
