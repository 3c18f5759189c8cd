"""The ssh server of a machine, and its own /etc/ssh, so that the host's keys and settings stay the
host's.

    machines/<id>/ssh/    what the machine sees as /etc/ssh: a client's settings as on the host,
    and, where
                          a server can run, its configuration and the host key that the first boot
                          makes

boot.sh starts the server, as the init of Google's images does. It takes keys only, on the machine's
own address: on port 22, or in a user namespace on port 2222. There the server cannot be root, which
would change to other users, and only root exists there: in a namespace of its own it has the
number 1000, and so has who logs in, by the name of root and with all that root's processes may do
to files. Not covered: PAM, OS Login, users other than root.
"""

import os
import socket
import subprocess
from pathlib import Path

PROGRAM = "/usr/sbin/sshd"
ANY_ADDRESS = "127.64.0.1"  # of those that machines have
PORT, USER_PORT = 22, 2222
NUMBER = 1000  # of root in the server's own user namespace
CONFIG = """\
Port {port}
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


def obstacle(user: bool | None = None) -> str:
    """Why no machine can run an ssh server here, in user namespaces or not; "" if nothing is in the
    way.
    """
    user = os.geteuid() != 0 if user is None else user
    if not os.access(PROGRAM, os.X_OK):
        return f"{PROGRAM} is missing (package openssh-server)"
    if (
        user
        and b"--map-user" not in subprocess.run(["unshare", "--help"], capture_output=True).stdout
    ):
        return "without root that takes unshare of util-linux 2.36 or later"
    port = USER_PORT if user else PORT
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ANY_ADDRESS, port))  # not to listen there: others may try at the same time
        except OSError as error:
            return f"port {port} cannot be had on the addresses of machines ({error.strerror})"
    return ""


def prepare(folder: Path, address: str, variables: dict[str, str], runs: bool, user: bool) -> None:
    """Lay out the /etc/ssh of a machine; its host key, once made, stays at later boots."""
    ssh = folder / "ssh"
    if not ssh.exists():
        ssh.mkdir()
        ssh.chmod(0o755)
        client = ["/etc/ssh/ssh_config", "/etc/ssh/ssh_config.d"]
        subprocess.run(["cp", "-a", *client, ssh], check=False, capture_output=True)
    if runs:
        # Only the first SetEnv counts, so that it holds them all.
        words = [
            f'"{name}={value}"'
            for name, value in variables.items()
            if not set(value) & set('"\\\n')
        ]
        port = USER_PORT if user else PORT
        (ssh / "sshd_config").write_text(
            CONFIG.format(port=port, address=address, variables=" ".join(words))
        )
    # what the server alone sees in /etc: without tty, to which it could not give a terminal
    if runs and user:
        root = f"root:x:{NUMBER}:{NUMBER}:root:/root:/bin/bash\n"
        (ssh / "passwd").write_text(root + "".join(lines("passwd", "root")))
        (ssh / "group").write_text(f"root:x:{NUMBER}:\n" + "".join(lines("group", "root", "tty")))
        (ssh / "shadow").write_text("root:*:::::::\n")


def lines(name: str, *without: str) -> list[str]:
    """Lines of a file of the host's /etc, without those of some names and of the user that has the
    number of root there.
    """
    entries = Path("/etc", name).read_text().splitlines(keepends=True)
    return [
        line
        for line in entries
        if line.split(":")[0] not in without and line.split(":")[2:3] != [str(NUMBER)]
    ]
