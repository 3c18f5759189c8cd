"""`--keep-warm`: a machine waits for the next job, which takes it."""

import os
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from conftest import commit, wait_for

from berg import BergError, job, states
from berg.config import Config
from berg.google.storage import Changed
from berg.laptop import jobs, spending
from berg.laptop import reuse as on_laptop
from berg.machine import boot, keeper
from berg.machine import warm as on_machine
from berg.spec import JobSpec

OF_HOME = """
.netrc .config/gh/hosts.yml .ssh/id_ed25519 .ssh/authorized_keys .aws/credentials
.docker/config.json .git-credentials .cache/huggingface/token .cache/huggingface/stored_tokens
.cache/wandb/x .bash_history .python_history .bashrc .profile .config/systemd/user/x.service
data/set/added berg/left elsewhere/left
"""
HIDDEN = [f"/root/{name}" for name in OF_HOME.split()]
HIDDEN += ["/var/spool/cron/crontabs/root", "/var/spool/cron/atjobs/a1", "/etc/cron.d/left"]
HIDDEN += ["/etc/cron.daily/left", "/etc/environment", "/home/left/.bashrc", "/left/x", "/mnt/left"]
WARM = ["-g", "0", "--keep-warm", "1h"]
SEVERAL = ["-y", "-t", "l4", "-m", "2", "--preflight", "off", "--each", "--wait"]
LEAVE = (
    f"HIDDEN = {HIDDEN}"
    + """
import os, subprocess
subprocess.Popen(["setsid", "sleep", "7777"])
for path in ("/tmp/left", "/dev/shm/left", "left"):
    open(path, "w").write("x")
other = os.path.join(os.environ["BERG_RESULTS_DIR"], "../other")
os.makedirs(other)
open(f"{other}/left", "w").write("x")
for path in HIDDEN:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    open(path, "a").write("left")
os.makedirs("/root/.cache/pip", exist_ok=True)
open("/root/.cache/pip/wheel", "w").write("quick")
os.makedirs("/tmp/mounted")
subprocess.run(["mount", "-t", "tmpfs", "none", "/tmp/mounted"], check=True)
"""
)
LOOK = (
    f"HIDDEN = {HIDDEN}"
    + """
import os, pathlib
there = [path for path in ("/tmp/left", "/dev/shm/left", "left") if os.path.exists(path)]
there += ["results"] * os.path.exists(os.environ["BERG_RESULTS_DIR"] + "/../other/left")
there += ["mount"] * ("/tmp/mounted" in open("/proc/self/mounts").read())
for path in HIDDEN:
    there += [path] * (os.path.exists(path) and "left" in open(path).read())
print("cache:", open("/root/.cache/pip/wheel").read())
for each in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    try:
        there += ["process"] * (b"7777" in each.read_bytes())
    except OSError:
        pass
print("there:", there, "secret:", os.environ.get("TOKEN"))
print("in shells:", "s3cret" in open("/root/berg/environment.sh").read())
"""
)


def test_three_jobs_in_a_row(berg, tmp_path):
    (tmp_path / "token").write_text("s3cret")
    (berg.repo / "leave.py").write_text(LEAVE)
    (berg.repo / "look.py").write_text(LOOK)
    commit(berg.repo, "first")
    secret = ["--secret", f"TOKEN={tmp_path}/token"]
    ran = berg("run", *WARM, *secret, "-n", "first", "--wait", "python3 leave.py")
    assert ran.returncode == 0, ran.stderr
    assert "1 machine warm until" in ran.stderr
    assert "warm until" in berg("list").stdout
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")

    (berg.repo / "look.py").write_text(LOOK + "\n")
    commit(berg.repo, "second")
    ran = berg("run", *WARM, "-n", "second", "--wait", "python3 look.py")
    assert ran.returncode == 0, ran.stderr
    assert "warm: first, since" in ran.stderr and "first took it" in ran.stderr
    log = berg.log("second")
    assert "cache: quick" in log
    assert "there: [] secret: None" in log and "in shells: False" in log, log
    assert "This machine has been warm since" in log
    assert berg.state("second")["machine"] == "first"
    before = berg.state("first")
    assert before["kept_until"] <= job.now(), "it is paid for by the second now"

    wait_for(
        lambda: [offer.job for offer, _ in states.offers(berg.bucket)] == ["second"],
        what="the next offer",
    )
    ran = berg("run", "-g", "0", "-n", "third", "--wait", "git log --format=%s; exit 3")
    assert ran.returncode == 3 and "warm: first" in ran.stderr, ran.stderr
    assert "second" in berg.log("third")
    wait_for(lambda: not berg.machines(), what="the end of the last, which was not kept")
    assert [*states.offers(berg.bucket)] == []


