"""Machines as sandboxes: what they see, what they keep, and that nothing of them survives."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from local_machines import LEARNING, Client, ssh, until

from localcloud import control
from localcloud.machines import processes, sshd
from localcloud.machines import sandbox as machines
from localcloud.machines.abilities import abilities

ABLE = [
    pytest.param(machines.Sandbox(machines.OVERLAY, os.geteuid() != 0), id="overlay"),
    pytest.param(machines.Sandbox(machines.OVERLAY, True), id="overlay-user"),
    pytest.param(machines.Sandbox(machines.PLAIN), id="plain"),
]

# For what is the same in all machines with namespaces.
BEST = pytest.mark.parametrize("sandbox", ABLE[:1], indirect=True)


@pytest.fixture(scope="session")
def host(tmp_path_factory):
    """What this host allows, tried for real."""
    found = abilities(tmp_path_factory.mktemp("abilities"))
    return found["files"]


@pytest.fixture(params=ABLE)
def sandbox(request, host):
    if (request.param.files, host) == (machines.OVERLAY, machines.PLAIN):
        pytest.skip(f"this host offers {host}")
    return request.param


@pytest.fixture
def boot(tmp_path, sandbox):
    """Boot a machine that runs a script; ended afterwards whatever the test did."""
    booted = []

    def boot(script: str | None, name: str = "box", **more: bool) -> machines.Machine:
        folder = tmp_path / name
        machine = machines.Machine(folder, name, "127.0.0.1", 9, None, script, **more)
        process = machines.boot(machine, sandbox)
        booted.append((folder, process))
        assert processes.wait_for_boot(folder, process), console(machine)
        return machine

    yield boot
    for folder, process in booted:
        asyncio.run(processes.shut_down(folder, sandbox, 0))
        process.wait()


def console(machine: machines.Machine) -> str:
    return (machine.folder / "serial.log").read_text()


def console_with(machine: machines.Machine, text: str) -> str:
    return until(
        lambda: text in console(machine) and console(machine), f"{text!r}; {console(machine)}"
    )


def shut_down(machine, sandbox, grace: float) -> float:
    start = time.monotonic()
    asyncio.run(processes.shut_down(machine.folder, sandbox, grace))
    return time.monotonic() - start


def with_argument(text: str) -> list[int]:
    """Host processes with `text` on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if text.encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_headers_of_python_packages_can_be_installed(boot, sandbox):
    """Also where the host's root is nobody inside."""
    if sandbox.files != machines.OVERLAY or not machines.python_headers():
        pytest.skip("the host's system folders are the machine's own only with overlays")
    headers = machines.python_headers()[0]
    own = headers / "berg-tests"
    machine = boot(f"#!/bin/sh\nmkdir {own} && touch {own}/one.h && echo can install")
    console_with(machine, "can install")
    assert not own.exists()


WHEEL = {
    "torch/__init__.py": "name = 'the real one'\n",
    "torch-2.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: torch\nVersion: 2.0\n",
    "torch-2.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "torch-2.0.dist-info/RECORD": "",
}
INSTALL_TORCH = """#!/bin/bash
cd /root
[ -e again ] || python3 -m pip install --no-index --break-system-packages torch
[ -e again ] || python3 -m pip install --no-index --break-system-packages ./torch-2.0-py3-none-any.whl
touch again
python3 -m pip list 2>/dev/null | grep '^torch '
python3 -c 'import torch; print("imported", torch.name)'
"""


@BEST
def test_a_torch_that_is_installed_takes_the_place_of_the_stub_and_stays(boot, sandbox, tmp_path):
    if not machines.system_python():
        pytest.skip("no python3 with pip here")
    root = tmp_path / "box/upper/root"
    root.mkdir(parents=True)
    with zipfile.ZipFile(root / "torch-2.0-py3-none-any.whl", "w") as wheel:
        for name, text in WHEEL.items():
            wheel.writestr(name, text)
    for number in (1, 2):  # as a devbox that stops and starts
        machine = boot(INSTALL_TORCH, learns=True)
        until(lambda: console(machine).count("Finished running") == number, console(machine))  # noqa: B023
        shown = console(machine)
        assert shown.count("imported the real one") == number, shown
        assert "Successfully uninstalled torch-2.9.1+cu129" in shown
        shut_down(machine, sandbox, 0)
    assert "Requirement already satisfied: torch" in shown


