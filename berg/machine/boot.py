#!/usr/bin/env python3
"""The startup script: fetch berg from the bucket, run its worker, and record how that ended.

One file, for python 3.8 and its standard library alone. If the worker dies, a second one saves the
results; if that fails, too, this script records the failure and deletes the machine. A fault never
deletes a devbox: it is turned off, or stays on for logins (`Machine.keep`).
"""

# A startup script gets no signal when its machine shuts down (its service has KillMode=process),
# and soon there is no network. So where there is systemd, the script makes a unit that runs this
# file a second time, with `work`. The unit gets SIGTERM at once and has the network to its end.
# In a pod this is the program of the container. Its facts are in the environment, its metadata in
# its annotations, and its exit code says whether Kubernetes makes another pod.

from __future__ import annotations  # for python 3.8

import fcntl
import hashlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
import zipfile
from collections.abc import Callable
from email.message import Message
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(os.environ.get("BERG_ROOT", "/root"))
BERG = Path(os.environ.get("BERG_FOLDER", ROOT / "berg"))
SSH = ROOT / ".ssh"
METADATA_HOST = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
METADATA = f"http://{METADATA_HOST}/computeMetadata/v1/"
FLAVOR = {"Metadata-Flavor": "Google"}
CONSOLE_LINE = 8000  # bytes; the reader of a startup script's output gives up at a line of 64 KB
FORBIDDEN_SECONDS = 900  # for which 403 is retried: new rights take minutes
LOCKED_SECONDS = 600  # for which the first boot of an image may install packages
REFUSED_PAUSE = 600  # seconds between two tries to delete a machine after Google refused that
MOST_UNDELETED = 10  # machines that a state names which could not delete themselves
SYSTEMD = Path("/run/systemd/system")
UNIT = """\
[Unit]
Description=Runs a job, made by its startup script
# The last results are uploaded at shutdown.
Wants=network-online.target
After=network-online.target nss-lookup.target
# Upgrades of packages must not restart it.
RefuseManualStop=yes

[Service]
Type=simple
ExecStart={python} {script} work
# The first process gets SIGTERM and passes it to its worker, which ends the command; what is left
# at the end is killed.
KillMode=mixed
TimeoutStopSec=600
# A command that runs out of memory must not end the worker.
OOMPolicy=continue
TasksMax=infinity
# As in a container.
LimitNOFILE=1048576
LimitMEMLOCK=infinity
LimitNPROC=infinity
StandardOutput=tty
"""
SHUTDOWN_SECONDS = 60
# When this process, the script or its worker, got SIGTERM, in seconds since 1970.
SIGTERM_TIMES: list[float] = []
ANSWERED = [time.time(), time.monotonic()]  # Google's time in its last answer, and when it came
LARGEST = 1 << 30  # bytes of an answer that are read
CRASHES = 3  # of its worker, that a machine of a sweep survives
POD = os.environ.get("BERG_POD")  # the pod's uid, where this machine is one
ANNOTATIONS = Path("/etc/berg/pod/annotations")  # a line KEY="VALUE" each
DRIVERS_IN_PODS = {"PATH": "/usr/local/nvidia/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
FOR_WORKER = ("NO_PROXY", "LD_LIBRARY_PATH")  # variables that this script sets, besides PATH
OVER = 42  # exit code of a pod that must not be replaced: its job has ended without success
RETRIED = (408, 429, 500, 502, 503, 504)  # statuses, as in berg/google/api.py
LAST_WORDS = 500  # characters of what the worker printed before it died, for the job's reason
DEPENDENCIES_MISSING = 64  # the worker's exit code when its python lacks a package
ANOTHER_JOB = 65  # the same when the metadata name another job, for which this machine waited
INSTALLS = ".installs"  # suffix of an object: this machine waits to install packages
# The last line on the console of a machine that makes an image; berg/laptop/images.py reads it.
IMAGE_READY, NO_IMAGE = "The disk is ready to be an image", "The disk is no image: "
FINAL = ("SUCCEEDED", "FAILED", "KILLED", "LOST")
# What a fault does to a devbox (metadata berg-box): it is stopped, or it stays on.
STOPS, STAYS = "stop", "stay"
HISTORY, ATTEMPTS, WHY = 30, 10, 150  # as in berg/job.py
POLL = 2  # seconds between two reads of the metadata of a machine that is kept on
# Attributes of an instance, and fields of Machine.
ATTRIBUTES = ["packages", "endpoint", "dist_sha256", "packages_sha256", "job_sha256"]
ATTRIBUTES += ["cluster_key", "box", "sweep", "warm"]
Headers = dict[str, str]


def bypass_proxies() -> None:
    """Reach this machine and the metadata server without a proxy, as berg does elsewhere."""
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    near = ["localhost", "127.0.0.1", "::1", "metadata.google.internal", "metadata"]
    near += ["169.254.169.254", METADATA_HOST.partition(":")[0]]
    if old.strip() != "*" and any(name.lower().endswith("_proxy") for name in os.environ):
        hosts = [host for host in old.split(",") if host] + near
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


def console(text: str) -> None:
    """Print to the serial console, in lines that its reader takes; ignore a closed console."""
    # else the runner of startup scripts has its own mark
    mark = "berg: " if "BERG_UNIT" in os.environ else ""
    try:
        for line in text.splitlines():
            short = line.encode(errors="replace")[:CONSOLE_LINE].decode(errors="ignore")
            print(mark + short, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)


def now() -> str:
    """Return the time by Google's clock: this machine's may be hours off."""
    date, at = ANSWERED
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(date + time.monotonic() - at))


