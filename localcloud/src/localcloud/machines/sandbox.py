"""An instance as a Linux sandbox: its file system, its environment, its console; and how it starts.

A machine is a process tree in mount, uts, ipc and pid namespaces (and a user namespace where the
server is not root). Its folder in the state folder holds everything it owns:

    machines/<id>/rootfs/       the skeleton of its root: /tmp, /run, /home, /mnt, mount points
    machines/<id>/upper/ work/  overlays: what it changed in /usr /etc /var /opt /srv and /root
    machines/<id>/root/         its /root where it has no namespaces
    machines/<id>/ssh/          its /etc/ssh, see sshd.py
    machines/<id>/disks/        its disks other than the first, see compute/blocks.py
    machines/<id>/serial.log    what it wrote to the serial console
    machines/<id>/init.pid      process id and start time of its first process

It sees the host's programs and configuration, never the host's home folders; what it writes is its
own and vanishes with it. Its environment is clean but for the address of its metadata server and
the host's network settings: *_proxy, PIP_*, SSL_CERT_FILE, REQUESTS_CA_BUNDLE, CURL_CA_BUNDLE.

Its image is the host plus a prepared /root, see image.py; how it is found again and ended, see
processes.py.

Not covered: a network namespace of its own (machines share the host's ports, each has a loopback
address), memory and cpu limits, devices, folders mounted separately below /usr /etc /var /opt /srv.
It is no security boundary: where the server is root, so is the machine. As an ordinary user the
host's system files belong to another user inside, so a package manager cannot replace them.
shutdown-script and startup-script-url are not run.
"""

import contextlib
import functools
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from localcloud.machines import sshd

BOOT = Path(__file__).with_name("boot.sh")
SYSTEMCTL = BOOT.with_name("systemctl.sh")
OVERLAID = ("usr", "etc", "var", "opt", "srv")
SKELETON = (
    *OVERLAID,
    "root",
    "home",
    "run",
    "mnt",
    "media",
    "boot",
    "workspace",
    "proc",
    "sys",
    "dev",
    "old",
)
PASSED_ON = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
SCRIPT = "tmp/metadata-scripts/startup-script"
POWER_OFF = "#!/bin/sh\n# The first process of this machine takes SIGTERM as its power button.\nexec kill -TERM 1\n"

GOOGLE, PROCESSOR = "0x1ae0", "0x088000"  # vendor and class of a PCI device that is a TPU
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What apt-daily does at the first boot, as others see it: it holds the locks of apt and dpkg.
APT_DAILY = """\
#!/usr/bin/env -S python3 -I -S
import contextlib, fcntl, time
held = []
for name in ("lib/apt/lists/lock", "lib/dpkg/lock-frontend", "lib/dpkg/lock", "cache/apt/archives/lock"):
    with contextlib.suppress(OSError):  # without root, or on a host without apt
        held.append(open("/var/" + name, "w"))
        fcntl.lockf(held[-1], fcntl.LOCK_EX)
time.sleep({seconds})
"""
# The host may have python3-venv, which a deep-learning image has not: it is there once it was installed.
APT_GET = """#!/bin/sh
/usr/bin/apt-get "$@" || exit
case " $* " in *" install "*" python3-venv "*) rm -f /usr/local/lib/python3*/dist-packages/no-python3-venv.pth ;; esac
"""
# What is a machine's own in /usr/local, or its root could install nothing there where that is not
# the host's root.
LOCAL = ("", "sbin", "bin", "etc", "include", "lib", "share", "share/man", "share/man/man1")
# A stub of PyTorch on machines of a deep-learning image, with the parts that are often imported. pip
# and uv know its version, and replace it by another.
TORCH_VERSION = "2.9.1+cu129"
TORCH = f"""\
'A stub of the embedded cloud: PyTorch is not installed.'

__version__ = "{TORCH_VERSION}"
SAYS = (
    "this machine of the embedded cloud has no PyTorch: its package torch is only a stub of the one in "
    "Google's deep-learning images. Let the job install another version (torch!=2.9.1 in requirements.txt)"
)


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    raise ImportError(SAYS)
"""
TORCH_PARTS = ("cuda", "distributed", "nn", "optim", "utils")
LOCALHOST = "127.0.0.1"  # of machines that only try or make something: they run no ssh server

