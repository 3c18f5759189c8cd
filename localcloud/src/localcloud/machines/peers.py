"""Who is at the other end of a connection on this computer: the socket's owner, as the kernel says.

Addresses of loopback are open to every user of a computer. What carries no token, such as a
machine's metadata server, answers its own user alone.

Not covered: IPv6, connections from other computers, users of a machine other than its root.
"""

import asyncio
import os
import socket
import struct

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST = 4, 20, 1
ANY_STATE = 2**32 - 1


def may_ask(transport: asyncio.BaseTransport) -> bool:
    """Tell whether a connection comes from this process's user."""
    ends = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    return owner_of(*ends) == os.geteuid()


def owner_of(theirs: tuple[str, int], ours: tuple[str, int]) -> int | None:
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
    return uid if inode else None