def request(
    url: str,
    method: str = "GET",
    data: bytes | None = None,
    headers: Headers | None = None,
    attempts: int = 8,
    forbidden_seconds: float = 0,
) -> tuple[bytes, Message]:
    """Return content and headers of an answer.

    Retry for about a minute what may pass, and 403 for `forbidden_seconds`.
    """
    attempt, until = 0, time.monotonic() + forbidden_seconds
    while True:
        attempt += 1
        try:
            call = urllib.request.Request(url, data=data, method=method, headers=headers or {})
            with urllib.request.urlopen(call, timeout=60) as answer:
                if date := answer.headers["Date"]:
                    ANSWERED[:] = parsedate_to_datetime(date).timestamp(), time.monotonic()
                content = answer.read(LARGEST)
                if len(content) < min(LARGEST, int(answer.headers.get("Content-Length", 0))):
                    raise http.client.IncompleteRead(content)
                return content, answer.headers
        except urllib.error.HTTPError as error:
            if error.code == 403 and time.monotonic() < until:
                console("403 Forbidden. New rights take minutes. Trying again")
            elif error.code not in RETRIED or attempt >= attempts:
                raise
        except (OSError, http.client.HTTPException):  # the latter of an incomplete answer
            if attempt >= attempts:
                raise
        time.sleep(min(2 ** min(attempt, 8) * 0.25, 15))


def metadata(path: str, default: str | None = None) -> str:
    """Return a value of the metadata server; `default` replaces a missing one."""
    try:
        return request(METADATA + path, headers=FLAVOR)[0].decode()
    except urllib.error.HTTPError as error:
        if error.code == 404 and default is not None:
            return default
        raise


def pod_annotations() -> dict[str, str]:
    """Return a pod's annotations as the attributes of an instance: a slash becomes a dash."""
    found = {}
    lines = ANNOTATIONS.read_text().splitlines() if ANNOTATIONS.exists() else []
    for line in lines:
        key, _, value = line.partition("=")
        if value.endswith('"'):
            found[key.replace("/", "-")] = json.loads(value)
    return found


