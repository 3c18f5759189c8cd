"""One embedded cloud per test process, and berg's real command line against it.

The tests run in a network without a way out (loopback.py), so that a connection to anywhere else
fails, and the test that tried it fails, too.
"""

import contextlib
import fcntl
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

import cloud_fixtures
import empty_home
import forked
import loopback
import pytest
import requests
from cloud_fixtures import POLICY_3, USUAL, WHEELHOUSE, kube, settle, shared, wait_for
from google.auth.transport.requests import AuthorizedSession
from hypothesis import settings
from memory_bucket import Memory

from berg import BergError, config, plain
from berg.code import dist
from berg.code import dist as archive
from berg.google import iam, storage

HOME = empty_home.enter()
for variable in plain.AGENTS:  # an agent may run the tests
    os.environ.pop(variable, None)
# the computer may be busy
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
# a shell may have started the tests with it ignored
signal.signal(signal.SIGINT, signal.default_int_handler)
WITNESS = loopback.enter()
BAD_ANSWERS = (400, 500, 501)  # what the embedded cloud says to requests that Google would not take
# 400: under way
DELETED_TWICE = (
    "compute.regionInstanceGroupManagers.delete",
    "compute.instanceGroupManagers.delete",
)


def pytest_addoption(parser) -> None:
    parser.addoption(
        "--rounds",
        type=int,
        default=0,
        help="times that each test of a fault runs, in each of its variants and with other seeds; "
        "0: once, in the first variant",
    )
    parser.addoption(
        "--slow",
        action="store_true",
        help="run the tests that are marked as slow, and only those",
    )
    parser.addoption("--all", action="store_true", help="run slow tests as well")
    parser.addoption(
        "--fifth",
        type=int,
        choices=range(5),
        help="of the slow tests run one fifth, drawn by their names: 0 to 4",
    )
    parser.addoption("--table", help="page in which the faults' table is to be written anew")


def pytest_configure(config) -> None:
    config.addinivalue_line("markers", "fault(name, promises, weight): what goes wrong in a test")
    config.addinivalue_line(
        "markers",
        "default_image: machines boot Google's images as they are, without what the worker imports; "
        "this takes twice the CPU time",
    )
    config.addinivalue_line(
        "markers",
        "slow: a test of many machines, or of a variant of what a quicker one looks at; "
        "it runs with --slow, or when it is named",
    )


def pytest_generate_tests(metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        mark = metafunc.definition.get_closest_marker("fault")
        rounds = max(metafunc.config.getoption("--rounds"), 1)
        if mark and rounds > 1:
            rounds *= mark.args[2]
        metafunc.parametrize("seed", range(1, rounds + 1), ids=lambda seed: f"round{seed}")


def pytest_collection_modifyitems(config, items: list) -> None:
    """Leave out what was not asked for: all but the first variant of each fault, and slow tests."""
    is_chosen = config.getoption("--rounds") or any("::" in each for each in config.args)
    if is_chosen or os.environ.get("HOSTILE_TABLE"):
        return
    fifth = config.getoption("--fifth")
    seen: set[tuple] = set()
    kept: list = []
    left_out: list = []
    for item in items:
        test = (item.path, item.originalname)
        is_variant = test in seen and item.get_closest_marker("fault") is not None
        is_slow = item.get_closest_marker("slow") is not None
        is_meant = config.getoption("--all") or is_slow == config.getoption("--slow")
        is_drawn = fifth is None or not is_slow or crc32(item.nodeid.encode()) % 5 == fifth
        is_wanted = is_meant and is_drawn and not is_variant
        (kept if is_wanted else left_out).append(item)
        seen.add(test)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def pytest_terminal_summary(terminalreporter, config) -> None:
    """Write the table of what was tried, and what it cost."""
    if not (page := config.getoption("--table")):
        return
    rows: dict[tuple, Counter] = {}
    for report in (
        each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)
    ):
        values = dict(report.user_properties)
        if "fault" in values and (report.when == "call" or report.failed):
            name, promises = values["fault"][:2]
            row = rows.setdefault((name, promises.replace(" ", ",")), Counter())
            row.update(
                tried=values.get("tries", 1),
                unproven=report.failed,
                lost=values.get("lost", 0),
                leaked=values.get("leaked", 0),
            )
    begin, end = "<!-- table -->\n", "<!-- end of table -->"
    head, _, rest = Path(page).read_text().partition(begin)
    old, _, tail = rest.partition(end)
    # Rows of tests that did not run this time stay.
    shown = {
        (cells[1], cells[0]): line for line in old.splitlines()[2:] if (cells := line.split(" | "))
    }
    for (name, promises), row in rows.items():
        kinds = (("unproven", "failed"), ("lost", "files lost"), ("leaked", "left behind"))
        bad = "".join(f", {row[key]} {what}" for key, what in kinds if row[key])
        line = f"| {name} | {promises} | {row['tried']}{bad} |"
        shown[promises, f"| {name}"] = line
    lines = ["| fault | promises | times tried |", "|---|---|---:|"]
    lines += [line for _, line in sorted(shown.items())]
    Path(page).write_text(head + begin + "\n".join(lines) + "\n" + end + tail)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """With a failure goes what the embedded cloud logged."""
    report = yield
    if report.failed and "cloud" in getattr(item, "funcargs", ()):
        log = item.funcargs["cloud"].folder / "server.log"
        lines = (
            log.read_text(errors="replace").splitlines()[-100:]
            if log.exists()
            else ["it is deleted already"]
        )
        report.sections.append(("log of the embedded cloud", "\n".join(lines)))
    return report


