"""Dashboards and time series on disk. Knows nothing of HTTP.

    <folder>/dashboards.json   what people made, by full name
    <folder>/metrics.json      descriptors of custom metrics, by project and type
    <folder>/points.jsonl      a point a line, as it was written; read again at the start

Not covered: compaction and the six weeks after which Google forgets a point.
"""

import json
from pathlib import Path
from typing import Any

from localcloud.identity.tokens import write_private


class Monitoring:
    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.dashboards: dict[str, dict] = self._read("dashboards.json")
        self.metrics: dict[str, dict] = self._read("metrics.json")
        self.series: dict[
            str, dict[str, Any]
        ] = {}  # by what tells them apart; "points", the newest last
        points = folder / "points.jsonl"
        for line in points.read_text().splitlines() if points.exists() else []:
            self._keep(json.loads(line))

    def _read(self, name: str) -> dict[str, dict]:
        file = self.folder / name
        return json.loads(file.read_text()) if file.exists() else {}

    def save_dashboards(self) -> None:
        write_private(self.folder / "dashboards.json", self.dashboards)

    def add_metric(self, name: str, descriptor: dict) -> None:
        self.metrics[name] = descriptor
        write_private(self.folder / "metrics.json", self.metrics)

    def last(self, project: str, series: dict) -> dict | None:
        """The newest point of a series."""
        there = self.series.get(key(project, series))
        return there["points"][-1] if there else None

    def add(self, project: str, written: list[dict]) -> None:
        lines = [{"project": project, **each} for each in written]
        with (self.folder / "points.jsonl").open("a") as output:
            output.writelines(json.dumps(line) + "\n" for line in lines)
        for line in lines:
            self._keep(line)

    def _keep(self, line: dict) -> None:
        project = line["project"]
        about = {name: value for name, value in line.items() if name not in ("project", "points")}
        there = self.series.setdefault(
            key(project, line), {"project": project, **about, "points": []}
        )
        there["points"] += line["points"]


def key(project: str, series: dict) -> str:
    """What tells one series from others: its metric and its resource with all labels."""
    return json.dumps([project, series["metric"], series["resource"]], sort_keys=True)