class Machine:
    """An instance of Compute Engine: its facts, metadata, console, log and end."""

    def __init__(self) -> None:
        facts = self.facts()
        self.name, self.zone, self.project = facts["name"], facts["zone"], facts["project"]
        self.bucket, self.dist, self.endpoint = facts["bucket"], facts["dist"], facts["endpoint"]
        self.job, self.sweep, self.packages = facts["job"], facts["sweep"], facts["packages"]
        # The submitting laptop wrote these, and no machine may: a bucket that many may write to
        # cannot change what runs here.
        self.dist_sha256 = facts["dist_sha256"]
        self.packages_sha256 = facts["packages_sha256"]
        self.job_sha256 = facts["job_sha256"]  # of the job's metadata, or of its sweep's list
        self.cluster_key = facts["cluster_key"]  # signs messages between the machines of a job
        self.warm = facts.get("warm", "")  # the job that took it when it was warm
        self.recipe = facts.get("recipe", "")  # of the image to make of this disk; "": none
        self.box = facts.get("box", "")  # of a devbox: STOPS or STAYS
        self.rescuer = facts.get("rescuer", "")  # user of berg start --rescue
        self.log = self.log_in(BERG / "logs")

    def facts(self) -> dict[str, Any]:
        """Return what this machine was created with."""
        instance = self.instance()
        name, attributes = instance["name"], instance["attributes"]
        found = {key: attributes.get("berg-" + key.replace("_", "-"), "") for key in ATTRIBUTES}
        return {
            **found,
            "name": name,
            "zone": instance["zone"].rpartition("/")[2],
            "project": metadata("project/project-id"),
            "bucket": attributes["berg-bucket"],
            "job": attributes.get("berg-job", found["sweep"] or name),
            "dist": attributes["berg-dist"],
            "recipe": attributes.get("berg-image", ""),
            "rescuer": attributes.get("berg-rescue", ""),
        }

    def log_for(self, job: str) -> None:
        """Begin a log of a job's own, with what was logged since the job before it."""
        early, self.log = self.log, self.log_in(BERG / "logs" / job)
        if early.exists() and not self.log.exists():
            early.rename(self.log)

    def log_in(self, folder: Path) -> Path:
        """Return the log that this disk has in a folder, or a new one; names sort by time."""
        folder.mkdir(parents=True, exist_ok=True)
        seconds = time.time()
        begin = time.strftime("%Y%m%dT%H%M%S", time.gmtime(seconds))
        name = f"{self.name}.{begin}{seconds % 1 * 999:03.0f}.log"
        return max(folder.glob(self.name + ".*.log"), default=folder / name)

    def instance(self) -> dict[str, Any]:
        """Return all that the metadata server knows of this machine."""
        return self.instance_now(attempts=8)

    def instance_now(self, attempts: int = 1) -> dict[str, Any]:
        """Return the same by one request: a machine that shuts down has no time to retry."""
        url = METADATA + "instance/?recursive=true"
        return dict(json.loads(request(url, headers=FLAVOR, attempts=attempts)[0]))

    def say(self, text: str) -> None:
        """Write a line to the serial console and to the job's log."""
        console(text)
        try:
            with self.log.open("ab+") as file:
                file.seek(max(0, file.tell() - 1))
                begin = "" if file.read() in (b"", b"\n") else "\n"  # a command ended within a line
                file.write((begin + "[berg] " + text + "\n").encode(errors="replace"))
        except OSError:
            pass  # a full disk must not keep the machine from being deleted

    def call(
        self,
        url: str,
        method: str = "GET",
        data: bytes | None = None,
        kind: str = "application/json",
        accepts: str = "identity",
        forbidden_seconds: float = FORBIDDEN_SECONDS,
    ) -> tuple[bytes, Message]:
        """Send a request as this machine's account; return content and headers of the answer."""
        # A pod's account may have got its rights to act as one of Google's just now.
        token_url = METADATA + "instance/service-accounts/default/token"
        answer, _ = request(token_url, headers=FLAVOR, forbidden_seconds=FORBIDDEN_SECONDS)
        token = json.loads(answer)["access_token"]
        headers = {"Authorization": "Bearer " + token, "Content-Type": kind}
        headers["Accept-Encoding"] = accepts
        return request(url, method, data, headers, forbidden_seconds=forbidden_seconds)

    def upload_url(self, query: str) -> str:
        base = self.endpoint or "https://storage.googleapis.com"
        return f"{base}/upload/storage/v1/b/{self.bucket}/o?{query}"

    def read(self, name: str) -> tuple[bytes, str]:
        """Return an object's content and generation."""
        base = self.endpoint or "https://storage.googleapis.com"
        url = f"{base}/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}?alt=media"
        # Without gzip Google would decompress what another job stored with that encoding.
        content, headers = self.call(url, accepts="gzip")
        return content, headers.get("x-goog-generation", "0")

    def write(self, name: str, content: bytes, about: Headers, query: str = "") -> None:
        """Write an object with custom metadata."""
        resource = json.dumps({"name": name, "metadata": about}).encode()
        cut, kind = uuid.uuid4().hex, "Content-Type: application/json\r\n\r\n"
        part = f"\r\n--{cut}\r\n{kind}".encode()
        body = part + resource + part + content + f"\r\n--{cut}--\r\n".encode()
        upload = self.upload_url("uploadType=multipart" + query)
        self.call(upload, "POST", body, "multipart/related; boundary=" + cut)

    def group(self) -> str:
        """Return the path of the group that keeps this machine, below the project; "" without one.

        It is what Google says here, whatever the job is called.
        """
        owner = metadata("instance/attributes/created-by", default="")
        return owner.split("/", 2)[2] if "/instanceGroupManagers/" in owner else ""

    def call_compute(self, method: str, path: str, forbidden_seconds: float) -> None:
        """Send a request to Compute Engine; with its id Google carries out retries only once."""
        base = self.endpoint or "https://compute.googleapis.com"
        path += f"{'&' if '?' in path else '?'}requestId={uuid.uuid4()}"
        url = f"{base}/compute/v1/projects/{self.project}/{path}"
        self.call(url, method, forbidden_seconds=forbidden_seconds)

    def delete(self, alone: bool = False, forbidden_seconds: float = FORBIDDEN_SECONDS) -> None:
        """Delete this machine; unless `alone`, with the group that would replace it."""
        group = "" if alone else self.group()
        path = group or f"zones/{self.zone}/instances/{self.name}"
        try:
            self.call_compute("DELETE", path, forbidden_seconds)
        except urllib.error.HTTPError as error:
            if error.code != 400 or not group:
                raise  # 400: another machine of the group deletes it already

    def is_killed(self) -> bool:
        """Return whether a user killed the job of this machine."""
        try:
            return bool(self.instance()["attributes"].get("berg-kill-" + self.job))
        except Exception as error:
            self.say(f"The metadata cannot be read: {error}")
            return False

    def way_in(self) -> str:
        """Return how a user gets to a devbox that a fault ended."""
        if self.box == STOPS:
            return (
                f"its disk is kept. Start it: berg start {self.job}, or without installation "
                f"and worker: berg start --rescue {self.job}"
            )
        return f"it stays on until its time limit. Log in: berg ssh {self.job}"

    def keep(self) -> None:
        """Turn off a devbox that no user deleted; leave it on where Google cannot stop it."""
        if self.box == STOPS and self.turn_off():
            return
        self.say(f"{self.job} is not deleted; {self.way_in()}")
        self.hold()

    def hold(self, seconds: float = float("inf")) -> None:
        """Keep this machine on for logins until it is stopped, killed or out of time, and no longer
        than `seconds`.
        """
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        stops, end = None, time.monotonic() + seconds
        # after SIGTERM it would delay a shutdown that has begun
        while not SIGTERM_TIMES and time.monotonic() < end:
            try:
                attributes = self.instance()["attributes"]
                install_keys(attributes.get("ssh-keys", ""))
                stop = attributes.get("berg-stop-" + self.job, "")
                stops = stop if stops is None else stops
                if attributes.get("berg-kill-" + self.job):
                    self.insist_on_deletion(is_chosen=True)
                    return
                if self.box == STOPS and stop != stops:
                    record(self, "stopped by " + stop.rpartition(" ")[0], state="STOPPED")
                    if self.turn_off():
                        return
            except Exception as error:
                console(f"Trouble while this machine is kept on: {error}")
            time.sleep(min(POLL, max(end - time.monotonic(), 0)))

    def insist_on_deletion(
        self,
        tell: Callable[[str], None] | None = None,
        is_refused: bool = False,
        is_chosen: bool = False,
    ) -> None:
        """Delete this machine, and try until it works; `is_refused` says that Google refused it
        before. Keep a devbox, unless a user killed it or its deletion `is_chosen`.

        If Google refuses it for a quarter of an hour, write that into the job's state, call `tell`
        with it, and try again every ten minutes.
        """
        if self.box and not (is_chosen or self.is_killed()):
            self.keep()
            return
        pause, longest = 1.0, 60
        while True:
            try:
                self.delete(forbidden_seconds=0 if is_refused else FORBIDDEN_SECONDS)
                return
            except Exception as error:
                if not is_refused:
                    self.say(f"The machine could not be deleted: {error}")
                if getattr(error, "code", 0) == 403:
                    self.limit_cost(None if is_refused else tell)
                    pause, longest, is_refused = REFUSED_PAUSE, REFUSED_PAUSE, True
            time.sleep(pause)
            pause = min(pause * 2, longest)

    def limit_cost(self, tell: Callable[[str], None] | None) -> None:
        """Empty the group of a machine that may not delete itself, or turn the machine off.

        The state says so, and `tell`, if it is given, is called with it. Exit if nothing is left to
        do. Where its group cannot be emptied, the machine stays on: the group would re-create one
        that is off. The power goes when this process has ended, with all of its unit.
        """
        group = self.group()
        what = "is turned off instead, and its disk costs money"
        if group:
            what = "runs on, and costs money"
            try:
                self.call_compute("POST", f"{group}/resize?size=0", 0)
                self.say("The group has no machine any more. Delete it: berg reap")
                sys.exit()
            except OSError as error:
                if tell:
                    self.say(f"The group could not be emptied: {error}")
        try:
            mark_undeleted(self)
        except Exception as error:
            self.say(f"The state could not be written: {error}")
        if tell:
            text = f"{self.name} of {self.job} may not delete itself: it {what}"
            text += ". Delete it: berg reap"
            self.say(text)
            tell(text)
        if not group and self.turn_off():
            sys.exit()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())

    def turn_off(self) -> bool:
        """Turn this machine off once this process has ended; return whether that works."""
        return bool(shutil.which("poweroff")) and not subprocess.run(["poweroff"]).returncode


