"""Images for machines: made in one command, listed, deleted; whatever goes wrong, nothing is left."""

import json
import signal
import time

import pytest
from conftest import commit, wait_for

from berg import job
from berg.laptop import ending, power

SCRIPT = "mkdir -p /opt/mine && echo made by the script > /opt/mine/marker && echo secret > /root/.bash_history\n"
DISKS = "/compute/v1/projects/berg-local/aggregated/disks"
LOOKS = "cat /opt/mine/marker; ls /root/code; ls -a /root; ls /root/berg"


def images(berg) -> list[dict]:
    return json.loads(berg("image", "list", "--json").stdout)


def disks(berg) -> list[str]:
    scopes = berg.cloud.call("GET", DISKS)["items"].values()
    return [disk["name"] for scope in scopes for disk in scope.get("disks", [])]


@pytest.fixture
def family(berg, request):
    """A repo with a script, and a family of this test's own, whose images go after it."""
    (berg.repo / "setup.sh").write_text(SCRIPT)
    commit(berg.repo)
    name = "f" + berg.bucket_name[-12:].strip("-")
    yield name
    left = [each["name"] for each in images(berg) if each.get("family") == name]
    if left:
        berg("image", "delete", "-y", *left)


def nothing_is_left(berg, family: str) -> None:
    wait_for(lambda: not berg.machines(), 30)
    assert not [name for name in disks(berg) if name.startswith(family)]
    assert not [each for each in images(berg) if each["family"] == family]


def test_the_request_says_what_the_image_is_to_have(berg, family):
    shown = berg(
        *("image", "create", "--family", family, "--with", "tmux,openmpi,horovod"),
        *("--install-script", "setup.sh", "--dry-run", "--json"),
    )
    assert shown.returncode == 0, shown.stderr
    body = json.loads(shown.stdout)["request"]
    told = {each["key"]: each["value"] for each in body["metadata"]["items"]}
    recipe = json.loads(told["berg-image"])
    tools = ["cmake", "g++", "make", "python3-dev"]
    assert recipe["packages"] == ["tmux", "openmpi-bin", "libopenmpi-dev", *tools]
    assert recipe["horovod"] and not recipe["roce"]
    assert recipe["install_script"] == "setup.sh" and recipe["repo"] == "proj"
    assert body["name"].startswith(f"{family}-2") and body["labels"]["berg-kind"] == "image"
    assert body["scheduling"]["maxRunDuration"] == {"seconds": "7200"}
    assert body["disks"][0]["autoDelete"]
    assert "Image     " + body["name"] in shown.stderr and "Results" not in shown.stderr
    assert not berg.machines()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--family", "Not_One"), "is not a family name"),
        (("--with", "tmux,caffe"), "--with 'caffe': give horovod, openmpi, roce, tmux"),
        (("--from", "nowhere"), "no image or image family 'nowhere' in project 'berg-local'"),
        (("--install-script", "none.sh"), "is not a file in"),
    ],
)
def test_what_cannot_be_made_is_refused_at_once(berg, options, says):
    refused = berg("image", "create", *options)
    assert refused.returncode == 1 and says in refused.stderr
    assert not berg.machines()


def test_an_image_is_made_and_jobs_boot_it(berg, family):
    made = berg("image", "create", "--family", family, "--install-script", "setup.sh", "--default")
    assert made.returncode == 0, made.stderr
    name = made.stdout.strip()
    assert "Installing: bash -e setup.sh" in made.stderr
    assert not berg.machines() and not [each for each in disks(berg) if each == name]
    (image,) = [each for each in images(berg) if each["family"] == family]
    assert (image["name"], image["status"]) == (name, "READY")
    assert "; proj at " in image["description"]
    settings = json.loads((berg.home / "berg.json").read_text())
    assert settings["default_image"] == f"berg-local/{family}"
    listed = berg("image", "list")
    assert listed.stdout.startswith("NAME") and name in listed.stdout
    ran = berg("run", "-g", "0", "-n", "booted", "--wait", LOOKS)
    assert ran.returncode == 0, ran.stderr
    log = berg.log("booted")
    assert "\nmade by the script\n" in log and "\nvenv\n" in log
    assert "\nproj\n" in log and ".bash_history" not in log
    assert name not in log, "nothing that the image's machine logged"
    deleted = berg("image", "delete", "-y", name)
    assert deleted.returncode == 0 and not [e for e in images(berg) if e["family"] == family]
    assert (
        f"Jobs boot berg-local/{family} by default, which does not exist any more" in deleted.stderr
    )
    assert berg("config", "unset", "default_image").returncode == 0
    assert berg("run", "-g", "0", "--dry-run", "--json", "true").returncode == 0


