"""A real embedded cloud in a process of its own, for tests that look at memory or kill it.

`python local_cloud.py FOLDER PORT` serves the state in FOLDER and prints its port.
"""

import asyncio
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import google.auth
import requests
from google.auth.transport.requests import AuthorizedSession

from berg.local.tokens import LAPTOP, Tokens

PROJECT = "test-project"
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


@dataclass
class Server:
    """One server process over a folder; `start` again after `kill` keeps the port."""

    folder: Path
    port: int = 0
    process: subprocess.Popen | None = None
    stderr: Path = field(init=False)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.stderr = self.folder / "stderr"

    def start(self) -> "Server":
        with open(self.stderr, "ab") as stderr:
            command = [sys.executable, __file__, str(self.folder), str(self.port)]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr)
        line = self.process.stdout.readline()
        assert line, self.stderr.read_text()
        self.port = int(line)
        return self

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def token(self, seconds: float = 3600) -> str:
        return Tokens(self.folder).mint(LAPTOP, seconds)

    def session(self) -> requests.Session:
        """A plain HTTP session that sends a token."""
        session = requests.Session()
        session.headers["Authorization"] = f"Bearer {self.token()}"
        return session

    def credentials(self) -> google.auth.credentials.Credentials:
        """Credentials as berg loads them: from the laptop's file."""
        path = self.folder / "credentials.json"
        tokens = Tokens(self.folder, lambda: self.url)
        tokens.write_credentials(path)
        return google.auth.load_credentials_from_file(path, scopes=SCOPES)[0]

    def authorized(self) -> AuthorizedSession:
        return AuthorizedSession(self.credentials())

    def memory(self, field: str) -> float:
        """VmRSS or VmHWM of the server in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) / 1000

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")


async def serve(folder: Path, port: int) -> None:
    from aiohttp import web

    from berg.local.server import make_app, open_cloud

    cloud = open_cloud(folder, port, PROJECT)
    # A token that the tests mint must be known before the first request: the file is there by now.
    cloud.tokens.refresh_token(LAPTOP)
    runner = web.AppRunner(make_app(cloud))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    cloud.port = runner.addresses[0][1]
    sys.stdout.write(f"{cloud.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
