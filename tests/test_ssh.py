"""`berg ssh` and plain ssh with real OpenSSH at both ends, on machines of the embedded
cloud.
"""

import json
import os
import pty
import re
import shlex
import shutil
import socket
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Berg, commit, git, library, wait_for

from berg import BergError, gce, validation
from berg.config import Config
from berg.gke import place as gke
from berg.google import api, instances
from berg.job import Machine
from berg.laptop import ssh
from localcloud.machines import sandbox as machines
from localcloud.machines import sshd
from localcloud.machines.abilities import describe

needs_sshd = pytest.mark.skipif(
    bool(sshd.obstacle()), reason=f"no ssh into machines here: {sshd.obstacle()}"
)
SOMEBODY = "anna:ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFkyVZ1H5v2hUq0b2cXj0cN2mE9mJc2aZ1oUe6yM2cXk anna@laptop"
KEY = "google_compute_engine"
PORT = sshd.PORT if os.geteuid() == 0 else sshd.USER_PORT
WISH, SECRET = 'it\'s "a b"\n$HOME `id` \\ ü', "nobody reads this"
# of a shell
OWN = {
    "HOSTNAME",
    "LC_CTYPE",
    "LOGNAME",
    "MAIL",
    "MOTD_SHOWN",
    "OLDPWD",
    "PWD",
    "SHELL",
    "SHLVL",
    "TERM",
    "USER",
    "_",
}


@pytest.fixture(scope="module")
def box(cloud, tmp_path_factory):
    """A machine `box` that a command keeps up, as its owner sees it from a laptop of her own."""
    folder = tmp_path_factory.mktemp("laptop")
    repo, home = folder / "proj", folder / "home"
    repo.mkdir()
    home.mkdir()
    git(repo, "init", "-q", "-b", "main")
    (repo / "train.py").write_text("")
    commit(repo)
    settings = cloud.settings(f"bucket-{uuid.uuid4().hex[:12]}")
    library(settings).create()
    berg = Berg(cloud, home, repo, settings.bucket)
    keys = ("project", "bucket", "endpoint", "credentials_file", "user")
    berg.write_config(**{key: getattr(settings, key) for key in keys})
    (folder / "token").write_text(SECRET)
    wishes = ["--env", f"WISH={WISH}", "--secret", f"TOKEN={folder}/token"]
    started = berg("run", "-g", "0", "-n", "box", *wishes, "env -0 >/tmp/env; sleep 1000")
    assert started.returncode == 0, started.stderr
    # The first login: makes the key, and hands it to the machine, which was started without.
    first = berg("ssh", "box", "--", "hostname")
    assert (first.returncode, first.stdout) == (0, "box\n"), first.stderr
    assert "Created the ssh key" in first.stderr
    yield berg
    berg("kill", "box", "--now")


def call(
    berg: Berg, *arguments: str, data: bytes = b"", **env: str
) -> subprocess.CompletedProcess[bytes]:
    """`berg ssh box` with bytes for its standard input."""
    command = [sys.executable, "-m", "berg", "ssh", "box", *arguments]
    environment = berg.environment(**env)
    return subprocess.run(
        command, cwd=berg.repo, env=environment, input=data, capture_output=True, timeout=60
    )


def target_of(berg: Berg) -> ssh.Target:
    config = berg.cloud.settings(berg.bucket_name)
    return ssh.find_target(config, "box", lambda text: None, timeout=20)


