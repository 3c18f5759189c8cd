"""An embedded cloud, and berg's command line as a user has it."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import forks
import pytest

from berg import gce, google
from berg.bucket import Bucket
from berg.config import Config
from localcloud import control

# A first boot holds no locks, the image has what a golden one has, and rights count at once.
SETTINGS = {"first_boot": 0, "prepared": 1, "operation": 0.2, "grant_delay": 1, "account_delay": 0}
BERG = [sys.executable, "-c", "from berg.cli import main; main()"]  # in a process of its own
LATE = [
    sys.executable,
    "-c",
    "import berg.job; berg.job.SILENT = 0; from berg.cli import main; main()",
]  # minutes later
os.environ["TZ"] = "FAR-23:59"  # where it is tomorrow: days of records are those of UTC
time.tzset()
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str


@dataclass
class Cloud:
    """One embedded cloud, and the settings of a user of it."""

    home: Path

    @property
    def config(self) -> Config:
        return Config(**json.loads((self.home / ".berg/berg.json").read_text()))

    @property
    def env(self) -> dict[str, str]:
        """The user's."""
        own = {"HOME": str(self.home), "BERG_HOME": str(self.home / ".berg"), "COLUMNS": "120"}
        return {**os.environ, **own}

    @property
    def bucket(self) -> Bucket:
        return Bucket(self.config)

    def run(self, *words: str, cwd: Path | None = None, **env: str) -> Done:
        """Run berg; its errors are sentences."""
        with tempfile.TemporaryDirectory() as folder:
            out, err = Path(folder, "out"), Path(folder, "err")
            code = forks.berg([*words], cwd or self.home, {**self.env, **env}, out, err)
            done = Done(code, out.read_text(), err.read_text())
        assert "Traceback" not in done.err, done.err
        return done

    def ok(self, *words: str, cwd: Path | None = None, **env: str) -> Done:
        """Run berg, which does what it is asked."""
        done = self.run(*words, cwd=cwd, **env)
        assert done.code == 0, (words, done.err)
        return done

    def fails(
        self, *words: str, says: str, code: int = 1, cwd: Path | None = None, **env: str
    ) -> str:
        """Run berg, which fails and says why; return its errors."""
        done = self.run(*words, cwd=cwd, **env)
        assert done.code == code and says in done.err, (words, done.err)
        return done.err

    def call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        """Ask the embedded cloud itself."""
        return google.call(self.config, method, self.config.endpoint + path, body, requestId=None)

    def read(self, name: str) -> bytes:
        """An object of the bucket; b"" without it."""
        return self.bucket.find(name) or b""

    def names(self, prefix: str = "") -> list[str]:
        return [item.name for item in self.bucket.list(prefix)]

    def secrets(self, job: str) -> list[str]:
        """The names of what Secret Manager has of a job."""
        listed = self.call("GET", "/secretmanager/v1/projects/berg-local/secrets")
        names = [row["name"].rpartition("/")[2] for row in listed.get("secrets", [])]
        return [name for name in names if name.startswith(f"berg-{job}-")]

    def crash(self) -> None:
        """End all machines, whose workers would save until they are gone."""
        for machine in gce.machines(self.config):
            with contextlib.suppress(google.GoogleError):
                self.call("POST", f"/_berg/instances/{machine.name}/crash", {})

    def clean(self) -> None:
        """Leave nothing of a module's tests to those of the next: machines, jobs, results, faults."""
        self.crash()
        for machine in gce.machines(self.config):
            machine.delete(self.config)
        self.bucket.delete(*(name for name in self.names() if not name.startswith(".berg/dist/")))
        self.call("DELETE", "/_berg/faults")
        self.call("POST", "/_berg/settings", SETTINGS)

    def state(self, job: str) -> dict[str, Any]:
        """A job's state as its record has it; {} without one."""
        return dict(json.loads(self.read(f".berg/jobs/{job}_state.json") or "{}"))

    def shown(self, job: str) -> dict[str, Any]:
        """What `berg show` says of a job."""
        return dict(json.loads(self.run("show", job, "--json").out))

    def log(self, job: str) -> str:
        names = [name for name in self.names(f".berg/logs/{job}/") if name.endswith(".log")]
        return b"".join(map(self.read, names)).decode(errors="replace")


@contextlib.contextmanager
def embedded() -> Iterator[Cloud]:
    """A new embedded cloud, set up by berg init."""
    with tempfile.TemporaryDirectory(prefix="next-tests-") as folder:
        local, prepared = Path(folder, ".berg/local"), Path(folder, ".berg/local/image/prepared")
        (prepared / "berg").mkdir(parents=True)
        (prepared / "berg/venv").symlink_to(sys.prefix)  # as that of a golden image
        os.environ["LOCALCLOUD_SHOW"] = sys.prefix  # to its machines
        if CERTIFICATES.exists():  # a proxy's too, which uv would not know
            os.environ.setdefault("SSL_CERT_FILE", str(CERTIFICATES))
        made = Cloud(Path(folder))
        try:
            done = made.run("init", "--local", "-y")
            assert done.code == 0, done.err
            made.call("POST", "/_berg/settings", SETTINGS)
            yield made
        finally:
            made.crash()
            control.reset(local)


def until(is_so: Callable[[], object], seconds: float = 200) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture(scope="session")
def one_cloud() -> Iterator[Cloud]:
    with embedded() as made:
        yield made


@pytest.fixture(scope="module")
def cloud(one_cloud: Cloud) -> Iterator[Cloud]:
    yield one_cloud
    one_cloud.clean()


@pytest.fixture
def faults(cloud: Cloud) -> Iterator[Any]:
    """Add a fault of the cloud; all end with the test."""
    yield lambda method, **what: cloud.call("POST", "/_berg/faults", {"method": method, **what})
    cloud.call("DELETE", "/_berg/faults")


@pytest.fixture
def no_room(cloud: Cloud) -> Iterator[Any]:
    """Let Google have no room, in a zone or anywhere, until the test ends."""
    yield lambda **where: cloud.call("POST", "/_berg/stockout", where)
    cloud.call("POST", "/_berg/stockout", {"on": False})


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git repository with a program."""
    commit(tmp_path / "proj", {"train.py": "print('hello from train')\n"})
    return tmp_path / "proj"


def git(folder: Path, *words: str) -> str:
    """Run git as somebody; return what it printed."""
    who = {f"GIT_{role}_{what}": text for role in ("AUTHOR", "COMMITTER")
           for what, text in (("NAME", "t"), ("EMAIL", "t@example.com"))}  # fmt: skip
    command = ["git", "-c", "protocol.file.allow=always", *words]
    env = {**os.environ, **who}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files, and make their folders."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def commit(folder: Path, files: dict[str, str] | None = None) -> None:
    """Commit all that is in a folder, after writing these files."""
    write(folder, files or {})
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "files"]):
        git(folder, *words)
