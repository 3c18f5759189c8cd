#!/usr/bin/env python3
"""The first thing that a machine runs: fetch berg from the bucket, run its worker, and outlive it.

This file is the machine's startup script, as it is. It needs nothing but python 3.8 and its
standard library, takes everything from the machine's metadata, and ends in one of three ways: the
worker saw the job through; the worker died, and a second one saved what was left; or neither was
possible, and this script records that the job failed and deletes the machine itself.

A startup script hears nothing when its machine goes down (its service has KillMode=process: systemd
tells the script's runner only), and soon there is no network. So where there is systemd, the script
makes a unit that runs this file a second time, with `work`, and ends. The unit hears SIGTERM at
once, and the network stays until it has stopped.

In a pod of a cluster it is the one program of the container. What it has to know is in its
environment, what it is told later in its annotations, and its exit code says whether Kubernetes is
to make another pod.
"""

import fcntl
import http.client
import json
import os
import random
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
METADATA = (
    f"http://{os.environ.get('GCE_METADATA_HOST', 'metadata.google.internal')}/computeMetadata/v1/"
)
FLAVOR = {"Metadata-Flavor": "Google"}
CONSOLE_LINE = 8000  # bytes; the reader of a startup script's output gives up at a line of 64 KB
# for which 403 may pass: what was granted a moment ago counts after minutes
FORBIDDEN_SECONDS = 900
# for which other packages may be installed while a machine boots for the first time
LOCKED_SECONDS = 600
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
# The first process is told, and tells its worker, which ends the command; whoever is left at the end is killed.
KillMode=mixed
TimeoutStopSec=600
# A command that runs out of memory is not to take the worker with it.
OOMPolicy=continue
TasksMax=infinity
LimitMEMLOCK=infinity
StandardOutput=tty
"""
GOING = 60  # seconds in which a machine that was told to stop is gone
TOLD: list = []  # when this script was told to stop, as it is when the machine stops
CRASHES = 3  # of its worker, that a machine of a sweep survives
POD = os.environ.get("BERG_POD")  # the pod's uid, where this machine is one
ANNOTATIONS = Path("/etc/berg/pod/annotations")  # what the pod is told, a line KEY="VALUE" each
# a node's drivers, in a pod
NVIDIA = {
    "PATH": "/usr/local/nvidia/bin",
    "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64",
}
FOR_WORKER = ("NO_PROXY", "LD_LIBRARY_PATH")  # variables that this script sets, beside PATH
OVER = 42  # exit code of a pod whose job is over without success: no other is to take its place
RETRIED = (408, 429, 500, 502, 503, 504)  # statuses, as in berg/google/retry.py
LAST_WORDS = 500  # characters of what the worker said before it died, for the job's reason
DEPENDENCIES_MISSING = 64  # the worker's exit code when its python lacks a package


def bypass_proxies():
    """Let everything on this machine reach what is near without the proxy that is set, as berg does
    elsewhere.
    """
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    near = [
        "localhost",
        "127.0.0.1",
        "::1",
        "metadata.google.internal",
        "metadata",
        "169.254.169.254",
    ]
    near.append(METADATA.split("/")[2].partition(":")[0])
    if old.strip() != "*" and any(name.lower().endswith("_proxy") for name in os.environ):
        hosts = [host for host in old.split(",") if host] + near
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


def console(text):
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


def request(url, method="GET", data=None, headers=None, attempts=8, patience=0):
    """Content and headers of an answer; trouble that may pass is retried for about a minute, 403
    for `patience` s.
    """
    attempt, until = 0, time.monotonic() + patience
    while True:
        attempt += 1
        try:
            call = urllib.request.Request(url, data=data, method=method, headers=headers or {})
            with urllib.request.urlopen(call, timeout=60) as answer:
                return answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            if error.code == 403 and time.monotonic() < until:
                console(
                    "403 Forbidden; rights that were granted just now take minutes. Trying again"
                )
            elif error.code not in RETRIED or attempt >= attempts:
                raise
        except (OSError, http.client.HTTPException):  # the latter of an answer that breaks off
            if attempt >= attempts:
                raise
        time.sleep(min(2 ** min(attempt, 8) * 0.25, 15) * random.uniform(0.8, 1.2))


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
        "packages": metadata("instance/attributes/berg-packages", default=""),
        "endpoint": metadata("instance/attributes/berg-endpoint", default=""),
    }


def pod_facts():
    """What a pod was told when it was created, in its environment."""
    facts = json.loads(os.environ["BERG_FACTS"])
    return {
        **facts,
        "name": facts["names"][int(os.environ["JOB_COMPLETION_INDEX"])],
        "zone": os.environ["BERG_NODE"],
    }


def annotations():
    """What a pod is told now, as the attributes of an instance; a slash in a key stands for a dash."""
    lines = ANNOTATIONS.read_text().splitlines() if ANNOTATIONS.exists() else []
    pairs = [line.partition("=") for line in lines]
    return {
        key.replace("/", "-"): json.loads(value) for key, _, value in pairs if value[-1:] == '"'
    }


class Machine:
    """This machine: who it is, by a few facts whose source depends on the place, its console and
    log, its end.
    """

    def __init__(self, facts=None):
        facts = facts or (pod_facts() if POD else instance_facts())
        self.name, self.zone, self.project = facts["name"], facts["zone"], facts["project"]
        self.bucket, self.dist, self.endpoint = facts["bucket"], facts["dist"], facts["endpoint"]
        self.job, self.sweep, self.packages = facts["job"], facts["sweep"], facts["packages"]
        self.log = self.log_in(BERG / "logs")

    def log_for(self, job):
        """Let a log begin that is a job's own, with what was logged since the job before it."""
        early, self.log = self.log, self.log_in(BERG / "logs" / job)
        if early.exists() and not self.log.exists():
            early.rename(self.log)

    def log_in(self, folder):
        """The log that this disk has in a folder, or a new one, named so that logs sort by the time
        of their begin.
        """
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        name = (
            self.name
            + time.strftime(".%Y%m%dT%H%M%S", time.gmtime(now))
            + f"{now % 1 * 999:03.0f}.log"
        )
        return max(folder.glob(self.name + ".*.log"), default=folder / name)

    def instance(self):
        """All that the metadata server knows of this machine; of a pod, in the same words, what it
        was told.
        """
        if POD:
            return {
                "id": POD,
                "networkInterfaces": [{"ip": os.environ["BERG_POD_IP"]}],
                "attributes": annotations(),
            }
        return json.loads(metadata("instance/?recursive=true"))

    def told(self):
        """The same, of a pod with what its node knows, for who has no time: one request."""
        found = json.loads(
            request(METADATA + "instance/?recursive=true", headers=FLAVOR, attempts=1)[0]
        )
        return {**found, "attributes": annotations()} if POD else found

    def say(self, text):
        """One line for the serial console and for the job's log."""
        console(text)
        try:
            with self.log.open("a", errors="replace") as file:
                file.write("[berg] " + text + "\n")
        except OSError:
            pass  # a full disk must not keep the machine from being deleted

    def call(self, url, method="GET", data=None, kind="application/json"):
        token = json.loads(metadata("instance/service-accounts/default/token"))["access_token"]
        headers = {"Authorization": "Bearer " + token, "Content-Type": kind}
        return request(url, method, data, headers, patience=FORBIDDEN_SECONDS)

    def object_url(self, name, upload=False):
        base = (self.endpoint or "https://storage.googleapis.com") + ("/upload" if upload else "")
        return (
            base
            + "/storage/v1/b/"
            + self.bucket
            + "/o"
            + ("" if upload else "/" + quote(name, safe=""))
        )

    def read(self, name):
        content, headers = self.call(self.object_url(name) + "?alt=media")
        return content, headers.get("x-goog-generation", "0")

    def delete(self, alone=False):
        """Delete this machine, with the group that would replace it if it belongs to one and this
        is not `alone`.

        A pod just ends.
        """
        if POD:
            return
        base = self.endpoint or "https://compute.googleapis.com"
        path = f"/compute/v1/projects/{self.project}/zones/{self.zone}/instances/{self.name}"
        owner = metadata("instance/attributes/created-by", default="")
        if "/instanceGroupManagers/" in owner and not alone:
            where = (
                "zones/" + self.zone
                if "/zones/" in owner
                else "regions/" + self.zone.rpartition("-")[0]
            )
            path = f"/compute/v1/projects/{self.project}/{where}/instanceGroupManagers/{self.job}"
        try:
            self.call(base + path + "?requestId=" + str(uuid.uuid4()), "DELETE")
        except urllib.error.HTTPError as error:
            if error.code != 400 or "/instanceGroupManagers/" not in path:
                raise  # else another machine of the group asked for it already

    def insist_on_deletion(self):
        """Delete this machine whatever it takes. One that may not is turned off: then it costs its
        disk alone.

        The power goes when this process has ended, as all of its unit must.
        """
        pause = 1.0
        while True:
            try:
                return self.delete()
            except urllib.error.HTTPError as error:
                self.say(f"The machine could not be deleted: {error}")
                if error.code == 403:  # and was for a quarter of an hour
                    self.say("It is turned off instead. Delete it: berg reap")
                    if shutil.which("poweroff") and not subprocess.run(["poweroff"]).returncode:
                        sys.exit()
            except Exception as error:
                self.say(f"The machine could not be deleted: {error}")
            time.sleep(pause)
            pause = min(pause * 2, 60)