def pytest_report_header() -> str:
    return (
        "network: loopback only"
        if WITNESS
        else "network: NOT closed (that takes root and iproute2)"
    )


@pytest.fixture(autouse=True)
def stays_on_loopback():
    yield
    if WITNESS:
        assert loopback.seen(WITNESS) == [], "a connection tried to leave this computer"


@pytest.fixture(autouse=True)
def undone(request):
    """What a test changes of the embedded cloud, the next one does not find."""
    yield
    if "cloud" in request.fixturenames:
        request.getfixturevalue("cloud").settle_down()


class Cloud(cloud_fixtures.Cloud):
    """The embedded cloud of this test process, with berg's settings for it."""

    def settings(self, bucket: str = "") -> config.Config:
        values = {"project": "berg-local", "bucket": bucket, "endpoint": self.url}
        return config.Config(
            **values, user="tester", credentials_file=str(self.folder / "credentials.json")
        )

    @functools.cached_property
    def session(self):
        return AuthorizedSession(self.settings().credentials)


@pytest.fixture(scope="session")
def cloud(tmp_path_factory):
    with cloud_fixtures.session_cloud(tmp_path_factory, Cloud) as made:
        yield made


@dataclass
class Berg:
    """The command line, with settings and a bucket of this test's own."""

    cloud: Cloud
    home: Path
    repo: Path
    bucket_name: str
    allowed: list[int] = field(default_factory=list)  # bad answers that a test provokes

    def environment(self, **more: str) -> dict[str, str]:
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("BERG_", "GOOGLE_", "COLUMNS"))
        }
        # of the laptop: it downloads py-spy for machines
        pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(WHEELHOUSE)}
        return {**clean, **pip, "BERG_HOME": str(self.home), "HOME": str(self.home), **more}

    def __call__(
        self, *arguments: str, cwd: Path | None = None, stdin: str | None = None, **env: str
    ):
        folder, environment = cwd or self.repo, self.environment(**env)
        if not env.keys() & {"LD_PRELOAD", "PATH"}:  # these count when modules are imported
            return forked.run([*arguments], folder, environment, stdin)
        command = [sys.executable, "-m", "berg", *arguments]
        return subprocess.run(
            command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True
        )

    def start(self, *arguments: str, **of_the_job: Any) -> forked.Running:
        """Start the command line; its job has these fields, which no option sets."""
        return forked.Running([*arguments], self.repo, self.environment(), of_the_job)

    def start_python(self, *arguments: str) -> subprocess.Popen:
        """Start the command line as users do, with all that it imports."""
        command = [sys.executable, "-m", "berg", *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            command, cwd=self.repo, env=self.environment(), stdout=pipe, stderr=pipe, text=True
        )

    @functools.cached_property
    def bucket(self) -> storage.Bucket:
        return storage.Bucket(self.cloud.settings(self.bucket_name))

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        bucket = self.bucket
        return {blob.name: bucket.read(blob.name, blob.size) for blob in bucket.list(prefix)}

    def log(self, job: str) -> str:
        logs = self.objects(f".berg/logs/{job}/").items()
        return b"".join(content for name, content in logs if name.endswith(".log")).decode()

    def machines(self) -> dict[str, dict]:
        """Instances that were created for this test's bucket, by name; that of a group by the name
        of the group.
        """
        found = {}
        for name, machine in self.cloud.instances().items():
            told = {
                item["key"]: item["value"] for item in machine.get("metadata", {}).get("items", [])
            }
            if told.get("berg-bucket") == self.bucket_name:
                found[told.get("created-by", name).rpartition("/")[2]] = machine
        return found

    def end_machines(self) -> None:
        """Cut the power of what is left, so that its names and quota are the next test's; delete
        the disks of devboxes, too.
        """
        asked: set[str] = set()

        def is_empty() -> bool:
            left = self.machines()
            for machine in left.values():
                if machine["id"] not in asked:  # of two of a name, in two zones, one is listed
                    asked.add(machine["id"])
                    self.end_machine(machine)
            return not left

        with contextlib.suppress(AssertionError):
            wait_for(is_empty)
        for disk in self.disks():
            path = "/".join(disk["zone"].split("/")[-2:]) + f"/disks/{disk['name']}"
            self.cloud.session.delete(f"{self.cloud.url}/compute/v1/projects/berg-local/{path}")

    def end_machine(self, machine: dict) -> None:
        """Cut the power of a machine, and delete it, or its group."""
        told = {item["key"]: item["value"] for item in machine["metadata"]["items"]}
        place = "/".join(machine["zone"].split("/")[-2:]) + f"/instances/{machine['name']}"
        owner = told.get("created-by", "").partition("/")[2].partition("/")[2]
        session, url = self.cloud.session, self.cloud.url
        session.post(f"{url}/_berg/instances/{machine['name']}/crash", json={})
        session.delete(f"{url}/compute/v1/projects/berg-local/{owner or place}")

    def crash_and_start(self, name: str) -> None:
        """Cut a machine's power, and start it as Google does once another host has its disk."""
        self.cloud.call("POST", f"/_berg/instances/{name}/crash")
        wait_for(lambda: self.machines()[name]["status"] == "TERMINATED", 60, "the crash")
        path = self.machines()[name]["selfLink"].partition("/compute/")[2]
        self.cloud.call("POST", f"/compute/{path}/start")

    def disks(self) -> list[dict]:
        """Disks that were created for this test's bucket."""
        path = "/compute/v1/projects/berg-local/aggregated/disks"
        scopes = self.cloud.call("GET", path).get("items", {}).values()
        found = [disk for scope in scopes for disk in scope.get("disks", [])]
        bucket = {"berg-bucket": self.bucket_name}
        return [disk for disk in found if disk.get("labels", {}).items() >= bucket.items()]

    def state(self, job: str) -> dict:
        return json.loads(self.bucket.read(f".berg/jobs/{job}_state.json"))

    def write_config(self, **values) -> None:
        (self.home / "berg.json").write_text(json.dumps(values))