@pytest.fixture
def at_home(monkeypatch, tmp_path):
    """Library calls see a laptop of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "berg home"))
    return tmp_path


@pytest.fixture
def on_her_laptop(box, monkeypatch):
    monkeypatch.setenv("HOME", str(box.home))
    monkeypatch.setenv("BERG_HOME", str(box.home))
    return box


@needs_sshd
def test_exit_codes_and_streams_pass_through(box):
    done = call(box, "--", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"err\n")
    data = os.urandom(1 << 20)
    done = call(box, "--", "cat", data=data)
    assert (done.returncode, done.stdout == data, done.stderr) == (0, True, b"")


def variables(output: bytes) -> dict[str, str]:
    """What `env -0` printed, but for what each shell has of its own."""
    pairs = [entry.partition("=") for entry in output.decode().split("\0") if entry]
    return {key: value for key, _, value in pairs if key not in OWN and not key.startswith("SSH_")}


@pytest.mark.slow
@needs_sshd
def test_a_command_over_ssh_finds_what_the_job_finds(box):
    wait_for(
        lambda: call(box, "--", "grep -c BERG_JOB /tmp/env").returncode == 0,
        what="the job's command",
    )
    job = variables(call(box, "--", "cat /tmp/env").stdout)
    job.pop("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "")  # of the worker's
    assert job.pop("TOKEN") == SECRET and job["WISH"] == WISH and job["BERG_JOB"] == "box"
    plain = ["ssh", "-F", str(box.home / "ssh/box"), "box"]
    encoded = call(box, "-t", "--", "env -0 | base64 -w0").stdout
    ways = {
        "berg ssh": call(box, "--", "env -0").stdout,
        "with a terminal": subprocess.run(
            ["base64", "-d"], input=encoded, capture_output=True
        ).stdout,
        "ssh": subprocess.run([*plain, "env", "-0"], capture_output=True).stdout,
        "a login": subprocess.run(plain, input=b"env -0", capture_output=True).stdout,
        "a shell in a session": call(box, "--", "bash -ic 'env -0'").stdout,
        "a login in a session": call(box, "--", "bash -lc 'env -0'").stdout,
    }
    for way, output in ways.items():
        assert variables(output) == job, way
    in_repo = call(box, "--", "pwd; python -c 'import sys; sys.exit(4)'")
    assert (in_repo.stdout, in_repo.returncode) == (b"/root/code/proj\n", 4)
    kept = call(box, "--", "PATH=/mine:$PATH bash -ic 'echo $PATH'").stdout
    assert kept.startswith(b"/mine:"), "a virtual environment stays active in a shell inside of it"
    assert (
        call(box, "--", f"grep -rl {shlex.quote(SECRET)} /root /etc /tmp --exclude=env").stdout
        == b""
    )
    assert call(box, "--", "stat -c %a /root/berg/environment.sh").stdout == b"600\n"


@pytest.mark.slow
@needs_sshd
def test_what_a_command_finds_stands_before_what_a_distribution_wrote(box):
    """Ubuntu's .bashrc returns where nobody is at a terminal; that of berg's machines says more
    after that.
    """
    try:
        call(
            box,
            "--",
            "cp /root/.bashrc /root/kept; echo '[ -z \"$PS1\" ] && return; echo noise' >>/root/.bashrc",
        )
        assert call(box, "--", "echo $BERG_JOB").stdout == b"box\n"
        data = os.urandom(1 << 20)
        assert call(box, "--", "cat", data=data).stdout == data
    finally:
        call(box, "--", "mv /root/kept /root/.bashrc")


@needs_sshd
@pytest.mark.parametrize(
    "program", [["scp", "-q"], ["scp", "-q", "-O"], ["rsync", "-I", "-e"]], ids=" ".join
)
def test_files_arrive_as_they_are(box, tmp_path, program):
    config = str(box.home / "ssh/box")
    options = [shlex.join(["ssh", "-F", config])] if program[0] == "rsync" else ["-F", config]
    data = os.urandom(1 << 20)
    (tmp_path / "data").write_bytes(data)
    for words in (
        [str(tmp_path / "data"), "box:/root/data"],
        ["box:/root/data", str(tmp_path / "back")],
    ):
        subprocess.run([*program, *options, *words], check=True)
    assert (tmp_path / "back").read_bytes() == data


@needs_sshd
def test_the_machine_has_a_host_key_of_its_own_and_takes_no_passwords(box):
    shown = call(
        box, "--", "ls /etc/ssh; sshd -T; cat /etc/ssh/ssh_host_ed25519_key.pub"
    ).stdout.decode()
    assert "passwordauthentication no" in shown and "permitrootlogin without-password" in shown
    assert re.findall(r"^(ssh_host_.*)$", shown, re.M) == [
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
    ]
    for host_key in Path("/etc/ssh").glob("ssh_host_*.pub"):
        assert host_key.read_text().split()[1] not in shown
    assert shown.splitlines()[-1].split()[1] in (box.home / "known_hosts").read_text()


@needs_sshd
@pytest.mark.parametrize("command", [(), ("-t", "--", "bash -i")], ids=["shell", "command"])
def test_a_terminal(box, command):
    leader, follower = pty.openpty()
    arguments = [sys.executable, "-m", "berg", "ssh", "box", *command]
    process = subprocess.Popen(
        arguments, env=box.environment(TERM="xterm"), stdin=follower, stdout=follower
    )
    os.close(follower)
    shown = b""

    def answered(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            shown += os.read(leader, 4096)

    answered(b"# " if os.geteuid() == 0 else b"$ ")
    os.write(leader, b"tty; echo $((6 * 7)); who | wc -l; exit 3\n")
    answered(b"\r\n42\r\n")
    assert b"/dev/pts/" in shown
    assert process.wait(20) == 3
    os.close(leader)


@needs_sshd
def test_a_port_is_forwarded(box):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Only the machine itself knows the name `box`.
    process = box.start("ssh", "box", "-N", "-L", f"{port}:box:{PORT}")

    def banner() -> bytes:
        with socket.socket() as client:
            return client.recv(8) if client.connect_ex(("127.0.0.1", port)) == 0 else b""

    assert wait_for(banner, 20, "the forwarded port") == b"SSH-2.0-"
    process.terminate()  # reaches ssh itself, which took berg's place
    process.communicate(timeout=10)


@needs_sshd
def test_a_port_that_is_taken_ends_it(box):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = box("ssh", "box", "-N", "-L", f"{port}:box:22")
        assert (
            done.returncode == 1
            and f"berg: port {port} of this computer cannot be used (Address" in done.stderr
        )
        done = call(box, "-N", "-L", f"127.0.0.1:{port}:box:22")
    assert done.returncode == 255 and b"Address already in use" in done.stderr


@needs_sshd
def test_another_host_key_is_refused_even_if_the_bucket_vouches_for_it(on_her_laptop, tmp_path):
    box = on_her_laptop
    known = box.home / "known_hosts"
    pinned = known.read_text()
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True
    )
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    name = ".berg/machines/box/box.json"
    published = box.bucket.read(name)
    try:
        known.write_text(re.sub(r"ssh-ed25519 \S+", other, pinned))
        done = call(box, "--", "echo in")
        assert (
            done.returncode == 255
            and b"Host key verification failed" in done.stderr
            and done.stdout == b""
        )
        known.write_text(pinned)
        # What the machine told counts, on a new laptop, too: never what the bucket says.
        box.bucket.write(name, json.dumps({**json.loads(published), "host_keys": [other]}))
        known.unlink()
        assert call(box, "--", "echo in").stdout == b"in\n"
        assert known.read_text() == pinned
    finally:
        known.write_text(pinned)
        box.bucket.write(name, published)


@needs_sshd
def test_another_laptop_is_let_in_and_nobody_elses_key_is_lost(box, at_home):
    config = box.cloud.settings(box.bucket_name)
    zone = box.machines()["box"]["zone"].rpartition("/")[2]

    def keys() -> list[str]:
        items = box.machines()["box"]["metadata"]["items"]
        return next(item["value"] for item in items if item["key"] == "ssh-keys").splitlines()

    gce.set_metadata(
        config,
        Machine("box", zone),
        "ssh-keys",
        lambda old: "\n".join([*old.splitlines(), SOMEBODY]),
    )
    before = keys()
    assert SOMEBODY in before and len(before) >= 2
    said: list[str] = []
    target = ssh.find_target(config, "box", said.append)
    assert keys() == [*before, ssh.metadata_line(config, ssh.public_key(create=False))]
    assert any("Adding your key" in text for text in said)
    words = ssh.command(config, target, [], ["hostname"])  # the paths hold a blank
    assert subprocess.run(words, capture_output=True, text=True).stdout == "box\n"
    said.clear()
    assert ssh.find_target(config, "box", said.append) == replace(target, key_is_new=False)
    assert said == []


@needs_sshd
def test_an_agent_does_no_harm(on_her_laptop, tmp_path):
    config, target = (
        on_her_laptop.cloud.settings(on_her_laptop.bucket_name),
        target_of(on_her_laptop),
    )

    def login(*words: str, options: tuple[str, ...] = (), **env: str) -> str:
        command = ssh.command(config, target, list(options), list(words))
        return subprocess.run(
            command, env={**os.environ, **env}, capture_output=True, text=True
        ).stdout

    assert login("echo in", SSH_AUTH_SOCK="/nonexistent") == "in\n"
    shown = subprocess.run(["ssh-agent", "-s"], capture_output=True, text=True, check=True).stdout
    agent = dict(re.findall(r"(SSH_\w+)=([^;]+);", shown))
    try:
        for number in range(8):  # more than a server lets a client try
            key = tmp_path / str(number)
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
            subprocess.run(["ssh-add", "-q", key], check=True, env={**os.environ, **agent})
        assert login("echo in", **agent) == "in\n"
        # Only with -A may the machine use them.
        assert login("ssh-add -l", options=("-A",), **agent).count("\n") == 8
        assert login("ssh-add -l", **agent) == ""
    finally:
        subprocess.run(["kill", agent["SSH_AGENT_PID"]], check=True)


@needs_sshd
def test_dry_run_prints_a_command_that_works(box):
    done = box("ssh", "box", "--dry-run", "--", "echo it works")
    assert done.returncode == 0
    words = shlex.split(done.stdout)
    assert (
        words[0] == "ssh" and words[-1] == "echo it works" and "StrictHostKeyChecking=yes" in words
    )
    assert subprocess.run(words, capture_output=True, text=True).stdout == "it works\n"


@needs_sshd
def test_ssh_and_rsync_by_name(box):
    mine = box.home / ".ssh/config"
    mine.write_text("Host elsewhere\n    User me\n")
    done = box("open", "box", "--code")
    assert done.stdout == "code --remote ssh-remote+box /root/code/proj\n", done.stderr
    line = f"Include {box.home}/ssh/*"
    assert f"put at the beginning of {mine}: {line}" in " ".join(done.stderr.split())
    assert mine.read_text() == "Host elsewhere\n    User me\n", "nothing is added without consent"
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "berg", "open", "box", "--code"]
    asked = subprocess.Popen(command, env=box.environment(), stdin=follower, stderr=follower)
    os.close(follower)
    os.write(leader, b"y\n")
    assert asked.wait(60) == 0, os.read(leader, 4096)
    os.close(leader)
    assert mine.read_text() == f"{line}\n\nHost elsewhere\n    User me\n"
    assert "Include" not in box("open", "box", "--code").stderr
    plain = ["ssh", "-F", str(mine)]
    done = subprocess.run([*plain, "box", "hostname; exit 5"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (5, "box\n"), done.stderr
    if shutil.which("rsync"):
        subprocess.run(
            ["rsync", "-a", "-e", shlex.join(plain), box.repo / "train.py", "box:/root/sent/"],
            check=True,
        )
        assert call(box, "ls", "/root/sent").stdout == b"train.py\n"


@needs_sshd
def test_through_iap_where_a_machine_has_no_external_address(on_her_laptop, tmp_path, monkeypatch):
    """gcloud's tunnel is a program that connects its standard streams to the machine."""
    gcloud = tmp_path / "gcloud"
    gcloud.touch(mode=0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    target = target_of(on_her_laptop)
    zone = on_her_laptop.machines()["box"]["zone"].rpartition("/")[2]
    config = on_her_laptop.cloud.settings(on_her_laptop.bucket_name)
    gcloud.write_text(
        f"#!{sys.executable}\nimport os, socket, sys, threading\nopen({str(tmp_path / 'said')!r}, 'w')"
        ".write(' '.join(sys.argv[1:]))\n"
        f"machine = socket.create_connection(({target.address!r}, int(sys.argv[4])))\n"
        "def copy():\n    while data := os.read(0, 4096):\n        machine.sendall(data)\n"
        "threading.Thread(target=copy, daemon=True).start()\n"
        "while data := machine.recv(4096):\n    os.write(1, data)\n"
    )
    words = ssh.command(config, replace(target, address=""), [], ["hostname"])
    assert target.address not in " ".join(words) and str(gcloud) in " ".join(words)
    assert subprocess.run(words, capture_output=True, text=True).stdout == "box\n"
    assert (tmp_path / "said").read_text() == (
        f"compute start-iap-tunnel box {PORT} --listen-on-stdin --project berg-local "
        f"--zone {zone} --verbosity=error {' '.join(config.tunnel_options)}"
    )


@needs_sshd
def test_a_cluster_from_its_boot_to_its_end(berg, at_home):
    """Logging in before the machines exist, by the cluster's name and by a machine's; then when
    they are gone.
    """
    berg.cloud.call("POST", "/_berg/settings", {"delay": 1})
    run = berg.start("run", "-g", "0", "-m", "2", "-n", "duo", "sleep 1000")
    # so that there is something to wait for
    berg.cloud.call("POST", "/_berg/settings", {"delay": 3})
    wait_for(lambda: berg.bucket.exists(".berg/jobs/duo_state.json"), what="the job")
    numbered = berg.start("ssh", "duo", "--worker", "1", "--", "hostname")
    first = berg(
        "ssh",
        "duo",
        "--",
        "hostname; echo $BERG_HOSTS; ssh duo-1 hostname; bash -lc 'echo $MASTER_ADDR'",
    )
    address = berg.machines()["duo-0"]["networkInterfaces"][0]["networkIP"]
    assert (first.returncode, first.stdout) == (0, f"duo-0\nduo-0,duo-1\nduo-1\n{address}\n"), (
        first.stderr
    )
    assert re.search(
        r"Waiting for duo: (its machine is being created|the machine duo-0 \w+)", first.stderr
    )
    assert first.stderr.count("Waiting") <= 5
    printed, said = numbered.communicate(timeout=60)
    assert (numbered.returncode, printed) == (0, "duo-1\n") and "Waiting for duo" in said, said
    assert f"Results go to gs://{berg.bucket_name}/berg_results/duo\n" in berg.log("duo")
    second = berg("ssh", "duo-1", "--", "hostname")
    assert (second.returncode, second.stdout) == (0, "duo-1\n"), second.stderr
    run.communicate(timeout=30)
    assert "Host duo-0 duo\n" in (berg.home / "ssh/duo-0").read_text()
    assert "Host duo-1\n" in (berg.home / "ssh/duo-1").read_text()

    # A machine whose server is gone: berg says so rather than ssh.
    berg("ssh", "duo", "--", "pkill -o sshd")
    config = berg.cloud.settings(berg.bucket_name)
    mend = f"--project berg-local --network default --allow tcp:{PORT} --source-ranges YOUR_ADDRESS/32$"
    with pytest.raises(
        BergError, match=rf"duo-0 runs, but nothing answers at 127\.[\d.]+ port {PORT}.* {mend}"
    ):
        ssh.find_target(config, "duo", lambda text: None, timeout=1)

    assert berg("kill", "duo", "--now").returncode == 0
    assert not [*(berg.home / "ssh").iterdir()], "the entries go with their machines"
    gone = berg("ssh", "duo", "--", "hostname")
    assert gone.returncode == 1
    assert re.fullmatch(
        r"berg: duo has no machine any more \(the job is [A-Z]+: .+\)\. .+: berg log duo\n",
        gone.stderr,
    )


@pytest.mark.parametrize("name", ["nobody", "root@Box!"])
def test_an_unknown_name(berg, name):
    done = berg("ssh", "--", name)
    assert done.returncode == 1
    assert done.stderr.endswith(
        f"berg: there is no job or machine {name!r}. See what there is: berg list -a\n"
    )


def test_a_machine_that_never_comes(bucket, cloud, at_home, monkeypatch):
    """A job whose machine is not there yet: what is waited for is told, then who to ask."""
    from berg import job

    state = job.State().to_json()
    bucket.write(job.state_path("slow"), state, metadata={"state": state})
    said: list[str] = []
    with pytest.raises(
        BergError, match=r"cannot log in to slow after \d s: its machine is being created"
    ):
        ssh.find_target(cloud.settings(bucket.name), "slow", said.append, timeout=0.6)
    assert said[-1:] == ["Waiting for slow: its machine is being created"]


def test_an_unknown_name_makes_no_key(cloud, bucket, at_home):
    with pytest.raises(BergError, match="there is no job or machine 'nobody'"):
        ssh.find_target(cloud.settings(bucket.name), "nobody", print)
    assert not (at_home / ".ssh").exists()


def test_the_key_is_made_once_as_gcloud_makes_it(at_home):
    said: list[str] = []
    assert ssh.public_key(create=False) is None
    key = ssh.public_key(create=True, say=said.append)
    folder = at_home / ".ssh"
    assert key and key.startswith("ssh-rsa AAAA")
    assert said == [f"Created the ssh key {folder / KEY}, which gcloud uses, too"]
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / KEY)] == [0o700, 0o600]
    assert (
        ssh.public_key(create=True, say=said.append) == ssh.public_key(create=False) == key
        and len(said) == 1
    )
    (folder / f"{KEY}.pub").unlink()  # made of the private one again
    assert ssh.public_key(create=False) is None
    assert ssh.public_key(create=True).split()[:2] == key.split()[:2]
    (folder / KEY).unlink()
    with pytest.raises(BergError, match="no private key next to it"):
        ssh.public_key(create=True)