def test_jobs_on_several_machines(berg):
    ran = berg("run", *SEVERAL, "--keep-warm", "1h", "-n", "first", "touch left /tmp/left")
    assert ran.returncode == 0, ran.stderr
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    assert "warm: first-0 and 1 more" in berg("run", *SEVERAL, "--dry-run", "true").stdout
    for other in (["-m", "3"], ["-g", "0"]):
        assert "warm" not in berg("run", *SEVERAL, *other, "--dry-run", "true").stdout

    command = "ls left /tmp/left; echo $BERG_NODE_RANK of $BERG_HOSTS at $MASTER_ADDR; exit 3"
    ran = berg("run", *SEVERAL, "--keep-warm", "1h", "-n", "second", command)
    assert ran.returncode == 3 and "first-0 and 1 more took it" in ran.stderr, ran.stderr
    log = berg.log("second")
    for rank in (0, 1):
        assert f"{rank} of first-0,first-1 at " in log, log
    assert "\nleft" not in log and log.count("This machine has been warm since") == 2, log
    assert {*berg.machines()} == {"first-0", "first-1"}
    assert berg.state("second")["machine"] == "first-0"

    wait_for(
        lambda: [offer.job for offer, _ in states.offers(berg.bucket)] == ["second"],
        what="the next offer",
    )
    assert berg("kill", "second").returncode == 0 and not berg.machines()
    assert "warm" not in berg("run", "-g", "0", "--dry-run", "true").stdout
    assert [*states.offers(berg.bucket)] == [], "whoever finds no machine forgets its offer"


def test_what_does_not_fit(berg):
    assert berg("run", *WARM, "-n", "first", "--wait", "true").returncode == 0
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")

    def plan(*options: str, **env: str) -> str:
        return berg("run", "--dry-run", *options, "true", **env).stdout

    assert "warm: first" in plan("-g", "0")
    for options in (
        ["-g", "0", "-c", "4"],
        ["-g", "0", "--disk-gb", "100"],
        ["-g", "0", "--spot"],
        ["-g", "0", "-m", "2"],
        ["-g", "0", "--wait-for-capacity"],
        ["-g", "0", "--fresh-machine"],
        ["-g", "0", "--zones", "us-central1-f"],
    ):
        assert "warm" not in plan(*options), options
    assert "warm" not in plan("-g", "0", BERG_USER="another")
    assert "warm" not in plan("-g", "0", BERG_SSH_USER="ubuntu")
    assert "not first, which is warm: " in plan("-g", "0", "--max-hours", "200h")
    (berg.repo / "requirements.txt").write_text("plugin\n")
    assert "warm" not in plan("-g", "0"), "pip would install into the python of later jobs"
    assert berg("kill", "first").returncode == 0
    assert "warm" not in plan("-g", "0")
    assert [*states.offers(berg.bucket)] == [], "whoever finds no machine forgets its offer"


def test_a_failed_one_is_kept_instead_and_a_killed_one_is_not_kept(berg):
    ran = berg("run", *WARM, "--keep-failed", "30m", "-n", "failed", "--wait", "exit 1")
    assert "kept until" in ran.stderr and "warm until" not in ran.stderr
    assert not berg.state("failed")["is_warm"] and not [*states.offers(berg.bucket)]
    berg("run", *WARM, "-n", "killed", "sleep 1000")
    wait_for(lambda: berg.state("killed")["state"] == "RUNNING")
    berg("kill", "killed", "failed")
    assert berg.machines() == {} and not berg.state("killed")["kept_until"]
    assert job.state_from_json(berg.bucket.read(job.state_path("failed"))).kept_seconds == 0


