"""An ssh server of the tests' own on loopback, which needs no root; "machines" are folders behind
it.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

SSHD = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
CONFIG = """
ListenAddress {address}
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
UsePAM no
StrictModes no
MaxStartups 100
SetEnv HOME={folder}
"""


class Server:
    def __init__(self, folder: Path, address: str = "127.0.0.2"):
        self.folder, self.address = folder, address
        folder.mkdir()
        for name in ("host_key", "key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True
            )
        with socket.socket() as probe:
            probe.bind((address, 0))
            self.port = probe.getsockname()[1]
        (folder / "config").write_text(
            CONFIG.format(address=address, port=self.port, folder=folder)
        )
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        self.start()

    def start(self) -> None:
        assert SSHD
        self.process = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", self.folder / "config"], stderr=subprocess.DEVNULL
        )
        end = time.monotonic() + 10
        while True:
            try:
                return socket.create_connection((self.address, self.port), 1).close()
            except OSError:
                assert time.monotonic() < end, "sshd did not start"
                time.sleep(0.02)

    def stop(self) -> None:
        """End the server and every login, as a power cut does."""
        for pid in [*descendants(self.process.pid), self.process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()

    def options(self) -> list[str]:
        host_key = (self.folder / "host_key.pub").read_text()
        (self.folder / "known_hosts").write_text(f"[{self.address}]:{self.port} {host_key}")
        values = {
            "Port": self.port,
            "IdentityFile": self.folder / "key",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.folder / "known_hosts",
            "StrictHostKeyChecking": "yes",
        }
        return [
            "-F",
            "none",
            *(word for key, value in values.items() for word in ("-o", f"{key}={value}")),
        ]


def descendants(pid: int) -> list[int]:
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        children += map(int, task.read_text().split())
    return [each for child in children for each in [child, *descendants(child)]]