def test_a_new_machine_brings_the_key_along(berg, at_home):
    def items(**env: str) -> dict[str, str]:
        done = berg("run", "-g", "0", "--dry-run", "--json", "true", **env)
        return {
            item["key"]: item["value"]
            for item in json.loads(done.stdout)["request"]["metadata"]["items"]
        }

    without = items()
    assert "ssh-keys" not in without and "enable-oslogin" not in without
    assert items(BERG_SSH_USER="anna")["enable-oslogin"] == "FALSE", (
        "or Google's agent would not make that user"
    )
    key = ssh.public_key(create=True)
    assert items(HOME=str(at_home))["ssh-keys"] == f"root:{key}"


def test_the_include_goes_before_everything_and_a_linked_file_stays_linked(at_home):
    folder = at_home / ".ssh"
    dotfiles = at_home / "dotfiles"
    folder.mkdir(mode=0o700)
    dotfiles.mkdir()
    (dotfiles / "config").write_text("Host *\n    User me\n")
    (folder / "config").symlink_to(dotfiles / "config")
    assert not ssh.is_included()
    ssh.include()
    assert ssh.is_included() and (folder / "config").is_symlink()
    assert (dotfiles / "config").read_text() == (
        # quoted, because of the blank
        f'Include "{at_home}/berg home/ssh/*"\n\nHost *\n    User me\n'
    )