def test_where_it_is_refused(berg):
    for more in (["--cluster", "pods"], ["--spot"], ["--no-kill"]):
        done = berg("run", *WARM, *more, "true")
        assert done.returncode == 1 and "--keep-warm keeps machines" in done.stderr, done.stderr
    done = berg("run", *WARM, "--grid", "x=1,2", "echo {x}")
    assert "--keep-warm is not for sweeps" in done.stderr
    (berg.repo / "berg.toml").write_text('keep-warm = "15m"\n')
    assert "15m after this one" in berg("run", "-g", "0", "--dry-run", "true").stdout
    assert "Warm" not in berg("run", "-g", "0", "--spot", "--dry-run", "true").stdout
    assert berg("run", "-g", "0", "--dry-run", "--grid", "x=1,2", "echo {x}").returncode == 0


@pytest.mark.parametrize("number", range(3))
def test_of_two_laptops_one_has_the_machine(berg, number):
    assert berg("run", *WARM, "-n", "first", "--wait", "true").returncode == 0
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    both = [berg.start("run", "-g", "0", "-n", name, "--wait", "true") for name in ("one", "two")]
    texts = [each.communicate()[1] for each in both]
    assert [each.returncode for each in both] == [0, 0], texts
    machines = {berg.state(name)["machine"] for name in ("one", "two")}
    assert "first" in machines and len(machines) == 2, texts
    wait_for(lambda: not berg.machines(), what="the end of both")


def test_it_ends_at_its_time(berg):
    ran = berg("run", "-g", "0", "--keep-warm", "4s", "-n", "first", "--wait", "true")
    assert "warm until" in ran.stderr and [*berg.machines()] == ["first"]
    wait_for(lambda: not berg.machines(), what="the end of its time")
    assert [*states.offers(berg.bucket)] == []


def test_what_it_costs():
    begun, ended, until = (f"2026-01-31T0{hour}:00:00Z" for hour in (1, 2, 4))
    history = [["STARTING", begun], ["RUNNING", begun], ["SUCCEEDED", ended]]
    summary = job.Summary(rates={"us-central1": 2.0})
    state = job.State("SUCCEEDED", job=summary, zone="us-central1-a", history=history)
    assert spending.machine_hours(state, 0) == 1
    state = replace(state, kept_until=until, is_warm=True)
    assert spending.machine_hours(state, 0) == 3, "its machine waited for two hours"
    assert jobs.kept(state) == "warm until 04:00 UTC ($2.00 an hour)"


def test_processes_that_are_left(monkeypatch):
    before = [process for process, _, _ in keeper.living()]
    left = subprocess.Popen(["sleep", "60"], start_new_session=True)
    monkeypatch.setattr(on_machine, "IS_SHARED", False)
    assert left.pid in on_machine.strangers(before)
    assert not {os.getpid(), os.getppid(), *before} & {*on_machine.strangers(before)}
    monkeypatch.setattr(on_machine, "strangers", lambda before: [left.pid] * (left.poll() is None))
    on_machine.end_processes(before)
    assert left.wait() == -9


# --- who decides


class Machine:
    """This machine, as far as an offer needs it."""

    name, zone, job = "first", "us-central1-a", "first"

    def __init__(self):
        self.attributes = {"berg-job": "first"}

    def instance(self) -> dict:
        return {"id": "1", "attributes": self.attributes}


class Laptop:
    """A machine that waits, in a thread, and what laptops do to its offer."""

    def __init__(self, bucket, seconds: float):
        self.bucket, self.machine = bucket, Machine()
        until = job.after(seconds)
        one = SimpleNamespace(is_alone=True, job=SimpleNamespace(num_machines=1))
        state = SimpleNamespace(kept_until=until)
        attempt = SimpleNamespace(
            machine=self.machine, bucket=bucket, member=one, name="first", state=state
        )
        self.waiting = on_machine.Waiting(attempt)
        self.offer = self.waiting.offer
        self.ended: list[bool] = []
        self.thread = threading.Thread(target=self.wait)
        self.thread.start()

    def wait(self) -> None:
        self.ended.append(self.waiting.ends_with_job())

    def claim(self, name: str) -> int:
        ((_, generation),) = states.offers(self.bucket)
        return states.write_offer(self.bucket, replace(self.offer, claimed_by=name), generation)

    def outcome(self) -> bool:
        self.thread.join(20)
        return self.ended[0]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(on_machine, "LOOK", 0.02)
    monkeypatch.setattr(on_machine, "LOOK_AT_OFFER", 0.05)
    monkeypatch.setattr(on_machine, "LOOK_AGAIN", 0.05)


