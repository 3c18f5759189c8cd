#!/usr/bin/env python3
"""The startup script: fetch Berg from the bucket, run its worker, delete this machine.

One file of the standard library, for Python 3.8. Where there is systemd it makes a unit, which gets
SIGTERM when the machine shuts down and keeps the network until it has ended; if this file dies, the
unit ends what it left and starts it again. A worker that dies is started again; the last line
deletes the machine, whatever happened. A devbox is switched off instead, and keeps its disk, unless a
user killed it.

A machine that waits takes guests: jobs that a laptop brings over ssh. Each has this file, and a unit,
a worker and folders of its own, and leaves the machine to its host.
"""

import contextlib
import ctypes
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
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional
from urllib.parse import quote

ROOT = Path(os.environ.get("BERG_ROOT", "/root"))
IS_GUEST = "BERG_FOLDER" in os.environ
BERG = Path(os.environ.get("BERG_FOLDER", ROOT / "berg"))
GUESTS = ROOT / "berg/jobs"  # their folders
OPEN = GUESTS / "open"  # is there while guests are taken
DOOR = GUESTS / "door"  # is locked while that is decided
OWN = ("code", "berg_results", "data", "scratch")  # of a guest, in the usual places
Facts = Dict[str, str]  # the attributes of this instance; Python 3.8 knows no dict[…]
HOST = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
TRIES = 3  # of a worker that dies
GIVING_UP = 600  # seconds
# Exit codes of the worker: the job is over; this machine alone is, and its group may make another one,
# which continues; the others go on without this machine; a devbox goes off; it begins the next attempt.
OVER, CONTINUES, LEAVES, STOPS, AGAIN = 0, 75, 76, 77, 78
SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER of linux/prctl.h
WORKER = "import sys; sys.path.insert(0, %r); from berg.worker import %s as act; act()"
UNIT = """\
[Unit]
Description=Runs a job of Berg
Wants=network-online.target
After=network-online.target nss-lookup.target
RefuseManualStop=yes
StartLimitIntervalSec=3600
StartLimitBurst=5
{failure}[Service]
Environment=HOME=/root
ExecStart={command}
Restart=on-failure
RestartSec=10
KillMode=mixed
TimeoutStopSec=600
OOMPolicy=continue
TasksMax=infinity
LimitNOFILE=1048576
LimitMEMLOCK=infinity
StandardOutput=tty
"""
DELETE_UNIT = """\
[Unit]
Description=Deletes the machine whose worker died again and again
[Service]
ExecStart={command}
StandardOutput=tty
"""


def bypass_proxy() -> None:
    """Reach the metadata server and this machine without the proxy that may be set."""
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if old.strip() != "*":
        hosts = [*filter(None, old.split(",")), HOST.partition(":")[0], "127.0.0.1", "localhost"]
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


def get(url: str, headers: Any = None, method: str = "GET", data: Any = None) -> bytes:
    """The body of an answer. What may pass is retried for some minutes: new rights take that long."""
    for attempt in range(12):
        try:
            request = urllib.request.Request(url, data=data, headers=headers or {}, method=method)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return bytes(answer.read())
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "code", 500) in (400, 401, 404) or attempt == 11:
                raise
            print(f"berg: {error}; trying again", flush=True)
        time.sleep(min(2**attempt, 30))
    raise OSError(url)  # never reached


def metadata(path: str) -> bytes:
    return get(f"http://{HOST}/computeMetadata/v1/{path}", {"Metadata-Flavor": "Google"})


def authorized(url: str, method: str = "GET", data: Any = None) -> bytes:
    token = json.loads(metadata("instance/service-accounts/default/token"))["access_token"]
    return get(url, {"Authorization": "Bearer " + token}, method, data)


def bring(facts: Facts, name: str, sha256: str) -> bytes:
    """The bytes of an object that the laptop sent; raise OSError for any others."""
    base = facts.get("berg-endpoint", "https://storage.googleapis.com")
    url = "{}/storage/v1/b/{}/o/{}?alt=media".format(
        base, facts["berg-bucket"], quote(name, safe="")
    )
    content = authorized(url)
    if hashlib.sha256(content).hexdigest() != sha256:
        raise OSError(name + " is not what was submitted; nothing of it was run")
    return content


