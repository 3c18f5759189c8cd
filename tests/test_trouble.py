"""What is in the way of a command, in a sentence; and nothing is left behind."""

import base64
import http.server
import json
import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import BERG, Cloud, until
from google.auth._cloud_sdk import CLOUD_SDK_CLIENT_ID
from inside import fresh

from berg import gce, google
from localcloud import control

CPU = ["run", "-g", "0", "-n"]


@pytest.mark.slow
def test_a_devbox_whose_zone_is_full_says_so_and_keeps_its_disk(
    cloud: Cloud, project: Path, no_room: Any
) -> None:
    cloud.ok("devbox", "-g", "0", "-n", "full-zone", cwd=project)
    cloud.ok("stop", "--now", "full-zone")
    no_room()
    said = cloud.fails("start", "full-zone", says="its disk is there")
    assert "berg image create full-zone" in said


def test_the_bucket_is_asked_again_when_it_is_busy_and_a_refusal_is_said(
    cloud: Cloud, faults: Any
) -> None:
    for what in ({"status": 429}, {"half": True}):
        faults("storage.objects.list", **what, times=2)
        assert cloud.run("list", "-a").code == 0
    faults("compute.instances.aggregatedList", status=403, reason="forbidden")
    cloud.fails("list", "-a", says="Google refused")


def test_credentials_that_do_not_work_are_named(cloud: Cloud, tmp_path: Path) -> None:
    """Those of a service account work, until its key is deleted."""
    accounts = "/iam/v1/projects/berg-local/serviceAccounts"
    email = cloud.call("POST", accounts, {"accountId": "ci-of-tests"})["email"]
    project = "/cloudresourcemanager/v1/projects/berg-local"
    policy = cloud.call(
        "POST", f"{project}:getIamPolicy", {"options": {"requestedPolicyVersion": 3}}
    )
    policy["bindings"].append({"role": "roles/owner", "members": [f"serviceAccount:{email}"]})
    cloud.call("POST", f"{project}:setIamPolicy", {"policy": policy})
    made = cloud.call("POST", f"{accounts}/{email}/keys", {})
    file = tmp_path / "key.json"
    file.write_bytes(base64.b64decode(made["privateKeyData"]))
    settings = json.loads((cloud.home / ".berg/berg.json").read_text())
    (tmp_path / "berg.json").write_text(json.dumps({**settings, "credentials_file": ""}))
    own = {"BERG_HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": str(file)}
    time.sleep(1.5)  # rights count after a second here
    cloud.ok("list", "-a", "--json", **own)
    cloud.call("DELETE", f"/iam/v1/{made['name']}")
    cloud.fails("list", **own, says=f"Renew {file}")
    file.unlink()
    assert str(file) in cloud.fails("list", **own, says="no Google credentials")


NO_QUOTA_PROJECT = [
    "The iam.googleapis.com API requires a quota project, which is not set by default.",
    "Identity and Access Management API has not been used in project 764086051850 before.",
]


@pytest.mark.parametrize("message", NO_QUOTA_PROJECT)
def test_credentials_without_a_quota_project_lack_no_rights(
    cloud: Cloud, faults: Any, tmp_path: Path, message: str
) -> None:
    init = ["init", "--project", "berg-local", "--region", "us-central1"]
    init += ["--bucket", cloud.config.bucket, "-y"]
    new = {"BERG_HOME": str(tmp_path), "BERG_ENDPOINT": cloud.config.endpoint}
    new["BERG_CREDENTIALS_FILE"] = cloud.config.credentials_file
    for api in ("iam", "cloudresourcemanager", "container"):
        faults(f"{api}.*", status=403, message=message, times=None)
    for words in (["doctor"], ["cluster", "status", "any"], init):
        done = cloud.run(*words, **(new if words == init else {}))
        said = done.out + done.err
        assert "set-quota-project berg-local" in said, (words, said)
        assert "there is no account" not in said and "an owner of" not in said, (words, said)


def test_google_auths_own_words_on_quotas_are_not_shown(cloud: Cloud, tmp_path: Path) -> None:
    (file := tmp_path / "adc.json").write_text(
        json.dumps({"type": "authorized_user", "client_id": CLOUD_SDK_CLIENT_ID,
                    "client_secret": "x", "refresh_token": "x"})
    )  # fmt: skip
    own = {"BERG_HOME": str(tmp_path)}
    assert "quota" not in cloud.ok("config", "set", "credentials_file", str(file), **own).err


@pytest.mark.parametrize(
    ("to", "code", "says"),
    [
        ("<&- >&-", "0", ""),
        ("2>&- >&-", "0", ""),
        ("| true", "0 1 141", ""),
        (">/dev/full", "1", "No space left"),
    ],
)
def test_output_that_nobody_reads(
    cloud: Cloud, tmp_path: Path, to: str, code: str, says: str
) -> None:
    """As of a service without standard output, of `| head -1`, and of a full disk."""
    line = f"{shlex.join(BERG)} list -a {to}; echo ${{PIPESTATUS[0]}} >>code"
    words = ["bash", "-c", line]
    done = subprocess.run(words, cwd=tmp_path, env=cloud.env, capture_output=True, text=True)
    assert (tmp_path / "code").read_text().strip() in code.split(), done.stderr
    assert says in done.stderr and bool(says) == bool(done.stderr), done.stderr


