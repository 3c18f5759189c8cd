"""A network that holds nothing but loopback, and a witness of every packet that would have left it.

The tests run in a network namespace of their own whose only way out is a device that leads nowhere.
All their processes, machines included, live in it; whatever they send elsewhere is seen there.
"""

import ctypes
import os
import shutil
import socket
import subprocess

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def enter() -> socket.socket | None:
    """Move this process into such a network; returns the witness, or None where that takes a root
    we are not.
    """
    if (
        os.getuid()
        or not shutil.which("ip")
        or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET)
    ):
        return None
    ip("link", "set", "lo", "up")
    ip("link", "add", "outside", "type", "veth", "peer", "name", "nowhere")
    for device in ("outside", "nowhere"):
        ip("link", "set", device, "addrgenmode", "none", "arp", "off", "up")
    ip("address", "add", "198.51.100.1/24", "dev", "outside")
    ip("route", "add", "default", "dev", "outside")
    witness = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_ALL))
    witness.bind(("outside", ETH_P_ALL))
    witness.setblocking(False)
    return witness


def seen(witness: socket.socket) -> list[str]:
    """Destinations of the packets that tried to leave since the last call."""
    found = []
    while True:
        try:
            packet = witness.recv(2048)
        except BlockingIOError:
            return found
        if packet[0] >> 4 == 4:
            found.append(socket.inet_ntoa(packet[16:20]))
        elif packet[0] >> 4 == 6:
            found.append(socket.inet_ntop(socket.AF_INET6, packet[24:40]))