@pytest.fixture
def cloud_of_its_own(cloud, tmp_path_factory):
    with cloud_fixtures.own_cloud(cloud, tmp_path_factory, Cloud) as made:
        yield made


@pytest.fixture(scope="session")
def first_commit(tmp_path_factory) -> Path:
    """The repo that tests have copies of."""
    folder = tmp_path_factory.mktemp("first") / "proj"
    folder.mkdir()
    (folder / "train.py").write_text("print('hello from train')\n")
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


@pytest.fixture
def repo(first_commit, tmp_path) -> Path:
    """A git repo with one commit."""
    return shutil.copytree(first_commit, tmp_path / "proj")


def git(folder: Path, *arguments: str) -> str:
    identity = [
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@localhost",
        "-c",
        "protocol.file.allow=always",
    ]
    command = ["git", *identity, *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, message: str = "start") -> str:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", message)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def memory(monkeypatch) -> storage.Bucket:
    """A bucket in memory, where a state may be written again within a second."""
    Memory().stand_in(monkeypatch)
    return storage.Bucket(config.Config(bucket="b"))


def library(settings: config.Config) -> Any:
    """The bucket of these settings, by Google's own library."""
    from google.cloud import storage

    options = {"api_endpoint": settings.endpoint}
    client = storage.Client(settings.project, settings.credentials, client_options=options)
    return client.bucket(settings.bucket)


