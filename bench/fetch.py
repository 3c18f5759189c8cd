"""How results get to the laptop: `berg fetch` against `gcloud storage rsync` and `rclone copy`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import common
from common import (
    BIN,
    FAR,
    SCRATCH,
    Cloud,
    Cost,
    Result,
    Target,
    distance,
    least,
    median,
    ratio,
    rounds,
    table,
    timed,
)
from results import GCLOUD, RCLONE, RCLONE_32, make_files, mirror_once

BERG = "`berg fetch`"
NOTE = "All read from the same cloud."
WHY_MANY = "Python and the kernel take about 1 ms of CPU for each file: "
WHY_LARGE = "three quarters of the CPU is the kernel's, which copies: "
TRIPS = (
    4  # of which three are the handshakes and the first page of the list, and then its second one
)
IMPORTS = "Python importing the HTTP client"
LIBRARIES = "import click, google.auth.transport.requests"


def downloads(cloud: Cloud, name: str, place: Path) -> dict[str, Callable[[], Cost]]:
    """Bring the results below `name`, to a folder for each side."""
    source, folders = (
        f"{cloud.bucket}/berg_results/{name}",
        [place / side for side in ("berg", "gcloud", "rclone", "rclone32")],
    )
    sides: dict[str, Callable[[], Cost]] = {BERG: lambda: cloud.berg("fetch", name, folders[0])}
    if common.has("gcloud"):
        folders[1].mkdir(parents=True, exist_ok=True)
        sides[GCLOUD] = lambda: cloud.gcloud(
            "storage", "rsync", "--recursive", f"gs://{source}", folders[1]
        )
    if common.has("rclone", "rclone"):
        sides[RCLONE] = lambda: cloud.rclone("copy", f"cloud:{source}", folders[2])
        many = ("--transfers", "32", "--checkers", "32")
        sides[RCLONE_32] = lambda: cloud.rclone("copy", *many, f"cloud:{source}", folders[3])
    return {side: lambda run=run: cloud.counted(run) for side, run in sides.items()}  # type: ignore[misc]


def compare(
    cloud: Cloud,
    title: str,
    name: str,
    repeats: int,
    before: Callable[[Path], None],
    targets: Callable[[dict[str, list[Cost]]], list[Target]],
    more: dict[str, Callable[[], Cost]] | None = None,
) -> Result:
    """Bring results by all sides, and run what is given `more`."""
    place = SCRATCH / "fetched"
    costs: dict[str, list[Cost]] = {}
    for _ in range(repeats):
        before(place)
        for side, found in rounds(downloads(cloud, name, place) | (more or {}), 1).items():
            costs.setdefault(side, []).extend(found)
    shutil.rmtree(place)
    return table(title, NOTE, costs, targets(costs), net=True)


def over_peers(limit: float, why: str, against: str = "") -> Callable[..., list[Target]]:
    """Return what makes the target of a wall over a peer's, or over the better peer's."""

    def targets(costs: dict[str, list[Cost]]) -> list[Target]:
        measured = ratio(costs, BERG, against or [GCLOUD, RCLONE])
        name = f"wall over {against or 'the better peer'}'s"
        said = why + least(costs, BERG, against or [GCLOUD, RCLONE])
        return [Target(name, measured, limit, why=said)]

    return targets


def many_files(latency: float) -> Callable[..., list[Target]]:
    """Return what makes the targets of many files, which depend on how far the cloud is."""
    if not latency:
        return over_peers(1.5, WHY_MANY, RCLONE)
    default, wide = over_peers(0.6, WHY_MANY), over_peers(1.0, WHY_MANY, RCLONE_32)
    return lambda costs: default(costs) + wide(costs)


def unchanged(latency: float) -> Callable[..., list[Target]]:
    """Return what makes the target of a fetch that finds nothing new, so far from the cloud."""

    def targets(costs: dict[str, list[Cost]]) -> list[Target]:
        imports, served = median(costs[IMPORTS]), median(costs[BERG], "served")
        limit = (imports + TRIPS * latency + served) / imports
        why = (
            f"besides the imports it waits for {TRIPS} round trips, {TRIPS * latency:.2f} s, and for the "
            f"embedded cloud, {served:.2f} s: {limit:.2f} x is the limit"
        )
        return [Target(f"wall over {IMPORTS}", ratio(costs, BERG, IMPORTS), 1.5, why=why)]

    return targets


def measure(repeats: int) -> list[Result]:
    many = make_files(SCRATCH / "of-many/many", 2000, 50_000)
    large = make_files(SCRATCH / "of-large/large", 1, 1 << 30)

    def anew(place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)

    def start() -> Cost:
        return timed(BIN / "python", "-c", LIBRARIES)

    results = []
    with Cloud() as cloud:
        for folder in (many, large):
            mirror_once(cloud, folder.parent, folder.name)

        def there(place: Path) -> None:
            for side in downloads(cloud, "many", place).values() if not place.exists() else ():
                side()

        for latency in (0, FAR):
            where = f", {distance(latency)}"
            with cloud.far(latency):
                title = f"Fetch: 2,000 files of 50 KB{where}"
                results.append(compare(cloud, title, "many", repeats, anew, many_files(latency)))
                title = f"Fetch: one file of 1 GB{where}"
                over = over_peers(0.6, WHY_LARGE)
                results.append(compare(cloud, title, "large", repeats, anew, over))
                title = f"Fetch: nothing changed of 2,000 files{where}"
                sides = {IMPORTS: start}
                results.append(
                    compare(cloud, title, "many", repeats, there, unchanged(latency), sides)
                )
    return results


if __name__ == "__main__":
    common.main(__doc__, measure)
