"""What the benchmarks share: an embedded cloud that goes away, timing with CPU, other programs'
settings, tables.
"""

import argparse
import contextlib
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from chain import round_trips
from google.auth.transport.requests import AuthorizedSession

from berg import config
from localcloud.identity.tokens import LAPTOP, Tokens

TOP = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
PEERS = TOP / ".venv/peers"
SCRATCH = Path(tempfile.mkdtemp(prefix="berg-bench-"))  # of this process; `main` deletes it
CLEAN = {
    key: value
    for key, value in os.environ.items()
    if not key.startswith(("BERG_", "GOOGLE_", "CLOUDSDK_", "PYTHON"))
}
CLEAN.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's python compiles berg once
CLEAN |= {
    "HOME": str(SCRATCH),
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
}
IDENTITY = ["-c", "user.name=bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0"]


FAR = 0.03  # seconds to a cloud in another region and back


@dataclass
class Cost:
    """What a program took: seconds from start to end, and of CPU in it and its children."""

    wall: float
    cpu: float
    out: str = ""
    requests: int = 0
    trips: int = 0  # round trips one after the other
    sent: int = 0  # bytes of requests' bodies
    served: float = 0  # seconds of CPU in the embedded cloud


@dataclass
class Target:
    """A limit; `why` is shown if it was missed."""

    text: str
    measured: float
    limit: float
    unit: str = "x"
    why: str = ""

    @property
    def met(self) -> bool:
        return self.measured <= self.limit

    def show(self, value: float) -> str:
        return (
            f"{value:,.0f} {self.unit}"
            if self.unit in ("bytes", "requests", "round trips")
            else f"{value:.2f} {self.unit}"
        )

    def line(self) -> str:
        """Return the target as a list's item, which bench/check.py reads."""
        limit = self.show(self.limit).removesuffix(f" {self.unit}")
        why = f": {self.why}" if self.why else ""
        missed = "" if self.met else f" **Missed**{why}."
        return f"- {self.text}: {self.show(self.measured)}, limit {limit}.{missed}"


@dataclass
class Result:
    """One table of measurements, and the targets that it answers."""

    title: str
    note: str
    header: list[str]
    rows: list[list[str]]
    targets: list[Target] = field(default_factory=list)


def timed(
    *command: str | Path,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    stdin: str = "",
) -> Cost:
    """Run a program to its end; the benchmark ends with it if it fails."""
    with (
        tempfile.TemporaryFile("w+") as out,
        tempfile.TemporaryFile("w+") as err,
        tempfile.TemporaryFile("w+") as text,
    ):
        text.write(stdin)
        text.seek(0)
        began = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, command)), env=env or CLEAN, cwd=cwd, stdin=text, stdout=out, stderr=err
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        if process.returncode:
            sys.exit(
                f"{' '.join(map(str, command))}: exit code {process.returncode}\n{out.read()}{err.read()}"
            )
        return Cost(wall, usage.ru_utime + usage.ru_stime, out.read())