def test_where_nobody_can_ssh_the_status_says_why():
    """`berg local status` shows the limits that are found when the cloud starts."""
    plain = " ".join(describe(machines.Sandbox(machines.PLAIN), "")["limits"])
    assert "ssh into machines does not work here: that takes namespaces" in plain
    for user in (False, True):
        here = " ".join(describe(machines.Sandbox(machines.OVERLAY, user), "")["limits"])
        assert ("ssh into machines does not work" in here) == bool(sshd.obstacle(user))
        assert sshd.obstacle(user) in here


def test_host_keys_are_always_checked():
    package = Path(ssh.__file__).parent
    texts = [path.read_text() for path in package.rglob("*") if path.suffix in (".py", ".sh")]
    values = [
        value for text in texts for value in re.findall(r"StrictHostKeyChecking\W+(\w+)", text)
    ]
    assert values and set(values) == {"yes"}


def machine_that_told(monkeypatch, told: dict[str, str], record: bytes | None = None) -> Machine:
    """A machine that wrote these guest attributes; a bucket with its record."""
    items = [
        {"namespace": key.partition("/")[0], "key": key.partition("/")[2], "value": value}
        for key, value in told.items()
    ]

    def call(config: Config, method: str, path: str) -> dict:
        if not items:
            raise api.NotFound("")
        return {"queryValue": {"items": items}}

    bucket = SimpleNamespace(
        read_from=lambda name, start, end: record[start:end] if record else None, name="b"
    )
    monkeypatch.setattr(ssh, "Bucket", lambda config: bucket)
    monkeypatch.setattr(instances, "call", call)
    for place in (gce, gke):
        monkeypatch.setattr(place, "let_in", lambda config, machine, line: False)
    return Machine("a", "zone-a", id="1", external_ip="10.0.0.2")