@pytest.fixture
def bucket(cloud) -> storage.Bucket:
    """An empty bucket."""
    name = f"bucket-{uuid.uuid4().hex[:12]}"
    fresh = storage.Bucket(cloud.settings(name))
    made = library(fresh.config)
    made.iam_configuration.uniform_bucket_level_access_enabled = True  # as berg init makes them
    made.create()
    return fresh


@pytest.fixture(scope="session")
def account(cloud) -> str:
    """The account that machines act as."""
    return make_account(cloud)


def make_account(cloud: Cloud) -> str:
    """Give berg's account what `berg init` does, but in every bucket; returns its address."""
    settings = cloud.settings()
    email = iam.account(settings)
    iam.create_account(settings)
    iam.write_role(settings, iam.SECRET)
    for right in iam.RIGHTS:
        iam.write_role(settings, right)
        role, condition = iam.role_name(settings.project, right), right.condition("BUCKET")
        if condition:  # here they hold in every bucket
            named = 'resource.name.startsWith("projects/_/buckets/BUCKET/objects/'
            anywhere = 'resource.name.extract("/objects/{name}").startsWith("'
            expression = condition["expression"].replace(named, anywhere)
            condition = {**condition, "expression": expression}
        member = f"serviceAccount:{email}"
        iam.bind(settings, iam.project_policy, role, member, condition)
    return email


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> Path:
    """A folder for `BERG_HOME` in which berg's wheel and the worker's packages are made already."""
    home = shared(tmp_path_factory, "packages")
    with (home / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        patch.setenv("BERG_HOME", str(home))
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(WHEELHOUSE))
        dist.build_wheel()
        archive.build()
        with contextlib.suppress(BergError):
            dist.fetch_uv()
    return home


@pytest.fixture
def berg(cloud, bucket, account, repo, tmp_path, packages, request):
    home = tmp_path / "home"
    home.mkdir()
    for name in ("packages", "wheels", "uv"):
        (home / name).symlink_to(packages / name)
    name = bucket.name
    instance = Berg(cloud, home, repo, name)
    settings = cloud.settings(name)
    if request.node.get_closest_marker("default_image"):
        cloud.call("POST", "/_berg/settings", {"prepared": 0})
    instance.write_config(
        ask_above=0,
        project=settings.project,
        bucket=name,
        endpoint=cloud.url,
        credentials_file=settings.credentials_file,
        user="tester",
        service_account=account,
    )
    cloud.call("DELETE", "/_berg/requests")
    yield instance
    cloud.settle_down()
    log = cloud.call("GET", "/_berg/requests")["requests"]
    wrong = [
        each
        for each in log
        if each["status"] in BAD_ANSWERS and each["status"] not in instance.allowed
    ]
    bad = [
        each for each in wrong if not (each["method"] in DELETED_TWICE and each["status"] == 400)
    ]
    instance.end_machines()
    assert not bad, f"requests that Google would refuse: {bad}"


__all__ = [
    "POLICY_3",
    "USUAL",
    "WHEELHOUSE",
    "Berg",
    "Cloud",
    "commit",
    "git",
    "kube",
    "make_account",
    "requests",
    "settle",
    "wait_for",
]