def rounds(
    sides: dict[str, Callable[[], Cost]], repeats: int, before: Callable[[], Any] = lambda: None
) -> dict[str, list[Cost]]:
    """Measure all sides in turn, `repeats` times, every other time in the opposite order; `before`
    begins a round.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(repeats):
        before()
        for name, side in list(sides.items())[:: -1 if number % 2 else 1]:
            costs[name].append(side())
            print(
                f"{name}: {costs[name][-1].wall:.3f} s, CPU {costs[name][-1].cpu:.3f} s",
                file=sys.stderr,
            )
    return costs


def median(costs: Iterable[Cost], what: str = "wall") -> float:
    return statistics.median(getattr(cost, what) for cost in costs)


def table(
    title: str, note: str, costs: dict[str, list[Cost]], targets: list[Target], *, net: bool = False
) -> Result:
    """Wall of all sides, and CPU where the first has any; `net` adds requests."""
    first, rows = next(iter(costs.values())), []
    has_cpu = bool(median(first, "cpu"))
    header = ["", "wall", *(["CPU"] if has_cpu else []), *(["requests"] if net else [])]
    for name, each in costs.items():
        row = [name, f"{median(each):.3f}"]
        if has_cpu:
            row.append(f"{median(each, 'cpu'):.3f}")
        if net:
            row.append(f"{median(each, 'requests'):,.0f}")
        rows.append(row)
    count = "Once." if len(first) == 1 else f"Medians of {len(first)}."
    return Result(title, f"{note} {count}".strip(), header, rows, targets)


def ratio(
    costs: dict[str, list[Cost]], one: str, other: str | Iterable[str], what: str = "wall"
) -> float:
    """Median of one side over that of another, or of the best of several."""
    others = [other] if isinstance(other, str) else other
    return median(costs[one], what) / min(
        median(costs[name], what) for name in others if name in costs
    )


def least(costs: dict[str, list[Cost]], one: str, other: str | Iterable[str]) -> str:
    """Return the least possible ratio of walls on this computer, in words: the CPU of one side and
    of the cloud that serves it, on all cores, or that of the cloud alone, which is one process.
    """
    others = [other] if isinstance(other, str) else other
    wall = min(median(costs[name]) for name in others if name in costs)
    own, served, cores = (
        median(costs[one], "cpu"),
        median(costs[one], "served"),
        os.cpu_count() or 1,
    )
    limit = max((own + served) / cores, served)
    return (
        f"its CPU of {own:.2f} s and the cloud's of {served:.2f} s on {cores} cores allow "
        f"{limit / wall:.2f} x"
    )


def side_by_side(results: list[Result]) -> list[Result]:
    """Return results with those of a cloud nearby and far away in one table; CPU and requests are
    those of the one far away.
    """
    near, far = f", {distance(0)}", f", {distance(FAR)}"
    by_title = {each.title: each for each in results}
    found = []
    for each in results:
        title = each.title.removesuffix(near).removesuffix(far)
        both = [by_title.get(title + near), by_title.get(title + far)]
        if each is both[0] and both[1]:
            header = ["", f"wall{near}", f"wall{far}", *both[1].header[2:]]
            pairs = zip(each.rows, both[1].rows, strict=True)
            rows = [[a[0], a[1], *b[1:]] for a, b in pairs]
            targets = [replace(target, text=target.text + near) for target in each.targets]
            targets += [replace(target, text=target.text + far) for target in both[1].targets]
            found.append(Result(title, each.note, header, rows, targets))
        elif None in both:
            found.append(each)
    return found


def markdown(results: list[Result]) -> str:
    lines, note = [], ""
    for result in side_by_side(results):
        again = result.note == note
        note = result.note
        lines += [f"### {result.title}", "", "As above." if again else note, ""]
        lines += [f"| {' | '.join(result.header)} |", "|---|" + "---:|" * (len(result.header) - 1)]
        lines += [f"| {' | '.join(row)} |" for row in result.rows]
        lines += [""]
        lines += [target.line() for target in result.targets]
        lines += [""] if result.targets else []
    return "\n".join(lines)


def main(about: str, measure: Callable[[int], list[Result]], repeats: int = 5) -> None:
    """The command line of a benchmark: measure, and print tables, or JSON for bench/run.py."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    try:
        results = measure(arguments.repeats)
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    if arguments.json:
        print(
            json.dumps({"about": about.strip(), "results": [asdict(result) for result in results]})
        )
    else:
        print(markdown(results))