PLAIN, OVERLAY = "plain", "overlay"


@dataclass(frozen=True)
class Sandbox:
    """What this host lets us build: `files` is overlay or plain; `user` whether it takes a
    user namespace.
    """

    files: str
    user: bool = False


@dataclass(frozen=True)
class Machine:
    folder: Path
    name: str
    address: str  # its own address in 127.0.0.0/8
    metadata_port: int
    image: Path | None  # the image's /root; None for an empty one
    startup_script: str | None
    variables: dict[str, str] = field(default_factory=dict)  # more of its environment
    # PCI devices of Google's, which take the place of the host's
    devices: list[str] = field(default_factory=list)
    # name -> address of others that it knows, as by Google's DNS
    peers: dict[str, str] = field(default_factory=dict)
    learns: bool = False  # whether it is of a deep-learning image: with torch, without python3-venv
    busy: float = 0  # seconds for which its first boot installs packages
    devices_open: list[int] = field(default_factory=list)  # its Local SSDs, see compute/blocks.py
    metadata_address: str = (
        ""  # where its metadata server is, if not at its own address: a pod's is its node's
    )

    @property
    def metadata_host(self) -> str:
        return self.metadata_address or self.address


def boot(machine: Machine, sandbox: Sandbox) -> subprocess.Popen[bytes]:
    """Start a machine; it is up once `processes.first_process` knows it. The caller reaps the
    returned process.
    """
    prepare_folder(machine, sandbox)
    folder = str(machine.folder)
    command = [
        str(BOOT),
        sandbox.files,
        folder,
        str(machine.image or machine.folder / "empty"),
        machine.name,
    ]
    if sandbox.files != PLAIN:
        user = ["--user", "--map-root-user"] if sandbox.user else []
        flags = ["--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        command = ["unshare", *user, *flags, "bash", *command, *map(str, python_folders())]
    else:
        command = ["bash", *command]
    with (machine.folder / "serial.log").open("ab") as console:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            env=environment(machine),
            cwd="/",
            umask=0o022,  # the server's own is for private files
            start_new_session=True,
            pass_fds=machine.devices_open,
        )


def prepare_folder(machine: Machine, sandbox: Sandbox) -> None:
    """Lay out a machine's folder; at a later boot keep its disk, but empty /tmp and /run."""
    folder, root = machine.folder, machine.folder / "rootfs"
    first = not root.exists()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "init.pid").unlink(missing_ok=True)
    for name in ("tmp", "run", "old"):
        if (root / name).exists():
            remove(root / name)
    for path in (
        root,
        *(root / name for name in SKELETON),
        *(folder / "upper" / name for name in OVERLAID),
    ):
        make_public(path)
    (root / "tmp").mkdir(mode=0o1777)
    (root / "tmp").chmod(0o1777)
    if first and machine.busy and sandbox.files == OVERLAY:
        (root / "run/apt-daily").write_text(APT_DAILY.format(seconds=machine.busy))
        (root / "run/apt-daily").chmod(0o755)
    if first and sandbox.files == OVERLAY:
        hide_docker(folder / "upper")
    (folder / "empty").mkdir(exist_ok=True)
    (folder / "disks").mkdir(exist_ok=True)
    (folder / "upper/root").mkdir(exist_ok=True)
    for name in (*OVERLAID, "root"):
        (folder / "work" / name).mkdir(parents=True, exist_ok=True)
    write_system_files(machine)
    for number, device in enumerate(machine.devices):
        shown = folder / f"pci/0000:00:{number + 4:02x}.0"
        shown.mkdir(parents=True, exist_ok=True)
        for name, value in (("vendor", GOOGLE), ("device", device), ("class", PROCESSOR)):
            (shown / name).write_text(f"{value}\n")
    if sandbox.files != PLAIN:
        runs_sshd = not ssh_obstacle(sandbox) and machine.address != LOCALHOST
        variables = {name: value for name, value in environment(machine).items() if name != "TERM"}
        sshd.prepare(folder, machine.address, variables, runs_sshd, sandbox.user)
    else:
        own_root(machine)
    if machine.startup_script is not None:
        script = root / SCRIPT
        script.parent.mkdir(mode=0o700)
        script.touch(mode=0o700)
        script.write_text(machine.startup_script)


