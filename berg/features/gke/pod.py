"""The program of a pod: boot.py behind a metadata server of the pod's own.

One file of the standard library, for Python 3.8. The server adds what a pod is to what its node's
knows: boot.py and the worker find a machine like any other, whose attributes are the pod's facts and
annotations. Tokens are the node's. A pod that gets SIGTERM was taken away, unless a word says that a
user ends its job. The exit code tells Kubernetes whether another pod is to come.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NODE = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
FACTS: dict[str, str] = json.loads(os.environ.get("BERG_FACTS", "{}"))
WORDS = Path("/etc/berg/pod/annotations")  # a line KEY="VALUE" each
BASE = "/computeMetadata/v1/instance/"
DRIVERS = {"PATH": "/usr/local/nvidia/bin", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
FAILED, CONTINUES = 42, 43  # see pods.py
SIGNALS: list[int] = []  # of this process


def of_node(path: str) -> Any:
    """The answer of the node's metadata server; one that knows less to tell pods answers 404."""
    request = urllib.request.Request(f"http://{NODE}{path}", headers={"Metadata-Flavor": "Google"})
    return urllib.request.urlopen(request, timeout=60)


def index() -> str:
    return os.environ.get("JOB_COMPLETION_INDEX", "0")


def instance() -> dict[str, Any]:
    attributes = dict(FACTS)
    for line in WORDS.read_text().splitlines():
        key, _, value = line.partition("=")
        if key.startswith("berg-"):
            attributes[key] = json.loads(value)
    preempted = "FALSE"
    try:
        with of_node(BASE + "preempted") as answer:
            preempted = answer.read().decode()
    except OSError:
        pass
    name, machines = attributes["berg-job"], attributes["berg-machines"]
    return {
        "id": os.environ["BERG_POD"],
        "name": name if machines == "1" else f"{name}-{index()}",
        "zone": f"projects/-/zones/{attributes['place']}",
        "networkInterfaces": [{"ip": os.environ["BERG_POD_IP"]}],
        "attributes": attributes,
        "preempted": "TRUE" if SIGNALS else preempted,
    }


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, status, kind = self.path.partition("?")[0], 200, "application/json"
        try:
            if path == BASE:
                content = json.dumps(instance()).encode()
            elif path == f"{BASE}name":
                content = instance()["name"].encode()
            else:
                with of_node(self.path) as answer:
                    content, kind = answer.read(), answer.headers["Content-Type"]
        except urllib.error.HTTPError as error:
            content, status = error.read(), error.code
        except (OSError, ValueError, KeyError) as error:
            content, status = str(error).encode(), 503
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def boot_only() -> None:
    """Run boot.py, whose last step is the end of this process, with the exit code of the worker."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import boot

    def leave(ended: Any = None) -> None:
        sys.exit(FAILED if ended is None else ended)

    boot.delete_machine, boot.unit = leave, lambda: False
    boot.main()


def main() -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["GCE_METADATA_HOST"] = f"127.0.0.1:{server.server_port}"
    for key, folder in DRIVERS.items():
        os.environ[key] = ":".join(filter(None, [os.environ.get(key), folder]))
    if not shutil.which("git"):
        for words in (["update"], ["install", "-y", "git", "ca-certificates"]):
            subprocess.run(["apt-get", "-qq", *words], stdin=subprocess.DEVNULL)
    child = subprocess.Popen([sys.executable, __file__, "boot"])

    def end(*_: Any) -> None:
        SIGNALS.append(signal.SIGTERM)
        child.terminate()

    signal.signal(signal.SIGTERM, end)
    code = child.wait()
    if code == 75:  # boot.CONTINUES
        return CONTINUES
    if SIGNALS and code not in (0, 75, 76, 77):  # before there was a worker
        return CONTINUES
    if FACTS.get("berg-rows"):  # the other pods of a sweep go on
        return 0
    ended = Path(os.environ.get("BERG_ROOT", "/root"), "berg/ended")
    is_failed = not ended.exists() or json.loads(ended.read_text())["state"] != "SUCCEEDED"
    return FAILED if is_failed and index() == "0" else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["boot"]:
        boot_only()
    sys.exit(main())