class Pod(Machine):
    """A pod of a cluster; it has annotations in place of the attributes of an instance."""

    def facts(self) -> dict[str, Any]:
        facts = json.loads(os.environ["BERG_FACTS"])
        return {
            **facts,
            "job_sha256": pod_annotations().get("berg-job-sha256", facts["job_sha256"]),
            "cluster_key": os.environ.get("BERG_CLUSTER_KEY", ""),
            "name": facts["names"][int(os.environ["JOB_COMPLETION_INDEX"])],
            "zone": os.environ["BERG_NODE"],
        }

    def instance(self) -> dict[str, Any]:
        return {
            "id": POD,
            "networkInterfaces": [{"ip": os.environ["BERG_POD_IP"]}],
            "attributes": pod_annotations(),
        }

    def instance_now(self, attempts: int = 1) -> dict[str, Any]:
        """Return what the node's metadata server knows, with the pod's annotations."""
        return {**super().instance_now(attempts), "attributes": pod_annotations()}

    def delete(self, alone: bool = False, forbidden_seconds: float = FORBIDDEN_SECONDS) -> None:
        """Do nothing: a pod is gone when its process has ended."""


def install_keys(text: str) -> None:
    """Let public keys log in; `text` has Google's form, a line `user:ssh-rsa AAAA… name` each."""
    keys = [line.partition(":")[2].strip() for line in text.splitlines() if ":" in line]
    add_lines(SSH / "authorized_keys", keys)