KEY_A = {"hostkeys/ssh-ed25519": "AAAA"}


@pytest.mark.parametrize(
    "told",
    [
        {"hostkeys/ssh-ed25519": ""},
        {"hostkeys/ssh-ed25519": "AAAA\nother ssh-ed25519 BBBB"},
        {"hostkeys/@cert-authority": "* AAAA"},
    ],
)
def test_a_malformed_host_key_is_no_host_key(monkeypatch, told):
    """It would be a line of known_hosts: for another machine, or for a key that signs others."""
    machine = machine_that_told(monkeypatch, {"berg/ssh": "0 22", **told})
    assert gce.login(Config(), machine).host_keys == []
    with pytest.raises(BergError, match="a published no host keys"):
        ssh.reach(Config(), "a", machine, print)


@pytest.mark.parametrize("ready", ["", "22", "0 99999", "0 -1", "0 22 -o ProxyCommand=x", "0 ٢٢"])
def test_a_machine_that_told_no_port_is_not_ready(monkeypatch, ready):
    machine = machine_that_told(monkeypatch, {"berg/ssh": ready, **KEY_A})
    assert gce.login(Config(), machine) is None
    assert ssh.reach(Config(), "a", machine, print) is None


def test_what_the_bucket_says_of_a_machine_counts_for_nothing(monkeypatch, at_home):
    evil = {"instance_id": "1", "host_keys": ["ssh-ed25519 EVIL"], "ssh_port": 4444, "rank": 7}
    for record in (json.dumps(evil).encode(), b"{]", None):
        machine = machine_that_told(monkeypatch, {"berg/ssh": "0 22", **KEY_A}, record)
        target = ssh.reach(Config(), "a", machine, print)
        assert (target.port, target.host_keys) == (22, ["ssh-ed25519 AAAA"])


