"""What differs between the computers that people sit at: Linux and macOS."""

import configparser
import contextlib
import errno
import os
import shutil
import socket
import sys
import tempfile
import unicodedata
from pathlib import Path

# Debian's names of packages -> Homebrew's
HOMEBREW = {"openssh-client": "openssh"}
# macOS refuses the path of a socket from 104 bytes on, and its own folder for temporary files has
# 49; ssh adds some 60.
SHORT_FOLDER = "/tmp"


def is_mac() -> bool:
    return sys.platform.startswith("darwin")


def install_command(package: str) -> str:
    """Return the command that installs one of Debian's packages, or what macOS has for it."""
    if is_mac():
        return f"brew install {HOMEBREW.get(package, package)}"
    return f"sudo apt-get install {package}"


def folder_for_sockets() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder whose path leaves room for the name of a socket."""
    place = SHORT_FOLDER if os.access(SHORT_FOLDER, os.W_OK) else None
    return tempfile.TemporaryDirectory(prefix="berg-", dir=place)


def gcloud_account() -> str:
    """Return the account that gcloud acts as here, from its own settings; "" if they name none."""
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
    """Return the whole path of a program, its name if it is not there: an editor that was started
    from the Dock looks in other folders.
    """
    return shutil.which(name) or name


def python(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of Berg's python. It does not look for modules in the
    folder that it is started in, as `python -m` does.
    """
    launcher = Path(__file__).resolve().with_name("launcher.py")
    return [sys.executable, "-I", str(launcher), module, *arguments]


def write(path: Path, content: str | bytes) -> None:
    """Write a file of the user's so that readers find the old content or all of the new.

    A link stays a link, and a file keeps its mode; new files and folders are for their owner alone.
    """
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
    """Return this port, or for 0 any that is free; raise OSError if another program has it.

    MacOS lets a program have a port of 127.0.0.1 that another one has for all addresses, as AirPlay
    has 5000.
    """
    if port and listens(host, port):
        raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    with socket.socket() as probe:
        if port:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def folds_names(folder: Path) -> bool:
    """Whether a folder takes two names for one file where only case tells them apart."""
    with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(prefix="a-", dir=folder) as one:
        return (folder / Path(one.name).name.upper()).exists()
    return False


def folded(name: str) -> str:
    """Return what names have in common that such a folder takes for one."""
    return unicodedata.normalize("NFC", name).casefold()