def add_lines(file: Path, lines: list[str]) -> None:
    """Append the lines that a file lacks; only its owner may read the file and its folder."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = file.read_text().splitlines() if file.exists() else []
    missing = [line for line in lines if line and line not in there]
    with file.open("a") as output:
        output.writelines(f"{line}\n" for line in missing)
    file.chmod(0o600)


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    return Pod() if POD else Machine()


def install(machine: Machine) -> tuple[str, Path]:
    """Unpack berg and what it needs; return the python that runs it, and berg's wheel."""
    wheel = unpack(machine, machine.dist, machine.dist_sha256, "app")
    python = BERG / "venv/bin/python"
    if python.exists():  # a golden image
        return str(python), wheel
    if machine.packages and sys.version_info >= (3, 10):
        if not shutil.which("git"):
            apt_install(machine, "git")
        unpack(machine, machine.packages, machine.packages_sha256, "packages")
        return sys.executable, wheel
    why = "the laptop that sent the job had none to send"
    if machine.packages:
        why = "this python is older than 3.10"
    return install_packages(machine, wheel, why), wheel


def unpack(machine: Machine, name: str, sha256: str, folder: str) -> Path:
    """Replace a folder by the content of an archive from the bucket; return the archive's file.

    Raise OSError if it is not the archive that the laptop sent.
    """
    archive = BERG / name.rpartition("/")[2]
    content = machine.read(name)[0]
    check(content, sha256, f"gs://{machine.bucket}/{name}")
    archive.write_bytes(content)
    shutil.rmtree(str(BERG / folder), ignore_errors=True)
    with zipfile.ZipFile(str(archive)) as zipped:
        zipped.extractall(str(BERG / folder))
    return archive


def check(content: bytes, sha256: str, name: str) -> None:
    """Raise OSError if content of the bucket lacks the hash that this machine's metadata say."""
    if hashlib.sha256(content).hexdigest() != sha256:
        raise OSError(
            f"{name} is not what was submitted: another user replaced it. Nothing of it was run; "
            "submit the job again"
        )


def install_packages(machine: Machine, wheel: Path, why: str) -> str:
    """Make a python environment for berg with pip, as the last resort; return its python."""
    machine.say(f"Making a python environment for berg with pip: {why} (a golden image has one)")
    python = BERG / "venv/bin/python"
    pip = [sys.executable, "-c", "import ensurepip, pip"]
    if not shutil.which("git") or subprocess.run(pip).returncode:
        apt_install(machine, "git", "python3-venv", "python3-pip")
    if not python.exists():
        execute(sys.executable, "-m", "venv", str(BERG / "venv"))
    execute(str(python), "-m", "pip", "install", "--quiet", str(wheel))
    return str(python)