def install(machine):
    """Unpack berg and what it needs; returns the python that runs it, and berg's wheel."""
    wheel = unpack(machine, machine.dist, "app")
    python = BERG / "venv/bin/python"
    if python.exists():  # a golden image
        return python, wheel
    if machine.packages and sys.version_info >= (3, 10):
        if not shutil.which("git"):
            apt_install(machine, "git")
        unpack(machine, machine.packages, "packages")
        return sys.executable, wheel
    why = (
        "this python is older than 3.10"
        if machine.packages
        else "the laptop that sent the job had none to send"
    )
    return install_packages(machine, wheel, why), wheel


def unpack(machine, name, folder):
    """Let a folder hold what an archive in the bucket does; returns the archive."""
    archive = BERG / name.rpartition("/")[2]
    archive.write_bytes(machine.read(name)[0])
    shutil.rmtree(str(BERG / folder), ignore_errors=True)
    with zipfile.ZipFile(str(archive)) as zipped:
        zipped.extractall(str(BERG / folder))
    return archive


def install_packages(machine, wheel, why):
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
    return python


def apt_install(machine, *packages):
    """Install packages of the image's distribution, when what its first boot installs lets go of
    the locks.

    apt-get itself waits for dpkg's lock alone, not for those of its lists and archives.
    """
    machine.say("Installing with apt-get: " + " ".join(packages))
    until, told = time.monotonic() + LOCKED_SECONDS, False
    while True:
        try:
            execute("apt-get", "update", "-q")
            return execute("apt-get", "install", "-q", "-y", *packages)
        except OSError as error:
            if "lock" not in str(error) or time.monotonic() > until:
                raise
            if not told:
                machine.say(
                    f"{error}. Trying again for {LOCKED_SECONDS // 60} minutes: the first boot of an image has "
                    "packages to install, too"
                )
            told = True
        time.sleep(2)


