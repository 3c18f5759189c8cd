"""How a machine starts its worker and lets it end: the unit, the console, what comes too early and
too late.
"""

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import local_machines
import pytest
from conftest import WHEELHOUSE, wait_for

from berg.code import dist
from berg.laptop import jobs
from berg.machine import boot
from localcloud.machines import sandbox

# What a command does when its machine goes down: its last words take longer than the network of a
# machine whose processes nobody waits for, and come before the end of berg's grace.
LAST_WORDS = (
    "trap 'sleep 6; echo late > $BERG_RESULTS_DIR/late; exit 3' TERM; touch $BERG_RESULTS_DIR/up; "
)
DEBIAN = ("--image", "debian-cloud/debian-12")
GPU = ("-g", "1", "-t", "t4")  # hosts of machines without one are maintained without a word
pytestmark = pytest.mark.default_image
ENDLESS = LAST_WORDS + "echo up; while :; do sleep 0.1; done"


def zone_of(berg, name: str) -> str:
    return berg.machines()[name]["zone"].rpartition("/")[2]


def run(berg, name: str, command: str, *options: str) -> None:
    ran = berg("run", "-g", "0", "-n", name, *options, command)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.slow
@pytest.mark.parametrize("end", ["stop", "delete"])
def test_the_last_words_of_a_machine_that_goes_down_arrive(berg, end):
    run(berg, end, ENDLESS)
    wait_for(lambda: "\nup\n" in berg.log(end))
    path = f"/compute/v1/projects/berg-local/zones/{zone_of(berg, end)}/instances/{end}"
    berg.cloud.call(*(("POST", f"{path}/stop") if end == "stop" else ("DELETE", path)))
    wait_for(lambda: berg.state(end)["state"] == "KILLED")
    assert berg.objects(f"berg_results/{end}/")[f"berg_results/{end}/late"] == b"late\n"
    assert berg.state(end)["reason"] == "the machine was shut down from outside"


@pytest.mark.slow
def test_a_spot_machine_asks_for_notice_and_does_not_wait_for_its_end(berg):
    run(berg, "spot", f"[ $BERG_ATTEMPT = 1 ] || exit 0; {ENDLESS}", "--spot")
    assert berg.machines()["spot"]["scheduling"]["preemptionNoticeDuration"] == {"seconds": "120"}
    wait_for(lambda: "\nup\n" in berg.log("spot"))
    berg.cloud.call("POST", "/_berg/instances/spot/preempt")
    wait_for(lambda: berg.state("spot")["state"] == "SUCCEEDED", 60)  # not 120 s and more


@pytest.mark.slow
def test_a_second_start_leaves_a_running_job_alone(berg):
    again = "for how in '' work; do python3 /root/berg/boot.py $how; echo again: $?; done"
    run(
        berg,
        "twice",
        f"{again}; systemctl start berg; echo unit: $?; sleep 1; touch $BERG_RESULTS_DIR/done",
    )
    wait_for(lambda: berg.state("twice")["state"] == "SUCCEEDED")
    log = berg.log("twice")
    assert (
        log.count("Berg works on this machine already: nothing to do") == 2
        and log.count("again: 0") == 2
    )
    assert (
        "unit: 0" in log
        and log.count("Starting on twice") == 1
        and berg.state("twice")["attempt"] == 1
    )


def with_boot(berg, name: str, script: str) -> local_machines.Client:
    """Insert a machine that has boot.py and runs a script of its own."""
    client = local_machines.Client(berg.cloud.folder)
    source = Path(boot.__file__).read_text()
    script = f"#!/bin/bash\ncat >/root/boot.py <<'END'\n{source}\nEND\n{script}"
    client.insert(name, script, image=local_machines.LEARNING)
    return client


def test_a_machine_that_goes_down_begins_nothing(berg):
    wait = "until [ -e /run/systemd/stopping ]; do sleep 0.01; done"
    client = with_boot(
        berg, "late", f"echo there\n{wait}\npython3 /root/boot.py >/proc/1/fd/1 2>&1\n"
    )
    client.console_with("late", ": there")
    client.wait(client.call("POST", f"/zones/{local_machines.ZONE}/instances/late/stop"))
    console = client.console_with("late", "there is no time to begin")
    assert client.status("late") == "TERMINATED" and "Starting on" not in console
    client.delete("late")


