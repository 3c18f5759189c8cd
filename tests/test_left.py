# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Jobs whose machines are in groups leave nothing when they end; where Google lets a machine not
delete itself, it says so, and what it costs is counted.
"""

import json
import re

import pytest
from click.testing import CliRunner
from conftest import settle, wait_for
from webhook import webhook  # noqa: F401 (a fixture)

from berg import cli, gce
from berg.google import iam
from berg.laptop import ending

PROJECT = "berg-local"
KINDS = {
    "spot": ("--spot", "-g", "0"),
    "pair": ("--flex", "-m", "2", "-t", "l4", "--max-hours", "1"),
    "slice": ("--tpu", "v6e-8", "--zone", "us-east5-a"),
}


def groups(cloud) -> list[str]:
    """Names of all groups."""
    path = f"/compute/v1/projects/{PROJECT}/aggregated/instanceGroupManagers"
    scopes = cloud.call("GET", path)["items"].values()
    return [each["name"] for scope in scopes for each in scope.get("instanceGroupManagers", [])]


def test_jobs_in_groups_end_as_the_account_of_the_machines_and_leave_nothing(berg, cloud, account):
    for name, options in KINDS.items():
        started = berg("run", "-n", name, *options, "true")
        assert started.returncode == 0, started.stderr
    assert {
        each["email"] for made in berg.machines().values() for each in made["serviceAccounts"]
    } == {account}
    for name in KINDS:
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 120, name)
    wait_for(lambda: not berg.machines() and not groups(cloud), 120, "the end of all machines")


ROLE = f"/iam/v1/projects/{PROJECT}/roles/bergWorker"
LACKED = "compute.instanceGroups.delete"


@pytest.fixture
def hold(cloud, account):
    """Let the machines' account hold these permissions. At first it may not delete groups, as one
    that an earlier Berg set up.
    """

    def held(permissions: list[str]) -> None:
        path = f"{ROLE}?updateMask=includedPermissions"
        cloud.call("PATCH", path, {"includedPermissions": permissions})
        settle(cloud)

    held([each for each in iam.MACHINES if each != LACKED])
    yield held
    held([*iam.MACHINES])


@pytest.fixture
def impatient(berg, tmp_path, monkeypatch):
    """Berg in this process, whose machines take a refusal as final after a second."""
    text = gce.STARTUP_SCRIPT.read_text()
    text = text.replace("FORBIDDEN_SECONDS = 900", "FORBIDDEN_SECONDS = 1")
    text = text.replace("REFUSED_PAUSE = 600", "REFUSED_PAUSE = 1")
    set_in_worker = "boot.FORBIDDEN_SECONDS = boot.REFUSED_PAUSE = 1"
    text = text.replace("main; main()", f"main, boot; {set_in_worker}; main()")
    assert set_in_worker in text
    (tmp_path / "boot.py").write_text(text)
    monkeypatch.setattr(gce, "STARTUP_SCRIPT", tmp_path / "boot.py")
    monkeypatch.setattr(ending, "SETTLED", -1)
    monkeypatch.setenv("BERG_HOME", str(berg.home))
    monkeypatch.chdir(berg.repo)

    def call(*arguments: str) -> str:
        ran = CliRunner().invoke(cli.cli, [*arguments])
        assert ran.exit_code == 0, (ran.output, ran.exception)
        return ran.output

    return call


def row(berg, name: str) -> dict:
    (found,) = [each for each in json.loads(berg("list", "--json").stdout) if each["name"] == name]
    return found


def undeleted(berg, name: str) -> dict[str, str]:
    return berg.state(name).get("undeleted", {})


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_that_may_not_delete_its_group_stays_and_says_what_it_costs(
    berg, cloud, hold, impatient, kind
):
    impatient("run", "-n", kind, *KINDS[kind], "true")
    marks = wait_for(lambda: undeleted(berg, kind), 120, "the mark")
    assert berg.state(kind)["state"] == "SUCCEEDED"
    listed = impatient("list")
    assert "SUCCEEDED, machine RUNNING" in listed
    assert re.search(r"still running: \$\d+\.\d\d an hour, berg reap", listed), listed
    before = row(berg, kind)
    wait_for(lambda: undeleted(berg, kind) != marks, 30, "another mark")
    assert before["usd"] > 0
    wait_for(lambda: row(berg, kind)["usd"] > before["usd"], 30, "a higher cost")
    assert "an hour, berg reap" in impatient("show", kind)
    assert kind in impatient("reap", "-y")
    wait_for(lambda: not berg.machines() and not groups(cloud), 60, "the end of all machines")
    after = row(berg, kind)
    assert after["usd"] > 0 and after["instances"] == []


def test_a_machine_that_stays_is_told_and_goes_once_it_may(
    berg, cloud, hold, impatient, webhook, tmp_path
):
    (tmp_path / "hook").write_text(webhook.url)
    impatient("run", "-n", "told", *KINDS["spot"], "--notify", f"HOOK={tmp_path / 'hook'}", "true")
    wait_for(lambda: undeleted(berg, "told"), 120, "the mark")
    wait_for(lambda: len(webhook.told) == 2, 30, "what the webhook hears")
    ended, stays = (about["text"] for _, about in webhook.told)
    assert ended == "told SUCCEEDED with exit code 0"
    assert "of told may not delete itself: it runs on, and costs money" in stays
    hold([*iam.MACHINES])
    wait_for(lambda: not berg.machines() and not groups(cloud), 60, "the end of all machines")
    assert len(webhook.told) == 2


@pytest.mark.slow
def test_a_machine_that_is_re_created_does_not_begin_again(berg, cloud, hold, impatient):
    impatient("run", "-n", "again", *KINDS["spot"], "true")
    marks = wait_for(lambda: undeleted(berg, "again"), 120, "the mark")
    ((name, first),) = ((each["name"], each["id"]) for each in berg.machines().values())
    cloud.call("POST", f"/_berg/instances/{name}/preempt", {"grace": 1})

    def re_created() -> dict:
        there = berg.machines().get("again", {})
        return there if there.get("id", first) != first else {}

    zone = wait_for(re_created, 60, "another machine")["zone"].rpartition("/")[2]
    console = f"/compute/v1/projects/{PROJECT}/zones/{zone}/instances/{name}/serialPort"
    said = lambda: cloud.call("GET", console)["contents"]
    wait_for(lambda: "again is SUCCEEDED already" in said(), 60, "its first words")
    wait_for(lambda: undeleted(berg, "again")[name] > marks[name], 30, "its mark")
    assert "Trying again" not in said() and "could not be deleted" not in said()
    assert berg.state("again")["attempt"] == 1
    assert "again" in impatient("reap", "-y")
    wait_for(lambda: not berg.machines() and not groups(cloud), 60, "the end of all machines")


def test_a_machine_that_may_change_its_group_empties_it(berg, cloud, hold, impatient):
    held = [each for each in iam.MACHINES if each != LACKED]
    hold([*held, "compute.instanceGroupManagers.update"])
    impatient("run", "-n", "emptied", *KINDS["spot"], "true")
    wait_for(lambda: berg.state("emptied")["state"] == "SUCCEEDED", 120, "the end of the job")
    wait_for(lambda: not berg.machines(), 60, "the end of its machine")
    assert groups(cloud) == ["emptied"] and not undeleted(berg, "emptied")
    assert "emptied" in impatient("reap", "-y") and not groups(cloud)