def execute(*command):
    """Run a program; raises OSError with its last words if it fails."""
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive", LC_ALL="C.UTF-8")
    pipe = subprocess.PIPE
    ran = subprocess.run(
        command, env=environment, stdout=pipe, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
    )
    output = ran.stdout.decode(errors="replace").strip()
    console(output)
    if ran.returncode:
        lines = [
            line for line in output.splitlines() if line.startswith(("E: ", "ERROR: "))
        ] or output.splitlines()
        raise OSError(" ".join(command[:3]) + " failed: " + "".join(lines[:1]))


def run_worker(python, *arguments):
    """The worker's exit code, and its last words. The command that it runs must not see berg's
    packages: no PYTHONPATH.

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

    def stop(*_):
        TOLD.append(time.time())
        worker.terminate()

    signal.signal(signal.SIGTERM, stop)
    ended, said = worker.wait(), errors.read_text(errors="replace").strip()
    console(said)
    return ended, said.rpartition("\n")[2][:LAST_WORDS]


def give_up(machine, reason):
    """Record without berg's help that the job failed, upload the log, and delete the machine."""
    machine.say(reason)
    try:
        name = f".berg/jobs/{machine.job}_state.json"
        content, generation = machine.read(name)
        state = json.loads(content)
        # A machine of this name in another zone may have the job.
        is_elsewhere = state.get("machine") == machine.name and state.get("zone") not in (
            "",
            machine.zone,
        )
        ours = state["state"] == "SUBMITTED" or not is_elsewhere
        if ours and state["state"] not in ("SUCCEEDED", "FAILED", "KILLED", "LOST"):
            log = f".berg/logs/{machine.job}/{machine.log.name}"
            upload = (
                machine.object_url(log, upload=True)
                + "?uploadType=media&name="
                + quote(log, safe="")
            )
            machine.call(upload, "POST", machine.log.read_bytes(), "text/plain")
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            state.update(
                state="FAILED",
                reason=reason,
                finished_at=now,
                machine=machine.name,
                zone=machine.zone,
            )
            text = json.dumps(state)
            resource = json.dumps({"name": name, "metadata": {"state": text}})
            part = "--berg\r\nContent-Type: application/json\r\n\r\n"
            body = part + resource + "\r\n" + part + text + "\r\n--berg--\r\n"
            upload = (
                machine.object_url(name, upload=True)
                + "?uploadType=multipart&ifGenerationMatch="
                + generation
            )
            machine.call(upload, "POST", body.encode(), "multipart/related; boundary=berg")
            if state.get("job", {}).get("secrets") and not machine.sweep:
                base = (
                    machine.endpoint + "/secretmanager"
                    if machine.endpoint
                    else "https://secretmanager.googleapis.com"
                )
                machine.call(
                    f"{base}/v1/projects/{machine.project}/secrets/berg-{machine.job}", "DELETE"
                )
        if not json.loads(machine.read(f".berg/jobs/{machine.job}_metadata.json")[0])[
            "kill_instance_after_job"
        ]:
            return
    except Exception as error:
        machine.say(f"The state could not be written: {error}")
    machine.insist_on_deletion()


