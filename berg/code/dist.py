"""What machines get of berg through the bucket: its wheel, and the packages that its worker needs.

The wheel holds the very code that the laptop runs, with the bytecode of what machines import: one
that has the laptop's python starts 0.15 s of CPU sooner. The archive holds the packages that the
laptop has installed, for python 3.10 or later, so that machines need no pip and no network but the
bucket. google-crc32c is compiled, because in pure python a gigabyte takes an hour: its library for
x86-64 Linux serves every python. Other processors, and installations that do not know their files,
ask pip on the machine. py-spy's wheel for x86-64 Linux is in the archive as it is; a machine
unpacks it for its first profile, or for a job that hangs.

Also uv, with which machines install: one version, known by the hash of its wheel. A laptop fetches
the wheel from its package index and sends it to the bucket for a job that needs it. A machine
unpacks it when uv is called for the first time (berg/machine/environment.py).
"""

import base64
import contextlib
import csv
import hashlib
import importlib.util
import io
import marshal
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path, PurePosixPath

import berg
from berg import BergError, __version__, computer
from berg.config import home

# Bytecode that python does not compare with its source: the wheel's hash vouches for both.
UNCHECKED = (1).to_bytes(4, "little")
KEPT = 4  # wheels: each change of berg's code makes one, of megabytes
ON_LAPTOPS = ("berg/commands/", "berg/laptop/", "berg/places.py", "berg/watch/")
ROOTS = ("click", "GitPython", "google-auth", "google-crc32c", "requests")
# They sign for google-auth, which no machine needs; see berg/machine/installation.py.
UNUSED = ("cryptography", "pyasn1-modules")
COMPILED = "google_crc32c"  # what these folders begin with
LIBRARY = "google_crc32c.libs/libcrc32c"
LEFT_OUT = (".pyc", ".pyi", ".c", ".h")
# The wheel whose library machines have, and its hash.
LIBRARY_OF = "google-crc32c==1.9.0"
LIBRARY_SHA256 = "3abb18297d9ef0ab120531838be0e6d68c9fa876570e11c229c48f2edac23ce7"
PY_SPY, PY_SPY_WHEEL = "py-spy==0.4.3", "py-spy.whl"
PY_SPY_SHA256 = "8a4277225f470d394a85cca0cdd944bef87f0097b6f20150a6dd3ac2e92806b8"
TIMEOUT = 120  # seconds for pip, which may have to wait for a slow network
MODULES = (
    "import sys; sys.path += sys.argv[1:]; import berg.worker; "
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
        with contextlib.suppress(OSError):  # another berg deletes them as well
            wheels = sorted(kept.parent.glob("*.whl"), key=lambda path: path.stat().st_mtime)
            for old in wheels[:-KEPT]:
                old.unlink()
    digest = hashlib.sha256(content).hexdigest()[:12]
    # A build tag (it must begin with a digit) keeps the name one that pip takes.
    return f"berg-{__version__}-0{digest}-py3-none-any.whl", content


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
    return zipped({**files, f"{info}/RECORD": record.getvalue().encode()})


def zipped(files: dict[str, bytes]) -> bytes:
    """Return a zip archive; the same files make the same bytes."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(
                zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), content, zipfile.ZIP_DEFLATED
            )
    return made.getvalue()


def console_scripts(installed: Distribution) -> str:
    """Return the entry points of berg's commands; pytest on a machine would fail at others."""
    found = installed.entry_points.select(group="console_scripts")
    return "\n".join(["[console_scripts]", *(f"{each.name} = {each.value}" for each in found), ""])


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
        computer.write(made, zipped(dict(sorted(files.items()))))
    content = made.read_bytes()
    return f"packages-{hashlib.sha256(content).hexdigest()[:12]}.zip", content


def find(names: tuple[str, ...]) -> list[Distribution]:
    """The installed packages of these names and all that they need; raises PackageNotFoundError
    without a root.
    """
    found: dict[str, Distribution] = {}
    ahead = list(names)
    while ahead:
        name = normal(ahead.pop())
        if name in found or name in UNUSED:
            continue
        try:
            found[name] = distribution(name)
        except PackageNotFoundError:  # for another python than this one, as its marker says
            if name in (root.lower() for root in names):
                raise
            continue
        for need in found[name].requires or []:
            if not re.search(r";.*\bextra\b", need) and (match := re.match(r"[\w.-]+", need)):
                ahead.append(match[0])
    return [found[name] for name in sorted(found)]


def normal(name: str) -> str:
    """Return a package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def collect(wanted: list[Distribution]) -> dict[str, bytes]:
    """The archive's files; {} where the packages do not know theirs, or google-crc32c's library
    cannot be had.
    """
    sources: dict[str, Path] = {}
    for each in wanted:
        if each.files is None:
            return {}
        taken = filter(is_taken, each.files)
        sources |= {path.as_posix(): Path(str(path.locate())) for path in taken}
    files = {name: source.read_bytes() for name, source in sources.items()} | kept_bytecode(sources)
    if not any(name.startswith(LIBRARY) for name in files):
        options = ["--python-version", "3.12", "--platform", "manylinux2014_x86_64"]
        try:
            wheel = download(LIBRARY_OF, LIBRARY_SHA256, pip(), *options)
        except BergError:
            return {}
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            files |= {name: archive.read(name) for name in archive.namelist() if ".so" in name}
    with contextlib.suppress(BergError):  # machines then ask their package index
        platform = ["--platform", "manylinux2014_x86_64"]
        files[PY_SPY_WHEEL] = download(PY_SPY, PY_SPY_SHA256, pip(), *platform)
    # A python imports what was compiled for it before a file of this name.
    return files | {"google_crc32c/_crc32c.py": ANY_PYTHON.encode()}


def is_taken(path: PackagePath) -> bool:
    """Tell whether a file of a package goes into the archive."""
    if {".so", ".pyd", ".dylib"} & set(path.suffixes):
        return sysconfig.get_platform() == "linux-x86_64" and path.parts[0].startswith(COMPILED)
    if path.parts[0].endswith(".dist-info"):
        return path.name in ("METADATA", "entry_points.txt") and path.suffix not in LEFT_OUT
    return path.parts[0] != ".." and path.suffix not in LEFT_OUT


def kept_bytecode(sources: dict[str, Path]) -> dict[str, bytes]:
    """Return what this python has compiled of the worker's modules, valid in any folder."""
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


UV_VERSION = "0.13.9"


@dataclass(frozen=True)
class Wheel:
    """A wheel of uv: static programs for Linux on one kind of processor."""

    name: str
    platform: str  # in pip's words
    sha256: str
    md5: str  # as Cloud Storage has it

    @property
    def path(self) -> str:
        """The object that it is in the bucket."""
        return f".berg/dist/{self.name}"


WHEELS = {
    "x86_64": Wheel(
        "uv-0.13.9-py3-none-musllinux_1_1_x86_64.whl",
        "musllinux_1_1_x86_64",
        "2c45530751517d6c3bbc69a19473f6effe47cce047bede01ffd8af7ea7b36b25",
        "5p54Ffmy/Jfms/CAE8IVDw==",
    ),
    "aarch64": Wheel(
        "uv-0.13.9-py3-none-manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64.whl",
        "manylinux_2_17_aarch64",
        "5435c5ce14a56431208ca0996416d310f1598e8c2c8ba707688985a16bb82dbe",
        "/yljuV74Nq7cFmBATCM+qw==",
    ),
}
OF_MACHINES = WHEELS["x86_64"]  # what a laptop sends


def fetch_uv() -> tuple[str, bytes]:
    """Return name and content of the wheel for machines, which this laptop keeps from then on.

    Raise BergError if its package index does not have it.
    """
    kept = home() / "uv" / OF_MACHINES.name
    content = kept.read_bytes() if kept.exists() else b""
    if hashlib.sha256(content).hexdigest() != OF_MACHINES.sha256:
        content = download_uv(OF_MACHINES, pip())
        computer.write(kept, content)
    return OF_MACHINES.name, content


def download_uv(wheel: Wheel, pip: list[str]) -> bytes:
    """Return a wheel from the package index that `pip` asks.

    Raise BergError if the index does not have it, or has another file of that name.
    """
    return download(f"uv=={UV_VERSION}", wheel.sha256, pip, "--platform", wheel.platform)