def python_for(facts: Facts) -> str:
    """The python that has what Berg needs: a golden image's, or one that uv makes now."""
    python, uv, unfinished = BERG / "venv/bin/python", BERG / "uv", BERG / "venv-unfinished"
    if unfinished.exists() or not python.exists():
        unfinished.touch()
        uv.write_bytes(bring(facts, facts["berg-uv"], facts["berg-uv-sha256"]))
        uv.chmod(0o755)
        # With a Python of this machine, or one that uv downloads.
        make = [str(uv), "venv", "-q", "--clear", "--python", ">=3.10", str(BERG / "venv")]
        subprocess.run(make, check=True)
        install = [str(uv), "pip", "install", "-q", "--python", str(python)]
        subprocess.run([*install, *facts["berg-packages"].split()], check=True)
        unfinished.unlink()
    return str(python)


def report(facts: Facts, text: str) -> None:
    """Say why no worker runs: on the console, and, if that is possible, as a log of the job."""
    print("berg: " + text, flush=True)
    try:
        base = facts.get("berg-endpoint", "https://storage.googleapis.com")
        machine = metadata("instance/name").decode()
        name = ".berg/logs/{}/{}.00000000T000000.log".format(facts["berg-job"], machine)
        query = "uploadType=media&name=" + quote(name, safe="")
        url = "{}/upload/storage/v1/b/{}/o?{}".format(base, facts["berg-bucket"], query)
        authorized(url, "POST", ("[berg] " + text + "\n").encode())
    except (OSError, ValueError, KeyError) as error:
        print(f"berg: no log of this could be written: {error}", flush=True)


def delete_machine(ended: Optional[int] = None) -> None:
    """Delete this machine, however often that fails; if the job is over, with the group that would
    make it again. A devbox only goes off. Without `ended` no worker could work. A guest only goes.
    """
    if IS_GUEST:
        return leave(ended)
    with contextlib.suppress(OSError):  # the disk may be full
        close(is_forced=True)
    while True:
        try:
            return ask_for_end(ended)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
            print(f"berg: this machine could not be deleted: {error}", flush=True)
        time.sleep(60)


def ask_for_end(ended: Optional[int]) -> None:
    facts: Facts = json.loads(metadata("instance/?recursive=true"))["attributes"]
    if ended is None:  # the other machines of a sweep go on
        ended = STOPS if "berg-devbox" in facts else LEAVES if "berg-rows" in facts else OVER
    base = facts.get("berg-endpoint", "https://compute.googleapis.com")
    project = metadata("project/project-id").decode()
    zone = metadata("instance/zone").decode().rpartition("/")[2]
    path = "zones/{}/instances/{}".format(zone, metadata("instance/name").decode())
    url, group = base + "/compute/v1/projects/" + project + "/", facts.get("created-by", "")
    group = group.split("/", 2)[2] if "/instanceGroupManagers/" in group else ""
    if ended == STOPS:
        authorized(url + path + "/stop?discardLocalSsd=true", "POST", b"")
    elif group and ended == LEAVES:
        body = json.dumps({"instances": [path], "skipInstancesOnValidationError": True}).encode()
        authorized(url + group + "/deleteInstances", "POST", body)
    else:
        authorized(url + (group if group and ended == OVER else path), "DELETE")


def clear_others(number: str, name: str) -> None:
    """Of a disk that is an image of another machine's: remove what a worker noted there, and move that
    machine's code and results to /root/from-NAME.
    """
    mark, own = BERG / "machine", number + " " + name
    before = mark.read_text() if mark.exists() else own
    if before.split()[0] != number:
        for path in BERG.iterdir():
            if path.name in ("venv", "uv", "env", "boot.py"):  # what was installed
                continue
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(str(path))
            else:
                path.unlink()
        aside = ROOT / ("from-" + before.split()[1])
        aside.mkdir(exist_ok=True)
        for folder in (ROOT / "code", ROOT / "berg_results"):
            if folder.exists() and not (aside / folder.name).exists():
                shutil.move(str(folder), str(aside))
    mark.write_text(own)


def unit() -> bool:
    """Let systemd run this file as a unit of its own; return whether it does."""
    if not Path("/run/systemd/system").is_dir() or "BERG_ROOT" in os.environ:
        return False
    script = BERG / "boot.py"
    script.write_bytes(Path(__file__).read_bytes())
    command, failure = f"{sys.executable} {script} ", "OnFailure=berg-delete.service\n"
    texts = {"berg-delete": DELETE_UNIT.format(command=command + "delete")}
    texts["berg"] = UNIT.format(command=command + "work", failure=failure)
    return start_unit("berg", texts)