def apt_install(machine: Machine, *packages: str) -> None:
    """Install packages of the image's distribution; wait for the locks of the first boot's own
    installation, since apt-get itself waits for dpkg's lock alone.
    """
    machine.say("Installing with apt-get: " + " ".join(packages))
    until, is_said = time.monotonic() + LOCKED_SECONDS, False
    while True:
        try:
            execute("apt-get", "update", "-q")
            execute("apt-get", "install", "-q", "-y", *packages)
            return
        except OSError as error:
            if "lock" not in str(error) or time.monotonic() > until:
                raise
            if not is_said:
                machine.say(
                    f"Waiting for up to {LOCKED_SECONDS // 60} minutes: the first boot of an image "
                    "has packages to install, too"
                )
                announce_installation(machine)
            is_said = True
        time.sleep(2)


def announce_installation(machine: Machine) -> None:
    """Write for the other machines of the job that this one comes later."""
    name = f".berg/machines/{machine.job}/{machine.name}{INSTALLS}"
    try:
        upload = machine.upload_url("uploadType=media&name=" + quote(name, safe=""))
        machine.call(upload, "POST", b"", "text/plain")
    except Exception as error:
        machine.say(f"The other machines do not know that this one comes later: {error}")


def execute(*command: str) -> None:
    """Run a program; raise OSError with its first line of error if it fails."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C.UTF-8")
    pipe = subprocess.PIPE
    ran = subprocess.run(
        command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    output = ran.stdout.decode(errors="replace").strip()
    if "Could not get lock" not in output:  # the caller waits for it, and says so
        console(output)
    if ran.returncode:
        lines = output.splitlines()
        errors = [line for line in lines if line.startswith(("E: ", "ERROR: "))] or lines
        raise OSError(" ".join(command[:3]) + " failed: " + "".join(errors[:1]))


def run_worker(python: str, *arguments: str) -> tuple[int, str]:
    """Run the worker; return its exit code, and the last line that it printed.

    It gets no PYTHONPATH: the command that it runs must not see berg's packages. Its standard error
    is a file: processes that it leaves behind would keep a pipe open.
    """
    folders, options = [str(BERG / "app")], []
    if python == sys.executable:  # the image's own, whose packages are not berg's
        folders, options = [*folders, str(BERG / "packages")], ["-I", "-S"]
    code = f"import sys; sys.path[:0] = {folders!r}; from berg.worker import main; main()"
    errors = BERG / "worker.err"
    with errors.open("wb") as file:
        worker = subprocess.Popen([str(python), *options, "-c", code, *arguments], stderr=file)

    def stop(*_: object) -> None:
        SIGTERM_TIMES.append(time.time())
        worker.terminate()

    signal.signal(signal.SIGTERM, stop)
    ended, printed = worker.wait(), errors.read_text(errors="replace").strip()
    console(printed)
    if ended == ANOTHER_JOB:
        os.execv(sys.executable, [sys.executable, *sys.argv])
    return ended, printed.rpartition("\n")[2][:LAST_WORDS]


def give_up(machine: Machine, reason: str) -> None:
    """Record without berg's help that the job failed, upload the log, and delete the machine."""
    machine.say(reason)
    try:
        if machine.box:
            reason += "; " + machine.way_in()
        if machine.box == STOPS:
            record(machine, reason, state="STOPPED")
        else:
            record(machine, reason, state="FAILED", finished_at=now())
        if not machine.box and is_kept(machine):
            return
    except Exception as error:
        machine.say(f"The state could not be written: {error}")
    machine.insist_on_deletion()


def is_kept(machine: Machine) -> bool:
    """Return whether the job, if it is the one that was sent, keeps this machine at its end."""
    if machine.sweep:
        return False
    name = f".berg/jobs/{machine.job}_metadata.json"
    content = machine.read(name)[0]
    check(content, machine.job_sha256, f"gs://{machine.bucket}/{name}")
    return bool(json.loads(content)["spec"]["no_kill"])


def record(machine: Machine, reason: str, begins: bool = False, **changes: Any) -> None:
    """Upload the log, and write changes to the state of the job and their reason, unless the job is
    over or another machine has it. With `begins` another attempt begins.
    """
    content, generation = machine.read(state_path(machine))
    state = json.loads(content)
    is_claimed = state["state"] not in ("SUBMITTED", "STOPPED")
    is_namesake = state.get("machine") == machine.name and state.get("zone") != machine.zone
    if state["state"] in FINAL or (is_claimed and is_namesake and state.get("zone") != ""):
        return
    log, disk = f".berg/logs/{machine.job}/{machine.log.name}", BERG / "disk"
    writer = {}
    if disk.exists():  # a later worker continues what this disk wrote
        writer["berg-writer"] = f"{machine.job}/{disk.read_text()}"
    machine.write(log, machine.log.read_bytes(), writer)
    before = state["reason"]
    state.update(reason=reason, machine=machine.name, zone=machine.zone, **changes)
    state["history"] = [*state.get("history", []), [state["state"], now()]][-HISTORY:]
    if begins:
        state["attempt"] += 1
        begun = [str(state["attempt"]), now(), before[:WHY]]
        state["attempts"] = [*state.get("attempts", []), begun][-ATTEMPTS:]
    write_state(machine, state, generation)
    has_secrets = state.get("job", {}).get("secrets") and not machine.sweep
    if state["state"] in FINAL and has_secrets:
        base = "https://secretmanager.googleapis.com"
        if machine.endpoint:
            base = machine.endpoint + "/secretmanager"
        url = f"{base}/v1/projects/{machine.project}/secrets/berg-{machine.job}"
        machine.call(url, "DELETE")


