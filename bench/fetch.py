"""How results get to the laptop: `berg fetch` against `gcloud storage rsync` and `rclone copy`."""

import shutil
from collections.abc import Callable
from pathlib import Path

import common
from common import SCRATCH, Cloud, Cost, Result, Target, ratio, rounds, table
from results import GCLOUD, RCLONE, make_files, mirror_once

BERG = "`berg fetch`"
NOTE = "All from the same cloud, which reading does not change."
WHY_MANY = (
    "google-cloud-storage and requests take about 2 ms of CPU for each file; one GET with python's bare http.client "
    "takes half of that, which is still more than rclone"
)
WHY_LARGE = (
    "what the kernel does, copying from the socket and to the disk, is most of it for every side"
)
WHY_NONE = "python starts and imports its libraries, which is most of it"


def downloads(cloud: Cloud, name: str, place: Path) -> dict[str, Callable[[], Cost]]:
    """Bring the results below `name`, to a folder for each side."""
    source, folders = (
        f"{cloud.bucket}/berg_results/{name}",
        [place / side for side in ("berg", "gcloud", "rclone")],
    )
    sides: dict[str, Callable[[], Cost]] = {BERG: lambda: cloud.berg("fetch", name, folders[0])}
    if common.has("gcloud"):
        folders[1].mkdir(parents=True, exist_ok=True)
        sides[GCLOUD] = lambda: cloud.gcloud(
            "storage", "rsync", "--recursive", f"gs://{source}", folders[1]
        )
    if common.has("rclone", "rclone"):
        sides[RCLONE] = lambda: cloud.rclone("copy", f"cloud:{source}", folders[2])
    return {side: lambda run=run: cloud.counted(run) for side, run in sides.items()}  # type: ignore[misc]


def compare(
    cloud: Cloud, title: str, name: str, repeats: int, before: Callable[[Path], None], why: str
) -> Result:
    place = SCRATCH / "fetched"
    costs: dict[str, list[Cost]] = {}
    for _ in range(repeats):
        before(place)
        for side, found in rounds(downloads(cloud, name, place), 1).items():
            costs.setdefault(side, []).extend(found)
    shutil.rmtree(place)
    target = Target(
        "wall over the better peer's", ratio(costs, BERG, [GCLOUD, RCLONE]), 0.6, why=why
    )
    return table(title, NOTE, costs, [target], net=True)


def measure(repeats: int) -> list[Result]:
    folder = SCRATCH / "results"
    make_files(folder / "many", 2000, 50_000)
    make_files(folder / "large", 1, 1 << 30)

    def anew(place: Path) -> None:
        shutil.rmtree(place, ignore_errors=True)

    with Cloud() as cloud:
        mirror_once(cloud, folder)

        def there(place: Path) -> None:
            for side in downloads(cloud, "many", place).values() if not place.exists() else ():
                side()

        return [
            compare(cloud, "Fetch: 2,000 files of 50 KB", "many", repeats, anew, WHY_MANY),
            compare(cloud, "Fetch: one file of 1 GB", "large", repeats, anew, WHY_LARGE),
            compare(
                cloud, "Fetch: nothing changed of 2,000 files", "many", repeats, there, WHY_NONE
            ),
        ]


if __name__ == "__main__":
    common.main(__doc__, measure)