def hide_docker(upper: Path) -> None:
    """Let a new machine have no docker, as Google's images have none, whatever the host has."""
    for folder in PATH.split(":"):
        shown = upper / folder.removeprefix("/") / "docker"
        if Path(folder, "docker").exists() and not os.path.lexists(shown):
            make_public(shown.parent)
            with contextlib.suppress(PermissionError):  # some kernels give users no whiteouts
                os.mknod(shown, stat.S_IFCHR, os.makedev(0, 0))


def make_public(folder: Path) -> None:
    """Make a folder that users of the machine other than root may enter, whatever the server's
    umask.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)


def write_system_files(machine: Machine) -> None:
    etc = machine.folder / "upper/etc"
    (etc / "hostname").write_text(machine.name + "\n")
    # Written on its own: container runtimes mount the host's file, and a mount does not show
    # through an overlay.
    resolver = Path("/etc/resolv.conf")
    (etc / "resolv.conf").write_text(resolver.read_text() if resolver.exists() else "")
    (etc / "hosts").write_text(
        "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
        f"{machine.address} {machine.name}\n{machine.metadata_host} metadata.google.internal metadata\n"
        # google-auth asks this host about every service account it meets, in the background, with
        # its token. A token of the embedded cloud is none of Google's business: nothing answers at
        # this address.
        f"{machine.address} iamcredentials.googleapis.com\n"
        + "".join(
            f"{address} {name}\n" for name, address in machine.peers.items() if name != machine.name
        )
    )
    for name in ("hostname", "resolv.conf", "hosts"):
        (etc / name).chmod(0o644)
    programs = dict.fromkeys(("poweroff", "halt", "shutdown"), POWER_OFF)
    programs["systemctl"] = SYSTEMCTL.read_text()
    folder = machine.folder / "upper/usr/local/sbin"  # first in PATH, and empty on most hosts
    for name in LOCAL:
        if not Path("/usr/local", name).is_symlink():
            make_public(folder.parent / name)
    for headers in python_headers():
        for path in (*reversed(headers.parents), headers):
            make_public(machine.folder / "upper" / path.relative_to("/"))
    if machine.learns:
        mark = etc / "deep-learning-image"  # of a disk, whose later changes stay
        if not mark.exists():
            write_python(machine.folder / "upper")
            mark.touch()
        if Path("/usr/bin/apt-get").exists():
            programs["apt-get"] = APT_GET
    for name, text in programs.items():
        program = folder / name
        program.write_text(text)
        program.chmod(0o755)


def write_python(upper: Path) -> None:
    """Let the system's python be that of Google's deep-learning images: it has torch, unless the host
    has one, and Debian's has no ensurepip.
    """
    for folder in map(Path, system_python()):
        packages = upper / folder.relative_to("/")
        for path in [*reversed(packages.parents), packages]:
            if path.is_relative_to(upper / "usr/local"):
                make_public(path)
        if not (folder / "torch").exists():
            write_torch(packages)
        missing = "import sys; sys.modules.update(venv=None, ensurepip=None)\n"
        (packages / "no-python3-venv.pth").write_text(missing)


def write_torch(packages: Path) -> None:
    """Install the stub of PyTorch as a package that pip and uv can remove."""
    about = f"torch-{TORCH_VERSION}.dist-info"
    files = {
        "torch/__init__.py": TORCH,
        **{f"torch/{part}/__init__.py": "import torch\n\ntorch.Tensor\n" for part in TORCH_PARTS},
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {TORCH_VERSION}\n",
        f"{about}/INSTALLER": "pip\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{about}/RECORD"])
    for name, text in files.items():
        make_public((packages / name).parent)
        (packages / name).write_text(text)


@functools.cache
def system_python() -> list[str]:
    """The folder below /usr/local where a machine's own python3 finds packages; none without such a
    python and pip.
    """
    code = "import pip, site; print(*[path for path in site.getsitepackages() if path.startswith('/usr/local/')][:1])"
    return printed_by_python(code)


@functools.cache
def python_headers() -> list[Path]:
    """The folder below /usr where a machine's own python3 puts headers of packages; none without one."""
    lines = printed_by_python("import sysconfig; print(sysconfig.get_path('include'))")
    return [Path(line) for line in lines if line.startswith("/usr/")]