def test_an_image_of_somebody_else_is_not_deleted(berg):
    unasked = berg("image", "delete", "theirs")
    assert unasked.returncode == 1 and "berg made no image 'theirs'" in unasked.stderr
    assert "Delete" not in unasked.stderr, "nobody is asked about what is not there"
    refused = berg("image", "delete", "-y", "theirs")
    assert refused.returncode == 1 and "berg made no image 'theirs'" in refused.stderr


@pytest.mark.slow
def test_an_installation_that_fails_leaves_nothing(berg, family):
    (berg.repo / "setup.sh").write_text("echo the last words\nexit 3\n")
    failed = berg("image", "create", "--family", family, "--install-script", "setup.sh")
    assert failed.returncode == 1 and "the last words" in failed.stderr
    assert "no image was created: the installation failed with exit code 3" in failed.stderr
    nothing_is_left(berg, family)


@pytest.mark.slow
def test_an_image_that_google_does_not_make_leaves_nothing(berg, family):
    error = {"code": "INTERNAL_ERROR", "message": "Internal error: try again."}
    berg.cloud.fault("compute.images.insert", operation_error=error)
    failed = berg("image", "create", "--family", family)
    assert failed.returncode == 1 and "Internal error: try again" in failed.stderr
    nothing_is_left(berg, family)


STEPS = {
    "while the machine is made": "Creating the machine",
    "while it installs": "Installing: bash",
    "while it stops": "Stopping ",
    "while the image is made": "Creating the image",
}


@pytest.mark.slow
@pytest.mark.parametrize("step", [*STEPS][3:])
def test_interrupted_it_leaves_nothing(berg, family, step):
    interrupt(berg, family, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", [*STEPS][:3])
def test_interrupted_before_it_leaves_nothing(berg, family, step):
    interrupt(berg, family, step)


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_what_is_left_when_it_is_killed_is_found(berg, family, step, monkeypatch):
    """As soon as the claim of the computer that died is old."""
    command = at(berg, family, step)
    wait_for(berg.machines, 30)
    command.kill()
    command.wait(60)
    wait_for(lambda: all(each["status"] == "READY" for each in images(berg)), 30)
    made = [each["name"] for each in images(berg) if each["family"] == family]
    assert made or step != "while the image is made"
    assert not made or step in ("while it stops", "while the image is made")
    assert all(name in berg("image", "list").stdout for name in made)

    wait_for(lambda: len(berg.machines()) == 1, 30)
    ((name, machine),) = berg.machines().items()
    assert machine["scheduling"]["maxRunDuration"] == {"seconds": "7200"}
    assert machine["scheduling"]["instanceTerminationAction"] == "DELETE"
    (row,) = (line for line in berg("list", "-a").stdout.splitlines() if name in line)
    assert "no job, machine" in row
    monkeypatch.setattr(ending, "SETTLED", -1)
    settings = berg.bucket.config
    assert name not in {each.name for each in ending.leftovers(settings, None)}
    later = job.clock() + power.AGED + 1
    monkeypatch.setattr(job, "clock", lambda: later)
    (left,) = (each for each in ending.leftovers(settings, None) if each.name == name)
    assert left.why == "its berg image create broke off"
    ending.delete_leftovers(settings, [left])
    wait_for(lambda: not berg.machines(), 30)
    assert not berg.bucket.exists(power.claim_path(name))
    assert not [each for each in disks(berg) if each.startswith(family)]


def interrupt(berg, family: str, step: str) -> None:
    """Press Ctrl-C as soon as the command says that it is at a step; look at what is there then."""
    command = at(berg, family, step)
    command.send_signal(signal.SIGINT)
    said = command.stderr.read()
    assert command.wait(60) == 130, said
    nothing_is_left(berg, family)


def at(berg, family: str, step: str):
    """Return the command, which is at a step of making an image."""
    berg.cloud.call("POST", "/_berg/settings", {"image_delay": 3, "grace": 2})
    (berg.repo / "setup.sh").write_text("sleep 60\n" if "installs" in step else "true\n")
    if "machine" in step:
        berg.cloud.call("POST", "/_berg/settings", {"delay": 2})
    command = berg.start("image", "create", "--family", family, "--install-script", "setup.sh")
    for line in command.stderr:
        if STEPS[step] in line:
            break
    time.sleep(0.5)
    return command