def test_a_claim_holds_once_the_metadata_say_so(bucket, quick):
    laptop = Laptop(bucket, 600)
    laptop.claim("second")
    time.sleep(0.3)
    assert laptop.ended == [], "only the metadata vouch for a job"
    laptop.machine.attributes["berg-job"] = "third"
    time.sleep(0.3)
    assert laptop.ended == [], "it is another one's"
    laptop.machine.attributes["berg-job"] = "second"
    assert laptop.outcome() is True
    ((offer, _),) = states.offers(bucket)
    assert offer.is_taken and offer.claimed_by == "second", "which tells the laptop"


def test_at_its_end_either_it_ends_or_it_has_a_job(bucket, quick):
    laptop = Laptop(bucket, -1)
    assert laptop.outcome() is False
    with pytest.raises(ValueError, match="not enough values"):
        laptop.claim("second")
    with pytest.raises(Changed):
        states.write_offer(bucket, laptop.offer, laptop.waiting.generation)


def test_one_that_is_claimed_at_its_end_waits_for_the_job(bucket, quick, monkeypatch):
    laptop = Laptop(bucket, 600)
    laptop.claim("second")
    wait_for(lambda: laptop.waiting.offer.claimed_by == "second")
    monkeypatch.setattr(job, "age_seconds", lambda text: 1.0)  # its time is over
    time.sleep(0.3)
    assert laptop.ended == []
    laptop.machine.attributes["berg-job"] = "second"
    assert laptop.outcome() is True


def test_a_laptop_that_dies_after_its_claim_is_not_waited_for(bucket, quick, monkeypatch):
    laptop = Laptop(bucket, 600)
    laptop.claim("second")
    wait_for(lambda: laptop.waiting.offer.claimed_by == "second")
    monkeypatch.setattr(states, "CLAIM_SECONDS", 0)
    wait_for(lambda: next(states.offers(bucket))[0].claimed_by == "")
    monkeypatch.setattr(states, "CLAIM_SECONDS", 60)
    laptop.claim("third")
    laptop.machine.attributes["berg-job"] = "third"
    assert laptop.outcome() is True


def test_a_withdrawn_claim_ends_it(bucket, quick):
    laptop = Laptop(bucket, 600)
    generation = laptop.claim("second")
    claimed = replace(laptop.offer, claimed_by="second", is_withdrawn=True)
    states.write_offer(bucket, claimed, generation)
    laptop.machine.attributes["berg-job"] = "second"
    assert laptop.outcome() is False and [*states.offers(bucket)] == []


def test_damaged_offers_are_passed_over(bucket):
    offer = states.Offer("first", "us-central1-a", "1", "first", job.now(), job.now())
    states.write_offer(bucket, offer, 0)
    bucket.write(f"{states.OFFERS}us-central1-a/second", "", 0, {"offer": "no JSON"})
    text = {"offer": '{"machine": "first", "zone": "us-central1-a"}'}
    bucket.write(f"{states.OFFERS}us-central1-a/third", "", 0, text)
    assert [each.machine for each, _ in states.offers(bucket)] == ["first"]


# --- a laptop that sleeps


@pytest.fixture
def claimed(berg, monkeypatch):
    """A job's claim of a warm machine: its plan, how it is made, and what is said."""
    assert berg("run", *WARM, "-n", "first", "--wait", "true").returncode == 0
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    config, spec = berg.cloud.settings(berg.bucket_name), JobSpec(cmd="true", num_gpus=0)
    (found,) = on_laptop.find_warm(config, spec)
    this = job.Job("second", "", "", "", "", "", "")
    plan = SimpleNamespace(config=config, job=this, warm=found, labels={"berg-job": "second"})
    monkeypatch.setattr(on_laptop.gce, "metadata", lambda plan: {"berg-job": "second"})
    monkeypatch.setattr(on_laptop, "WARM_ANSWER", 1)
    said: list[str] = []
    return SimpleNamespace(
        plan=plan, take=lambda: on_laptop.take_warm(plan, said.append), said=said
    )


