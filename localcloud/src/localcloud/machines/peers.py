"""Who is at the other end of a connection on this computer: the socket's owner, as the kernel says.

Addresses of loopback are open to every user of a computer. What carries no token, such as a
machine's metadata server, answers its own user alone.

Not covered: IPv6, connections from other computers, systems without /proc.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ANY_STATE = 2**32 - 1


@dataclass(frozen=True)
class Peer:
    """The owner of the socket at the other end."""

    uid: int
    inode: str


def may_ask(transport: asyncio.BaseTransport) -> bool:
    """Tell whether a connection comes from this process's user, or from one of root's machines."""
    peer = find(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))
    if peer is None:
        return False
    if peer.uid == os.geteuid():
        return True
    # Root's machines have users of their own: without a user namespace their ids are the host's.
    return os.geteuid() == 0 and any(map(is_of_roots_machine, holders(peer)))


def find(theirs: tuple[str, int], ours: tuple[str, int]) -> Peer | None:
    """Return the owner of a connection's other socket; None if it is closed."""
    return ask_kernel(theirs, ours) or search(theirs, ours)


def ask_kernel(theirs: tuple[str, int], ours: tuple[str, int]) -> Peer | None:
    """Return the owner of the socket by one question; None if it is closed, or if this kernel does
    not answer such questions.

    Reading the table of all sockets takes the kernel some milliseconds, and machines ask their
    metadata servers often. The messages are those of sock_diag(7).
    """
    ends = struct.pack("!HH", theirs[1], ours[1])
    ends += socket.inet_aton(theirs[0]).ljust(16, b"\0") + socket.inet_aton(ours[0]).ljust(
        16, b"\0"
    )
    any_interface_and_cookie = struct.pack("=III", 0, 2**32 - 1, 2**32 - 1)
    asked = struct.pack("=BBBBI", socket.AF_INET, socket.IPPROTO_TCP, 0, 0, ANY_STATE)
    asked += ends + any_interface_and_cookie
    header = struct.pack("=IHHII", 16 + len(asked), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST, 0, 0)
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(1)
            kernel.sendto(header + asked, (0, 0))
            answer = kernel.recv(4096)
    except OSError:
        return None
    (kind,) = struct.unpack_from("=H", answer, 4)
    if kind != SOCK_DIAG_BY_FAMILY:
        return None
    uid, inode = struct.unpack_from("=II", answer, 16 + 4 + 48 + 12)
    # Without an inode no process holds it any more, and its owner reads as root.
    return Peer(uid, str(inode)) if inode else None


def search(theirs: tuple[str, int], ours: tuple[str, int]) -> Peer | None:
    """Return the owner of the socket, out of the table of all."""
    wanted = [as_kernel(theirs), as_kernel(ours)]
    for line in (PROC / "net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[1:3] == wanted and words[9] != "0":
            return Peer(int(words[7]), words[9])
    return None


def as_kernel(address: tuple[str, int]) -> str:
    """An address as /proc/net/tcp writes it: the bytes in this computer's order."""
    (number,) = struct.unpack("=I", socket.inet_aton(address[0]))
    return f"{number:08X}:{address[1]:04X}"


def holders(peer: Peer) -> Iterator[int]:
    """Processes that have the socket open."""
    for folder in PROC.iterdir():
        if folder.name.isdigit() and has_socket(folder, peer.inode):
            yield int(folder.name)


def has_socket(folder: Path, inode: str) -> bool:
    try:
        return any(
            str(each.readlink()) == f"socket:[{inode}]" for each in (folder / "fd").iterdir()
        )
    except OSError:
        return False  # it has ended


def is_of_roots_machine(pid: int) -> bool:
    """Tell whether a process descends from one of root's in another pid namespace than ours.

    Others may make such namespaces, too, but none in which a process is the host's root.
    """
    try:
        ours = (PROC / "self/ns/pid").readlink()
        while pid > 1:
            folder = PROC / str(pid)
            if (folder / "ns/pid").readlink() != ours and folder.stat().st_uid == 0:
                return True
            pid = parent(folder)
    except OSError:
        pass  # it has ended
    return False


def parent(folder: Path) -> int:
    # The name of the program, in brackets, may hold anything.
    return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