@pytest.mark.parametrize("odd", [{"instance_id": 17}, {"introduced": "yes"}, {"host_keys": "a b"}])
def test_a_record_that_is_odd_is_named_and_nothing_is_deleted_for_it(monkeypatch, odd, at_home):
    record = json.dumps({"instance_id": "1", **odd}).encode()
    machine = machine_that_told(monkeypatch, {}, record)
    with pytest.raises(BergError, match=r"/a/a.json is damaged .*: another job may") as error:
        ssh.reach(Config(), "a", machine, print)
    assert "kill" not in error.value.message
    pod = replace(machine, place="gke", zone="l/c", pod="a-0-x")
    with pytest.raises(ssh.NoServer, match="a.json is damaged") as without:
        ssh.reach(Config(), "a", pod, print)
    assert without.value.shell[-1] == "a-0-x"


def test_of_a_record_no_more_is_read_than_one_may_have(monkeypatch):
    monkeypatch.setattr(validation, "MOST_BYTES", 100)
    machine = machine_that_told(monkeypatch, {}, b" " * 1000)
    with pytest.raises(BergError, match="it has 101 bytes"):
        ssh.reach(Config(), "a", machine, print)


def test_no_firewall_is_opened_for_a_port_that_a_machine_names(monkeypatch):
    target = ssh.Target("a", "a", "1", "10.0.0.2", 4444, [], [])
    assert ssh.advice(Config(), target) == (
        "Your settings name port 22, the machine itself named 4444. If its image has its ssh "
        "server there: berg config set ssh_port 4444"
    )