def save(machine, python, died):
    """Let a second worker save what the first one left; whether that worked."""
    for pause in (1, 10, 60, 300, 0):
        machine.say(f"berg's worker {died}; saving what is left")
        if not run_worker(python, "salvage", machine.job, "berg's worker " + died, machine.sweep)[
            0
        ]:
            return True
        time.sleep(pause)
    return False


def goes_down():
    try:
        state = subprocess.run(["systemctl", "is-system-running"], stdout=subprocess.PIPE).stdout
    except OSError:
        return False
    return state.strip() == b"stopping"


def hand_over():
    """Let systemd run this file as a unit of its own; whether it does."""
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


def keep_packages():
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


def pod_exit_code():
    """0 for what succeeded, 42 for a job that is over without, 1 for what another pod is to go on
    with.
    """
    machine = Machine()
    if machine.sweep:
        return int(bool(TOLD))
    try:
        state = json.loads(machine.read(".berg/jobs/" + machine.job + "_state.json")[0])["state"]
    except Exception as error:
        console(f"The job's state cannot be read: {error}")
        return 1
    return {"SUCCEEDED": 0, "SUBMITTED": 1}.get(state, OVER)


def main():
    bypass_proxies()
    if POD:
        # until there is a worker, which is told
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        for key, folder in NVIDIA.items():
            os.environ[key] = ":".join(filter(None, [os.environ.get(key), folder]))
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


def work():
    BERG.mkdir(parents=True, exist_ok=True)
    lock = (BERG / "boot.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        console("Berg works on this machine already: nothing to do")
        return
    machine = Machine()
    machine.say(f"Starting on {machine.name} in {machine.zone}")
    arguments = ("sweep", machine.sweep) if machine.sweep else ("run", machine.job)
    try:
        python, wheel = install(machine)
        code, said = run_worker(python, *arguments)
        if code == DEPENDENCIES_MISSING:
            python = install_packages(machine, wheel, "what is there does not run here")
            code, said = run_worker(python, *arguments)
        for _ in range(CRASHES):
            if not code:
                return
            # before it could listen: the machine is about to go, and so is this script
            if code == -signal.SIGTERM:
                for _ in range(GOING * 10):
                    if TOLD:
                        return
                    time.sleep(0.1)
            died = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            died += f": {said}" if said else ""
            if machine.sweep and (BERG / "job").exists():
                machine.job = (BERG / "job").read_text()
            saved = machine.job == machine.sweep or save(machine, python, died)
            if not machine.sweep:
                break
            code, said = run_worker(python, *arguments)  # the rest of the sweep
        if machine.sweep or not saved:
            give_up(
                machine, f"berg's worker {died}, and so did those that were to save the results"
            )
    except Exception as error:
        give_up(machine, f"berg could not be started on {machine.name}: {error}")


if __name__ == "__main__":
    main()