@pytest.mark.skipif(
    not os.access("/etc/apt/apt.conf.d", os.W_OK), reason="no root, or machines have no apt here"
)
def test_apt_s_timers_are_off_before_the_startup_script_ends(berg):
    """On Google's images apt-daily.service waits for that end, and not for berg's unit, which never
    begins here.
    """
    systemctl = "printf '#!/bin/sh\n[ $1 != is-active ]\n' >/usr/local/sbin/systemctl"
    script = f"{systemctl}\npython3 /root/boot.py\ncat /etc/apt/apt.conf.d/99berg\necho over\n"
    client = with_boot(berg, "early", script)
    assert ': APT::Periodic::Enable "0";' in client.console_with("early", ": over")
    client.delete("early")


@pytest.mark.slow
def test_the_boot_is_complete_while_the_job_runs(berg):
    run(berg, "booted", "sleep 60")
    wait_for(lambda: berg.state("booted")["state"] == "RUNNING")
    path = f"/compute/v1/projects/berg-local/zones/{zone_of(berg, 'booted')}/instances/booted/serialPort"
    assert "Finished running startup scripts." in berg.cloud.call("GET", path)["contents"]


@pytest.mark.slow
def test_a_long_command_runs(berg):
    """Its line is longer than what the console takes."""
    run(berg, "long", f": {'x' * 63_900}; echo ran")
    wait_for(lambda: berg.state("long")["state"] == "SUCCEEDED")
    assert "\nran\n" in berg.log("long")


def test_a_console_that_is_closed_takes_nothing_and_lines_are_cut():
    code = (
        "import os, sys; from berg.machine import boot\n"
        "boot.console('x' * 100_000 + chr(10) + 'next')\n"
        "sys.stdin.read(1)\n"
        "for _ in range(3): boot.console('nobody hears this')\n"
        "import subprocess; sys.exit(subprocess.run(['echo', 'nor this']).returncode)\n"
    )
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, stderr=pipe)
    lines = [process.stdout.readline(), process.stdout.readline()]
    process.stdout.close()
    process.stdin.write(b"x")
    process.stdin.close()
    assert process.wait() == 0 and process.stderr.read() == b""
    assert lines[1] == b"next\n" and len(lines[0]) == boot.CONSOLE_LINE + 1


def test_the_console_is_read_in_every_form():
    lines = (
        "Nov 21 18:37:45 box google_metadata_script_runner[812]: startup-script: one\r\n"
        'Nov 21 18:37:45 box google_metadata_script_runner[812]: Metadata key("startup-script"), command("/bin/bash"): '
        "two: 2\r\n[  OK  ] Started berg.service - Runs a job.\r\nberg: three\r\n[    1.0] kernel: four\r\n"
    )
    assert jobs.STARTUP_LINE.findall(lines) == ["one", "two: 2", "three"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd-analyze")
def test_systemd_takes_the_unit(tmp_path):
    unit = tmp_path / "berg.service"
    unit.write_text(boot.UNIT.format(python="/usr/bin/python3", script="/etc/hostname"))
    ran = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
    )
    about_it = [
        line
        for line in (ran.stdout + ran.stderr).splitlines()
        if str(unit) in line or "berg.service" in line
    ]
    assert about_it == [], about_it


@pytest.mark.slow
def test_a_job_of_one_machine_goes_on_after_maintenance(berg):
    run(
        berg,
        "kept-on",
        f"[ $BERG_ATTEMPT = 1 ] || {{ ls $BERG_RESULTS_DIR; exit 0; }}; {ENDLESS}",
        *GPU,
    )
    wait_for(lambda: "\nup\n" in berg.log("kept-on"))
    berg.cloud.call("POST", "/_berg/instances/kept-on/maintain", {"notice": 3})
    wait_for(lambda: berg.state("kept-on")["state"] == "SUCCEEDED", 90)
    state = berg.state("kept-on")
    assert state["attempt"] == 2 and state["restarts"] == 0
    assert "within an hour to maintain its host" in berg.log("kept-on") and "\nlate\n" in berg.log(
        "kept-on"
    )