def state_path(machine: Machine) -> str:
    return f".berg/jobs/{machine.job}_state.json"


def write_state(machine: Machine, state: dict[str, Any], generation: str) -> None:
    """Replace the job's state that was read."""
    text, condition = json.dumps(state), "&ifGenerationMatch=" + generation
    machine.write(state_path(machine), text.encode(), {"state": text}, condition)


def mark_undeleted(machine: Machine) -> None:
    """Write into the final state of a job that this machine still exists."""
    for pause in (1, 3, 10, 0):
        content, generation = machine.read(state_path(machine))
        state = json.loads(content)
        marks = state.get("undeleted", {})
        if state["state"] not in FINAL or len({*marks, machine.name}) > MOST_UNDELETED:
            return
        state["undeleted"] = {**marks, machine.name: now()}
        try:
            write_state(machine, state, generation)
            return
        except urllib.error.HTTPError as error:
            if error.code != 412 or not pause:  # another machine of the job wrote meanwhile
                raise
        time.sleep(pause)


def save(machine: Machine, python: str, reason: str) -> bool:
    """Let a second worker save what the first one left; return whether that worked."""
    for pause in (1, 10, 60, 300, 0):
        machine.say(f"{reason}; saving what is left")
        code, _ = run_worker(python, "salvage", machine.job, reason, machine.sweep)
        if not code:
            return True
        time.sleep(pause)
    return False