def test_an_embedded_cloud_that_is_off_is_named_at_once(cloud: Cloud, project: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"http://127.0.0.1:{server.getsockname()[1]}"
    for words in (["list"], ["doctor"], ["run", "-g", "0", "true"]):
        cloud.fails(*words, cwd=project, BERG_ENDPOINT=endpoint, says="it: berg local start")


class Proxy(http.server.BaseHTTPRequestHandler):
    """Answers 502 to everything, and notes what it was asked."""

    asked: list[str] = []

    def refuse(self) -> None:
        self.asked.append(self.requestline)
        self.send_error(502)

    do_GET = do_POST = do_PUT = do_DELETE = do_CONNECT = do_HEAD = do_PATCH = refuse

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def alone(cloud: Cloud, tmp_path: Path) -> Iterator[Cloud]:
    """An embedded cloud of its own, before its first command, on a disk of its own where that can be."""
    folder = tmp_path / ".berg/local"
    folder.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", str(folder)]
    is_small = not os.geteuid() and not subprocess.run(mount, capture_output=True).returncode
    (folder / "image").symlink_to((cloud.home / ".berg/local/image").resolve())
    yield Cloud(tmp_path)
    (folder / "fill").unlink(missing_ok=True)
    control.reset(folder) if not is_small else control.stop(folder)
    if is_small:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_the_embedded_cloud_behind_a_proxy_and_on_a_full_disk(alone: Cloud, project: Path) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    env = {**dict.fromkeys(names, url), "NO_PROXY": "example.com"}
    alone.ok("init", "--local", "-y", **env)
    alone.call("POST", "/_berg/settings", {"first_boot": 0, "prepared": 1})
    line = 'echo "proxy $http_proxy"; echo 1 >$BERG_RESULTS_DIR/one'
    words = [*CPU, "proxied", "--tail", "--install", "none", line]
    assert f"proxy {url}\n" in alone.ok(*words, cwd=project, **env).out
    assert alone.run("fetch", "proxied", str(project / "out"), **env).code == 0
    until(lambda: not gce.machines(alone.config))  # whose files would make room
    assert Proxy.asked == []
    server.shutdown()
    if not os.path.ismount(alone.home / ".berg/local"):
        pytest.skip("mounting a disk takes root")
    fill = (alone.home / ".berg/local/fill").open("wb", buffering=0)
    with fill, pytest.raises(OSError):
        while True:
            fill.write(b"\0" * 65536)
    alone.fails(*CPU, "crowded", "true", cwd=project, says="disk is full")


def test_a_machine_whose_host_is_maintained_leaves_its_results_and_says_so(
    cloud: Cloud, project: Path
) -> None:
    line = "trap 'echo late >$BERG_RESULTS_DIR/late; exit 1' TERM; echo up; sleep 300 & wait"
    words = ["run", "-g", "1", "-t", "t4", "-n", "hosted", "--install", "none", line]
    assert cloud.run(*words, cwd=project).code == 0
    until(lambda: "\nup\n" in cloud.log("hosted"))
    (machine,) = gce.machines(cloud.config, "hosted")
    google.call(cloud.config, "POST", f"{machine.path}/simulateMaintenanceEvent")
    assert "maintain its host" in cloud.fails("wait", "hosted", says="hosted LOST")
    assert cloud.read("berg_results/hosted/late") == b"late\n" and (
        cloud.state("hosted")["gpus"] == "1 x t4"
    )
    until(lambda: not gce.machines(cloud.config, "hosted"))


@pytest.mark.parametrize("words", [["run", "-g", "0", "true"], ["list"], ["kill", "-y", "nobody*"]])
def test_ctrl_c_waits_for_no_answer(cloud: Cloud, project: Path, words: list[str]) -> None:
    server = json.loads((cloud.home / ".berg/local/server.json").read_text())["pid"]
    os.kill(server, signal.SIGSTOP)
    try:
        with subprocess.Popen(
            [*BERG, *words], cwd=project, env=cloud.env, stderr=subprocess.PIPE
        ) as laptop:
            until(lambda: [*Path(f"/proc/{laptop.pid}/task").iterdir()][1:])  # threads that ask
            time.sleep(1)
            laptop.send_signal(signal.SIGINT)
            said = laptop.communicate(timeout=30)[1]
    finally:
        os.kill(server, signal.SIGCONT)
    assert laptop.returncode == 130 and b"Interrupted" in said.splitlines(), said


@pytest.mark.parametrize("more", [["-g", "0"], ["-t", "l4", "--flex", "--max-hours", "1"]])
def test_a_new_account_is_waited_for(cloud: Cloud, project: Path, more: list[str]) -> None:
    cloud.call("POST", "/_berg/settings", {"account_delay": 1e6})
    name = fresh("early")
    words = [*BERG, "run", *more, "-n", name, "true"]
    try:
        with subprocess.Popen(
            words, cwd=project, env=cloud.env, stderr=subprocess.PIPE, text=True
        ) as laptop:
            assert laptop.stderr
            while "does not know the machines' account" not in laptop.stderr.readline():
                assert laptop.poll() is None
            cloud.call("POST", "/_berg/settings", {"account_delay": 0})
            said = laptop.stderr.read()
    finally:
        cloud.call("POST", "/_berg/settings", {"account_delay": 0})
    assert laptop.returncode == 0 and f"Created {name} in" in said, said


def test_an_error_waits_for_no_other_answer(cloud: Cloud, project: Path, faults: Any) -> None:
    words = [*BERG, "run", "-g", "0", "true"]
    faults("compute.images.getFromFamily", delay=90)
    faults("storage.buckets.get", status=404, message="The specified bucket does not exist.")
    done = subprocess.run(
        words, cwd=project, env=cloud.env, capture_output=True, text=True, timeout=40
    )
    assert done.returncode == 1 and "does not exist" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