def printed_by_python(code: str) -> list[str]:
    """The words that a machine's own python3 prints; none without one."""
    if not shutil.which("python3", path=PATH):
        return []
    command = ["python3", "-I", "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, env={"PATH": PATH}
    ).stdout.split()


def ssh_obstacle(sandbox: Sandbox) -> str:
    """Why machines run no ssh server here; "" if they do."""
    return "that takes namespaces" if sandbox.files == PLAIN else sshd.obstacle(sandbox.user)


def own_root(machine: Machine) -> None:
    """Copy the image's /root, once: without overlays every machine needs its own."""
    root, image = machine.folder / "root", machine.image or machine.folder / "empty"
    if not root.exists():
        subprocess.run(["cp", "-a", "--reflink=auto", "-T", image, root], check=True)


def environment(machine: Machine) -> dict[str, str]:
    """Everything a machine's processes inherit from outside; see the module's docstring."""
    metadata_server = f"{machine.metadata_host}:{machine.metadata_port}"
    passed_on = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy") or name.startswith("PIP_") or name in PASSED_ON
    }
    no_proxy = next(
        (passed_on[name] for name in ("no_proxy", "NO_PROXY") if passed_on.get(name)), ""
    )
    # What /etc/hosts keeps from Google (see write_system_files) no proxy must bring there.
    if no_proxy != "*" and any(name.lower().endswith("_proxy") for name in passed_on):
        no_proxy = f"{no_proxy},iamcredentials.googleapis.com".lstrip(",")
        passed_on |= {"no_proxy": no_proxy, "NO_PROXY": no_proxy}
    return {
        "PATH": PATH,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "GCE_METADATA_HOST": metadata_server,
        "GCE_METADATA_IP": metadata_server,
        **machine.variables,
        **passed_on,
    }


def python_folders() -> list[Path]:
    """Folders of this process's python, and those that LOCALCLOUD_SHOW names (separated by colons),
    which a machine would not see otherwise; outermost first.
    """
    executable = Path(sys.executable)
    installation = executable.resolve().parent.parent
    prefixes = {Path(sys.prefix), Path(sys.base_prefix), installation}
    prefixes |= {Path(path) for path in os.environ.get("LOCALCLOUD_SHOW", "").split(":") if path}
    prefixes |= {prefix.resolve() for prefix in prefixes}
    if executable.is_symlink():
        prefixes.add(executable.parent.joinpath(executable.readlink()).parent.parent)
    visible = [Path("/") / name for name in OVERLAID]
    kept: list[Path] = []
    for prefix in sorted(prefixes):
        if not any(prefix.is_relative_to(folder) for folder in visible + kept):
            kept.append(prefix)
    return kept


def remove(folder: Path) -> None:
    """Delete a folder with everything in it, the closed working folders of overlays included."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        subprocess.run(["chmod", "-R", "u+rwx", folder], check=False, capture_output=True)
        shutil.rmtree(folder)


def own_root_of(folder: Path, sandbox: Sandbox) -> Path:
    """Where the host finds a machine's /root; with overlays, the part of it that differs from the
    image.
    """
    return folder / ("upper/root" if sandbox.files == OVERLAY else "root")


def console_tail(folder: Path) -> str:
    """The last line on a machine's console: why it did not boot."""
    try:
        return (folder / "serial.log").read_text(errors="replace").strip().rpartition("\n")[2]
    except OSError:
        return "its console is empty"