def start_unit(name: str, texts: Dict[str, str]) -> bool:
    """Start one of these units; return whether systemd does."""
    for each, text in texts.items():
        Path("/run/systemd/system/" + each + ".service").write_text(text)
    done = [subprocess.run(["systemctl", *words]).returncode for words in
            (["daemon-reload"], ["start", "--no-block", name])]  # fmt: skip
    return not any(done)


def work(facts: Facts) -> Optional[int]:
    """Run the worker until it ends by itself; return its exit code, None if it died three times."""
    shutil.rmtree(str(BERG / "app"), ignore_errors=True)
    (BERG / "app.zip").write_bytes(bring(facts, facts["berg-dist"], facts["berg-dist-sha256"]))
    with zipfile.ZipFile(str(BERG / "app.zip")) as archive:
        archive.extractall(str(BERG / "app"))
    words = [python_for(facts), "-c", WORKER % (str(BERG / "app"), "main")]
    errors = BERG / "worker.err"
    os.environ["GCE_METADATA_TIMEOUT"] = "60"  # seconds; Google's libraries give up after 3
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)  # adopt what a worker that dies leaves behind
    tries = TRIES
    stopping = []  # type: List[int]
    while tries:
        knows = bool(stopping)
        with errors.open("wb") as file:
            worker = subprocess.Popen(words + ["stopping"] * knows, stderr=file)

        def stop(number: int, _: Any, child: Any = worker) -> None:
            stopping.append(number)
            child.terminate()

        signal.signal(signal.SIGTERM, stop)
        if stopping and not knows:  # the signal came between two workers
            worker.terminate()
        ended = worker.wait()
        tries = TRIES if ended == AGAIN else tries - 1
        if ended == AGAIN or (ended == -signal.SIGTERM and stopping and not knows):
            continue  # the signal came before that worker listened to it
        if ended in (OVER, CONTINUES, LEAVES, STOPS):
            return ended
        last = errors.read_text(errors="replace").strip().rpartition("\n")[2]
        if ended == -signal.SIGKILL:
            last = "it was killed, as the kernel does when the memory is used up"
        report(facts, f"the worker ended with exit code {ended}: {last}")
    give_up(f"Berg's worker died {TRIES} times: {last}")
    return None


def give_up(reason: str) -> None:
    """Let the job end as failed; without Berg here it is lost when its machine is gone."""
    words = [str(BERG / "venv/bin/python"), "-c", WORKER % (str(BERG / "app"), "give_up"), reason]
    try:
        subprocess.run(words, timeout=GIVING_UP)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"berg: the job could not be ended: {error}", flush=True)


# --- guests


