#!/usr/bin/env python3
"""The first thing that a machine runs: fetch berg from the bucket, run its worker, and outlive it.

This file is the machine's startup script, as it is. It needs nothing but python 3.8 and its
standard library, takes everything from the machine's metadata, and ends in one of three ways: the
worker saw the job through; the worker died, and a second one saved what was left; or neither was
possible, and this script records that the job failed and deletes the machine itself.

A devbox is not deleted by a fault: it is turned off with its disk, or, where Google cannot stop it,
stays on for people to log in (`Machine.keep`).

A startup script hears nothing when its machine goes down (its service has KillMode=process: systemd
tells the script's runner only), and soon there is no network. So where there is systemd, the script
makes a unit that runs this file a second time, with `work`, and ends. The unit hears SIGTERM at
once, and the network stays until it has stopped.

In a pod of a cluster it is the one program of the container. What it has to know is in its
environment, its metadata are its annotations, and its exit code says whether Kubernetes is to make
another pod.
"""

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
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(os.environ.get("BERG_ROOT", "/root"))
BERG = ROOT / "berg"
SSH = ROOT / ".ssh"
METADATA = (
    f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}/computeMetadata/v1/"
)
FLAVOR = {"Metadata-Flavor": "Google"}
CONSOLE_LINE = 8000  # bytes; the reader of a startup script's output gives up at a line of 64 KB
# for which 403 may pass: what was granted a moment ago counts after minutes
FORBIDDEN_SECONDS = 900
# for which other packages may be installed while a machine boots for the first time
LOCKED_SECONDS = 600
REFUSED_PAUSE = 600  # seconds between two tries to delete a machine after Google refused that
MOST_UNDELETED = 10  # machines that a state names which could not delete themselves
SYSTEMD = Path("/run/systemd/system")
UNIT = """\
[Unit]
Description=Runs a job, made by its startup script
# The last results are uploaded when the machine goes down.
Wants=network-online.target
After=network-online.target nss-lookup.target
# Nothing that upgrades packages is to restart it.
RefuseManualStop=yes

[Service]
Type=simple
ExecStart={python} {script} work
# The first process gets SIGTERM and passes it to its worker, which ends the command; whoever is
# left at the end is killed.
KillMode=mixed
TimeoutStopSec=600
# A command that runs out of memory is not to take the worker with it.
OOMPolicy=continue
TasksMax=infinity
LimitMEMLOCK=infinity
StandardOutput=tty
"""
GOING = 60  # seconds in which a machine that shuts down is gone
# When this process, the script or its worker, got SIGTERM, as it does when the machine stops;
# seconds since 1970.
SIGTERM_TIMES: list[float] = []
LARGEST = 1 << 30  # bytes of an answer that are read
CRASHES = 3  # of its worker, that a machine of a sweep survives
POD = os.environ.get("BERG_POD")  # the pod's uid, where this machine is one
ANNOTATIONS = Path("/etc/berg/pod/annotations")  # a line KEY="VALUE" each
# a node's drivers, in a pod
NVIDIA = {
    "PATH": "/usr/local/nvidia/bin",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
}
FOR_WORKER = ("NO_PROXY", "LD_LIBRARY_PATH")  # variables that this script sets, beside PATH
OVER = 42  # exit code of a pod whose job is over without success: no other is to take its place
RETRIED = (408, 429, 500, 502, 503, 504)  # statuses, as in berg/google/api.py
LAST_WORDS = 500  # characters of what the worker said before it died, for the job's reason
DEPENDENCIES_MISSING = 64  # the worker's exit code when its python lacks a package
# ends the name of an object that says of a machine that it waits to install packages
INSTALLS = ".installs"
# What the console says at the end of what makes an image; berg/laptop/images.py reads it.
IMAGE_READY, NO_IMAGE = "The disk is ready to be an image", "The disk is no image: "
FINAL = ("SUCCEEDED", "FAILED", "KILLED", "LOST")
# What a fault does to a devbox, in its metadata as berg-box: it goes off, or it stays on.
STOPS, STAYS = "stop", "stay"
HISTORY, ATTEMPTS, WHY = 30, 10, 150  # as in berg/job.py
LOOKING = 2  # seconds between two looks at the metadata of a machine that is kept on
PASSING = (408, 429, 500, 502, 503, 504)  # statuses of an answer that may be another one soon
Headers = dict[str, str]


