"""The user's computer: what differs between Linux and macOS, files, ports and programs.

As a program, `python -I computer.py MODULE ARGUMENT…`, it runs a module of Berg's own python.
"""

import configparser
import contextlib
import errno
import os
import runpy
import shutil
import site
import socket
import sys
import tempfile
import unicodedata
from pathlib import Path

# Debian's names of packages -> Homebrew's
HOMEBREW = {"openssh-client": "openssh"}
# The path of a socket has less than 104 bytes on macOS, whose temporary folder has 49; ssh adds 60.
SHORT_FOLDER = "/tmp"


def is_mac() -> bool:
    return sys.platform.startswith("darwin")


def install_command(package: str) -> str:
    """Return the command that installs a package with this name in Debian."""
    if is_mac():
        return f"brew install {HOMEBREW.get(package, package)}"
    return f"sudo apt-get install {package}"


def folder_for_sockets() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder whose path leaves room for the name of a socket."""
    place = SHORT_FOLDER if os.access(SHORT_FOLDER, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="berg-", dir=place)


def gcloud_account() -> str:
    """Return the account in gcloud's own settings, "" if they name none."""
    if account := os.environ.get("CLOUDSDK_CORE_ACCOUNT"):
        return account
    folder = Path(os.environ.get("CLOUDSDK_CONFIG") or Path.home() / ".config/gcloud")
    try:
        active = (folder / "active_config").read_text().strip()
    except OSError:
        active = "default"
    active = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or active
    settings = configparser.ConfigParser(interpolation=None)
    try:
        settings.read(folder / f"configurations/config_{active}")
        return settings.get("core", "account", fallback="")
    except (OSError, ValueError, configparser.Error):
        return ""


def program(name: str) -> str:
    """Return the path of a program, or its name: apps from the Dock have another PATH."""
    return shutil.which(name) or name


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of Berg's own python by its name.

    `python -m MODULE` would look for it in the caller's folder first. With -I python knows neither
    that folder nor the variables of the environment, and finds what is next to Berg all the same.
    """
    return [sys.executable, "-I", str(Path(__file__).resolve()), module, *arguments]


def run_module() -> None:
    """Run the module that the first argument names, with the other arguments."""
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    if sys.prefix == sys.base_prefix:
        site.addsitedir(site.getusersitepackages())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def write(path: Path, content: str | bytes) -> None:
    """Write a file atomically. Links stay, and so does the mode; new files are private."""
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.{os.urandom(8).hex()}")
    try:
        new.touch(mode=0o600, exist_ok=False)
        new.write_bytes(content.encode() if isinstance(content, str) else content)
        if path.exists():
            new.chmod(path.stat().st_mode & 0o777)
        new.replace(path)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


def listens(host: str, port: int, timeout: float = 1) -> bool:
    """Return whether a program accepts connections at a port."""
    try:
        socket.create_connection((host, port), timeout).close()
    except OSError:
        return False
    return True


def free_port(port: int = 0, host: str = "127.0.0.1") -> int:
    """Return this port, or a free one for 0; raise OSError if another program uses it.

    On macOS a port of 127.0.0.1 can be bound that another program has for all addresses.
    """
    if port and listens(host, port):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    with socket.socket() as probe:
        if port:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def folds_names(folder: Path) -> bool:
    """Return whether names in a folder are not case-sensitive."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix="a-", dir=folder) as one:
        return (folder / Path(one.name).name.upper()).exists()
    return False


def folded(name: str) -> str:
    """Return the same text for all names that such a folder treats as equal."""
    return unicodedata.normalize("NFC", name).casefold()


if __name__ == "__main__":
    run_module()
