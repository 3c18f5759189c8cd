"""A network that holds nothing but loopback, and a count of the packets that would have left it.

The tests run in a network namespace of their own whose only way out is a device that leads nowhere.
All their processes, machines included, live in it; whatever they send elsewhere is counted there.
"""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

CLONE_NEWNET = 0x40000000


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def enter() -> bool:
    """Move this process into such a network; False where that takes a root we are not."""
    if (
        os.getuid()
        or not shutil.which("ip")
        or ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET)
    ):
        return False
    ip("link", "set", "lo", "up")
    ip("link", "add", "outside", "type", "veth", "peer", "name", "nowhere")
    for device in ("outside", "nowhere"):
        ip("link", "set", device, "addrgenmode", "none", "arp", "off", "up")
    ip("address", "add", "198.51.100.1/24", "dev", "outside")
    ip("route", "add", "default", "dev", "outside")
    return True


def left() -> int:
    """How many packets tried to leave so far."""
    return int(re.search(r"outside:((\s+\d+){10})", Path("/proc/net/dev").read_text())[2])