class Cloud:
    """An embedded cloud with an empty bucket, and the settings with which programs use it; `with`
    deletes it.
    """

    def __enter__(self) -> "Cloud":
        self.home = Path(tempfile.mkdtemp(dir=SCRATCH))
        (self.home / "local").mkdir()
        image = SCRATCH / "image"  # the machines' image takes seconds to make: once will do
        image.mkdir(exist_ok=True)
        (self.home / "local/image").symlink_to(image)
        self.env = {**CLEAN, "BERG_HOME": str(self.home)}
        self.berg("init", "--local")
        while not (image / "root").exists():
            time.sleep(0.1)
        settings = json.loads((self.home / "berg.json").read_text())
        self.url, self.bucket, self.project = (
            settings["endpoint"],
            settings["bucket"],
            settings["project"],
        )
        self.config = config.Config(
            **{key: value for key, value in settings.items() if key in config.HELP}
        )
        self.session: Any = AuthorizedSession(self.config.credentials)
        self.token = Tokens(self.home / "local").mint(LAPTOP)
        (self.home / "token").write_text(self.token)
        self.gcloud_env = CLEAN | {
            "CLOUDSDK_CONFIG": str(SCRATCH / "gcloud"),
            "CLOUDSDK_CORE_PROJECT": self.project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(self.home / "token"),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.url}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.url}/storage/v1/",
            # or gcloud asks the network whether it runs on Google
            "GCE_METADATA_ROOT": "127.0.0.1:9",
        }
        token = {
            "access_token": self.token,
            "token_type": "Bearer",
            "expiry": "2100-01-01T00:00:00Z",
        }
        self.rclone_env = CLEAN | {
            "RCLONE_CONFIG_CLOUD_TYPE": "google cloud storage",
            "RCLONE_CONFIG_CLOUD_ENDPOINT": f"{self.url}/storage/v1/",
            "RCLONE_CONFIG_CLOUD_TOKEN": json.dumps(token),
            "RCLONE_CONFIG_CLOUD_BUCKET_POLICY_ONLY": "true",
        }
        return self

    def __exit__(self, *_: Any) -> None:
        self.berg("local", "reset", "-y")
        shutil.rmtree(self.home)

    def berg(self, *words: str | Path, cwd: Path | None = None, stdin: str = "") -> Cost:
        return timed(BIN / "berg", *words, env=self.env, cwd=cwd, stdin=stdin)

    def gcloud(self, *words: str | Path, cwd: Path | None = None) -> Cost:
        return timed("gcloud", *words, env=self.gcloud_env, cwd=cwd)

    def rclone(self, *words: str | Path) -> Cost:
        return timed("rclone", *words, env=self.rclone_env)

    def call(self, verb: str, path: str, body: Any = None) -> Any:
        answer = self.session.request(verb, self.url + path, json=body)
        answer.raise_for_status()
        return answer.json()

    def counted(self, side: Callable[[], Cost]) -> Cost:
        """The cost with how many requests were made meanwhile, and how many bytes sent."""
        self.call("DELETE", "/_berg/requests")
        before = self.cpu()
        cost = side()
        cost.served = self.cpu() - before
        log = self.call("GET", "/_berg/requests")
        cost.requests, cost.sent = sum(log["counts"].values()), sum(log["bytes"].values())
        cost.trips = round_trips(log["requests"])
        return cost

    @contextlib.contextmanager
    def far(self, latency: float) -> Iterator[None]:
        """While the laptop has so many seconds to the cloud and back; its machines are near."""
        where = {"latency": latency, "machine_latency": 0}
        self.call("POST", "/_berg/settings", where)
        try:
            yield
        finally:
            self.call("POST", "/_berg/settings", {"latency": 0, "machine_latency": None})

    def cpu(self) -> float:
        """Seconds of CPU that the embedded cloud has taken."""
        pid = json.loads((self.home / "local/server.json").read_text())["pid"]
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def multiply(self, name: str, copies: Iterable[tuple[str, dict[str, Any]]]) -> None:
        """Objects with the content of another, each a name and changes to its metadata.

        They go straight into the index of the embedded cloud: by HTTP a million would take hours.
        """
        with sqlite3.connect(self.home / "local/storage/index.sqlite3", timeout=60) as index:
            query = "SELECT bucket, generation, resource FROM objects WHERE name = ?"
            bucket, generation, resource = index.execute(query, (name.encode(),)).fetchone()
            like = json.loads(resource)
            rows = (
                (bucket, new.encode(), generation, json.dumps({**like, **changes, "name": new}))
                for new, changes in copies
            )
            index.executemany("INSERT INTO objects VALUES (?, ?, ?, ?)", rows)
        index.close()


def distance(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms away"


def peer(package: str) -> Path | str:
    """The folder of programs of a PyPI package, in an environment of its own; why it cannot be had,
    as text.
    """
    folder = PEERS / package.partition("[")[0]
    if not (folder / "installed").exists():
        print(f"Installing {package}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        done = subprocess.run(
            [folder / "bin/pip", "install", "-q", package], capture_output=True, text=True
        )
        if done.returncode:
            return f"pip cannot install it: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        (folder / "installed").touch()
    return folder / "bin"


def installed_berg() -> Path:
    """The folder of programs of berg as a user installs it, without extras, made of the sources
    around here.
    """
    folder = PEERS / "berg"
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [folder / "bin/pip", "install", "-q"]
    subprocess.run([*pip, TOP], check=True)
    subprocess.run([*pip, "--no-deps", "--force-reinstall", TOP], check=True)
    return folder / "bin"


def has(program: str, debian: str = "") -> bool:
    """Whether there is a program; the Debian package that has it is installed where that is
    possible.
    """
    if not shutil.which(program) and debian:
        subprocess.run([TOP / "tools/require", debian], stdout=sys.stderr)
    return bool(shutil.which(program))


def make_repo(root: Path, files: int) -> None:
    """A repo of small files, 40 in a folder, which git packs to half their size."""
    for number in range(files):
        path = root / f"package{number // 1600}/module{number // 40 % 40}/file{number % 40}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"print('{os.urandom(20).hex()}')\n" for _ in range(20)))
    git(root, "init", "-q", "-b", "main")
    commit(root)


def git(root: Path, *words: str | Path) -> None:
    subprocess.run(["git", *IDENTITY, *words], cwd=root, check=True)


def commit(root: Path) -> None:
    git(root, "add", "-A")
    git(root, "commit", "-q", "-m", "start")
