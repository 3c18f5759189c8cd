"""Berg itself as a wheel, so that machines run the very code that the laptop runs.

With what the laptop's python compiles of the modules that machines import: one that has the same
python need not, which takes 0.15 s of CPU at each start.
"""

import base64
import contextlib
import csv
import hashlib
import importlib.util
import io
import marshal
import sys
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from berg import __version__, computer
from berg.config import home

# bytecode that is not compared with its source: the wheel's hash vouches for both
UNCHECKED = (1).to_bytes(4, "little")
KEPT = 4  # wheels, of the versions that somebody may go back to
ON_LAPTOPS = ("berg/commands/", "berg/laptop/", "berg/places/", "berg/watch/")


def build_wheel() -> tuple[str, bytes]:
    """Name and content of the wheel of the running berg, without the embedded cloud.

    It is made once for the same code, and the name carries its hash.
    """
    files = sources()
    key = hashlib.sha256(f"{sys.version} {__version__}".encode())
    for name, source in files.items():
        key.update(f"{name} {len(source)} ".encode() + source)
    kept = home() / "wheels" / f"{key.hexdigest()[:16]}.whl"
    try:
        content = kept.read_bytes()
    except FileNotFoundError:
        content = pack(files | bytecode(files))
        computer.write(kept, content)
        prune(kept.parent)
    digest = hashlib.sha256(content).hexdigest()[:12]
    # A build tag (it must begin with a digit) keeps the name one that pip takes.
    return f"berg-{__version__}-0{digest}-py3-none-any.whl", content


def prune(folder: Path) -> None:
    """Delete all wheels but the newest: each change of berg's code makes one, of megabytes."""
    with contextlib.suppress(OSError):  # others prune as well
        made = sorted(folder.glob("*.whl"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in made[KEPT:]:
            old.unlink()


def sources() -> dict[str, bytes]:
    """Return the files of the wheel that are not compiled, by their names in it."""
    package = Path(__file__).parent.parent
    paths = [*package.rglob("*.py"), package / "machine/horovod.sh"]
    wanted = sorted(path.relative_to(package.parent).as_posix() for path in paths)
    files = {name: (package.parent / name).read_bytes() for name in wanted}
    info = f"berg-{__version__}.dist-info"
    installed = distribution("berg")
    metadata = installed.read_text("METADATA") or installed.read_text("PKG-INFO") or ""
    files[f"{info}/METADATA"] = metadata.encode()
    files[f"{info}/entry_points.txt"] = console_scripts(installed).encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: berg\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    return files


def bytecode(files: dict[str, bytes]) -> dict[str, bytes]:
    """Return what this python makes of the modules of machines, by the names where it looks."""
    found = {}
    for name, source in files.items():
        if name.endswith(".py") and not name.startswith(ON_LAPTOPS):
            code = compile(source, name, "exec", dont_inherit=True)
            path = PurePosixPath(name)
            kept = f"{path.stem}.{sys.implementation.cache_tag}.pyc"
            found[f"{path.parent}/__pycache__/{kept}"] = (
                importlib.util.MAGIC_NUMBER
                + UNCHECKED
                + importlib.util.source_hash(source)
                + marshal.dumps(code)
            )
    return found


def pack(files: dict[str, bytes]) -> bytes:
    """Return the wheel of these files, with its list of them."""
    info = f"berg-{__version__}.dist-info"
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    files = {**files, f"{info}/RECORD": record.getvalue().encode()}
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    return wheel.getvalue()


def console_scripts(installed: Distribution) -> str:
    """Return the entry points of berg's commands alone.

    The others lead to the embedded cloud, which machines do not have: their pytest would fail.
    """
    found = installed.entry_points.select(group="console_scripts")
    return "\n".join(["[console_scripts]", *(f"{each.name} = {each.value}" for each in found), ""])