def locked(file: Path, how: int = fcntl.LOCK_EX) -> Any:
    """The file, locked until it is closed; None if that would take waiting, and `how` forbids it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    opened = file.open("a+")
    try:
        fcntl.flock(opened, how)
        return opened
    except BlockingIOError:
        opened.close()
        return None


def guests() -> Dict[str, int]:
    """The guests that run here, and the process of each; 0 for one that begins."""
    found = {}
    for file in GUESTS.glob("*/lock"):
        free = locked(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        if free:
            free.close()
        else:
            found[file.parent.name] = int(file.read_text() or 0)
    return found


def open_door() -> None:
    """Take guests from now on."""
    with locked(DOOR):
        OPEN.touch()


def close(is_forced: bool) -> bool:
    """Take no guests any more, unless one is here and the end is not forced; return whether it is so."""
    with locked(DOOR):
        if guests() and not is_forced:
            return False
        if OPEN.exists():
            OPEN.unlink()
        return True


def end_guests(seconds: float) -> None:
    """Let all guests end their commands and save their results, and wait for so long."""
    asked: List[int] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        running = guests()
        if not running:
            return
        for process in {*running.values()} - {0, *asked}:
            asked.append(process)
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        time.sleep(0.2)


def accept(facts: Facts, is_shared: bool) -> None:
    """Start a guest for a laptop, which came by ssh; exit with what is in its way."""
    own = GUESTS / facts["berg-job"]
    host = json.loads(metadata("instance/attributes/?recursive=true"))
    with locked(DOOR):
        running = guests()
        if not OPEN.exists():
            sys.exit("it takes no jobs any more")
        if own.name in running or (running and not is_shared):
            sys.exit(f"it runs {', '.join(running)} already. To run beside it: --share")
        record = own / "facts.json"
        if not record.exists() or facts["berg-job-sha256"] not in record.read_text():
            shutil.rmtree(str(own), ignore_errors=True)  # another job's
        for folder in (*OWN, "berg", "tmp"):
            (own / folder).mkdir(parents=True, exist_ok=True)
        (own / "tmp").chmod(0o1777)
        for name in ("venv", "uv") if host.get("berg-packages") == facts["berg-packages"] else ():
            if not (own / "berg" / name).exists():
                (own / "berg" / name).symlink_to(BERG / name)
        # A laptop may have slept: the guest ends in time for its host all the same.
        late = float(facts["berg-seconds"]) + time.time() - float(facts["berg-until"])
        since = time.clock_gettime(time.CLOCK_BOOTTIME) - max(0.0, late)
        record.write_text(json.dumps({**facts, "berg-since": str(since)}))
        os.replace(__file__, str(own / "boot.py"))
        if not begin(own):
            sys.exit("it goes off")
        end = time.monotonic() + 30
        while own.name not in guests():
            if time.monotonic() > end:
                sys.exit("it did not begin the job")
            time.sleep(0.02)


def begin(own: Path) -> bool:
    """Run a guest as a unit, or without systemd in a session; it goes on when its laptop leaves. Return
    whether it begins.
    """
    words = [shutil.which("unshare") or "unshare", "--mount", sys.executable]
    words += [str(own / "boot.py"), "guest"]
    if Path("/run/systemd/system").is_dir():
        name = "berg-job-" + own.name
        return start_unit(name, {name: UNIT.format(command=" ".join(words), failure="")})
    with (own / "console").open("ab") as out:
        subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    return True


def enter(own: Path) -> None:
    """Put a guest's folders in the usual places, for its processes alone, and go on as `work`."""
    places = {"tmp": Path("/tmp"), **{name: ROOT / name for name in OWN}}
    for name, place in places.items():
        place.mkdir(exist_ok=True)
        subprocess.run(["mount", "--bind", str(own / name), str(place)], check=True)
    os.environ["BERG_FOLDER"] = str(own / "berg")
    os.execv(sys.executable, [sys.executable, str(own / "boot.py"), "work"])


def told(attributes: Facts) -> Facts:
    """What this machine was told; of its own job a guest was told by its laptop."""
    if not IS_GUEST:
        return attributes
    shared = {key: text for key, text in attributes.items() if key != "berg-devbox"}
    return {**shared, **json.loads((BERG.parent / "facts.json").read_text())}


def leave(ended: Optional[int]) -> None:
    """Remove what a guest had here, unless its worker could not save it."""
    if ended is not None and not (BERG / "unsaved").exists():
        shutil.rmtree(str(BERG.parent), ignore_errors=True)


def main() -> None:
    bypass_proxy()
    os.environ.setdefault("UV_SYSTEM_CERTS", "1")  # uv trusts what this machine trusts, as pip does
    words = sys.argv[1:]
    if words == ["delete"]:
        return delete_machine()
    if words == ["guest"]:
        return enter(Path(__file__).parent)
    if words[:1] == ["accept"]:
        return accept(json.loads(words[1]), words[2:] == ["share"])
    BERG.mkdir(parents=True, exist_ok=True)
    if words != ["work"] and unit():
        return None
    facts: Facts = {}
    ended = None
    try:
        if IS_GUEST:
            lock = locked(BERG.parent / "lock")  # until this process ends
            lock.truncate(0)
            print(os.getpid(), end="", file=lock, flush=True)
        instance = json.loads(metadata("instance/?recursive=true"))
        facts = told(instance["attributes"])
        if not IS_GUEST:
            clear_others(str(instance["id"]), instance["name"])
            close(is_forced=True)
            for script in GUESTS.glob("*/boot.py"):  # whose machine went off under them
                begin(script.parent)
        ended = work(facts)
    except Exception as error:
        report(facts, f"{type(error).__name__}: {error}")
        give_up(f"Berg could not work: {type(error).__name__}: {error}")
    return delete_machine(ended)


if __name__ == "__main__":
    main()
