"""Dashboards on disk, by full name in <folder>/dashboards.json. Knows nothing of HTTP."""

import json
from pathlib import Path

from localcloud.identity.tokens import write_private


class Monitoring:
    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "dashboards.json"
        text = self.file.read_text() if self.file.exists() else "{}"
        self.dashboards: dict[str, dict] = json.loads(text)

    def save_dashboards(self) -> None:
        write_private(self.file, self.dashboards)
