#!/usr/bin/env python3
"""The first thing that a machine runs: fetch berg from the bucket, run its worker, and outlive it.

This file is the machine's startup script, as it is. It needs nothing but python 3.8 and its standard
library, takes everything from the machine's metadata, and ends in one of three ways: the worker saw the
job through; the worker died, and a second one saved what was left; or neither was possible, and this
script records that the job failed and deletes the machine itself.
"""

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
from pathlib import Path
from urllib.parse import quote

ROOT = Path(os.environ.get("BERG_ROOT", "/root"))
BERG = ROOT / "berg"
METADATA = f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}/computeMetadata/v1/"
FLAVOR = {"Metadata-Flavor": "Google"}
GOING = 60  # seconds in which a machine that was told to stop is gone
TOLD: list = []  # when this script was told to stop, as it is when the machine stops
CRASHES = 3  # of its worker, that a machine of a sweep survives
DEPENDENCIES_MISSING = 64  # the worker's exit code when its python lacks a package


def bypass_proxies():
    """Let everything on this machine reach what is near without the proxy that is set, as berg does elsewhere."""
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    near = ["localhost", "127.0.0.1", "::1", "metadata.google.internal", "metadata", "169.254.169.254"]
    near.append(METADATA.split("/")[2].partition(":")[0])
    if old.strip() != "*":
        hosts = [host for host in old.split(",") if host] + near
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


def request(url, method="GET", data=None, headers=None, attempts=8):
    """Content and headers of an answer; trouble that may pass is retried for about a minute."""
    for attempt in range(1, attempts + 1):
        try:
            call = urllib.request.Request(url, data=data, method=method, headers=headers or {})
            with urllib.request.urlopen(call, timeout=60) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            if error.code not in (408, 429, 500, 502, 503, 504) or attempt == attempts:
                raise
        except OSError:
            if attempt == attempts:
                raise
        time.sleep(min(2**attempt * 0.25, 15))
    raise ValueError("at least one attempt")


def metadata(path, default=None):
    try:
        return request(METADATA + path, headers=FLAVOR)[0].decode()
    except urllib.error.HTTPError as error:
        if error.code == 404 and default is not None:
            return default
        raise


def instance_facts():
    """What an instance was told when it was created, from its metadata server."""
    name = metadata("instance/name")
    sweep = metadata("instance/attributes/berg-sweep", default="")
    return {
        "name": name,
        "zone": metadata("instance/zone").rpartition("/")[2],
        "project": metadata("project/project-id"),
        "bucket": metadata("instance/attributes/berg-bucket"),
        "sweep": sweep,
        "job": metadata("instance/attributes/berg-job", default=sweep or name),
        "dist": metadata("instance/attributes/berg-dist"),
        "endpoint": metadata("instance/attributes/berg-endpoint", default=""),
    }


class Machine:
    """This machine: who it is, by a few facts whose source depends on the place, its console and log, its end."""

    def __init__(self, facts=None):
        facts = facts or instance_facts()
        self.name, self.zone, self.project = facts["name"], facts["zone"], facts["project"]
        self.bucket, self.dist, self.endpoint = facts["bucket"], facts["dist"], facts["endpoint"]
        self.job, self.sweep = facts["job"], facts["sweep"]
        self.log = self.log_in(BERG / "logs")

    def log_for(self, job):
        """Let a log begin that is a job's own, with what was logged since the job before it."""
        early, self.log = self.log, self.log_in(BERG / "logs" / job)
        if early.exists() and not self.log.exists():
            early.rename(self.log)

    def log_in(self, folder):
        """The log that this disk has in a folder, or a new one, named so that logs sort by the time of their begin."""
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = self.name + time.strftime(".%Y%m%dT%H%M%S", time.gmtime(now)) + f"{now % 1 * 999:03.0f}.log"
        return max(folder.glob(self.name + ".*.log"), default=folder / name)

    def instance(self):
        """All that the metadata server knows of this machine."""
        return json.loads(metadata("instance/?recursive=true"))

    def say(self, text):
        """One line for the serial console and for the job's log."""
        print(text, flush=True)
        try:
            with self.log.open("a", errors="replace") as file:
                file.write("[berg] " + text + "\n")
        except OSError:
            pass  # a full disk must not keep the machine from being deleted

    def call(self, url, method="GET", data=None, kind="application/json"):
        token = json.loads(metadata("instance/service-accounts/default/token"))["access_token"]
        return request(url, method, data, {"Authorization": "Bearer " + token, "Content-Type": kind})

    def object_url(self, name, upload=False):
        base = (self.endpoint or "https://storage.googleapis.com") + ("/upload" if upload else "")
        return base + "/storage/v1/b/" + self.bucket + "/o" + ("" if upload else "/" + quote(name, safe=""))

    def read(self, name):
        content, headers = self.call(self.object_url(name) + "?alt=media")
        return content, headers.get("x-goog-generation", "0")

    def delete(self):
        """Delete this machine, with the group that would replace it if it belongs to one."""
        base = self.endpoint or "https://compute.googleapis.com"
        path = f"/compute/v1/projects/{self.project}/zones/{self.zone}/instances/{self.name}"
        owner = metadata("instance/attributes/created-by", default="")
        if "/instanceGroupManagers/" in owner:
            path = f"/compute/v1/projects/{self.project}/regions/{self.zone[:-2]}/instanceGroupManagers/{self.job}"
        self.call(base + path + "?requestId=" + str(uuid.uuid4()), "DELETE")