def test_without_host_keys_of_its_own_a_machine_is_left_to_gcloud(monkeypatch, at_home):
    """Its organisation forbids guest attributes."""
    card = {"instance_id": "1", "host_keys": ["ssh-ed25519 AAAA"]}
    machine = machine_that_told(monkeypatch, {}, json.dumps(card).encode())
    with pytest.raises(BergError, match="gcloud compute ssh root@a --zone zone-a"):
        ssh.reach(Config(), "a", machine, print)
    ssh.known_hosts_file().parent.mkdir(parents=True)
    ssh.known_hosts_file().write_text("a.1 ssh-ed25519 BBBB\n")
    assert ssh.reach(Config(), "a", machine, print).host_keys == ["ssh-ed25519 BBBB"]
    none = json.dumps({**card, "host_keys": []}).encode()
    with pytest.raises(ssh.NoServer, match="a runs no ssh server"):
        ssh.reach(Config(), "a", machine_that_told(monkeypatch, {}, none), print)
    with pytest.raises(ssh.NoServer, match="a runs no ssh server"):
        ssh.reach(Config(), "a", machine_that_told(monkeypatch, {"berg/ssh": "0 0"}), print)


LEAKY = """
Host *
    ForwardAgent yes
    ForwardX11 yes
    RemoteForward 9000 localhost:22
    SendEnv SECRET
    SetEnv HUSH=hush
    PermitLocalCommand yes
    LocalCommand touch {home}/ran
    ControlMaster auto
    ControlPath {home}/master
"""


