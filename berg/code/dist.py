"""Berg itself as a wheel, so that machines run the very code that the laptop runs."""

import base64
import csv
import hashlib
import io
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

from berg import __version__


def build_wheel() -> tuple[str, bytes]:
    """Name and content of the wheel of the running berg, without the embedded cloud.

    The same code makes the same bytes, and the name carries their hash.
    """
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
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        rows.writerow([name, f"sha256={digest}", len(content)])
    rows.writerow([f"{info}/RECORD", "", ""])
    files[f"{info}/RECORD"] = record.getvalue().encode()
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content)
    digest = hashlib.sha256(wheel.getvalue()).hexdigest()[:12]
    # A build tag (it must begin with a digit) keeps the name one that pip takes.
    return f"berg-{__version__}-0{digest}-py3-none-any.whl", wheel.getvalue()


def console_scripts(installed: Distribution) -> str:
    """Return the entry points of berg's commands alone.

    The others lead to the embedded cloud, which machines do not have: their pytest would fail.
    """
    found = installed.entry_points.select(group="console_scripts")
    return "\n".join(["[console_scripts]", *(f"{each.name} = {each.value}" for each in found), ""])
