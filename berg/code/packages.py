"""The packages that the worker imports, as one archive: machines need no pip, no apt and no network
but the bucket.

They are those that the laptop has installed, for whatever python 3.10 or later is on the image.
Only google-crc32c must be compiled, because in pure python a gigabyte takes an hour: its library,
for x86-64 Linux, serves every python. What the laptop's python compiled of the modules that the
worker imports travels too: a machine with that python imports them sooner. Not covered: other
processors, and installations that do not know their files. There the machine asks pip.
"""

import contextlib
import hashlib
import importlib.util
import io
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePosixPath

import berg
from berg import BergError, computer
from berg.code.dist import UNCHECKED
from berg.config import home

ROOTS = ("click", "GitPython", "google-auth", "google-cloud-storage", "requests")
# sign for google-auth, which nobody needs; see berg/machine/libraries.py
UNUSED = (
    "cryptography",
    "pyasn1-modules",
)
COMPILED = "google_crc32c"  # what these folders begin with
LIBRARY = "google_crc32c.libs/libcrc32c"
LEFT_OUT = (".pyc", ".pyi", ".c", ".h")
# The wheel whose library machines have, and its hash.
LIBRARY_OF = "google-crc32c==1.9.0"
LIBRARY_SHA256 = "3abb18297d9ef0ab120531838be0e6d68c9fa876570e11c229c48f2edac23ce7"
TIMEOUT = 120  # seconds for pip, which may have to wait for a slow network
MODULES = (
    "import sys; sys.path += sys.argv[1:]; import berg.worker, google.cloud.storage; "
    "print(*(getattr(each, '__file__', None) for each in [*sys.modules.values()]), sep='\\n')"
)
ANY_PYTHON = '''\
"""What the compiled module of this name does, for a python that it was not compiled for."""

import ctypes
from pathlib import Path

try:
    here = Path(__file__).parent.parent
    library = ctypes.CDLL(str(next(here.glob("google_crc32c.libs/libcrc32c*"))))
except (OSError, StopIteration) as error:
    raise ImportError(error) from None
library.crc32c_extend.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_size_t)
library.crc32c_extend.restype = ctypes.c_uint32


def extend(crc, chunk):
    return library.crc32c_extend(crc, chunk, len(chunk))


def value(chunk):
    return extend(0, chunk)
'''


def build() -> tuple[str, bytes]:
    """Name and content of the archive, made once for the packages' versions; ("", b"") where it
    cannot be made.
    """
    try:
        wanted = find(ROOTS)
    except PackageNotFoundError:
        return "", b""
    versions = (
        repr([(each.metadata["Name"], each.version) for each in wanted])
        + sys.version
        + Path(__file__).read_text()
    )
    made = home() / "packages" / f"{hashlib.sha256(versions.encode()).hexdigest()[:12]}.zip"
    if not made.exists():
        if not (files := collect(wanted)):
            return "", b""
        computer.write(made, pack(files))
    content = made.read_bytes()
    return f"packages-{hashlib.sha256(content).hexdigest()[:12]}.zip", content


def find(names: tuple[str, ...]) -> list[Distribution]:
    """The installed packages of these names and all that they need; raises PackageNotFoundError
    without a root.
    """
    found: dict[str, Distribution] = {}
    ahead = list(names)
    while ahead:
        name = re.sub(r"[-_.]+", "-", ahead.pop()).lower()
        if name in found or name in UNUSED:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another python than this one, as its marker says
            if name in (root.lower() for root in names):
                raise
            continue
        ahead += needs_of(found[name])
    return [found[name] for name in sorted(found)]


def needs_of(package: Distribution) -> list[str]:
    """Return the names of what a package needs, without its extras."""
    needs = [need for need in package.requires or [] if not re.search(r";.*\bextra\b", need)]
    return [match[0] for need in needs if (match := re.match(r"[\w.-]+", need))]


def collect(wanted: list[Distribution]) -> dict[str, bytes]:
    """The archive's files; {} where the packages do not know theirs, or google-crc32c's library
    cannot be had.
    """
    if any(each.files is None for each in wanted):
        return {}
    sources = {path.as_posix(): Path(str(path.locate())) for path in files_of(wanted)}
    files = {name: source.read_bytes() for name, source in sources.items()} | bytecode(sources)
    if not any(name.startswith(LIBRARY) for name in files):
        files |= download_library()
    # A python imports what was compiled for it before a file of this name.
    files["google_crc32c/_crc32c.py"] = ANY_PYTHON.encode()
    return files if any(name.startswith(LIBRARY) for name in files) else {}