def test_it_wakes_when_another_has_the_machine(berg, claimed, monkeypatch):
    give = on_laptop.give_to_warm

    def sleep_first(*about) -> None:
        ((offer, generation),) = states.offers(berg.bucket)
        states.write_offer(berg.bucket, replace(offer, claimed_by=""), generation)
        assert berg("run", "-g", "0", "-n", "third", "sleep 300").returncode == 0
        wait_for(lambda: berg.state("third")["state"] == "RUNNING")
        give(*about)

    monkeypatch.setattr(on_laptop, "give_to_warm", sleep_first)
    assert claimed.take() == "" and "Another job took" in claimed.said[0]
    assert berg.state("third")["machine"] == "first" and "first" in berg.machines()
    assert "third RUNNING" in " ".join(berg("list").stdout.split()), "it still says whose it is"


def test_its_machine_has_ended_meanwhile(berg, claimed, monkeypatch):
    def sleep(*about) -> None:
        ((offer, generation),) = states.offers(berg.bucket)
        berg.bucket.delete_at(offer.path, generation)  # as the machine does that ends

    monkeypatch.setattr(on_laptop, "give_to_warm", sleep)
    assert claimed.take() == "", "no offer is no sign that a machine took the job"


def test_it_is_slow_and_its_claim_was_forgotten(berg, claimed, monkeypatch):
    give = on_laptop.give_to_warm

    def sleep_after(*about) -> None:
        ((offer, generation),) = states.offers(berg.bucket)
        states.write_offer(berg.bucket, replace(offer, claimed_by=""), generation)
        give(*about)

    monkeypatch.setattr(on_laptop, "give_to_warm", sleep_after)
    assert claimed.take() == ""
    wait_for(lambda: not berg.machines(), what="the end of a machine that says it is another job's")


def test_a_machine_of_another_account_is_not_mine():
    """Anyone who may create machines can label one and copy the hash of its request."""
    own = "berg-worker-me@project.iam.gserviceaccount.com"
    config = Config(user="me", project="project", service_account=own)
    labels = {"berg": "1", "berg-user": "me"}
    about = {"name": "first", "id": "1", "zone": "a", "status": "RUNNING", "machineType": "n1"}
    instance = {**about, "creationTimestamp": job.now(), "labels": labels}
    assert on_laptop.is_mine(config, {**instance, "serviceAccounts": [{"email": own}]})
    assert not on_laptop.is_mine(config, {**instance, "serviceAccounts": [{"email": "x@y"}]})
    assert not on_laptop.is_mine(config, instance)


# --- what is left


def test_services_that_are_left(tmp_path, monkeypatch):
    """Their processes are below /system.slice, as those of the system are."""
    names = ["berg.service", "run-r1.service", "run-r1.timer", "session-3.scope"]
    for name in names:
        (tmp_path / name).write_text("")
    monkeypatch.setattr(on_machine, "UNITS", [str(tmp_path)])
    left = on_machine.new_units([str(tmp_path / "berg.service")])
    assert sorted(left) == ["run-r1.service", "run-r1.timer", "session-3.scope"]


def test_folders_of_all_programs(tmp_path, monkeypatch):
    (tmp_path / "folder").mkdir()
    for name in ("before", ".hidden", "folder/file", "systemd-private-1"):
        (tmp_path / name).write_text("")
    (tmp_path / "link").symlink_to("/")
    monkeypatch.setattr(on_machine, "FOLDERS", [str(tmp_path)])
    on_machine.empty_folders([str(tmp_path / "before")])
    assert {each.name for each in tmp_path.iterdir()} == {"before", "systemd-private-1"}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder in place of all that are restored, and Berg's own elsewhere."""
    folder, own = tmp_path / "home", tmp_path / "berg"
    (folder / "data").mkdir(parents=True)
    own.mkdir()
    monkeypatch.setattr(on_machine, "TREES", [folder])
    monkeypatch.setattr(on_machine, "KEPT_FOLDERS", {folder / "data", folder / "cache"})
    monkeypatch.setattr(on_machine, "DATA_SETS", folder / "data")
    for name in ("ORIGINAL", "COPIES", "KNOWN"):
        path = getattr(on_machine, name).relative_to(boot.BERG)
        monkeypatch.setattr(on_machine, name, own / path)
    monkeypatch.setattr(boot, "BERG", own)
    return folder


