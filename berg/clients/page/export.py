"""The page as files: the same page, its JSON as a script, whole logs and small results."""

import json
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from berg import BergError, jobs, logs, terminal
from berg import job as records
from berg.bucket import Bucket, Changed
from berg.clients.page import data
from berg.config import Config
from berg.job import OBEYED
from berg.moments import is_plain

LARGEST = 10 << 20  # bytes of a file that is written
# A browser would run or draw them, with the rights of a file of the user's: they become text.
ACTIVE = re.compile(r"\.(x?html?|shtml|svgz?|xml|xslt?|m?js|pdf)$", re.I)


def export(config: Config, names: tuple[str, ...], folder: Path) -> Path:
    """Write the page of jobs and sweeps to a new folder; return the file to open."""
    if folder.exists() and any(folder.iterdir()):
        raise BergError(f"{folder} is not empty. Give a new folder")
    answers: dict[str, Any] = {"site": data.site(config, is_live=False), "jobs": []}
    for name in dict.fromkeys(jobs.find(config, name).name for name in names):
        answers["jobs"].append(jobs.about(config, jobs.find(config, name)))
        found = export_job(config, name, folder, answers)
        if found["rows"]:
            key = f"sweep/{quote(name, safe='')}"
            answers[key] = data.sweep(config, name)
            for row in answers[key]:
                if row["state"] != records.SUBMITTED:
                    export_job(config, row["name"], folder, answers)
    for asset in data.ASSETS:
        shutil.copyfile(data.HERE / asset, folder / asset)
    if library := data.library():
        shutil.copyfile(library.file, folder / library.name)
    (folder / "data.js").write_text(f"window.exported = {json.dumps(answers)}\n")
    page = folder / "index.html"
    text = page.read_text("utf-8").replace("<!-- data.js -->", '<script src="data.js"></script>')
    page.write_text(text, "utf-8")
    return page


def export_job(config: Config, name: str, folder: Path, answers: dict[str, Any]) -> dict[str, Any]:
    """Add the answers for a job, or a row of a sweep; write its log and its small results."""
    bucket, key = Bucket(config), quote(name, safe="")
    found = answers[f"job/{key}"] = {**data.one(config, name), "ending": ""}
    answers[f"log/{key}"] = data.log(bucket, name, None, is_over=True)
    log = folder / "text" / f"{name}.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        output.writelines(piece for _, piece in logs.pieces(bucket, name, {}))
    prefix = records.results_prefix(jobs.find(config, name).results)
    for item in bucket.list(prefix) if not found["rows"] else ():  # else its rows have them
        path = item.name.removeprefix(prefix)
        reason = ""
        if not is_plain(path) or OBEYED & {part.lower() for part in path.split("/")}:
            reason = "its name cannot be that of a file here"
        elif item.size > LARGEST:
            reason = f"it is larger than {LARGEST >> 20} MiB"
        else:
            file = folder / "file" / name / (f"{path}.txt" if ACTIVE.search(path) else path)
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                bucket.download(item.name, file, item.size, item.crc)
            except (
                Changed,
                ValueError,
                OSError,
            ) as error:  # it is replaced; this disk has no such name
                reason = f"it could not be written: {error}"
        if reason:
            terminal.warn(f"{path} of {name} is not among the files: {reason}")
    return found
