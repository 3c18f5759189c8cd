"""The ssh server of a machine, and its own /etc/ssh, so that the host's keys and settings stay the host's.

    machines/<id>/ssh/    what the machine sees as /etc/ssh: a client's settings as on the host, and, where
                          a server can run, its configuration and the host key that the first boot makes

boot.sh starts the server, as the init of Google's images does. It listens on port 22 of the machine's own address
and takes keys only. Not covered: PAM, OS Login, users other than root.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

PROGRAM = "/usr/sbin/sshd"
ANY_ADDRESS = "127.64.0.1"  # of those that machines have
CONFIG = """\
ListenAddress {address}
HostKey /etc/ssh/ssh_host_ed25519_key
UsePAM no
PidFile none
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
AcceptEnv LANG LC_*
Subsystem sftp internal-sftp
SetEnv {variables}
"""


def obstacle() -> str:
    """Why no machine can run an ssh server here; "" if nothing is in the way."""
    if os.geteuid() != 0:
        return "that takes root"
    if not os.access(PROGRAM, os.X_OK):
        return f"{PROGRAM} is missing (package openssh-server)"
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ANY_ADDRESS, 22))  # not to listen there: others may try at the same time
        except OSError as error:
            return f"port 22 cannot be had on the addresses of machines ({error.strerror})"
    return ""


def prepare(folder: Path, address: str, variables: dict[str, str], runs: bool) -> None:
    """Lay out the /etc/ssh of a machine; its host key, once made, stays at later boots."""
    ssh = folder / "ssh"
    if not ssh.exists():
        ssh.mkdir()
        ssh.chmod(0o755)
        client = ["/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d"]
        subprocess.run(["cp", "-a", *client, ssh], check=False, capture_output=True)
    if runs:
        # Only the first SetEnv counts, so that it holds them all.
        words = [f'"{name}={value}"' for name, value in variables.items() if not set(value) & set('"\\\n')]
        (ssh / "sshd_config").write_text(CONFIG.format(address=address, variables=" ".join(words)))
