"""What the benchmarks share: any Berg on an embedded cloud of its own, times with CPU and requests, tables."""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TOP = next(each for each in Path(__file__).parents if (each / "accept").is_dir())
sys.path.append(str(TOP))  # behind this environment's berg

from accept.world import Trial, local_trial  # noqa: E402
from localcloud import control  # noqa: E402
from localcloud.identity.tokens import LAPTOP, Tokens  # noqa: E402

FAR = 0.03  # seconds to a cloud in another region and back


@dataclass
class Cost:
    """What a program took: seconds from start to end, seconds of CPU in it and its children, requests."""

    wall: float
    cpu: float
    requests: int = 0


@dataclass
class Table:
    """Costs of each side, in the order of the rows; ratios are walls over that of the first side."""

    title: str
    note: str
    costs: dict[str, list[Cost]] = field(default_factory=dict)

    def markdown(self) -> str:
        lines = [f"### {self.title}", "", self.note, ""]
        lines += ["| | wall, s | × | CPU, s | requests | runs |", "|---|---:|---:|---:|---:|---:|"]
        first = median(next(iter(self.costs.values())))
        for side, costs in self.costs.items():
            cells = [f"{median(costs):.2f}", f"{median(costs) / first:.2f}"]
            cells += [f"{median(costs, 'cpu'):.2f}", f"{median(costs, 'requests'):,.0f}"]
            lines.append(f"| {side} | {' | '.join(cells)} | {len(costs)} |")
        return "\n".join([*lines, ""])


def median(costs: list[Cost], what: str = "wall") -> float:
    return statistics.median(getattr(cost, what) for cost in costs)


@dataclass
class Side:
    """One Berg on an embedded cloud of its own."""

    trial: Trial
    scratch: Path

    def berg(self, *words: str, cwd: Path | None = None) -> Cost:
        return self.timed([self.trial.laptop.berg, *words], cwd, self.trial.laptop.environment())

    def rclone(self, *words: str) -> Cost:
        token = {
            "access_token": self.token,
            "token_type": "Bearer",
            "expiry": "2100-01-01T00:00:00Z",
        }
        env = {
            "RCLONE_CONFIG_CLOUD_TYPE": "google cloud storage",
            "RCLONE_CONFIG_CLOUD_ENDPOINT": f"{self.trial.cloud.endpoint}/storage/v1/",
            "RCLONE_CONFIG_CLOUD_TOKEN": json.dumps(token),
            "RCLONE_CONFIG_CLOUD_BUCKET_POLICY_ONLY": "true",
        }
        return self.timed(["rclone", *words], None, os.environ | env)

    def gcloud(self, *words: str) -> Cost:
        token = self.scratch / "token"
        token.write_text(self.token)
        env = {
            "CLOUDSDK_CONFIG": str(self.scratch / "gcloud"),
            "CLOUDSDK_CORE_PROJECT": self.trial.cloud.project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(token),
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{self.trial.cloud.endpoint}/compute/v1/",
            "CLOUDSDK_API_ENDPOINT_OVERRIDES_STORAGE": f"{self.trial.cloud.endpoint}/storage/v1/",
            "GCE_METADATA_ROOT": "127.0.0.1:9",  # or gcloud asks the network whether it runs on Google
        }
        return self.timed(["gcloud", *words], None, os.environ | env)

    @property
    def token(self) -> str:
        assert self.trial.cloud.folder
        return str(Tokens(self.trial.cloud.folder).mint(LAPTOP))

    def timed(self, command: list[str], cwd: Path | None, env: Any) -> Cost:
        """A command to its end, with how many requests the cloud got meanwhile; a failure ends the benchmark."""
        self.trial.cloud.control("DELETE", "requests")
        cost = timed(command, cwd, env)
        cost.requests = sum(self.trial.cloud.control("GET", "requests")["counts"].values())
        return cost

    @contextlib.contextmanager
    def far(self, seconds: float) -> Iterator[None]:
        """While the laptop has so many seconds to the cloud and back; its machines are near."""
        self.trial.cloud.settings(latency=seconds, machine_latency=0)
        try:
            yield
        finally:
            self.trial.cloud.settings(latency=0, machine_latency=None)


def timed(command: list[str], cwd: Path | None = None, env: Any = None) -> Cost:
    """A command to its end; a failure ends the benchmark with what it wrote."""
    with tempfile.TemporaryFile("w+") as out:
        began = time.perf_counter()
        process = subprocess.Popen(
            list(map(str, command)),
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            out.seek(0)
            sys.exit(f"{' '.join(map(str, command))}: exit code {process.returncode}\n{out.read()}")
    return Cost(wall, usage.ru_utime + usage.ru_stime)


@contextlib.contextmanager
def sides(bergs: dict[str, str], scratch: Path) -> Iterator[dict[str, Side]]:
    """Each Berg on a cloud of its own; the clouds end with the context."""
    made: dict[str, Side] = {}
    place = Path(tempfile.mkdtemp(dir=scratch))
    try:
        for number, (name, berg) in enumerate(bergs.items()):
            # not beside each other: the image that clouds share has the environment of one berg
            home = place / str(number) / "home"
            home.parent.mkdir()
            made[name] = Side(local_trial(berg, home), home.parent)
        yield made
    finally:
        for side in made.values():
            assert side.trial.cloud.folder
            control.reset(side.trial.cloud.folder)
        shutil.rmtree(place, ignore_errors=True)


def rounds(
    table: Table,
    runs: dict[str, Callable[[], Cost]],
    repeats: int,
    before: Callable[[], Any] = lambda: None,
) -> Table:
    """Run all sides in turn, `repeats` times, every other time in the opposite order; `before` begins a round."""
    for number in range(repeats):
        before()
        for side, run in list(runs.items())[:: -1 if number % 2 else 1]:
            cost = run()
            table.costs.setdefault(side, []).append(cost)
            print(
                f"{table.title}: {side}: {cost.wall:.2f} s, CPU {cost.cpu:.2f} s", file=sys.stderr
            )
    table.costs = {side: table.costs[side] for side in runs}
    return table


def away(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms away"


def peers(side: Side, seconds: float, place: Path, job: str) -> dict[str, Callable[[], Cost]]:
    """Other programs that download the same, if they are on this computer."""
    source = f"{side.trial.cloud.bucket}/berg_results/{job}"

    def run(program: Callable[..., Cost], *words: str) -> Cost:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        with side.far(seconds):
            return program(*words)

    rclone = ("copy", "--transfers", "32", "--checkers", "32", f"cloud:{source}", str(place))
    gcloud = ("storage", "rsync", "--recursive", f"gs://{source}", str(place))
    found = {
        "`rclone copy --transfers 32`": lambda: run(side.rclone, *rclone),
        "`gcloud storage rsync`": lambda: run(side.gcloud, *gcloud),
    }
    return {name: each for name, each in found.items() if shutil.which(name.strip("`").split()[0])}