def bypass_proxies() -> None:
    """Let everything on this machine reach what is near without the proxy that is set, as berg does
    elsewhere.
    """
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    near = ["localhost", "127.0.0.1", "::1", "metadata.google.internal", "metadata"]
    near += ["169.254.169.254", METADATA.split("/")[2].partition(":")[0]]
    if old.strip() != "*" and any(name.lower().endswith("_proxy") for name in os.environ):
        hosts = [host for host in old.split(",") if host] + near
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


def console(text: str) -> None:
    """Print for the serial console, in lines that its reader takes; a console that is gone takes
    nothing any more.
    """
    # else the runner of startup scripts has its own
    mark = "berg: " if "BERG_UNIT" in os.environ else ""
    try:
        for line in text.splitlines():
            short = line.encode(errors="replace")[:CONSOLE_LINE].decode(errors="ignore")
            print(mark + short, flush=True)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)


def request(
    url: str,
    method: str = "GET",
    data: bytes | None = None,
    headers: Headers | None = None,
    attempts: int = 8,
    patience: float = 0,
) -> tuple[bytes, Message]:
    """Return content and headers of an answer.

    Trouble that may pass is retried for about a minute, 403 for `patience` seconds.
    """
    attempt, until = 0, time.monotonic() + patience
    while True:
        attempt += 1
        try:
            call = urllib.request.Request(url, data=data, method=method, headers=headers or {})
            with urllib.request.urlopen(call, timeout=60) as answer:
                content = answer.read(LARGEST)
                if len(content) < min(LARGEST, int(answer.headers.get("Content-Length", 0))):
                    raise http.client.IncompleteRead(content)
                return content, answer.headers
        except urllib.error.HTTPError as error:
            if error.code == 403 and time.monotonic() < until:
                console(
                    "403 Forbidden; rights that were granted just now take minutes. Trying again"
                )
            elif error.code not in PASSING or attempt >= attempts:
                raise
        except (OSError, http.client.HTTPException):  # the latter of an answer that breaks off
            if attempt >= attempts:
                raise
        time.sleep(min(2 ** min(attempt, 8) * 0.25, 15))


def metadata(path: str, default: str | None = None) -> str:
    """Return a value of the metadata server; `default` stands for one that it does not have."""
    try:
        return request(METADATA + path, headers=FLAVOR)[0].decode()
    except urllib.error.HTTPError as error:
        if error.code == 404 and default is not None:
            return default
        raise


def instance_facts() -> dict[str, Any]:
    """Return what an instance was created with, from its metadata server."""
    instance = json.loads(metadata("instance/?recursive=true"))
    name, attributes = instance["name"], instance["attributes"]
    sweep = attributes.get("berg-sweep", "")
    return {
        "name": name,
        "zone": instance["zone"].rpartition("/")[2],
        "project": metadata("project/project-id"),
        "bucket": attributes["berg-bucket"],
        "sweep": sweep,
        "job": attributes.get("berg-job", sweep or name),
        "dist": attributes["berg-dist"],
        "packages": attributes.get("berg-packages", ""),
        "endpoint": attributes.get("berg-endpoint", ""),
        "dist_sha256": attributes.get("berg-dist-sha256", ""),
        "packages_sha256": attributes.get("berg-packages-sha256", ""),
        "job_sha256": attributes.get("berg-job-sha256", ""),
        "cluster_key": attributes.get("berg-cluster-key", ""),
        "recipe": attributes.get("berg-image", ""),
        "box": attributes.get("berg-box", ""),
        "rescuer": attributes.get("berg-rescue", ""),
    }