def test_startup_script_runs_on_the_console_in_a_clean_environment(boot, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_LAPTOP", "1")
    monkeypatch.setenv("https_proxy", "http://proxy:1")
    machine = boot("#!/bin/bash\nenv | sort\necho err >&2\nexit 3\n")
    shown = console_with(machine, "Finished running startup scripts.")
    assert "startup-script: err" in shown
    assert "startup-script exit status 3" in shown
    assert "GCE_METADATA_HOST=127.0.0.1:9" in shown
    assert "https_proxy=http://proxy:1" in shown
    assert "SECRET_OF_THE_LAPTOP" not in shown
    assert processes.first_process(machine.folder)  # a machine idles until it is stopped


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts something for all")
def test_what_the_host_has_mounted_keeps_no_machine_from_booting(boot, sandbox):
    if sandbox.files != machines.OVERLAY:
        pytest.skip("its folders are no overlays")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", folder], check=True)
        try:
            machine = boot(
                f"#!/bin/bash\n[ -d /var/lib/dpkg ] && touch /var/lib/mine {folder}.mine && echo whole\n"
            )
            console_with(machine, "startup-script: whole")
        finally:
            subprocess.run(["umount", "--lazy", folder], check=True)
    assert not Path("/var/lib/mine").exists() and not Path(f"{folder}.mine").exists()


def test_what_a_machine_sees_is_its_own(boot, sandbox, tmp_path):
    if sandbox.files == machines.PLAIN:
        pytest.skip("plain machines share the host's files")
    secret = tmp_path / "home-of-the-host"
    secret.write_text("secret")
    script = (
        f"#!/bin/bash\nhostname; whoami; echo $$ processes: /proc/[0-9]*\nls {secret}\nls -A /home /tmp\n"
        "touch /root/kept /tmp/scratch /workspace/data && echo wrote\ngetent ahostsv4 box\necho end\n"
    )
    machine = boot(script)
    shown = console_with(machine, "startup-script: end")
    assert "startup-script: box" in shown
    assert "startup-script: root" in shown
    assert "No such file" in shown and "secret" not in shown.replace(str(secret), "")
    assert "startup-script: wrote" in shown
    assert "127.0.0.1" in shown
    assert not Path("/workspace/data").exists() and not (Path.home() / "kept").exists()
    assert socket.gethostname() != "box"


def test_system_folders_are_a_copy(boot, sandbox):
    if sandbox.files != machines.OVERLAY:
        pytest.skip("needs overlays")
    files = [Path(f"/{name}/berg-was-here") for name in machines.OVERLAID]
    script = "".join(f"echo changed > {path} && cat {path}\n" for path in files)
    if os.geteuid() == 0:
        script += "rm /usr/bin/yes && cp /usr/bin/env /usr/local/bin/berg-tool && berg-tool echo replaced\n"
    machine = boot(f"#!/bin/bash\n{script}echo end\n")
    shown = console_with(machine, "startup-script: end")
    assert shown.count("startup-script: changed") == len(files)
    assert os.geteuid() != 0 or "startup-script: replaced" in shown
    assert not any(path.exists() for path in files)
    assert Path("/usr/bin/yes").exists() and not Path("/usr/local/bin/berg-tool").exists()


def test_users_other_than_root_find_their_way(boot, sandbox):
    if sandbox.user or sandbox.files == machines.PLAIN:
        pytest.skip("in a user namespace there is only root")
    mask = os.umask(0o077)  # as the server's
    try:
        machine = boot(
            "#!/bin/bash\numask; setpriv --reuid 65534 --clear-groups sh -c 'cat /etc/hosts; ls /'; echo end\n"
        )
    finally:
        os.umask(mask)
    shown = console_with(machine, "startup-script: end")
    assert (
        "metadata.google.internal" in shown
        and "startup-script: workspace" in shown
        and "script: 0022" in shown
    )


def test_the_users_home_is_out_of_reach(boot, sandbox):
    if sandbox.files == machines.PLAIN:
        pytest.skip("plain machines share the host's files")
    home, python = Path.home(), Path(sys.prefix)
    pythons = machines.python_folders()  # the way to them is there, and nothing beside it
    prune = " ".join(f"-path {folder} -prune -o" for folder in pythons)
    script = (
        f"#!/bin/bash\nexec 2>&1\nmkdir -p {home}; echo sees: $(find /root {home} -mindepth 1 {prune} -print)\n"
        f"touch {home}/berg-was-here /root/berg-was-here /tmp/berg-was-here && echo wrote\n"
        f"touch {python}/berg-was-here || echo refused\necho end\n"
    )
    shown = console_with(boot(script), "startup-script: end")
    assert "startup-script: wrote" in shown and "startup-script: refused" in shown
    (seen,) = [line.partition("sees:")[2].split() for line in shown.splitlines() if "sees:" in line]
    assert [
        path for path in seen if not any(folder.is_relative_to(path) for folder in pythons)
    ] == []
    for folder in (home, Path("/tmp"), python):
        assert not (folder / "berg-was-here").exists()


# Notes when it hears SIGTERM, and whether its output was still read by then.
LISTENER = """#!/bin/bash
out=${BERG_ROOT:-/root}/$1
trap 'echo "$EPOCHREALTIME term" >>$out; exit' TERM
trap 'echo "$EPOCHREALTIME pipe" >>$out' PIPE
echo "$EPOCHREALTIME up" >>$out
while :; do echo tick; sleep 0.05; done
"""
UNIT = """[Unit]
After=network-online.target
[Service]
ExecStart=/bin/bash /root/listen unit
KillMode=mixed
TimeoutStopSec=60
StandardOutput=tty
"""


def heard(machine, sandbox, name: str) -> dict[str, float]:
    file = machines.own_root_of(machine.folder, sandbox) / name
    lines = file.read_text().splitlines() if file.exists() else []
    return {what: float(at) for at, what in reversed([line.split() for line in lines])}


def test_the_power_button_is_heard_by_the_runner_alone(boot, sandbox):
    """As KillMode=process has it: what the startup script began loses its output at once and is
    told 3 s later.
    """
    script = f"#!/bin/bash\ncat >${{BERG_ROOT:-/root}}/listen <<'END'\n{LISTENER}END\n"
    script += "cd ${BERG_ROOT:-/root}; (setsid bash listen daemon &)\nbash listen child &\nwait\n"
    machine = boot(script)
    until(lambda: all("up" in heard(machine, sandbox, who) for who in ("daemon", "child")), "both")
    began = time.time()
    shut_down(machine, sandbox, 10)
    for who in ("daemon", "child"):
        told = heard(machine, sandbox, who)
        if sandbox.files == machines.PLAIN:
            assert told["term"] - began < 1, "plain machines have no init: all hear it at once"
        else:
            assert told["pipe"] - began < 1 and 2.9 < told["term"] - began < 4.5


@BEST
def test_a_unit_is_told_at_once_and_has_its_time(boot, sandbox):
    slow = LISTENER.replace("; exit", '; sleep 4; echo "$EPOCHREALTIME done" >>$out; exit')
    script = (
        f"#!/bin/bash\ncat >/root/listen <<'END'\n{slow}END\n[ -d /run/systemd/system ] || exit 1\n"
        f"cat >/run/systemd/system/x.service <<'END'\n{UNIT}END\n"
        "systemctl daemon-reload && systemctl start --no-block x && systemctl start x && echo begun\n"
    )
    machine = boot(script)
    console_with(machine, "Finished running startup scripts.")  # the boot waits for no unit
    console_with(machine, "begun")
    console_with(machine, "\ntick")
    began = time.time()
    assert shut_down(machine, sandbox, 20) < 6
    told = heard(machine, sandbox, "unit")
    assert told["term"] - began < 1 and told["done"] - told["term"] > 3.9 and "pipe" not in told


@BEST
def test_a_unit_that_fails_begins_again_and_at_last_another(boot, sandbox):
    again = "Restart=on-failure\nRestartSec=0.2\n"
    limit = "StartLimitIntervalSec=60\nStartLimitBurst=3\nOnFailure=y.service\n"
    unit = UNIT.replace("[Unit]\n", f"[Unit]\n{limit}").replace(
        "[Service]\n", f"[Service]\n{again}"
    )
    fails = "#!/bin/bash\necho begins\nsleep 77 &\nkill -9 $$\n"
    other = "[Service]\nExecStart=/bin/echo the other\nStandardOutput=tty\n"
    script = (
        f"#!/bin/bash\ncat >/root/listen <<'END'\n{fails}END\n"
        f"cat >/run/systemd/system/x.service <<'END'\n{unit}END\n"
        f"cat >/run/systemd/system/y.service <<'END'\n{other}END\nsystemctl start x\n"
    )
    machine = boot(script)
    console = console_with(machine, "the other")
    assert console.count("\nbegins") == 3
    until(lambda: not with_argument("sleep\x0077"), "the end of what a failed one left")


@BEST
def test_a_unit_has_no_home_but_what_it_sets(boot, sandbox):
    unit = "[Service]\nExecStart=/bin/bash /root/home\nStandardOutput=tty\n"
    script = (
        "#!/bin/bash\necho 'echo home is ${HOME-none}' >/root/home\n"
        f"cat >/run/systemd/system/x.service <<'END'\n{unit}END\n"
        f"cat >/run/systemd/system/y.service <<'END'\n{unit}Environment=HOME=/else\nEND\n"
        "systemctl start x y\n"
    )
    machine = boot(script)
    console_with(machine, "home is none")
    console_with(machine, "home is /else")


@BEST
def test_nothing_begins_on_a_machine_that_goes_down(boot, sandbox):
    script = (
        f"#!/bin/bash\ncat >/run/systemd/system/x.service <<'END'\n{UNIT}END\nsystemctl is-system-running\n"
        "until [ -e /run/systemd/stopping ]; do sleep 0.01; done\n"
        "{ systemctl start x || systemctl is-system-running || echo nothing; } >/proc/1/fd/1 2>&1\n"
    )
    machine = boot(script)
    console_with(machine, "startup-script: running")
    assert shut_down(machine, sandbox, 20) < 5
    console = console_with(machine, "nothing")
    assert "Transaction for x.service/start is destructive" in console and "\nstopping\n" in console


@BEST
def test_a_unit_of_words_that_do_nothing_is_refused(boot, sandbox):
    for old, new in (("KillMode", "KilMode"), ("mixed", "mixd"), ("=tty", "=journal")):
        wrong = UNIT.replace(old, new)
        script = f"#!/bin/bash\ncat >/run/systemd/system/x.service <<'END'\n{wrong}END\nsystemctl start x || echo no\n"
        machine = boot(script, f"box-{old.strip('=')}")
        console_with(machine, "startup-script: no")


def test_nothing_survives_the_power_cut(boot, sandbox, tmp_path):
    name = f"3{os.getpid()}{abs(hash(str(tmp_path))) % 10**6}"
    stubborn = f"trap '' TERM; while :; do sleep {name}; done"
    script = f'#!/bin/bash\n(setsid nohup bash -c "{stubborn}" >/dev/null 2>&1 &)\nsleep {name} &\necho ready\nwait\n'
    machine = boot(script)
    console_with(machine, "startup-script: ready")
    until(lambda: len(with_argument(f"sleep\0{name}")) == 2, "both processes")
    seconds = shut_down(machine, sandbox, 0.5)
    assert 0.4 < seconds < 5
    assert with_argument(name) == []


def test_a_line_over_64_kb_stops_the_scripts_reader(boot):
    script = "#!/bin/bash\necho before\nhead -c 70000 /dev/zero | tr '\\0' x\necho\nsleep 0.2\necho after\n"
    machine = boot(script)
    shown = console_with(machine, "token too long")
    assert "startup-script: before" in shown
    shown = console_with(machine, "Finished running")
    assert "after" not in shown and len(shown) < 65536


def test_a_script_without_a_shebang_does_not_run(boot):
    shown = console_with(boot("echo hello\n"), "Finished running startup scripts.")
    assert "exec format error" in shown and "startup-script: hello" not in shown


@BEST
def test_poweroff_inside_ends_the_machine(boot, sandbox):
    machine = boot("#!/bin/bash\nsleep 100 &\nshutdown -h now\nwait\n")
    until(lambda: not processes.alive(machine.folder, sandbox), "power off")


def test_a_reboot_keeps_the_disk_and_empties_tmp(boot, sandbox):
    script = '#!/bin/bash\ncd "${BERG_ROOT:-/root}"; ls kept /run/gone 2>&1; touch kept; touch /run/gone\necho end\n'
    machine = boot(script)
    console_with(machine, "startup-script: end")
    shut_down(machine, sandbox, 5)
    boot(script)
    shown = until(
        lambda: console(machine).count("startup-script: end") == 2 and console(machine),
        "second boot",
    )
    assert "startup-script: kept" in shown
    if sandbox.files != machines.PLAIN:
        assert "cannot access '/run/gone'" in shown.rpartition("Found startup-script")[2]


def test_removal_copes_with_what_machines_leave(boot, sandbox):
    script = '#!/bin/bash\ncd "${BERG_ROOT:-/root}"; mkdir -p a/b; touch a/b/c; chmod 000 a/b; echo end\n'
    machine = boot(script)
    console_with(machine, "startup-script: end")
    shut_down(machine, sandbox, 5)
    machines.remove(machine.folder)
    assert not machine.folder.exists()


# --- the process


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Of a cloud of this file's own."""
    folder = tmp_path_factory.mktemp("own") / "local"
    yield folder
    control.reset(folder)


GRACE = ("--grace", "3")


@pytest.fixture
def own(folder):
    """A cloud that runs, whatever the test before did; its grace is short."""
    control.start(folder, options=GRACE)
    return Client(folder)


def test_a_deep_learning_image_has_torch_and_neither_conda_nor_venv(own):
    script = (
        "#!/bin/bash\npython3 -c 'import torch; print(torch.__version__); torch.Tensor'\npython3 -m venv /root/v || echo no venv\n"
        "python3 -m ensurepip || echo no ensurepip\nls -A /root\necho home ${HOME-unset}\necho end\n"
    )
    if (
        control.read_json(own.folder / "abilities.json")["files"] != machines.OVERLAY
        or not machines.system_python()
    ):
        pytest.skip("no overlays here, or no python3-pip")
    own.insert("learning", script, image=LEARNING)
    shown = own.console_with("learning", ": end\n")
    for line in ("2.9.1+cu129", "no venv", "no ensurepip", "home unset"):
        assert f": {line}\n" in shown, shown
    assert "ImportError: this machine of the embedded cloud has no PyTorch" in shown
    assert "anaconda3" not in shown and ": berg\n" not in shown


def test_machines_that_a_killed_server_left_end_with_the_next_start(own):
    own.insert("left", "#!/bin/bash\necho up\n")
    own.console_with("left", "startup-script: up")
    left = own.folder / "machines" / own.get("left")["id"]
    status = control.status(own.folder)
    assert status["running"] and "RUNNING" in status["machines"]
    os.kill(status["pid"], signal.SIGKILL)
    until(lambda: not control.status(own.folder)["running"], "the end of the server")
    assert processes.first_process(left)
    assert control.start(own.folder, options=GRACE) == status["port"]
    assert processes.first_process(left) is None and own.status("left") == "TERMINATED"
    own.wait(own.call("POST", "/zones/us-central1-c/instances/left/start"))
    assert processes.first_process(left) and own.status("left") == "RUNNING"
    own.delete("left")
    assert processes.first_process(left) is None and not left.exists()


def test_stop_ends_machines_after_their_last_words(own):
    words = "trap 'sleep 0.2; echo uploaded >/root/words; exit' TERM; echo up; sleep 100 & wait"
    own.control("settings", {"grace": 10})
    own.insert("worker", f"#!/bin/bash\n{words}\n")
    own.console_with("worker", "startup-script: up")
    folder = own.folder / "machines" / own.get("worker")["id"]
    assert control.stop(own.folder) is True
    assert processes.first_process(folder) is None
    assert any(file.read_text() == "uploaded\n" for file in folder.glob("*/root/words"))
    assert control.stop(own.folder) is False
    control.start(own.folder, options=GRACE)
    assert own.status("worker") == "TERMINATED"


def test_machines_of_a_killed_server_end_with_reset(own):
    own.insert("orphan", "#!/bin/bash\necho up\n")
    folder = own.folder / "machines" / own.get("orphan")["id"]
    first = processes.first_process(folder)
    os.kill(control.status(own.folder)["pid"], signal.SIGKILL)
    until(lambda: not control.status(own.folder)["running"], "the end of the server")
    assert Path(f"/proc/{first}").exists()
    control.reset(own.folder)
    assert not Path(f"/proc/{first}").exists() and not own.folder.exists()


def test_a_machine_whose_files_were_deleted_ends(own, host):
    if host != machines.OVERLAY:
        pytest.skip("without overlays it would be this computer's program")
    script = "#!/bin/bash\n[[ $(stat -f -c %T /usr) == overlayfs ]] && rm /usr/bin/sleep\n"
    own.insert("bare", script)
    folder = own.folder / "machines" / own.get("bare")["id"]
    until(lambda: processes.first_process(folder) is None, "the end of the machine")


def test_two_starts_make_one_server(own):
    port = control.status(own.folder)["port"]
    code = "import sys; from localcloud import control; print(control.start(sys.argv[1]))"
    control.stop(own.folder)
    starts = [
        subprocess.Popen([sys.executable, "-c", code, own.folder], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    assert {int(start.communicate()[0]) for start in starts} == {port}
    assert own.folder.stat().st_mode & 0o777 == 0o700


def test_a_taken_port_is_named(own):
    port = control.status(own.folder)["port"]
    control.stop(own.folder)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(control.LocalCloudError, match=f"Port {port}"):
            control.start(own.folder)


def test_reset_leaves_other_folders_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(control.LocalCloudError, match="does not look like"):
        control.reset(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_control_is_light():
    code = "import sys; import localcloud.control; print('aiohttp' in sys.modules, 'asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_who_has_the_key_logs_in_with_and_without_root(tmp_path, sandbox):
    """Without root the server is another user's in a user namespace, and listens on a port above
    1023.
    """
    if obstacle := machines.ssh_obstacle(sandbox):
        pytest.skip(f"no ssh into such machines here: {obstacle}")
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public = key.with_suffix(".pub").read_text().strip()
    script = f"#!/bin/bash\nmkdir -pm 700 /root/.ssh\necho '{public}' >/root/.ssh/authorized_keys\n"
    address = "127.73.0.9"
    machine = machines.Machine(tmp_path / "box", "box", address, 9, None, script)
    process = machines.boot(machine, sandbox)
    port = sshd.USER_PORT if sandbox.user else sshd.PORT
    try:
        words = "hostname; id -un; touch /root/mine; tty; exit 4"
        look = ssh(key, "-tt", f"root@{address}", words, Port=port)
        done = until(
            lambda: (done := subprocess.run(look, capture_output=True)).returncode != 255 and done,
            "a login",
        )
        assert done.returncode == 4 and done.stdout.startswith(b"box\r\nroot\r\n/dev/pts/"), (
            done.stdout
        )
        assert (
            machines.own_root_of(machine.folder, sandbox).joinpath("mine").stat().st_uid
            == os.geteuid()
        )
    finally:
        asyncio.run(processes.shut_down(machine.folder, sandbox, 0))
        process.wait()