def files_of(packages: list[Distribution]) -> list[PackagePath]:
    """Return the files of packages that go into the archive."""
    return [path for each in packages for path in each.files or [] if is_taken(path)]


def is_taken(path: PackagePath) -> bool:
    """Tell whether a file of a package goes into the archive."""
    if {".so", ".pyd", ".dylib"} & set(path.suffixes):
        return sysconfig.get_platform() == "linux-x86_64" and path.parts[0].startswith(COMPILED)
    if path.parts[0].endswith(".dist-info"):
        return path.name in ("METADATA", "entry_points.txt") and path.suffix not in LEFT_OUT
    return path.parts[0] != ".." and path.suffix not in LEFT_OUT


def bytecode(sources: dict[str, Path]) -> dict[str, bytes]:
    """What this python compiled the worker's modules to, as far as it did, in a form that holds
    wherever they lie.
    """
    folders = {str(source).removesuffix(name) for name, source in sources.items()}
    folders.add(str(Path(berg.__file__).parent.parent))
    # -I: else python would import what the caller's folder has of these names
    imported = subprocess.run(
        [sys.executable, "-I", "-c", MODULES, *sorted(folders)], capture_output=True, text=True
    ).stdout.splitlines()
    found = {}
    for name, source in sources.items():
        if str(source) not in imported:
            continue
        with contextlib.suppress(OSError, NotImplementedError):  # it keeps none
            kept, text = Path(importlib.util.cache_from_source(str(source))), source.read_bytes()
            code, times = kept.read_bytes(), (0, int(source.stat().st_mtime), len(text))
            made = b"".join((each & 0xFFFFFFFF).to_bytes(4, "little") for each in times)
            if code[:16] == importlib.util.MAGIC_NUMBER + made:
                marks = code[:4] + UNCHECKED + importlib.util.source_hash(text)
                found[(PurePosixPath(name).parent / "__pycache__" / kept.name).as_posix()] = (
                    marks + code[16:]
                )
    return found


def pip() -> list[str]:
    """Return the command that is pip: an environment that uv made has none of its own."""
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        return ["uv", "tool", "run", "pip"]
    return computer.python("pip")


def download_library() -> dict[str, bytes]:
    """Return what is compiled in google-crc32c's wheel for machines; {} where pip cannot get it."""
    options = ["--python-version", "3.12", "--platform", "manylinux2014_x86_64"]
    try:
        content = download(LIBRARY_OF, LIBRARY_SHA256, pip(), *options)
    except BergError:
        return {}
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        return {name: wheel.read(name) for name in wheel.namelist() if ".so" in Path(name).name}


def download(requirement: str, sha256: str, pip: list[str], *options: str) -> bytes:
    """Return the wheel of this hash from the package index that `pip` asks.

    Raise BergError if the index does not have it, or has another file of that name.
    """
    failed = f"{requirement} could not be downloaded"
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "wanted.txt")
        wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
        command = [*pip, "download", "--quiet", "--disable-pip-version-check", "--retries", "1"]
        command += ["--timeout", "10", "--no-deps", "--only-binary", ":all:", *options]
        command += ["--require-hashes", "--dest", folder, "--requirement", str(wanted)]
        try:  # in a folder where pip and uv read no file of the caller's
            asked = subprocess.run(command, cwd="/", capture_output=True, timeout=TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise BergError(f"{failed}: {error}") from None
        if found := list(Path(folder).glob("*.whl")):
            return found[0].read_bytes()
        lines = asked.stderr.decode(errors="replace").strip().splitlines()
        why = next((line for line in lines if line.startswith("ERROR: ")), "pip downloaded none")
        raise BergError(f"{failed}: {why.removeprefix('ERROR: ')}")


def pack(files: dict[str, bytes]) -> bytes:
    """A zip archive: the same files make the same bytes."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in sorted(files):
            zipped.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), files[name], zipfile.ZIP_DEFLATED
            )
    return archive.getvalue()
