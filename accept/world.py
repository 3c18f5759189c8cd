"""What a row has: a laptop with a berg, a repository, the bucket, and a cloud to make trouble in.

Each trial has an embedded cloud of its own, so that the faults of one row are not another's. On
Google's cloud all trials share a project, and rows are told apart by the names of their jobs.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import google.auth
import requests
from google.auth.transport.requests import AuthorizedSession
from urllib3.util import Retry

from accept.suite import Red, Row, check
from localcloud import control

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
FINAL = {"SUCCEEDED", "FAILED", "KILLED", "LOST"}
# The first boot of a machine holds no locks, and its image has what a golden image has: rows that
# are about the start of a machine set these back.
SETTINGS = {"first_boot": 0, "prepared": 1, "operation": 0.2, "grant_delay": 1, "account_delay": 1}
WORKER = r"berg[./-]worker"  # its command line
IDENTITY = ["-c", "user.name=t", "-c", "user.email=t@example.com"]


@dataclass
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def last(self) -> str:
        """The last line that it said, for reasons."""
        return ((self.err.strip() or self.out.strip()).splitlines() or [""])[-1][:200]


@dataclass
class Laptop:
    """A BERG_HOME and a HOME with one berg."""

    berg: str
    home: Path
    told: list[str]

    def environment(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BERG_", "CLOUDSDK_"))}
        mine = {"HOME": str(self.home), "BERG_HOME": str(self.home / ".berg"), "COLUMNS": "120"}
        mine["PATH"] = f"{Path(self.berg).parent}:{kept['PATH']}"
        for variable in ("CLAUDECODE", "CURSOR_AGENT", "GEMINI_CLI", "CODEX_SANDBOX", "AI_AGENT"):
            kept.pop(variable, None)  # a coding agent may run the suite
        return {**kept, **mine, **more}

    def start(self, *words: str, cwd: Path | None = None, **options: Any) -> subprocess.Popen[str]:
        """Start berg in a process group of its own; `env` adds variables."""
        env = self.environment(**options.pop("env", {}))
        pipe = subprocess.PIPE
        given = {"stdin": subprocess.DEVNULL, "stdout": pipe, "stderr": pipe, **options}
        self.told.append("$ berg " + " ".join(words))
        return subprocess.Popen(
            [self.berg, *words],
            cwd=cwd,
            env=env,
            text=True,
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
            **given,
        )

    def __call__(
        self,
        *words: str,
        cwd: Path | None = None,
        timeout: float = 240,
    ) -> Done:
        """Run berg to its end."""
        process = self.start(*words, cwd=cwd)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise Red(f"berg {' '.join(words)[:80]} did not end in {timeout:.0f} s") from None
        self.told.append((out[-1500:] + err[-1500:]).strip())
        check("Traceback (most recent call last)" not in err, f"berg {words[0]}: a traceback")
        return Done(process.returncode, out, err)


@dataclass
class Cloud:
    """Google's APIs, or the embedded cloud's, by HTTP."""

    project: str
    bucket: str
    session: requests.Session
    endpoint: str = ""  # "": Google's
    folder: Path | None = None  # of the embedded cloud's state

    def call(self, verb: str, url: str, body: Any = None) -> Any:
        answer = self.session.request(verb, url, json=body, timeout=60)
        if answer.status_code == 404 and verb in ("GET", "DELETE"):
            return {}
        answer.raise_for_status()
        return answer.json() if answer.content else {}

    def compute(self, path: str, verb: str = "GET") -> Any:
        base = self.endpoint or "https://compute.googleapis.com"
        return self.call(verb, f"{base}/compute/v1/projects/{self.project}/{path}")

    def path(self, thing: dict[str, Any]) -> str:
        """The path of a thing below its project."""
        return str(thing["selfLink"].partition(f"projects/{self.project}/")[2])

    def listed(self, kind: str) -> list[dict[str, Any]]:
        """All things of a kind in all zones and regions: instances, disks, instanceGroupManagers."""
        scopes = self.compute(f"aggregated/{kind}").get("items", {}).values()
        return [thing for scope in scopes for thing in scope.get(kind, [])]

    def control(self, verb: str, path: str, body: Any = None) -> Any:
        """A route under /_berg/ of the embedded cloud."""
        return self.call(verb, f"{self.endpoint}/_berg/{path}", body)

    def fault(self, method: str, **what: Any) -> None:
        self.control("POST", "faults", {"method": method, **what})

    def settings(self, **values: Any) -> dict[str, Any]:
        return self.control("POST", "settings", values)

    # --- objects

    def url(self, name: str = "", top: str = "") -> str:
        """The address of an object, or of all of them."""
        storage = self.endpoint or "https://storage.googleapis.com"
        return f"{storage}{top}/storage/v1/b/{self.bucket}/o/{quote(name, '')}".rstrip("/")

    def objects(self, prefix: str = "") -> dict[str, dict[str, Any]]:
        """Descriptions of objects by name."""
        found: dict[str, dict[str, Any]] = {}
        query = {"prefix": prefix}
        while True:
            said = self.call("GET", f"{self.url()}?{urlencode(query)}")
            found.update({each["name"]: each for each in said.get("items", [])})
            if "nextPageToken" not in said:
                return found
            query["pageToken"] = said["nextPageToken"]

    def read(self, name: str) -> bytes | None:
        """The bytes of an object, None if there is none."""
        answer = self.session.get(self.url(name) + "?alt=media", timeout=120)
        if answer.status_code == 404:
            return None
        answer.raise_for_status()
        return answer.content

    def write(
        self, name: str, data: bytes, metadata: dict[str, str] | None = None, **more: str
    ) -> None:
        """One request for both, because an object may be written once a second."""
        about = json.dumps({"name": name, "metadata": metadata or {}, **more}).encode()
        parts = [b"application/json; charset=UTF-8\r\n\r\n" + about, b"text/plain\r\n\r\n" + data]
        body = b"".join(b"--=part=\r\nContent-Type: " + part + b"\r\n" for part in parts)
        self.session.post(
            f"{self.url(top='/upload')}?uploadType=multipart",
            data=body + b"--=part=--",
            headers={"Content-Type": 'multipart/related; boundary="=part="'},
            timeout=120,
        ).raise_for_status()

    def remove(self, name: str) -> None:
        self.call("DELETE", self.url(name))


@dataclass
class Trial:
    """One row's world."""

    laptop: Laptop
    cloud: Cloud
    folder: Path
    is_real: bool = False
    settings: dict[str, Any] = field(default_factory=dict)  # of an embedded cloud
    told: list[str] = field(default_factory=list)
    dice: random.Random = field(default_factory=random.Random)
    seed: int = 0
    prefix: str = ""
    repo: Path = Path()
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def begin(self, row: Row, seed: int) -> None:
        """Nothing of the row before it is left: faults, settings, names, repository."""
        self.told.clear()
        self.seed, self.dice = seed, random.Random(seed)
        self.prefix = f"a{random.SystemRandom().randrange(16**5):05x}"
        self.ending = contextlib.ExitStack()
        self.deadline = time.monotonic() + row.minutes * 60
        self.repo = self.folder / self.prefix / "proj"
        self.repo.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.files({"train.py": "print('hello from train')\n"})
        self.usual()

    def usual(self) -> None:
        if not self.is_real:
            self.cloud.control("DELETE", "faults")
            self.cloud.control("POST", "stockout", {"on": False})
            self.cloud.settings(**self.settings)

    def end(self) -> None:
        """Delete what the row left behind."""
        with self.ending:
            pass
        self.usual()
        for _ in range(3):
            for machine in [] if self.is_real else self.machines():
                self.power(machine["name"], "crash")
            for thing in self.things():
                with contextlib.suppress(requests.HTTPError):
                    self.cloud.compute(self.cloud.path(thing), "DELETE")
            if not self.things():
                break
            time.sleep(1)
        if self.is_real:
            names = set(re.findall(rf"\b{self.prefix}-[\w-]+", "\n".join(self.told)))
            self.berg("rm", "-y", *sorted(names))
        shutil.rmtree(self.folder / self.prefix, ignore_errors=True)

    def evidence(self) -> str:
        """States, ends of logs and consoles of the row's jobs, for a red row."""
        told = []
        with contextlib.suppress(Exception):
            for job in re.findall(rf"({self.prefix}\S+)_state", " ".join(self.cloud.objects())):
                told += [f"{job}: {self.state(job)}"[:600], self.log(job)[-1500:]]
            for machine in self.machines() if self.cloud.folder else []:
                console = self.cloud.folder / f"machines/{machine['id']}/serial.log"
                told.append(f"{machine['name']} {machine['status']}: {console.read_text()[-1000:]}")
        return "\n".join(told)

    # --- the laptop

    def berg(self, *words: str, **options: Any) -> Done:
        """Run berg in the row's repository."""
        return self.laptop(*words, cwd=options.pop("cwd", self.repo), **options)

    def ok(self, *words: str, **options: Any) -> Done:
        """Run berg, which must exit with 0."""
        done = self.berg(*words, **options)
        check(done.code == 0, f"berg {' '.join(words)[:60]}: exit {done.code}: {done.last}")
        return done

    def name(self, word: str = "job") -> str:
        return f"{self.prefix}-{word}"

    def run(self, command: str, *options: str, name: str = "job") -> str:
        """Submit a job without GPUs, and return its name."""
        self.ok("run", "-g", "0", "-n", self.name(name), *options, command)
        return self.name(name)

    def ran(
        self, command: str, *options: str, ends: str = "SUCCEEDED", seconds: float = 120
    ) -> str:
        """Submit a job, wait until it ends like this, and return its name."""
        job = self.run(command, *options)
        self.reached(job, ends, seconds=seconds)
        return job

    # --- the repository

    def git(self, *words: str) -> None:
        command = ["git", *IDENTITY, *words]
        done = subprocess.run(command, cwd=self.repo, capture_output=True, text=True)
        check(done.returncode == 0, f"git {' '.join(words)}: {done.stderr}")

    def files(self, files: dict[str, str]) -> None:
        """Write files into the repository, and commit them."""
        for name, content in files.items():
            path = self.repo / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "files")

    # --- what the job did

    def state(self, job: str) -> dict[str, Any]:
        """The state object of a job; {} before there is one."""
        data = self.cloud.read(f".berg/jobs/{job}_state.json")
        return json.loads(data) if data else {}

    def log(self, job: str) -> str:
        """All that the job's log objects have; rows that are about `berg log` call that."""
        names = sorted(self.cloud.objects(f".berg/logs/{job}/"))
        logs = [self.cloud.read(name) or b"" for name in names if name.endswith(".log")]
        return b"".join(logs).decode(errors="replace")

    def results(self, job: str) -> dict[str, bytes]:
        """The plain objects of a job's results folder by path."""
        prefix = f"berg_results/{job}/"
        found = {name: self.cloud.read(name) for name in self.cloud.objects(prefix)}
        return {name[len(prefix) :]: data for name, data in found.items() if data is not None}

    def until(
        self, condition: Callable[[], Any], what: str, seconds: float = 90, every: float = 0.2
    ) -> Any:
        """Wait until a condition is true, and return its value."""
        # other rows share the cores
        end = min(time.monotonic() + 2 * seconds, max(self.deadline, time.monotonic() + 5))
        while not (value := condition()):
            if time.monotonic() > end:
                raise Red(f"{what}: not within {seconds:.0f} s")
            time.sleep(every)
        return value

    def until_log(self, job: str, text: str, seconds: float = 90) -> None:
        def is_there() -> bool:
            state = self.state(job).get("state")
            has = text in self.log(job)
            if not has and state in FINAL:
                raise Red(f"{job} ended {state} before its log had {text!r}")
            return has

        self.until(is_there, f"{text!r} in the log", seconds, every=0.5)

    def reached(self, job: str, *states: str, seconds: float = 120) -> dict[str, Any]:
        """Wait until the job is in one of these states, or has ended: red if that is another one."""
        wanted = f"{job} {'/'.join(states) or 'ended'}"
        state: dict[str, Any] = self.until(
            lambda: (s := self.state(job)).get("state") in {*states, *FINAL} and s,
            wanted,
            seconds,
            0.4,
        )
        is_wanted = state["state"] in (states or FINAL)
        check(is_wanted, f"not {wanted}: it is {state['state']} ({state.get('reason')})")
        return state

    def gone(self, seconds: float = 60) -> None:
        """No machine, group or disk of this row may be left after so long."""
        with contextlib.suppress(Red):
            self.until(lambda: not self.things(), "the end of the machines", seconds, 0.5)
        left = [self.cloud.path(thing).partition("/")[2] for thing in self.things()]
        check(not left, f"left behind: {', '.join(left)}")

    # --- machines

    def named(self, kind: str) -> list[dict[str, Any]]:
        """Things of a kind (instances, disks, instanceGroupManagers) that belong to this row's jobs."""
        return [
            thing
            for thing in self.cloud.listed(kind)
            if thing["name"].startswith(self.prefix)
            or str(thing.get("labels", {}).get("berg-job", "")).startswith(self.prefix)
        ]

    def things(self) -> list[dict[str, Any]]:
        """What can be left behind: groups first, as they make machines."""
        kinds = ("instanceGroupManagers", "instances", "disks")
        return [thing for kind in kinds for thing in self.named(kind)]

    def machines(self, job: str = "") -> list[dict[str, Any]]:
        """Instances of a job (of all jobs of this row), sorted by name."""
        found = [
            thing
            for thing in self.named("instances")
            if thing.get("labels", {}).get("berg-job", thing["name"]).startswith(job)
        ]
        return sorted(found, key=lambda thing: str(thing["name"]))

    def power(self, instance: str, what: str, **options: Any) -> None:
        """preempt, crash, maintain or cut an instance of the embedded cloud."""
        with contextlib.suppress(requests.HTTPError):
            self.cloud.control("POST", f"instances/{instance}/{what}", options)

    def kill_processes(self, instance: dict[str, Any], pattern: str) -> bool:
        """`kill -9` processes of an embedded machine by their command lines; whether there were any."""
        mark = f"GCE_METADATA_HOST={instance['networkInterfaces'][0]['networkIP']}".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended
                words = (
                    (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if re.search(pattern, words) and mark in (path / "environ").read_bytes():
                    os.kill(int(path.name), signal.SIGKILL)
                    found.append(words)
        return bool(found)

    def kill_worker(self, job: str, index: int = 0, pattern: str = WORKER) -> None:
        """`kill -9` berg's worker, or another process of Berg's, on a machine of the job."""

        def is_killed() -> bool:
            machines = self.machines(job)[index : index + 1]
            return any(self.kill_processes(machine, pattern) for machine in machines)

        self.until(is_killed, f"a process {pattern} to kill", 60)


@contextlib.contextmanager
def trials(berg: str, jobs: int, given: argparse.Namespace) -> Iterator[list[Trial]]:
    """So many trials; the embedded clouds end with the context."""
    folder, made = Path(tempfile.mkdtemp(prefix="accept-")), list[Trial]()
    try:
        for number in range(jobs):
            place = folder / str(number)
            is_real = given.cloud == "real"
            made.append(real_trial(berg, place, given) if is_real else local_trial(berg, place))
        yield made
    finally:
        for trial in made:
            if trial.cloud.folder:
                with contextlib.suppress(Exception):
                    control.reset(trial.cloud.folder)
        shutil.rmtree(folder, ignore_errors=True)


def started(berg: str, folder: Path, *words: str) -> Laptop:
    """A laptop after `berg init`."""
    laptop = Laptop(berg, folder, [])
    done = laptop("init", "-y", *words)
    check(done.code == 0, f"berg init: {done.last}")
    return laptop


def real_trial(berg: str, folder: Path, given: argparse.Namespace) -> Trial:
    """Google's cloud, with this computer's credentials."""
    folder.mkdir()
    credentials, _ = google.auth.default(scopes=SCOPES)
    laptop = started(berg, folder, "--project", given.project, "--bucket", given.bucket)
    cloud = Cloud(given.project, given.bucket, AuthorizedSession(credentials))
    return Trial(laptop, cloud, folder, is_real=True, told=laptop.told)


def local_trial(berg: str, folder: Path) -> Trial:
    """An embedded cloud of this repository's, which `berg init --local` finds running."""
    home = folder / ".berg"
    (local := home / "local").mkdir(parents=True)
    # All clouds share an image; a golden one's environment for the worker is that of this berg.
    image = folder.parent / "image"
    (image / "prepared/berg").mkdir(parents=True, exist_ok=True)
    (local / "image").symlink_to(image)
    with contextlib.suppress(FileExistsError):
        (image / "prepared/berg/venv").symlink_to(prefix_of(berg))
    # Machines see the environments of this berg, which its worker may use, and of the suite's savers.
    os.environ["LOCALCLOUD_SHOW"] = f"{prefix_of(berg)}:{sys.prefix}"
    port = control.start(local)
    laptop = started(berg, folder, "--local")
    settings = json.loads((home / "berg.json").read_text())
    credentials, _ = google.auth.load_credentials_from_file(
        str(local / "credentials.json"), scopes=SCOPES
    )
    session = AuthorizedSession(credentials)
    # A row's faults may hit the suite's own requests.
    patient = Retry(10, status_forcelist=[429, 500, 503], backoff_factor=0.1, allowed_methods=None)
    session.mount("http://", requests.adapters.HTTPAdapter(max_retries=patient))
    cloud = Cloud(
        settings["project"], settings["bucket"], session, f"http://127.0.0.1:{port}", local
    )
    usual = {**cloud.settings(), **SETTINGS}
    return Trial(laptop, cloud, folder, settings=usual, told=laptop.told)


def prefix_of(berg: str) -> Path:
    """The environment that a program of Python is installed in."""
    first = Path(berg).read_bytes()[:200].splitlines()[0]
    python = Path(first[2:].decode()) if first.startswith(b"#!/") else Path(sys.executable)
    return python.parent.parent