def test_a_home_is_as_it_was(home):
    for name in ("kept", "changed", "deleted", "becomes-link", "folder/file"):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(name)
    (home / "link").symlink_to("kept")
    (home / "changed").chmod(0o600)
    on_machine.note_files([])
    before = (home / "kept").stat().st_ctime_ns
    for _ in range(2):
        (home / "changed").write_text("CHANGED")
        (home / "changed").chmod(0o644)
        (home / "deleted").unlink()
        (home / "becomes-link").unlink()
        (home / "becomes-link").symlink_to("/etc/passwd")
        (home / "link").unlink()
        shutil.rmtree(home / "folder")
        (home / "folder").symlink_to("/etc")
        (home / "new/folder").mkdir(parents=True)
        (home / "new/folder/.token").write_text("left")
        (home / "cache").mkdir(exist_ok=True)
        (home / "cache/wheel").write_text("quick")
        home.chmod(0o777)
        on_machine.restore_files([])
        for name in ("kept", "changed", "deleted", "becomes-link", "folder/file"):
            assert (home / name).read_text() == name
        assert (home / "changed").stat().st_mode & 0o777 == 0o600
        assert (home / "link").readlink().name == "kept" and not (home / "new").exists()
        assert (home / "cache/wheel").read_text() == "quick"
        assert home.stat().st_mode & 0o777 == 0o755
    assert (home / "kept").stat().st_ctime_ns == before, "what is unchanged is left alone"


def test_a_changed_file_without_a_copy_ends_the_machine(home, monkeypatch):
    monkeypatch.setattr(on_machine, "LARGE_COPY", 3)
    (home / "large").write_text("0123456789")
    on_machine.note_files([])
    on_machine.restore_files([])
    about = (home / "large").stat()
    (home / "large").write_text("9876543210")
    os.utime(home / "large", ns=(about.st_atime_ns, about.st_mtime_ns))
    with pytest.raises(BergError, match="large was changed or deleted, and there is no copy"):
        on_machine.restore_files([])


def test_data_sets_keep_what_was_only_read(home):
    for name in ("read", "changed"):
        (home / "data/set").mkdir(exist_ok=True)
        (home / "data/set" / name).write_text(name)
    time.sleep(0.05)  # the clock of files is coarse
    (home / "began").touch()
    time.sleep(0.05)
    (home / "data/set/changed").write_text("another")
    (home / "data/set/new").write_text("left")
    (home / "data/other").mkdir()
    on_machine.forget_changed_data((home / "began").stat().st_mtime_ns)
    left = [str(each.relative_to(home / "data")) for each in (home / "data").rglob("*")]
    assert sorted(left) == ["set", "set/read"]


def test_settings_of_the_kernel(tmp_path, monkeypatch):
    monkeypatch.setattr(on_machine.boot, "SYSTEMD", tmp_path)
    monkeypatch.setattr(on_machine, "SYSCTL", tmp_path)
    (tmp_path / "core_pattern").write_text("core\n")
    (tmp_path / "other").write_text("1\n")
    before = on_machine.settings()
    (tmp_path / "core_pattern").write_text("|/root/steal\n")
    on_machine.restore_settings(before)
    assert on_machine.settings() == before and (tmp_path / "core_pattern").read_text() == "core\n"


