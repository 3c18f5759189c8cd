"""The disk of a machine and the process that mirrors its results, which a test can kill."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import forked
import whole_machine

SLACK = 0.2  # seconds for the clocks of several machines, instead of two
PATCHES: dict[str, Any] = {
    "berg.google.mirror.LAST_TIMEOUT": 6.0,
    "berg.google.mirror.SHORT_TIMEOUT": 6.0,
    "berg.google.mirror.RESTORE_PAUSES": (0.1,) * 8,
    "berg.google.journal.IDLE": 0.3,
    "berg.google.journal.CLOCKS_NS": int(SLACK * 1e9),
    "berg.google.views.CLOCKS_NS": int(SLACK * 1e9),
}


@dataclass
class Disk:
    """The results of a job on one machine."""

    top: Path
    bucket: Any
    job: str
    name: str
    rank: int = 0
    machines: int = 1
    synced: float = 0.0  # from when on the bucket has it all, as the mirror says
    left: dict[str, str] | None = None  # what is not in the bucket at the end, if it came so far
    mirror: Any = None
    line: Any = field(default=None)  # to the process of the mirror

    def __post_init__(self) -> None:
        self.folder = self.top / "berg_results"
        self.folder.mkdir(parents=True)

    def restore(self, bring: bool = True) -> None:
        """Begin to restore, to a new process; `restored` waits for its end."""
        config = self.bucket.config
        given = {
            "folder": self.folder,
            "prefix": "berg_results/",
            "writer": f"{self.job}/{self.name}",
            "own": self.job,
            "records": f".berg/folders/{self.job}/",
            "views": f".berg/views/{self.job}/{self.name}/",
            "machine": f"machine-{self.rank}",
            "timeout": 6.0,
        }
        keys = ("project", "bucket", "endpoint", "user", "credentials_file")
        told = {key: getattr(config, key) for key in keys}
        self.line, theirs = forked.server.Pipe()
        place = (self.rank, self.machines, self.top.parent)
        self.mirror = forked.start(whole_machine.serve, told, given, place, PATCHES, theirs)
        theirs.close()
        self.line.send(("restore", bring))

    def restored(self) -> None:
        # Three machines may share a line of 256 kB/s.
        assert self.line.poll(240), "the restore did not end"
        left = self.line.recv()
        assert not left, f"what the view has is there: {left}"

    def make_passes(self, seconds: float = 1, pause: float = 0.05) -> None:
        """Begin with passes of at most so many seconds, and pauses between them."""
        self.line.send(("pass", seconds, pause))

    def finish(self, seconds: float, is_final: bool = False) -> None:
        self.line.send(("finish", seconds, is_final))

    def finished(self, end: float) -> None:
        """Wait until the last pass has ended, or until time.monotonic() is `end`."""
        while self.left is None and self.line.poll(max(0, end - time.monotonic())):
            self.hear(self.line.recv())

    def hear(self, said: Any) -> None:
        if isinstance(said, float):
            self.synced = max(self.synced, said)
        else:
            self.left = said

    def kill(self) -> None:
        self.mirror.kill()
        self.mirror.join()
        while not self.line.closed:
            try:
                self.hear(self.line.recv())
            except (EOFError, ConnectionError):
                self.line.close()