def hand_over() -> bool:
    """Let systemd run this file as a unit of its own; return whether it does."""
    script, unit = BERG / "boot.py", SYSTEMD / "berg.service"
    # with BERG_ROOT, systemd is the host's
    if not SYSTEMD.is_dir() or "BERG_ROOT" in os.environ:
        return False
    try:
        if not subprocess.run(["systemctl", "is-active", "--quiet", "berg"]).returncode:
            console("Berg works on this machine already: nothing to do")
            return True
        BERG.mkdir(parents=True, exist_ok=True)
        script.with_suffix(".new").write_bytes(Path(__file__).read_bytes())
        script.with_suffix(".new").replace(script)
        unit.write_text(UNIT.format(python=sys.executable, script=script))
        subprocess.run(["systemctl", "daemon-reload"], check=True)
        subprocess.run(["systemctl", "start", "--no-block", "berg"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        if shutil.which("systemctl"):
            asked = subprocess.run(["systemctl", "is-system-running"], stdout=subprocess.PIPE)
            if asked.stdout.strip() == b"stopping":
                console("The machine goes down: there is no time to begin")
                return True
        console(f"systemd does not take berg's unit ({error}); running without it")
        return False
    console("Continuing as a unit of systemd: systemctl status berg")
    return True


def keep_packages() -> None:
    """Switch off upgrades by timers during a job; let its apt-get wait for those that run now."""
    folder = Path("/etc/apt/apt.conf.d")
    try:
        if folder.is_dir() and "BERG_ROOT" not in os.environ:  # else it is the host's
            settings = f'APT::Periodic::Enable "0";\nDPkg::Lock::Timeout "{LOCKED_SECONDS}";\n'
            (folder / "99berg").write_text(settings)
    except OSError:
        pass  # it is read-only


def pod_exit_code() -> int:
    """Return 0 for a job that succeeded, 42 for one that ended without success, 1 for one that
    another pod is to continue.
    """
    machine = this_machine()
    if machine.sweep:
        return int(bool(SIGTERM_TIMES))
    try:
        state = json.loads(machine.read(state_path(machine))[0])["state"]
    except Exception as error:
        console(f"The job's state cannot be read: {error}")
        return 1
    if state not in FINAL and SIGTERM_TIMES:
        return 1
    return {"SUCCEEDED": 0, "SUBMITTED": 1}.get(state, OVER)


def main() -> None:
    bypass_proxies()
    if POD:
        prepare_pod()
    if sys.argv[1:] == ["work"]:
        os.environ["BERG_UNIT"] = "1"  # the worker's, too
    else:
        keep_packages()  # now: apt-daily.service waits for the end of startup scripts
    if "BERG_UNIT" in os.environ or not hand_over():
        try:
            work()
        finally:
            console("berg's startup script has ended")
    if POD:
        sys.exit(pod_exit_code())


def prepare_pod() -> None:
    """Let SIGTERM end this process until there is a worker, and find the node's drivers.

    Leave the image's virtual environment, which an installation may replace, and the folder that
    its containers begin in, which the checkout may replace.
    """
    os.chdir("/")
    folders = os.environ.get("PATH", os.defpath).split(":")
    path = ":".join(each for each in folders if each != sys.prefix + "/bin")
    python = shutil.which("python3", path=path)
    if python and sys.prefix != sys.base_prefix and sys.argv[1:] != ["work"]:
        os.execv(python, [python, __file__, "work"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for key, folder in DRIVERS_IN_PODS.items():
        os.environ[key] = ":".join(filter(None, [os.environ.get(key), folder]))


def work() -> None:
    """Run the worker, unless another process does on this machine."""
    BERG.mkdir(parents=True, exist_ok=True)
    lock = (BERG / "boot.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        console("Berg works on this machine already: nothing to do")
        return
    machine = this_machine()
    machine.say(f"Starting on {machine.name} in {machine.zone}")
    try:
        if machine.recipe:
            console(prepare_image(machine))
        elif machine.box == STOPS and machine.rescuer:
            rescue(machine)
        else:
            python, wheel = install(machine)
            outlive_worker(machine, python, wheel)
    except Exception as error:
        give_up(machine, f"berg could not be started on {machine.name}: {error}")


def rescue(machine: Machine) -> None:
    """Keep a devbox on for logins, without installation and worker."""
    why = "started by " + machine.rescuer + " without installation and worker (--rescue)"
    machine.say(why)
    try:
        record(machine, why, begins=True, state="RUNNING")
    except Exception as error:
        machine.say(f"The state could not be written: {error}")
    machine.hold()


def prepare_image(machine: Machine) -> str:
    """Prepare this disk for an image; the laptop reads the console and does the rest.

    Return the last line for it: why that failed; "" if the worker printed one.
    """
    try:
        wheel = unpack(machine, machine.dist, machine.dist_sha256, "app")
        if not (BERG / "venv/bin/python").exists():
            install_packages(machine, wheel, "the image is to have one")
        code, words = run_worker(str(BERG / "venv/bin/python"), "image")
    except Exception as error:  # else the machine would delete itself before the laptop reads it
        return f"{NO_IMAGE}{error}"
    return NO_IMAGE + death(code, words) if code else ""


def outlive_worker(machine: Machine, python: str, wheel: Path) -> None:
    """Run the worker; if it dies, let another one save the results.

    A machine of a sweep then continues with the other jobs, until its worker has died too often.
    """
    arguments = ("sweep", machine.sweep) if machine.sweep else ("run", machine.job)
    code, words = run_worker(python, *arguments)
    if code == DEPENDENCIES_MISSING:
        python = install_packages(machine, wheel, "what is there does not run here")
        code, words = run_worker(python, *arguments)
    died = ""
    for _ in range(CRASHES):
        if not code or shuts_down(code):
            return
        died = death(code, words)
        if machine.sweep and (BERG / "job").exists():
            machine.job = (BERG / "job").read_text()
        # A machine of a sweep that has no job yet has nothing to save.
        is_saved = machine.job == machine.sweep
        is_saved = is_saved or save(machine, python, "berg's worker " + died)
        if not machine.sweep and is_saved:
            return
        if not machine.sweep:
            break
        code, words = run_worker(python, *arguments)  # the rest of the sweep
    give_up(machine, f"berg's worker {died}, and so did those that were to save the results")


def shuts_down(code: int) -> bool:
    """Return whether the worker, before it could handle it, got SIGTERM from a shutdown."""
    if code != -signal.SIGTERM:
        return False
    for _ in range(SHUTDOWN_SECONDS * 10):
        if SIGTERM_TIMES:
            return True
        time.sleep(0.1)
    return False


def death(code: int, words: str) -> str:
    """Return how a worker died, with the last line that it printed."""
    how = f"ended with exit code {code}" if code >= 0 else f"was killed by signal {-code}"
    return f"{how}: {words}" if words else how


if __name__ == "__main__":
    main()