def test_machines_take_what_the_worker_needs_from_the_bucket(berg):
    """The default image has no environment for berg, and cannot make one: no venv, no network."""
    run(berg, "plain", "python3 -c 'import click'; ls /root/berg; ls /root/berg/packages")
    run(berg, "golden", "ls /root/berg", "--image", "golden-images/golden")
    for name in ("plain", "golden"):
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 60)
        assert "Making a python environment" not in berg.log(name)
    assert "\nvenv\n" not in berg.log("plain") and "\ngoogle_crc32c\n" in berg.log("plain")
    assert "\npackages\n" not in berg.log("golden") and "\nvenv\n" in berg.log("golden")
    sent = berg.cloud.call("GET", "/_berg/requests")["requests"]
    uploads = [each for each in sent if "packages-" in each["path"] and each["verb"] == "POST"]
    assert (
        len([name for name in berg.objects(".berg/dist/") if "packages-" in name]) == 1
        and len(uploads) <= 1
    )


def has_apt() -> bool:
    """Whether apt-get works on machines here: they have the host's, and must be root's."""
    return os.geteuid() == 0 and bool(shutil.which("apt-get"))


@pytest.mark.slow
@pytest.mark.skipif(not has_apt(), reason="no root, or no apt-get")
def test_a_job_does_not_wait_for_what_the_first_boot_installs_but_its_own_installation_does(berg):
    berg.cloud.call("POST", "/_berg/settings", {"first_boot": 600})
    run(berg, "free", "rm -rf /etc/apt/sources.list*; apt-get update; echo code $?")
    wait_for(lambda: berg.state("free")["state"] == "SUCCEEDED", 60)
    assert "Could not get lock /var/lib/apt/lists/lock" in berg.log(
        "free"
    ) and "\ncode 100\n" in berg.log("free")
    berg.cloud.call("POST", "/_berg/settings", {"first_boot": 10})
    run(berg, "waits", "apt-get install -y git && echo installed")
    wait_for(lambda: berg.state("waits")["state"] == "SUCCEEDED", 60)
    assert "\nWaiting for cache lock" in berg.log("waits") and "\ninstalled\n" in berg.log("waits")


INSTALL = """
import sys
sys.path.insert(0, "/root/berg")
import boot
boot.LOCKED_SECONDS = int(sys.argv[1])
boot.apt_install(boot.Machine(), "git")
"""


@pytest.mark.slow
@pytest.mark.skipif(not has_apt(), reason="no root, or no apt-get")
def test_berg_waits_for_the_locks_of_the_first_boot_and_not_for_ever(berg):
    berg.cloud.call("POST", "/_berg/settings", {"first_boot": 20})
    (berg.repo / "install.py").write_text(INSTALL)
    alone = "rm -rf /etc/apt/sources.list*"  # or apt-get looks for Debian's servers
    run(
        berg,
        "locked",
        f"{alone}; python3 install.py 1; echo code $?; python3 install.py 600; echo code $?",
    )
    wait_for(lambda: berg.state("locked")["state"] == "SUCCEEDED", 90)
    first, _, second = berg.log("locked").partition("\ncode 1\n")
    assert (
        "\nOSError: apt-get update -q failed: E: Could not get lock /var/lib/apt/lists/lock"
        in first
    )
    assert (
        "Waiting for up to 10 minutes: the first boot of an image has packages to install, too"
        in second
    )
    assert "Could not get lock" not in second, "no error of a wait"
    assert "Installing with apt-get: git" in second and "\ncode 0\n" in second
    assert ".berg/machines/locked/locked.installs" in berg.objects(".berg/machines/locked/")


def python_of_machines() -> str:
    return shutil.which("python3", path=sandbox.PATH) or ""


def lacks_wheels() -> str:
    """Why pip cannot make an environment for berg on machines here; "" if it can."""
    code = "import sys, ensurepip; print(*sys.version_info[:2])"
    asked = subprocess.run([python_of_machines(), "-c", code], capture_output=True, text=True)
    if asked.returncode or asked.stdout.split() != [str(each) for each in sys.version_info[:2]]:
        return "the machines' python has no ensurepip (python3-venv), or its version is not that of this one"
    return (
        ""
        if list(WHEELHOUSE.glob("google_auth-*"))
        else "no wheels for machines: make .venv/wheelhouse"
    )