def pod_facts() -> dict[str, Any]:
    """Return what a pod was created with, from its environment."""
    facts = json.loads(os.environ["BERG_FACTS"])
    return {
        **facts,
        "cluster_key": os.environ.get("BERG_CLUSTER_KEY", ""),
        "name": facts["names"][int(os.environ["JOB_COMPLETION_INDEX"])],
        "zone": os.environ["BERG_NODE"],
    }


def pod_annotations() -> dict[str, str]:
    """Return a pod's annotations as the attributes of an instance.

    A slash in a key stands for a dash.
    """
    if not ANNOTATIONS.exists():
        return {}
    found = {}
    for line in ANNOTATIONS.read_text().splitlines():
        key, _, value = line.partition("=")
        if value.endswith('"'):
            found[key.replace("/", "-")] = json.loads(value)
    return found


class Machine:
    """An instance of Compute Engine: who it is, its metadata, its console and log, its end."""

    def __init__(self) -> None:
        facts = self.facts()
        self.name, self.zone, self.project = facts["name"], facts["zone"], facts["project"]
        self.bucket, self.dist, self.endpoint = facts["bucket"], facts["dist"], facts["endpoint"]
        self.job, self.sweep, self.packages = facts["job"], facts["sweep"], facts["packages"]
        # What the submitting laptop wrote here and no machine may write: a bucket that many may
        # write to cannot change what runs here.
        self.dist_sha256 = facts["dist_sha256"]
        self.packages_sha256 = facts["packages_sha256"]
        self.job_sha256 = facts["job_sha256"]  # of the job's metadata, or of its sweep's list
        self.cluster_key = facts["cluster_key"]  # signs what the machines of a job tell each other
        # what an image is to have that is made of this machine's disk; "": none is made
        self.recipe = facts.get("recipe", "")
        self.box = facts.get("box", "")  # of a devbox: STOPS or STAYS
        # who started this devbox without installation and worker
        self.rescuer = facts.get("rescuer", "")
        self.log = self.log_in(BERG / "logs")

    def facts(self) -> dict[str, Any]:
        """Return what this machine was created with."""
        return instance_facts()

    def log_for(self, job: str) -> None:
        """Begin a log that is a job's own, with what was logged since the job before it."""
        early, self.log = self.log, self.log_in(BERG / "logs" / job)
        if early.exists() and not self.log.exists():
            early.rename(self.log)

    def log_in(self, folder: Path) -> Path:
        """Return the log that this disk has in a folder, or a new one; logs sort by their begin."""
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        begin = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now))
        name = f"{self.name}.{begin}{now % 1 * 999:03.0f}.log"
        return max(folder.glob(self.name + ".*.log"), default=folder / name)

    def instance(self) -> dict[str, Any]:
        """Return all that the metadata server knows of this machine."""
        return dict(json.loads(metadata("instance/?recursive=true")))

    def instance_now(self) -> dict[str, Any]:
        """Return the same by one request, for who has no time."""
        url = METADATA + "instance/?recursive=true"
        return dict(json.loads(request(url, headers=FLAVOR, attempts=1)[0]))

    def say(self, text: str) -> None:
        """One line for the serial console and for the job's log."""
        console(text)
        try:
            with self.log.open("a", errors="replace") as file:
                file.write("[berg] " + text + "\n")
        except OSError:
            pass  # a full disk must not keep the machine from being deleted

    def call(
        self,
        url: str,
        method: str = "GET",
        data: bytes | None = None,
        kind: str = "application/json",
        accepts: str = "identity",
        patience: float | None = None,
    ) -> tuple[bytes, Message]:
        """Send a request as this machine's account; return content and headers of the answer."""
        if patience is None:
            patience = FORBIDDEN_SECONDS
        # A pod's account may have been let act as one of Google's just now.
        asked = METADATA + "instance/service-accounts/default/token"
        token = json.loads(request(asked, headers=FLAVOR, patience=FORBIDDEN_SECONDS)[0])
        headers = {"Authorization": "Bearer " + token["access_token"], "Content-Type": kind}
        headers["Accept-Encoding"] = accepts
        return request(url, method, data, headers, patience=patience)

    def object_url(self, name: str) -> str:
        base = self.endpoint or "https://storage.googleapis.com"
        return f"{base}/storage/v1/b/{self.bucket}/o/{quote(name, safe='')}"

    def upload_url(self, query: str) -> str:
        base = self.endpoint or "https://storage.googleapis.com"
        return f"{base}/upload/storage/v1/b/{self.bucket}/o?{query}"

    def read(self, name: str) -> tuple[bytes, str]:
        """Return an object's content and generation. With "gzip" Google sends it as it is stored:
        else it would decompress what another job stored with that encoding.
        """
        content, headers = self.call(self.object_url(name) + "?alt=media", accepts="gzip")
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
        """Return the path below the project of the group that keeps this machine; "" if none does.

        It is what Google says here, whatever the job is called.
        """
        owner = metadata("instance/attributes/created-by", default="")
        if "/instanceGroupManagers/" not in owner:
            return ""
        return owner.split("/", 2)[2]  # behind "projects/NUMBER/"

    def ask_compute(self, method: str, path: str, patience: float) -> None:
        """Send a request to Compute Engine, once however often it is sent."""
        base = self.endpoint or "https://compute.googleapis.com"
        path += f"{'&' if '?' in path else '?'}requestId={uuid.uuid4()}"
        url = f"{base}/compute/v1/projects/{self.project}/{path}"
        self.call(url, method, patience=patience)

    def delete(self, alone: bool = False, patience: float | None = None) -> None:
        """Delete this machine, with the group that would replace it if it belongs to one and this
        is not `alone`. For `patience` seconds 403 may pass.
        """
        if patience is None:
            patience = FORBIDDEN_SECONDS
        group = "" if alone else self.group()
        if not group:
            self.ask_compute("DELETE", f"zones/{self.zone}/instances/{self.name}", patience)
            return
        try:
            self.ask_compute("DELETE", group, patience)
        except urllib.error.HTTPError as error:
            if error.code != 400:
                raise  # else another machine of the group asked for it already

    def is_killed(self) -> bool:
        """Return whether a person killed the job of this machine."""
        try:
            return bool(self.instance()["attributes"].get("berg-kill-" + self.job))
        except Exception as error:
            self.say(f"The metadata cannot be read: {error}")
            return False

    def way_in(self) -> str:
        """Return how a person gets to a devbox that a fault ended."""
        if self.box == STOPS:
            return (
                f"its disk is kept. Start it: berg start {self.job}, or without installation "
                + (f"and worker: berg start --rescue {self.job}")
            )
        return f"it stays on until its time limit. Log in: berg ssh {self.job}"

    def keep(self) -> None:
        """Turn off a devbox that no person chose to delete; leave it on where Google cannot stop
        it.
        """
        if self.box == STOPS and self.turn_off():
            return
        self.say(f"{self.job} is not deleted; {self.way_in()}")
        self.hold()

    def hold(self) -> None:
        """Keep this machine on for logins until it is stopped, killed or out of time."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit())
        stops = None
        while not SIGTERM_TIMES:  # else it would hold up a shutdown that has begun
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
            time.sleep(LOOKING)

    def insist_on_deletion(
        self,
        tell: Callable[[str], None] | None = None,
        is_refused: bool = False,
        is_chosen: bool = False,
    ) -> None:
        """Delete this machine whatever it takes; with `is_refused` Google refused it before. Keep a
        devbox, unless a person killed it or its deletion `is_chosen`.

        Where Google refuses it for a quarter of an hour, the job's state says so, `tell` gets it in
        words, and this tries again every ten minutes.
        """
        if self.box and not (is_chosen or self.is_killed()):
            self.keep()
            return
        pause, longest, patience = 1.0, 60, 0 if is_refused else None
        while True:
            try:
                self.delete(patience=patience)
                return
            except Exception as error:
                if patience is None:
                    self.say(f"The machine could not be deleted: {error}")
                if getattr(error, "code", 0) == 403:
                    self.outlast_refusal(tell if patience is None else None)
                    pause, longest, patience = REFUSED_PAUSE, REFUSED_PAUSE, 0
            time.sleep(pause)
            pause = min(pause * 2, longest)

    def outlast_refusal(self, tell: Callable[[str], None] | None) -> None:
        """Cost as little as may be, and say so; exit if nothing is left to do.

        A group would re-create a machine that is turned off, so that one in a group stays on,
        unless the group may be emptied. The power goes when this process has ended, as all of its
        unit must.
        """
        group = self.group()
        what = "is turned off instead, and its disk costs money"
        if group:
            what = "runs on, and costs money"
            try:
                self.ask_compute("POST", f"{group}/resize?size=0", 0)
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
        """Turn this machine off, as soon as this process has ended; return whether that works."""
        return bool(shutil.which("poweroff")) and not subprocess.run(["poweroff"]).returncode


class Pod(Machine):
    """A pod of a cluster; what it has in place of the metadata of an instance has the same form."""

    def facts(self) -> dict[str, Any]:
        facts = pod_facts()
        submitted = pod_annotations().get("berg-job-sha256", facts["job_sha256"])
        return {**facts, "job_sha256": submitted}

    def instance(self) -> dict[str, Any]:
        return {
            "id": POD,
            "networkInterfaces": [{"ip": os.environ["BERG_POD_IP"]}],
            "attributes": pod_annotations(),
        }

    def instance_now(self) -> dict[str, Any]:
        """Return what the node's metadata server knows, with the pod's annotations."""
        return {**super().instance_now(), "attributes": pod_annotations()}

    def delete(self, alone: bool = False, patience: float | None = None) -> None:
        """Do nothing: a pod is gone when its process has ended."""


def install_keys(text: str) -> None:
    """Add public keys to those that may log in; `text` has Google's form, a line `user:ssh-rsa
    AAAA… name` each.
    """
    keys = [line.partition(":")[2].strip() for line in text.splitlines() if ":" in line]
    add_lines(SSH / "authorized_keys", keys)


def add_lines(file: Path, lines: list[str]) -> None:
    """Append the lines that a file lacks; the file and its folder are for their owner alone."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    there = file.read_text().splitlines() if file.exists() else []
    missing = [line for line in lines if line and line not in there]
    with file.open("a") as output:
        output.writelines(f"{line}\n" for line in missing)
    file.chmod(0o600)


def this_machine() -> Machine:
    """Return the machine that this process runs on."""
    if POD:
        return Pod()
    return Machine()


def install(machine: Machine) -> tuple[str, Path]:
    """Unpack berg and what it needs; returns the python that runs it, and berg's wheel."""
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
    """Unpack an archive of the bucket into a folder, in place of what is there; return its file.

    Raises OSError if it is not the archive that the laptop sent.
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
            f"{name} is not what was submitted: somebody replaced it. Nothing of it was run; "
            "submit the job again"
        )


def install_packages(machine: Machine, wheel: Path, why: str) -> str:
    """Make a python environment for berg with pip, as the last resort; returns its python."""
    machine.say(f"Making a python environment for berg with pip: {why} (a golden image has one)")
    python = BERG / "venv/bin/python"
    if (
        not shutil.which("git")
        or subprocess.run([sys.executable, "-c", "import ensurepip, pip"]).returncode
    ):
        apt_install(machine, "git", "python3-venv", "python3-pip")
    if not python.exists():
        execute(sys.executable, "-m", "venv", str(BERG / "venv"))
    execute(str(python), "-m", "pip", "install", "--quiet", str(wheel))
    return str(python)


def apt_install(machine: Machine, *packages: str) -> None:
    """Install packages of the image's distribution, when what its first boot installs lets go of
    the locks.

    apt-get itself waits for dpkg's lock alone, not for those of its lists and archives.
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
                ask_for_patience(machine)
            is_said = True
        time.sleep(2)


def ask_for_patience(machine: Machine) -> None:
    """Tell the other machines of the job, which wait as long as they took, that it comes later."""
    name = f".berg/machines/{machine.job}/{machine.name}{INSTALLS}"
    try:
        upload = machine.upload_url("uploadType=media&name=" + quote(name, safe=""))
        machine.call(upload, "POST", b"", "text/plain")
    except Exception as error:
        machine.say(f"The other machines do not hear that this one comes later: {error}")


def execute(*command: str) -> None:
    """Run a program; raises OSError with its last words if it fails."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C.UTF-8")
    pipe = subprocess.PIPE
    ran = subprocess.run(
        command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    output = ran.stdout.decode(errors="replace").strip()
    if "Could not get lock" not in output:  # who calls waits for it, and says so
        console(output)
    if ran.returncode:
        lines = [
            line for line in output.splitlines() if line.startswith(("E: ", "ERROR: "))
        ] or output.splitlines()
        raise OSError(" ".join(command[:3]) + " failed: " + "".join(lines[:1]))


def run_worker(python: str, *arguments: str) -> tuple[int, str]:
    """Run the worker; return its exit code, and the last line that it printed.

    The command that it runs must not see berg's packages: no PYTHONPATH.

    Its standard error is a file: a pipe would stay open for as long as any process that it left
    behind.
    """
    folders, options = [str(BERG / "app")], []
    if python == sys.executable:  # the image's own: its packages are none of berg's
        folders, options = [*folders, str(BERG / "packages")], ["-I", "-S"]
    code = f"import sys; sys.path[:0] = {folders!r}; from berg.worker import main; main()"
    errors = BERG / "worker.err"
    with errors.open("wb") as file:
        worker = subprocess.Popen([str(python), *options, "-c", code, *arguments], stderr=file)

    def stop(*_: object) -> None:
        SIGTERM_TIMES.append(time.time())
        worker.terminate()

    signal.signal(signal.SIGTERM, stop)
    ended, said = worker.wait(), errors.read_text(errors="replace").strip()
    console(said)
    return ended, said.rpartition("\n")[2][:LAST_WORDS]


def give_up(machine: Machine, reason: str) -> None:
    """Record without berg's help that the job failed, upload the log, and delete the machine."""
    machine.say(reason)
    try:
        record_failure(machine, reason)
        if not machine.box and stays(machine):
            return
    except Exception as error:
        machine.say(f"The state could not be written: {error}")
    machine.insist_on_deletion()


def stays(machine: Machine) -> bool:
    """Whether this machine is kept when its job is over, if the job is the one that was sent."""
    if machine.sweep:
        return False
    name = f".berg/jobs/{machine.job}_metadata.json"
    content = machine.read(name)[0]
    check(content, machine.job_sha256, f"gs://{machine.bucket}/{name}")
    return bool(json.loads(content)["spec"]["no_kill"])


def record_failure(machine: Machine, reason: str) -> None:
    """Upload the log and write that the job failed, or that its devbox is stopped."""
    if machine.box:
        reason = reason + "; " + machine.way_in()
    if machine.box == STOPS:
        record(machine, reason, state="STOPPED")
    else:
        finished_at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record(machine, reason, state="FAILED", finished_at=finished_at)


def record(machine: Machine, reason: str, begins: bool = False, **changes: Any) -> None:
    """Upload the log and write changes to the state of the job, with the reason for them, unless it
    is over or another machine has it. With `begins` another attempt begins.
    """
    name = state_path(machine)
    content, generation = machine.read(name)
    state = json.loads(content)
    if state["state"] in FINAL or is_elsewhere(machine, state):
        return
    log, disk = f".berg/logs/{machine.job}/{machine.log.name}", BERG / "disk"
    writer = {}
    if disk.exists():  # a later worker goes on with what this disk wrote
        writer["berg-writer"] = f"{machine.job}/{disk.read_text()}"
    machine.write(log, machine.log.read_bytes(), writer)
    before, now = state["reason"], time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    state.update(reason=reason, machine=machine.name, zone=machine.zone, **changes)
    state["history"] = [*state.get("history", []), [state["state"], now]][-HISTORY:]
    if begins:
        state["attempt"] += 1
        begun = [str(state["attempt"]), now, before[:WHY]]
        state["attempts"] = [*state.get("attempts", []), begun][-ATTEMPTS:]
    write_state(machine, state, generation)
    is_over = state["state"] in FINAL
    if is_over and state.get("job", {}).get("secrets") and not machine.sweep:
        delete_secrets(machine)


def write_state(machine: Machine, state: dict[str, Any], generation: str) -> None:
    """Write the job's state in place of the one that was read."""
    text, condition = json.dumps(state), "&ifGenerationMatch=" + generation
    machine.write(state_path(machine), text.encode(), {"state": text}, condition)


def mark_undeleted(machine: Machine) -> None:
    """Write into the state of a job that is over that this machine is still there."""
    for pause in (1, 3, 10, 0):
        content, generation = machine.read(state_path(machine))
        state = json.loads(content)
        marks = state.get("undeleted", {})
        if state["state"] not in FINAL or len({*marks, machine.name}) > MOST_UNDELETED:
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        state["undeleted"] = {**marks, machine.name: now}
        try:
            write_state(machine, state, generation)
            return
        except urllib.error.HTTPError as error:
            if error.code != 412 or not pause:  # another machine of the job wrote meanwhile
                raise
        time.sleep(pause)


def state_path(machine: Machine) -> str:
    return f".berg/jobs/{machine.job}_state.json"


def is_elsewhere(machine: Machine, state: dict[str, Any]) -> bool:
    """Whether a machine of this name in another zone has the job."""
    if state["state"] in ("SUBMITTED", "STOPPED") or state.get("machine") != machine.name:
        return False
    return state.get("zone") not in ("", machine.zone)


def delete_secrets(machine: Machine) -> None:
    """Delete the secrets of the job."""
    base = "https://secretmanager.googleapis.com"
    if machine.endpoint:
        base = machine.endpoint + "/secretmanager"
    machine.call(f"{base}/v1/projects/{machine.project}/secrets/berg-{machine.job}", "DELETE")


def save(machine: Machine, python: str, died: str) -> bool:
    """Let a second worker save what the first one left; return whether that worked."""
    for pause in (1, 10, 60, 300, 0):
        machine.say(f"berg's worker {died}; saving what is left")
        reason = "berg's worker " + died
        code, _ = run_worker(python, "salvage", machine.job, reason, machine.sweep)
        if not code:
            return True
        time.sleep(pause)
    return False


def goes_down() -> bool:
    """Whether this machine shuts down."""
    try:
        state = subprocess.run(["systemctl", "is-system-running"], stdout=subprocess.PIPE).stdout
    except OSError:
        return False
    return state.strip() == b"stopping"


def hand_over() -> bool:
    """Let systemd run this file as a unit of its own; return whether it does."""
    script, unit = BERG / "boot.py", SYSTEMD / "berg.service"
    # where a folder stands for /root, systemd is the host's
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
        if goes_down():
            console("The machine goes down: there is no time to begin")
            return True
        console(f"systemd does not take berg's unit ({error}); going on without it")
        return False
    console("Going on as a unit of systemd's: systemctl status berg")
    return True


def keep_packages() -> None:
    """Let no timer upgrade packages under a job, and the job's apt-get install wait for those that
    do so now.
    """
    folder = Path("/etc/apt/apt.conf.d")
    try:
        if folder.is_dir() and "BERG_ROOT" not in os.environ:  # else it is the host's
            settings = f'APT::Periodic::Enable "0";\nDPkg::Lock::Timeout "{LOCKED_SECONDS}";\n'
            (folder / "99berg").write_text(settings)
    except OSError:
        pass  # not ours to write


def pod_exit_code() -> int:
    """Return 0 for a job that succeeded, 42 for one that is over without, 1 for one that another
    pod is to go on with.
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

    An installation may replace the image's virtual environment, and the checkout the folder that
    its containers begin in: berg uses neither.
    """
    os.chdir("/")
    folders = os.environ.get("PATH", os.defpath).split(":")
    path = ":".join(each for each in folders if each != sys.prefix + "/bin")
    python = shutil.which("python3", path=path)
    if python and sys.prefix != sys.base_prefix and sys.argv[1:] != ["work"]:
        os.execv(python, [python, __file__, "work"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for key, folder in NVIDIA.items():
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
            return
        if machine.box == STOPS and machine.rescuer:
            rescue(machine)
            return
        python, wheel = install(machine)
        outlive_worker(machine, python, wheel)
    except Exception as error:
        give_up(machine, f"berg could not be started on {machine.name}: {error}")


def rescue(machine: Machine) -> None:
    """Keep a devbox on for people to log in, without installation and worker."""
    why = "started by " + machine.rescuer + " without installation and worker (--rescue)"
    machine.say(why)
    try:
        record(machine, why, begins=True, state="RUNNING")
    except Exception as error:
        machine.say(f"The state could not be written: {error}")
    machine.hold()


def prepare_image(machine: Machine) -> str:
    """Make of this disk what an image is made of; the laptop, which reads the console, goes on.

    Return the last line for it: why that failed; "" if the worker has said how it went.
    """
    try:
        wheel = unpack(machine, machine.dist, machine.dist_sha256, "app")
        if not (BERG / "venv/bin/python").exists():
            install_packages(machine, wheel, "the image is to have one")
        code, words = run_worker(str(BERG / "venv/bin/python"), "image")
    except Exception as error:  # else the machine would delete itself before anybody hears it
        return f"{NO_IMAGE}{error}"
    return NO_IMAGE + death(code, words) if code else ""


def outlive_worker(machine: Machine, python: str, wheel: Path) -> None:
    """Run the worker; when it dies, let another one save the results.

    A machine of a sweep then goes on with the other jobs, until its worker has died too often.
    """
    arguments = ("run", machine.job)
    if machine.sweep:
        arguments = ("sweep", machine.sweep)
    code, words = run_worker(python, *arguments)
    if code == DEPENDENCIES_MISSING:
        python = install_packages(machine, wheel, "what is there does not run here")
        code, words = run_worker(python, *arguments)
    for _ in range(CRASHES):
        if not code or shuts_down(code):
            return
        died = death(code, words)
        if machine.sweep and (BERG / "job").exists():
            machine.job = (BERG / "job").read_text()
        # A machine of a sweep that has no job yet has nothing to save.
        saved = machine.job == machine.sweep or save(machine, python, died)
        if not machine.sweep:
            if not saved:
                give_up(machine, unsaved(died))
            return
        code, words = run_worker(python, *arguments)  # the rest of the sweep
    give_up(machine, unsaved(died))


def shuts_down(code: int) -> bool:
    """Whether SIGTERM ended the worker, before it could listen, because the machine shuts down."""
    if code != -signal.SIGTERM:
        return False
    for _ in range(GOING * 10):
        if SIGTERM_TIMES:
            return True
        time.sleep(0.1)
    return False


def death(code: int, words: str) -> str:
    """Return how a worker died, with the last line that it printed."""
    how = f"ended with exit code {code}"
    if code < 0:
        how = f"was killed by signal {-code}"
    if words:
        how += f": {words}"
    return how


def unsaved(died: str) -> str:
    return f"berg's worker {died}, and so did those that were to save the results"


if __name__ == "__main__":
    main()
