"""What TensorBoard shows, asked over its own HTTP API, while the bucket changes."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time

import nvidia_smi
import pytest
import requests
from conftest import commit, wait_for

from berg.google import api, events
from berg.watch import board
from localcloud.machines import sshd

needs_sshd = pytest.mark.skipif(
    bool(sshd.obstacle()), reason=f"no ssh into machines here: {sshd.obstacle()}"
)

LOSS = {"train/loss": [(0, 1.0, 1000.0), (1, 0.5, 1001.0)]}
MORE = {"train/loss": [(2, 0.25, 1002.0)]}
EVENTS = "events.out.tfevents.1000.machine"


def ask(address: str, path: str, **query: str):
    answer = requests.get(f"{address}data/{path}", params=query, timeout=30)
    return answer.json() if answer.ok else None


def values(address: str, run: str, tag: str) -> list[float]:
    """A tag's values in TensorBoard, by its steps."""
    return [row[2] for row in ask(address, "plugin/scalars/scalars", run=run, tag=tag) or []]


@pytest.fixture
def file(tmp_path):
    events.write(tmp_path / EVENTS, LOSS)
    return tmp_path / EVENTS


@pytest.mark.slow
def test_tensorboard_shows_event_files_metrics_and_usage_and_what_is_new_of_them(berg, file):
    options = nvidia_smi.bring(berg.repo, nvidia_smi.busy(80))
    lines = [json.dumps({"step": step, "accuracy": step / 10}) for step in range(4)]
    command = (
        f"printf '%s\\n' {' '.join(map(repr, lines[:3]))} >$BERG_RESULTS_DIR/metrics.jsonl; sleep 4"
    )
    assert (
        berg("run", "-n", "seen", *options, "--sample-seconds", "1", "--wait", command).returncode
        == 0
    )
    prefix = "berg_results/seen/"
    berg.bucket.write(f"{prefix}tb/{EVENTS}", file.read_bytes())
    berg.bucket.write(f"{prefix}plugins/profile/2026_11_21/host.xplane.pb", b"a profile")
    berg.bucket.write(f"{prefix}weights.bin", b"large")
    process = berg.start("tensorboard", "seen")
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        runs = wait_for(lambda: len(ask(address, "runs") or ()) == 3 and ask(address, "runs"))
        assert sorted(runs) == ["seen", "seen/tb", "seen/usage/seen"]
        wait_for(lambda: values(address, "seen/tb", "train/loss") == [1.0, 0.5])
        assert values(address, "seen", "accuracy") == pytest.approx([0, 0.1, 0.2])
        assert set(values(address, "seen/usage/seen", "berg/gpu0_percent")) == {80.0}
        assert values(address, "seen/usage/seen", "berg/cpu_percent")
        (folder,) = (path for path in (berg.home / "tensorboard").iterdir() if path.is_dir())
        assert (
            folder / "seen/plugins/profile/2026_11_21/host.xplane.pb"
        ).read_bytes() == b"a profile"
        assert not list(folder.rglob("weights.bin")), "nothing that TensorBoard has no use for"
        events.write(file, MORE)
        berg.bucket.write(f"{prefix}tb/{EVENTS}", file.read_bytes())
        berg.bucket.write(f"{prefix}metrics.jsonl", "\n".join(lines))
        wait_for(lambda: values(address, "seen/tb", "train/loss") == [1.0, 0.5, 0.25], 90)
        wait_for(lambda: len(values(address, "seen", "accuracy")) == 4)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    finally:
        process.kill()
    with pytest.raises(requests.ConnectionError):
        requests.get(address, timeout=5)