@pytest.mark.slow
@pytest.mark.skipif(bool(lacks_wheels()), reason=lacks_wheels())
def test_where_the_archive_does_not_run_pip_makes_the_environment(berg, monkeypatch):
    """The library in it is for another processor than the machine's."""
    monkeypatch.setenv("BERG_HOME", str(berg.home))
    _, content = dist.build()
    (berg.home / "packages").rename(berg.home / "shared")
    (berg.home / "packages").mkdir()
    there = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as ours, zipfile.ZipFile(there, "w") as other:
        for each in ours.namelist():
            if not each.endswith(".so"):
                other.writestr(each, b"" if each.startswith(dist.LIBRARY) else ours.read(each))
    for made in (berg.home / "shared").glob("*.zip"):
        (berg.home / "packages" / made.name).write_bytes(there.getvalue())
    run(berg, "other", "ls /root/berg", *DEBIAN)
    wait_for(lambda: berg.state("other")["state"] == "SUCCEEDED", 120)
    word = "Making a python environment for berg with pip: what is there does not run here (a golden image has one)"
    assert word in berg.log("other") and "\nvenv\n" in berg.log("other")


@pytest.mark.slow
def test_a_laptop_without_an_archive_sends_none_and_the_machine_says_so(berg, tmp_path):
    """The laptop's packages do not know their files."""
    (tmp_path / "site/click-99.dist-info").mkdir(parents=True)
    (tmp_path / "site/click-99.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: click\nVersion: 99\n"
    )
    command = [sys.executable, "-m", "berg", "run", "-g", "0", "-n", "bare", *DEBIAN, "echo ran"]
    environment = berg.environment(PYTHONPATH=str(tmp_path / "site"))
    ran = subprocess.run(command, cwd=berg.repo, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert not [name for name in berg.objects(".berg/dist/") if "packages-" in name]
    word = "Making a python environment for berg with pip: the laptop that sent the job had none to send"
    path = (
        f"/compute/v1/projects/berg-local/zones/{zone_of(berg, 'bare')}/instances/bare/serialPort"
    )
    wait_for(lambda: word in berg.cloud.call("GET", path)["contents"])


def test_an_answer_that_breaks_off_is_asked_for_again():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            for body in (b"hal", b"whole"):
                connection, _ = server.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n" + body)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        assert boot.request(f"http://127.0.0.1:{server.getsockname()[1]}/")[0] == b"whole"
        thread.join()


def test_the_last_words_of_a_worker_that_dies_are_kept(monkeypatch, tmp_path, capfd):
    """A process that it leaves behind has its standard error, too, and is not waited for."""
    app = tmp_path / "app" / "berg"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    leaves = "import subprocess\ndef main():\n    subprocess.Popen(['sleep', '9'])\n    raise OSError('no more disk')\n"
    (app / "worker.py").write_text(leaves)
    monkeypatch.setattr(boot, "BERG", tmp_path)
    terminate = signal.getsignal(signal.SIGTERM)
    try:
        assert boot.run_worker(sys.executable, "run", "job") == (1, "OSError: no more disk")
        assert "Traceback (most recent call last)" in capfd.readouterr().out
        (app / "worker.py").write_text("def main():\n    pass\n")
        assert boot.run_worker(sys.executable, "run", "job") == (0, "")
    finally:
        signal.signal(signal.SIGTERM, terminate)


@pytest.mark.parametrize("step", ["unpack", "install_packages", "run_worker"])
def test_why_a_disk_became_no_image_is_its_last_word(tmp_path, monkeypatch, step):
    """The laptop, which waits for that word, deletes the machine; it would be gone before."""

    def fail(*_):
        raise OSError("no room")

    monkeypatch.setattr(boot, "BERG", tmp_path)
    for name, result in (("unpack", tmp_path), ("install_packages", ""), ("run_worker", (0, ""))):
        monkeypatch.setattr(boot, name, lambda *_, result=result: result)
    machine = SimpleNamespace(dist="", dist_sha256="")
    assert boot.prepare_image(machine) == "", "the worker says how it went"
    monkeypatch.setattr(boot, "run_worker", lambda *_: (1, "ValueError"))
    assert boot.prepare_image(machine).startswith(f"{boot.NO_IMAGE}ended with exit code 1")
    monkeypatch.setattr(boot, step, fail)
    assert boot.prepare_image(machine) == f"{boot.NO_IMAGE}no room"


def test_what_is_waited_for_is_no_error_on_the_console(monkeypatch):
    printed: list[str] = []
    monkeypatch.setattr(boot, "console", printed.append)
    with pytest.raises(OSError, match="E: Could not get lock /var"):
        boot.execute("sh", "-c", "echo E: Could not get lock /var/lib/dpkg/lock; exit 100")
    assert printed == []
    boot.execute("echo", "Setting up git")
    assert printed == ["Setting up git"]