def install(machine):
    """Unpack berg and find or make a python environment for it; returns its python."""
    wheel = BERG / machine.dist.rpartition("/")[2]
    wheel.write_bytes(machine.read(machine.dist)[0])
    shutil.rmtree(str(BERG / "app"), ignore_errors=True)
    with zipfile.ZipFile(str(wheel)) as archive:
        archive.extractall(str(BERG / "app"))
    python = BERG / "venv/bin/python"
    if not python.exists():
        machine.say("Making a python environment for berg (a golden image has one)")
        install_packages(machine, python, wheel)
    return python, wheel


def install_packages(machine, python, wheel):
    if not shutil.which("git") or subprocess.run([sys.executable, "-c", "import ensurepip, pip"]).returncode:
        packages = ["git", "python3-venv", "python3-pip"]
        environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        subprocess.run(["apt-get", "update", "-q"], env=environment)
        subprocess.run(["apt-get", "install", "-q", "-y", *packages], env=environment, check=True)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(BERG / "venv")], check=True)
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], check=True)


def run_worker(python, *arguments):
    """The worker's exit code. The command that it runs must not see berg's packages: no PYTHONPATH."""
    code = "import sys; sys.path.insert(0, {!r}); from berg.worker import main; main()".format(str(BERG / "app"))
    worker = subprocess.Popen([str(python), "-c", code, *arguments])

    def stop(*_):
        TOLD.append(time.time())
        worker.terminate()

    signal.signal(signal.SIGTERM, stop)
    return worker.wait()


def give_up(machine, reason):
    """Record without berg's help that the job failed, upload the log, and delete the machine."""
    machine.say(reason)
    try:
        name = f".berg/jobs/{machine.job}_state.json"
        content, generation = machine.read(name)
        state = json.loads(content)
        if state["state"] not in ("SUCCEEDED", "FAILED", "KILLED", "LOST"):
            log = f".berg/logs/{machine.job}/{machine.log.name}"
            upload = machine.object_url(log, upload=True) + "?uploadType=media&name=" + quote(log, safe="")
            machine.call(upload, "POST", machine.log.read_bytes(), "text/plain")
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            state.update(state="FAILED", reason=reason, finished_at=now, machine=machine.name, zone=machine.zone)
            text = json.dumps(state)
            resource = json.dumps({"name": name, "metadata": {"state": text}})
            part = "--berg\r\nContent-Type: application/json\r\n\r\n"
            body = part + resource + "\r\n" + part + text + "\r\n--berg--\r\n"
            upload = machine.object_url(name, upload=True) + "?uploadType=multipart&ifGenerationMatch=" + generation
            machine.call(upload, "POST", body.encode(), "multipart/related; boundary=berg")
        if not json.loads(machine.read(f".berg/jobs/{machine.job}_metadata.json")[0])["kill_instance_after_job"]:
            return
    except Exception as error:
        machine.say(f"The state could not be written: {error}")
    machine.delete()


def save(machine, python, died):
    """Let a second worker save what the first one left; whether that worked."""
    for pause in (1, 10, 60, 300, 0):
        machine.say(f"berg's worker {died}; saving what is left")
        if not run_worker(python, "salvage", machine.job, "berg's worker " + died, machine.sweep):
            return True
        time.sleep(pause)
    return False


def main():
    bypass_proxies()
    machine = Machine()
    machine.say(f"Starting on {machine.name} in {machine.zone}")
    arguments = ("sweep", machine.sweep) if machine.sweep else ("run", machine.job)
    try:
        python, wheel = install(machine)
        code = run_worker(python, *arguments)
        if code == DEPENDENCIES_MISSING:
            install_packages(machine, python, wheel)
            code = run_worker(python, *arguments)
        for _ in range(CRASHES):
            if not code:
                return
            if code == -signal.SIGTERM:  # before it could listen: the machine is about to go, and so is this script
                for _ in range(GOING * 10):
                    if TOLD:
                        return
                    time.sleep(0.1)
            died = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            if machine.sweep and (BERG / "job").exists():
                machine.job = (BERG / "job").read_text()
            saved = machine.job == machine.sweep or save(machine, python, died)
            if not machine.sweep:
                break
            code = run_worker(python, *arguments)  # the rest of the sweep
        if machine.sweep or not saved:
            give_up(machine, f"berg's worker {died}, and so did those that were to save the results")
    except Exception as error:
        give_up(machine, f"berg could not be started on {machine.name}: {error}")


if __name__ == "__main__":
    main()