@pytest.mark.slow
@needs_sshd
@pytest.mark.default_image  # a prepared one has TensorBoard beside what the worker imports
def test_a_devbox_brings_it_and_runs_tensorboard_and_ends_it_with_the_command(berg, file):
    program = f'#!/bin/sh\nexec {sys.executable} -m tensorboard.main "$@"\n'
    install = f"printf '%s' {shlex.quote(program)} >/usr/local/bin/tensorboard && chmod +x /usr/local/bin/tensorboard"
    (berg.repo / "install.sh").write_text(install)
    commit(berg.repo)
    assert berg("devbox", "-g", "0", "-n", "box", "--install-script", "install.sh").returncode == 0
    name = "of it's 2"  # a folder whose name a shell would read otherwise
    berg.bucket.write(f"berg_results/{name}/{EVENTS}", file.read_bytes())
    process = berg.start("tensorboard", name, "--on", "box")
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        wait_for(lambda: values(address, name, "train/loss") == [1.0, 0.5])
        events.write(file, MORE)
        berg.bucket.write(f"berg_results/{name}/{EVENTS}", file.read_bytes())
        wait_for(lambda: values(address, name, "train/loss") == [1.0, 0.5, 0.25], 90)
        runs = ["ssh", "box", "--", "pgrep -fc 'tensorboard[.]main'"]
        assert int(berg(*runs).stdout) and not (berg.home / "tensorboard").exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0, process.stderr.read()
        wait_for(lambda: berg(*runs).stdout == "0\n")
    finally:
        process.kill()
    nothing = berg("tensorboard", "nothing", "--on", "box")
    assert (
        nothing.returncode == 1
        and "box: berg: there is nothing to show of nothing yet" in nothing.stderr
    )
    assert berg("tensorboard", "nothing", "--on", "box", "--once").returncode == 2
    assert berg("ssh", "box", "--", "rm /usr/local/bin/tensorboard").returncode == 0
    without = berg("tensorboard", name, "--on", "box")
    words = " ".join(without.stderr.split())
    assert without.returncode == 1 and "berg ssh NAME -- pip install tensorboard" in words.replace(
        "box: ", ""
    )


def test_only_what_changed_is_brought_and_of_what_grew_the_end_in_place(berg, file, tmp_path):
    settings = berg.cloud.settings(berg.bucket_name)
    berg.bucket.write(f"berg_results/exp/a/{EVENTS}", file.read_bytes())
    berg.bucket.write("berg_results/exp/b/metrics.jsonl", '{"loss": 1}\n{"loss": 2}\n')
    folder, made = tmp_path / "board", {}

    def brought() -> list[str]:
        berg.cloud.call("DELETE", "/_berg/requests")
        board.follow(settings, "exp", folder, made)
        made_now = berg.cloud.call("GET", "/_berg/requests")["requests"]
        return [each["method"] for each in made_now if each["method"] != "storage.objects.list"]

    assert brought() == ["storage.objects.get"] * 3, (
        "the state of a job that is none, and two files"
    )
    here = folder / "exp/a" / EVENTS
    inode, size = here.stat().st_ino, here.stat().st_size
    assert brought() == ["storage.objects.get"]
    events.write(file, MORE)
    time.sleep(1)  # an object takes one write a second
    berg.bucket.write(f"berg_results/exp/a/{EVENTS}", file.read_bytes())
    assert len(brought()) == 2
    assert (
        here.stat().st_ino == inode
        and here.read_bytes() == file.read_bytes()
        and here.stat().st_size > size
    )
    (first,) = (folder / "exp/b").glob("*made-by-berg")
    assert [value for _, value, _ in events.scalars(first)["loss"]] == [1, 2]
    other = file.with_name("other")
    events.write(other, {"other": [(n, float(n), 1.0) for n in range(20)]})
    berg.bucket.write(f"berg_results/exp/a/{EVENTS}", other.read_bytes())
    berg.bucket.write("berg_results/exp/b/metrics.jsonl", '{"loss": 7}\n')
    board.follow(settings, "exp", folder, made)
    assert here.read_bytes() == other.read_bytes(), "a file that was written anew is brought whole"
    (second,) = (folder / "exp/b").glob("*made-by-berg")
    assert second != first and [value for _, value, _ in events.scalars(second)["loss"]] == [7]


def test_what_came_before_a_failure_is_shown_with_the_next_pass(berg, tmp_path):
    settings = berg.cloud.settings(berg.bucket_name)
    for name in ("a", "b"):
        berg.bucket.write(f"berg_results/exp/{name}/metrics.jsonl", '{"loss": 1}\n')
    berg.cloud.fault("storage.objects.get", match="exp/b/metrics.jsonl", status=403)
    folder, made = tmp_path / "board", {}
    with pytest.raises(api.GoogleError):
        board.follow(settings, "exp", folder, made)
    berg.cloud.call("DELETE", "/_berg/faults")
    assert board.follow(settings, "exp", folder, made) == 1
    assert len(list(folder.glob("exp/*/*made-by-berg"))) == 2


def test_names_that_lead_out_of_the_folder_are_left(berg, tmp_path):
    berg.bucket.write("berg_results/exp/../../../evil/metrics.jsonl", '{"loss": 1}\n')
    berg.bucket.write("berg_results/exp/metrics.jsonl", '{"loss": 1}\n')
    assert board.follow(berg.cloud.settings(berg.bucket_name), "exp", tmp_path / "board/x", {}) == 1
    assert not list(tmp_path.rglob("evil"))