@needs_sshd
def test_what_the_persons_own_configuration_says_for_all_hosts_is_off(box, tmp_path):
    mine, seen = box.home / ".ssh/config", "echo ${SSH_AUTH_SOCK-none}${SECRET-}${HUSH-}"
    before = mine.read_text() if mine.exists() else None
    mine.write_text(LEAKY.format(home=box.home))
    try:
        words = shlex.split(box("ssh", "box", "--dry-run").stdout)
        shown = subprocess.run([*words[:-1], "-G", words[-1]], capture_output=True, text=True)
        assert not re.search("remoteforward|sendenv|setenv|agent yes|x11 yes|/master", shown.stdout)
        assert call(box, "--", seen).stdout == b"none\n"
        done = box("open", "box", "--code")
        assert "switched off for berg's machines" in done.stderr
        assert "remoteforward 9000" in done.stderr and "sendenv SECRET, setenv HUSH" in done.stderr
        included = tmp_path / "config"
        included.write_text(f"Include {box.home}/ssh/*\n\n{mine.read_text()}")
        shown = subprocess.run(
            ["ssh", "-F", included, "-G", "box"], capture_output=True, text=True
        ).stdout
        off = "remoteforward|agent yes|x11 yes|command yes|/master|master auto"
        assert not re.search(off, shown) and "clearallforwardings yes" in shown
        if shutil.which("rsync"):
            assert box("sync", "box", "--once").returncode == 0
        assert not (box.home / "ran").exists() and not (box.home / "master").exists()
    finally:
        mine.unlink() if before is None else mine.write_text(before)
    assert call(box, "--", "true").returncode == 0
    assert "ClearAll" not in (box.home / "ssh/box").read_text()