RULES = """
import pathlib, subprocess, sys
from berg.machine import boot, warm
boot.SYSTEMD = pathlib.Path("/")
for words in sys.argv[1:]:
    subprocess.run(words.split(), check=True)
before, ruleset = warm.rules(), warm.nft()
subprocess.run("iptables -t nat -A OUTPUT -p tcp -j REDIRECT".split(), check=True)
subprocess.run("ip6tables -N evil".split(), check=True)
subprocess.run("iptables -F INPUT".split(), check=True)
subprocess.run("iptables -P FORWARD DROP".split(), check=True)
assert warm.rules() != before
warm.restore_rules(before, ruleset)
print(warm.rules() == before, [*before])
"""


@pytest.mark.skipif(
    subprocess.run(["unshare", "-n", "iptables-save"], capture_output=True).returncode != 0
    if shutil.which("unshare") and shutil.which("iptables-save")
    else True,
    reason="needs root and iptables",
)
@pytest.mark.parametrize("there", [[], ["iptables -A INPUT -s 10.1.2.3 -j DROP"]])
def test_firewall_rules(there):
    words = ["unshare", "-n", sys.executable, "-c", RULES, *there]
    ran = subprocess.run(words, capture_output=True, text=True)
    assert ran.stdout == f"True {['iptables'] * len(there)}\n", ran.stderr


def test_tables_of_nftables():
    own = "table inet mine {\n\tchain x {\n\t}\n}\n"
    both = "table ip nat {\n\tchain OUTPUT {\n\t}\n}\n" + own
    assert on_machine.nft_tables(both) == [own] and on_machine.nft_tables("") == []


def test_a_machine_that_was_restarted_takes_no_other_job(tmp_path, monkeypatch):
    monkeypatch.setattr(on_machine, "BEFORE", tmp_path / "gone")
    with pytest.raises(BergError, match="it was restarted"):
        on_machine.clear(SimpleNamespace())


def test_gpus_that_cannot_be_seen(monkeypatch):
    monkeypatch.setattr(on_machine, "GPU_SECONDS", -1)
    monkeypatch.setattr(on_machine.shutil, "which", lambda name: None)
    on_machine.check_gpus(are_there=False)
    with pytest.raises(BergError, match="nvidia-smi does not answer"):
        on_machine.check_gpus(are_there=True)
    monkeypatch.setattr(on_machine.usage, "gpus", lambda: [{"index": 0.0, "memory_mb": 5000.0}])
    with pytest.raises(BergError, match="5000.0 MB of GPU 0.0 are still in use"):
        on_machine.check_gpus(are_there=True)


def test_offers_that_lead_nowhere_stop_no_job(berg):
    berg.allowed.append(400)
    for zone in ("us-central1-a", "moon-1"):
        offer = states.Offer("nowhere", zone, "1", "first", job.now(), job.now())
        states.write_offer(berg.bucket, offer, 0)
    ran = berg("run", "-g", "0", "-n", "job", "--wait", "true")
    assert ran.returncode == 0, ran.stderr
    assert [each.zone for each, _ in states.offers(berg.bucket)] in ([], ["moon-1"])


def test_an_offer_of_more_machines_than_there_are_stops_no_job(berg):
    assert berg("run", *WARM, "-n", "first", "--wait", "true").returncode == 0
    ((offer, generation),) = wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    states.write_offer(berg.bucket, replace(offer, num_machines=2), generation)
    berg.allowed.append(400)  # no machine has the name of the second
    ran = berg("run", "-g", "0", "-m", "2", "--dry-run", "true")
    assert ran.returncode == 0 and "warm" not in ran.stdout, ran.stderr


@pytest.mark.parametrize("method", ["setLabels", "setMetadata"])
def test_one_that_may_not_be_changed_is_replaced(berg, cloud, method):
    assert berg("run", *WARM, "-n", "first", "--wait", "true").returncode == 0
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    fault = {"method": f"compute.instances.{method}", "status": 403, "times": None}
    cloud.call("POST", "/_berg/faults", fault)
    berg.allowed.append(403)
    ran = berg("run", "-g", "0", "-n", "second", "--wait", "true")
    cloud.call("DELETE", "/_berg/faults")
    assert ran.returncode == 0 and "first could not take it" in ran.stderr, ran.stderr
    assert berg.state("second")["machine"] == "second"
    wait_for(lambda: not berg.machines(), what="the end of both machines")
    assert [*states.offers(berg.bucket)] == []