def test_a_repo_among_profiles_is_left(berg, tmp_path):
    """What lies below plugins/profile/ is brought whatever its name is."""
    for name in (".git/config", "host.xplane.pb"):
        berg.bucket.write(f"berg_results/x/plugins/profile/{name}", b"1")
    settings = berg.cloud.settings(berg.bucket_name)
    assert board.follow(settings, "x", tmp_path / "shown", {}) == 1
    assert not list((tmp_path / "shown").rglob(".git"))


def test_names_that_this_disk_has_no_place_for_are_left(berg, tmp_path):
    folder, settings = "berg_results/exp", berg.cloud.settings(berg.bucket_name)
    for name in ("metrics.jsonl", "a.tfevents", "b/metrics.jsonl/metrics.jsonl"):
        berg.bucket.write(f"{folder}/{name}", '{"loss": 1}\n')
    berg.bucket.write(f"{folder}/a.tfevents/metrics.jsonl", '{"loss": 1}\n')
    berg.bucket.write(f"{folder}/{'x' * 300}/metrics.jsonl", '{"loss": 1}\n')
    board.follow(settings, "exp", tmp_path / "board", {})
    shown = tmp_path / "board/exp"
    assert len(list(shown.glob("*made-by-berg"))) == 1
    assert len(list((shown / "b/metrics.jsonl").glob("*made-by-berg"))) == 1


def test_without_tensorboard_the_folder_is_told(berg, file, tmp_path, monkeypatch):
    berg.bucket.write(f"berg_results/exp/{EVENTS}", file.read_bytes())
    once = berg("tensorboard", "exp", "--once")
    folder = tmp_path / once.stdout.strip()
    assert once.returncode == 0 and (folder / "exp" / EVENTS).read_bytes() == file.read_bytes()
    monkeypatch.setattr(board, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(
        board.BergError, match=f"pip install '.*berg.tensorboard.'.* elsewhere: {folder}"
    ):
        board.start(folder, 0)
    broken = tmp_path / "bin/tensorboard"
    broken.parent.mkdir()
    shutil.copy("/bin/false", broken)
    monkeypatch.setenv("PATH", str(broken.parent))
    with pytest.raises(board.BergError, match="did not start: it printed nothing"):
        board.start(folder, 0)


LISTEN = """
import http.server
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"evil")
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
def test_another_user_who_is_quicker_at_the_port_is_not_shown(tmp_path, monkeypatch):
    """That user takes the port after berg looked and before TensorBoard has it."""
    pytest.importorskip("tensorboard")
    monkeypatch.setattr(board, "free_port", lambda port: port)
    command = ["/usr/bin/python3", "-c", LISTEN]
    as_other = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **as_other) as other:
        port = int(other.stdout.readline())
        try:
            assert requests.get(f"http://127.0.0.1:{port}/", timeout=5).text == "evil"
            with pytest.raises(board.BergError, match="did not start: .* already in use"):
                board.start(tmp_path / "shown", port)
        finally:
            other.terminate()


@pytest.mark.parametrize(("version", "is_shown"), [("2.18.0", False), ("2.21.0a1", True)])
def test_a_tensorboard_that_opens_any_file_is_not_used(tmp_path, monkeypatch, version, is_shown):
    program = tmp_path / "tensorboard"
    line = f"TensorBoard {version} at http://127.0.0.1:4711/ (Press CTRL+C to quit)"
    program.write_text(f"#!/bin/sh\necho loading\necho '{line}'\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setattr(board, "find_program", lambda folder: [str(program)])
    if is_shown:
        process, address = board.start(tmp_path / "shown", 0)
        assert address == "http://127.0.0.1:4711/" and process.poll() is None
        process.kill()
        process.wait()
        return
    with pytest.raises(board.BergError, match="2.18.0 may show .* 'tensorboard>=2.21'"):
        board.start(tmp_path / "shown", 0)


@pytest.mark.slow
def test_a_port_that_another_program_has_is_not_shown_as_tensorboard(berg, file):
    assert berg("run", "-g", "0", "-n", "one", "--wait", "true").returncode == 0
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = berg("tensorboard", "one", "--port", str(port))
    assert done.returncode == 1 and done.stdout == ""
    assert (
        f"port {port} cannot be used: Address already in use. Leave --port out to use a free one"
        in done.stderr
    )


def test_nothing_to_show_is_an_error(berg):
    nothing = berg("tensorboard", "nothing")
    assert (
        nothing.returncode == 1
        and "there is nothing to show of nothing yet: no event file" in nothing.stderr
    )
    assert sys.executable not in nothing.stderr
