"""The page of some jobs as files in a folder, which open from disk and can be sent to somebody.

Not covered: results that are larger than what one sends. They are named, and stay in the bucket.
"""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from berg import BergError, job
from berg.config import Config
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.laptop import jobs, logs, sweep
from berg.watch import collect, library, page, several
from berg.watch.page import Frame

HERE = Path(__file__).parent
ASSETS = ("page.css", "page.js", "figures.js")
LARGEST = 10 << 20  # bytes of a file that goes along


def export(config: Config, names: list[str], folder: Path, say: Callable[[str], None]) -> Path:
    """Write the pages of jobs and sweeps to a folder, which must be empty or not there yet; returns
    the first one.
    """
    if folder.exists() and any(folder.iterdir()):
        raise BergError(f"{folder} is not empty. Give a folder that is new")
    bucket = Bucket(config)
    chosen, sweeps = members(config, bucket, names)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ASSETS:
        shutil.copyfile(HERE / name, folder / name)
    if found := library.find():
        shutil.copyfile(found.file, folder / found.name)
    below = Frame(config.project, config.bucket, live=False, root="../../")
    for name in sweeps:
        write(
            folder / "sweep" / name,
            several.one_sweep(below, name, collect.a_sweep(config, bucket, name)),
        )
    for name in chosen:
        export_job(config, bucket, below, name, folder / "job" / name, sweeps, say)
    entries = [alone(each, sweeps) for each in jobs.overview(config, None) if each.name in chosen]
    top = Frame(config.project, config.bucket, live=False)
    return write(folder, page.overview(top, entries, [], {}))


def members(config: Config, bucket: Bucket, names: list[str]) -> tuple[list[str], list[str]]:
    """The jobs that names stand for, and which of the names are sweeps."""
    chosen: dict[str, None] = {}
    sweeps = [
        name for name in names if job.NAME.fullmatch(name) and bucket.exists(job.sweep_path(name))
    ]
    for name in names:
        if name in sweeps:
            chosen |= dict.fromkeys(entry.name for entry in sweep.entries(config, name))
        else:
            chosen[jobs.find(config, name).name] = None
    return [name for name in chosen if job.NAME.fullmatch(name)], sweeps


def alone(entry: jobs.Entry, sweeps: list[str]) -> jobs.Entry:
    """A job as one of no sweep, if its sweep does not go along."""
    if entry.state and entry.sweep not in sweeps:
        return replace(entry, state=replace(entry.state, job=replace(entry.state.job, sweep="")))
    return entry


def export_job(
    config: Config,
    bucket: Bucket,
    frame: Frame,
    name: str,
    folder: Path,
    sweeps: list[str],
    say: Callable[[str], None],
) -> None:
    about = collect.about(config, bucket, name)
    entry = about.record.entry = alone(about.record.entry, sweeps)
    piece = collect.log(config, bucket, entry)
    write(folder, page.one_job(frame, about, page.log_section(piece, follows=False)))
    with (folder / "log.txt").open("wb") as output:
        try:
            for _, chunk in logs.chunks(config, name):
                output.write(chunk)
        except BergError as error:  # it left none
            output.write(f"{error.message}\n".encode())
    prefix = f"{collect.results_folder(entry)}/"
    small = [each for each in about.record.results if each.size <= LARGEST]
    _, _, left = fetch(bucket, prefix, folder / "files", listed=small)
    for path, why in left.items():
        say(f"{path} is not among the files: {why}")
    for each in about.record.results:
        if each.size > LARGEST:
            say(f"{each.name} is not among the files: it is larger than {LARGEST >> 20} MiB")


def write(folder: Path, content: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "index.html"
    file.write_text(content, encoding="utf-8", errors="replace")
    return file
