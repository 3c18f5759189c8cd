"""Purses: what several jobs may cost together."""

import json
import re
import uuid
from dataclasses import replace
from types import SimpleNamespace

import pytest
import requests
from conftest import settle, wait_for

from berg import BergError, job, states
from berg.google import iam
from berg.laptop import jobs, purse
from localcloud.identity.tokens import Tokens

CPU = ["-g", "0", "--max-hours", "1h"]  # $0.41 an hour


def left(berg, name: str = "agent") -> dict:
    found = {each["name"]: each for each in json.loads(berg("purse", "--json").stdout)}
    return found[name]


def test_a_job_reserves_its_worst_case_and_is_settled_by_what_it_cost(berg):
    made = berg("purse", "create", "agent", "--usd", "40")
    assert made.returncode == 0 and "$40.00" in made.stdout, made.stderr
    ran = berg("run", *CPU, "-n", "job", "sleep 1000", BERG_PURSE="agent")
    assert ran.returncode == 0, ran.stderr
    found = left(berg)
    assert 0.4 < found["reserved"] < 0.42 and found["spent"] == 0
    (held,) = found["held"]
    assert (held["name"], held["machines"], held["has_begun"]) == ("job", 1, True)
    wait_for(lambda: berg.state("job")["state"] == "RUNNING")
    assert berg("kill", "job").returncode == 0
    found = left(berg)
    assert found["held"] == [] and 0 < found["spent"] < 0.05
    assert found["left"] == pytest.approx(40 - found["spent"])


def test_what_is_left_limits_the_next_job_and_y_does_not_lift_it(berg):
    berg("purse", "create", "agent", "--usd", "0.62")
    first = berg("run", *CPU, "-n", "first", "--purse", "agent", "sleep 1000")
    assert first.returncode == 0, first.stderr
    second = berg("run", *CPU, "-n", "second", "--purse", "agent", "-y", "sleep 1000")
    assert second.returncode == 0 and "what the purse agent has left" in second.stderr
    assert 25 * 60 < berg.state("second")["job"]["max_run_seconds"] < 35 * 60
    third = berg("run", *CPU, "--purse", "agent", "-y", "true")
    assert third.returncode == 1 and "is too little for a job" in third.stderr, third.stderr
    assert "berg purse top-up" in third.stderr
    assert berg("purse", "top-up", "agent", "--usd", "1").returncode == 0
    assert berg("run", *CPU, "--purse", "agent", "-n", "fourth", "true").returncode == 0
    assert left(berg)["left"] >= 0


def test_a_warm_machine_is_reserved_until_google_ends_it(berg):
    """Its worker may die, and then nothing else ends it."""
    ran = berg("run", "-g", "0", "--keep-warm", "1h", "-n", "first", "--wait", "true")
    assert ran.returncode == 0, ran.stderr
    wait_for(lambda: [*states.offers(berg.bucket)], what="the offer")
    berg("purse", "create", "agent", "--usd", "5")
    ran = berg("run", "-g", "0", "-n", "second", "--purse", "agent", "sleep 1000")
    assert ran.returncode == 0, ran.stderr
    assert (
        "first may run for longer than is paid for" in ran.stderr and "Created second" in ran.stderr
    )
    assert left(berg)["reserved"] <= 5
    assert berg("purse", "top-up", "agent", "--usd", "200").returncode == 0
    ran = berg("run", "-g", "0", "-n", "third", "--purse", "agent", "sleep 1000")
    assert "first took it" in ran.stderr, ran.stderr
    (held,) = [each for each in left(berg)["held"] if each["name"] == "third"]
    assert held["usd"] > 60, "for 7 days, whatever its own limit"


def test_what_it_pays_for(berg):
    limits = ["--types", "l4,a100", "--hours", "2h", "--machines", "2", "--until", "2d"]
    berg("purse", "create", "agent", "--usd", "1000", *limits)
    assert "l4, a100; 2h a job; 2 machines; until" in berg("purse").stdout

    def plan(*options: str):
        return berg("run", "--dry-run", "--purse", "agent", *options, "true")

    assert "Limit     2h" in plan("-t", "l4").stdout
    assert "not for t4" in plan("-t", "t4").stderr
    assert "pays for 2 machines at one time, and 0 are" in plan("-t", "l4", "-m", "3").stderr
    assert plan("-g", "0").returncode == 0
    assert berg("purse", "close", "agent").returncode == 0
    assert "is closed" in plan("-g", "0").stderr
    assert "no purse 'other'" in berg("run", "--dry-run", "--purse", "other", "true").stderr
    again = berg("purse", "create", "agent", "--usd", "3")
    assert again.returncode == 1 and "top-up agent --usd 3" in again.stderr


def test_a_purse_that_ends_soon(berg):
    berg("purse", "create", "agent", "--usd", "1000", "--until", "30m")
    soon = berg("run", "--dry-run", "--purse", "agent", "-g", "0", "true").stdout
    assert re.search(r"Limit +(29m|30m,).*the purse agent, until", soon), soon
    berg("purse", "create", "late", "--usd", "1000", "--until", "100s")
    assert berg("run", "--dry-run", "--purse", "late", "-g", "0", "true").returncode == 1


def test_what_draws_on_a_purse_cannot_change_one_or_spend_beside_it(berg):
    berg("purse", "create", "agent", "--usd", "1")
    for command in (
        ["purse", "create", "more", "--usd", "1000"],
        ["purse", "top-up", "agent", "--usd", "1000"],
        ["purse", "close", "agent"],
        ["image", "create"],
        ["cluster", "create", "pods"],
        ["cluster", "resize", "pods", "--num-nodes", "9"],
        ["cluster", "cache", "pods", "--size", "100"],
        ["start", "box"],
    ):
        refused = berg(*command, BERG_PURSE="agent")
        assert refused.returncode == 1 and "draws on a purse" in refused.stderr, command
    assert left(berg)["usd"] == 1


def test_sweeps_devboxes_and_resumed_jobs_draw_on_it(berg):
    berg("purse", "create", "agent", "--usd", "40")
    sweep = ["run", *CPU, "--purse", "agent", "-n", "many", "--parallel", "2"]
    assert berg(*sweep, "--grid", "x=1,2,3,4", "--wait", "sleep 2; echo {x}").returncode == 0
    wait_for(lambda: left(berg)["held"] == [], 90, "the end of its machines")
    assert left(berg)["spent"] > 0
    box = berg("devbox", *CPU, "--purse", "agent", "-n", "box")
    assert box.returncode == 0, box.stderr
    assert [each["name"] for each in left(berg)["held"]] == ["box"]
    assert berg("kill", "-y", "box").returncode == 0
    failed = berg("run", *CPU, "--purse", "agent", "-n", "job", "--wait", "sleep 2; exit 1")
    assert failed.returncode == 1
    wait_for(lambda: left(berg)["held"] == [], 90, "the end of its machine")
    before = left(berg)["spent"]
    assert berg("run", "--resume", "job", "--wait").returncode == 1
    wait_for(lambda: left(berg)["held"] == [] and left(berg)["spent"] > before, 90, "its end")
    before = left(berg)["spent"]
    assert berg("rerun", "job", "-n", "again", "--wait").returncode == 1
    wait_for(lambda: left(berg)["held"] == [] and left(berg)["spent"] > before, 90, "its end")
    # what is set counts more than a record, which another user may have written
    berg("purse", "create", "other", "--usd", "0.1")
    for again in (["run", "--resume", "job"], ["run", "--resume", "many/0"], ["rerun", "job"]):
        plan = berg(*again, "--dry-run", BERG_PURSE="other")
        assert "what the purse other has left" in plan.stdout, (again, plan.stderr)


def test_twenty_submits_race_for_the_last_dollar(berg):
    berg("purse", "create", "agent", "--usd", "2")
    names = [f"job{number}" for number in range(20)]
    started = [
        berg.start("run", *CPU, "-n", name, "--purse", "agent", "sleep 1000") for name in names
    ]
    texts = [each.communicate()[1] for each in started]
    assert {each.returncode for each in started} == {0, 1}, texts
    found = left(berg)
    assert found["spent"] + found["reserved"] <= 2.001
    held = {each["name"] for each in found["held"]}
    assert held == {*berg.machines()} and 4 <= len(held) < 20
    refused = [text for each, text in zip(started, texts, strict=True) if each.returncode]
    assert all("purse agent" in text for text in refused), refused


def test_a_submit_that_died_gives_back_what_it_took(berg, monkeypatch):
    berg("purse", "create", "agent", "--usd", "2")
    settings, path = berg.bucket.config, iam.ledger_of("agent")
    dead = purse.Reservation("dead", 1.5, job.now(), 1)
    purse.change_ledger(settings, path, "", lambda found: replace(found, held=[dead]))
    assert purse.settle(settings, path, "").reserved == 1.5, "its machine may be being created"
    monkeypatch.setattr(purse, "SETTLED", -1)
    assert purse.settle(settings, path, "").reserved == 0
    removed = replace(dead, has_begun=True)
    purse.change_ledger(settings, path, "", lambda found: replace(found, held=[removed]))
    found = purse.settle(settings, path, "")
    assert (found.spent, found.held) == (1.5, []), "its record was removed"


def ran(*history: list[str]) -> job.State:
    """Return the state of a machine of $4 an hour."""
    about = job.Summary("tester", "2026-11-18T00:00:00Z", rates={"us-central1": 4.0}, machines=1)
    moments = [[name, f"2026-11-18T{clock}:00Z"] for name, clock in history]
    return job.State(moments[-1][0], zone="us-central1-a", history=moments, job=about)


def test_a_resumed_job_costs_each_of_its_attempts_once(berg):
    settings, path = berg.bucket.config, ".berg/purses/x/ledger.json"
    first = ran(["RUNNING", "10:00"], ["FAILED", "11:00"])
    claimed = states.claim(berg.bucket, "job", first)

    def held(name: str) -> purse.Reservation:
        since = purse.ends(settings, name)
        return purse.Reservation(name, 40, job.now(), 1, 4, True, since)

    def hold(found: purse.Ledger) -> purse.Ledger:
        return replace(found, held=[*found.held, held("job")])

    one = purse.Reservation("job", 40, job.now(), 1, 4, True)
    purse.change_ledger(settings, path, "", lambda found: replace(found, held=[one]))
    assert purse.settle(settings, path, "").spent == 4
    purse.change_ledger(settings, path, "", hold)
    again = ran(
        ["RUNNING", "10:00"],
        ["FAILED", "11:00"],
        ["SUBMITTED", "12:30"],  # by a laptop whose clock is ahead
        ["STARTING", "12:00"],
        ["SUCCEEDED", "13:30"],
    )
    states.replaced(berg.bucket, claimed, again)
    found = purse.settle(settings, path, "")
    assert (found.spent, found.held) == (4 + 6, []), "neither twice nor too little"
    # with the first attempt not settled yet both are counted when the second has ended
    both = [one, held("job")]
    purse.change_ledger(settings, path, "", lambda found: replace(found, spent=0, held=both))
    assert purse.settle(settings, path, "").spent == 10


def test_what_could_not_be_resumed_has_cost_its_first_attempt(berg):
    """The reservation of an attempt is given back, not that of the one before."""
    first = purse.Reservation("job", 3, job.now(), 1, 3, claim="one")
    second = replace(first, usd=5, claim="two")
    both = purse.Ledger(held=[first, second])
    assert both.without("two").held == [first]


def hold(berg, *held: purse.Reservation) -> tuple:
    """Put reservations into a ledger; return what settles it."""
    where = (berg.bucket.config, ".berg/purses/x/ledger.json", "")
    purse.change_ledger(*where, lambda found: replace(found, spent=0, held=list(held)))
    return where


def test_each_job_of_a_resumed_sweep_costs_each_of_its_attempts_once(berg):
    first = purse.Reservation("many", 40, job.now(), 2, 8, True, claim="one")
    there = {}
    for number, state in enumerate(("SUCCEEDED", "FAILED")):
        about = ran(["RUNNING", "10:00"], [state, "11:00"])
        about.job.sweep = "many"
        there[state] = states.claim(berg.bucket, f"many-{number}", about)
    where = hold(berg, first)
    assert purse.settle(*where).spent == 4 + 4
    second = replace(first, claim="two", since=purse.ends(where[0], "many"))
    assert second.since == {f"many-{number}": "2026-11-18T11:00:00Z" for number in (0, 1)}
    hold(berg, first, second)
    again = replace(there["FAILED"].state, state="SUBMITTED")
    claimed = states.replaced(berg.bucket, there["FAILED"], again)
    assert len(purse.settle(*where).held) == 2 and purse.settle(*where).spent == 0
    again = replace(again, state="RUNNING")
    claimed = states.replaced(berg.bucket, claimed, again)
    history = [*there["FAILED"].state.history, ["RUNNING", "2026-11-18T12:00:00Z"]]
    history.append(["SUCCEEDED", "2026-11-18T12:30:00Z"])
    states.replaced(berg.bucket, claimed, replace(again, state="SUCCEEDED", history=history))
    hold(berg, second)
    assert purse.settle(*where) == purse.Ledger(spent=2), "of the other job nothing again"
    hold(berg, second, first)
    assert purse.settle(*where).spent == 4 + 4 + 2, "whichever was noted first"


def test_all_that_is_held_is_settled_with_one_list_of_machines(berg, monkeypatch):
    names = [f"job{number}" for number in range(5)]
    for name in names:
        states.claim(berg.bucket, name, ran(["RUNNING", "10:00"], ["SUCCEEDED", "11:00"]))
    where = hold(berg, *[purse.Reservation(each, 40, job.now(), 1, 4, True) for each in names])
    listed = []
    machines = purse.places.machines

    def count(*asked):
        listed.append(asked)
        return machines(*asked)

    monkeypatch.setattr(purse.places, "machines", count)
    assert purse.settle(*where).spent == 20 and len(listed) == 1


def test_a_machine_that_is_on_its_way_out_holds_nothing(berg, monkeypatch):
    states.claim(berg.bucket, "job", ran(["RUNNING", "10:00"], ["KILLED", "11:00"]))
    where = hold(berg, purse.Reservation("job", 40, job.now(), 1, 4, True))
    machine = job.Machine("job", "us-central1-a", "RUNNING", labels={"berg-job": "job"})
    monkeypatch.setattr(purse.places, "machines", lambda config: [machine])
    assert purse.settle(*where).held
    machine.status = "STOPPING"
    assert purse.settle(*where) == purse.Ledger(spent=4), "berg rm would leave nothing to count"


def test_a_damaged_job_of_a_sweep_costs_what_was_reserved(berg):
    for number in (0, 1):
        about = ran(["RUNNING", "10:00"], ["SUCCEEDED", "11:00"])
        about.job.sweep = "many"
        states.claim(berg.bucket, f"many-{number}", about)
    where = hold(berg, purse.Reservation("many", 40, job.now(), 2, 8, True))
    berg.bucket.write(job.state_path("many-1"), b"{]", metadata={"state": "{]"})
    assert purse.settle(*where) == purse.Ledger(spent=40)


def test_a_job_whose_metadata_is_damaged_costs_what_was_reserved(berg):
    """It must not keep the purse from paying for others."""
    states.claim(berg.bucket, "job", ran(["RUNNING", "10:00"], ["SUCCEEDED", "11:00"]))
    berg.bucket.write(job.metadata_path("job"), b"{]")
    where = hold(berg, purse.Reservation("job", 40, job.now(), 1, 4, True))
    assert purse.settle(*where) == purse.Ledger(spent=40)


def test_two_submits_for_one_sweep_reserve_apart(berg):
    """As two that resume other jobs of it: neither gives back what the other has taken."""
    settings = replace(berg.bucket.config, purse="agent")
    berg("purse", "create", "agent", "--usd", "40")
    path = iam.ledger_of("agent")
    one = purse.Reservation("many", 3, job.now(), 1, 3, claim="one")
    two = replace(one, usd=5, claim="two")
    purse.change_ledger(settings, path, "", lambda found: replace(found, held=[one, two]))
    purse.release(settings, "two")
    purse.note_begun(settings, one)
    assert purse.read_ledger(berg.bucket, path, "")[0].held == [replace(one, has_begun=True)]
    # settled meanwhile as one of a submit that died
    purse.change_ledger(settings, path, "", lambda found: replace(found, held=[]))
    purse.note_begun(settings, one)
    assert purse.read_ledger(berg.bucket, path, "")[0].held == [replace(one, has_begun=True)]


@pytest.mark.parametrize(
    ("flex", "begun", "ended", "spent"),
    [(False, True, "KILLED", 4), (False, True, "", 40), (False, False, "", 0), (True, True, "", 0)],
)
def test_a_machine_on_which_no_job_began_has_cost_its_time(
    berg, monkeypatch, flex, begun, ended, spent
):
    """For example with a broken image, until it was killed or Google ended it."""
    spec = replace(job.JobSpec(), flex=flex)
    this = job.Job("job", "true", "job", "gs://b/job", "proj", "c" * 40, "c" * 40, spec=spec)
    this.snapshot = {"commit": "c" * 40}
    states.write_job(berg.bucket, this)
    about = ran(["SUBMITTED", "10:00"])
    if ended:
        about = ran(["SUBMITTED", "10:00"], [ended, "11:00"])
        about.finished_at = "2026-11-18T11:00:00Z"
    states.claim(berg.bucket, "job", about)
    monkeypatch.setattr(jobs, "LOST_AFTER", -1)
    at = "2026-11-18T10:00:00Z"
    where = hold(berg, purse.Reservation("job", 40, at, 1, 4, begun))
    assert purse.settle(*where) == purse.Ledger(spent=spent)


def test_a_day_that_has_begun_does_not_end():
    """The clock of a laptop that reads it may be of a moment before midnight."""
    day = purse.Ledger(spent=7, day="2026-11-19")
    assert day.on("2026-11-18") == day == day.on("2026-11-19")


def test_a_lost_job_counts_until_it_is_noticed(berg, monkeypatch):
    """When its machine went is not known."""
    settings, path = berg.bucket.config, ".berg/purses/x/ledger.json"
    held = purse.Reservation("job", 40, "2026-11-18T10:00:00Z", 1, 4, True)
    purse.change_ledger(settings, path, "", lambda found: replace(found, held=[held]))
    states.claim(berg.bucket, "job", ran(["RUNNING", "10:00"]))
    assert purse.settle(settings, path, "").held, "its machine may be on its way"
    monkeypatch.setattr(jobs, "LOST_AFTER", -1)
    assert purse.settle(settings, path, "") == purse.Ledger(spent=40)


def test_the_days_budget_is_a_ledger_that_begins_again_at_midnight():
    lives = purse.Reservation("job", 100, "2026-11-18T18:00:00Z", 1, 4, True)
    day = purse.Ledger(spent=7, held=[lives], day="2026-11-18")
    assert (day.spent, day.reserved) == (7, 6 * 4)
    following = day.on("2026-11-19")
    assert (following.spent, following.reserved) == (0, 24 * 4)
    short = replace(lives, usd=5)
    assert replace(day, held=[short]).reserved == 5
    assert replace(day, day="").reserved == 100


def set_budget(berg, usd: float) -> None:
    berg.write_config(**{**json.loads((berg.home / "berg.json").read_text()), "budget": usd})


@pytest.mark.skipif(job.now()[11:] > "22:30", reason="little can be spent before midnight")
def test_submits_race_for_the_last_dollar_of_the_day(berg):
    set_budget(berg, 2)
    names = [f"job{number}" for number in range(10)]
    started = [berg.start("run", *CPU, "-n", name, "sleep 1000") for name in names]
    texts = [each.communicate()[1] for each in started]
    assert {each.returncode for each in started} == {0, 1}, texts
    found, _ = purse.read_ledger(berg.bucket, ".berg/days/tester.json", purse.today())
    assert found.spent + found.reserved <= 2.001
    assert {each.name for each in found.held} == {*berg.machines()} and 4 <= len(found.held) < 10
    refused = [text for each, text in zip(started, texts, strict=True) if each.returncode]
    assert all("your budget for a day" in text for text in refused), refused


def test_a_submit_that_fails_gives_it_back_at_once(berg, cloud):
    berg("purse", "create", "agent", "--usd", "2")
    cloud.call("POST", "/_berg/stockout", {"zones": ["us-central1-*"], "machine_types": ["*"]})
    try:
        failed = berg("run", *CPU, "--purse", "agent", "-n", "job", "true")
    finally:
        cloud.call("POST", "/_berg/stockout", {"zones": [], "machine_types": []})
    assert failed.returncode == 1, failed.stderr
    assert left(berg)["held"] == []


def test_what_is_removed_has_cost_what_it_cost(berg):
    berg("purse", "create", "agent", "--usd", "2")
    assert berg("run", *CPU, "--purse", "agent", "-n", "job", "--wait", "true").returncode == 0
    wait_for(lambda: not berg.machines())
    assert berg("rm", "-y", "job").returncode == 0
    found = left(berg)
    assert found["held"] == [] and 0 <= found["spent"] < 0.05


def test_a_jobs_state_cannot_make_it_cheaper(berg):
    berg("purse", "create", "agent", "--usd", "2")
    assert berg("run", *CPU, "--purse", "agent", "-n", "job", "--wait", "sleep 2").returncode == 0
    state = berg.state("job")
    state["job"] |= {"rates": {}, "machines": 0}
    berg.bucket.write(job.state_path("job"), text := json.dumps(state), metadata={"state": text})
    wait_for(lambda: left(berg)["held"] == [], 90, "the end of its machine")
    assert left(berg)["spent"] > 0


def test_damaged_purses_pay_for_nothing(berg):
    berg("purse", "create", "agent", "--usd", "2")
    terms = berg.bucket.read(purse.path("agent"))
    odd = b'{"name": "agent", "usd": -1, "owner": "x", "created_at": ""}'
    for path, text in (
        (iam.ledger_of("agent"), b'{"spent": -1}'),
        (iam.ledger_of("agent"), b"{]"),
        (purse.path("agent"), odd),
        (purse.path("agent"), b"{]"),
    ):
        berg.bucket.write(path, text)
        refused = berg("run", *CPU, "--purse", "agent", "true")
        assert refused.returncode == 1 and "is damaged" in refused.stderr
    berg.bucket.write(purse.path("agent"), terms)
    berg.bucket.delete(iam.ledger_of("agent"))
    refused = berg("run", *CPU, "--purse", "agent", "true")
    assert refused.returncode == 1 and "what the purse agent has spent is unknown" in refused.stderr
    with pytest.raises(BergError):
        purse.read(berg.bucket, "../jobs/x")
    assert states.read(berg.bucket, "agent") is None


@pytest.fixture
def agent(berg, cloud):
    """A service account without rights, its credentials, and its requests."""
    name = f"agent-{uuid.uuid4().hex[:8]}"
    email = f"{name}@berg-local.iam.gserviceaccount.com"
    cloud.call("POST", "/iam/v1/projects/berg-local/serviceAccounts", {"accountId": name})
    tokens = Tokens(cloud.folder, lambda: cloud.url)
    file = berg.home / "agent.json"
    tokens.write_credentials(file, email)
    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {tokens.mint(email)}"
    settings = json.loads((berg.home / "berg.json").read_text())
    return SimpleNamespace(email=email, file=file, session=session, settings=settings)


def test_an_account_draws_on_its_purse_and_cannot_widen_it(berg, cloud, agent):
    for name in ("agent", "other"):
        more = ["--for", agent.email] if name == "agent" else []
        made = berg("purse", "create", name, "--usd", "1", *more)
        assert made.returncode == 0, made.stderr
    settle(cloud)
    objects = f"{cloud.url}/storage/v1/b/{berg.bucket_name}/o/"
    upload = f"{cloud.url}/upload/storage/v1/b/{berg.bucket_name}/o?uploadType=media&name="
    terms, ledgers = purse.path("agent"), [iam.ledger_of(each) for each in ("agent", "other")]

    def status(verb: str, url: str, **what: object) -> int:
        return agent.session.request(verb, url, **what).status_code

    for name in (terms, purse.path("new"), iam.ledger_of("new"), ledgers[1]):
        quoted = name.replace("/", "%2F")
        assert status("POST", upload + name, data=b"{}") == 403, name
        assert status("DELETE", objects + quoted) == 403, name
        assert status("PATCH", objects + quoted, json={"metadata": {"a": "b"}}) == 403, name
        moved = f"{objects}{ledgers[0].replace('/', '%2F')}/rewriteTo/b/{berg.bucket_name}/o/"
        assert status("POST", moved + quoted) == 403, name
    policy = f"{cloud.url}/storage/v1/b/{berg.bucket_name}/iam"
    assert status("GET", policy) == status("PUT", policy, json={"bindings": []}) == 403
    assert status("GET", objects + terms.replace("/", "%2F")) == 200

    mine = {**agent.settings, "credentials_file": str(agent.file)}
    berg.write_config(**mine)
    submitted = berg("run", *CPU, "-n", "job", "--purse", "agent", "sleep 1000")
    assert submitted.returncode == 0, submitted.stderr
    assert [each["name"] for each in left(berg)["held"]] == ["job"]
    for command in (["create", "more", "--usd", "9"], ["top-up", "agent", "--usd", "9"]):
        refused = berg("purse", *command)
        assert refused.returncode == 1 and "forbidden" in refused.stderr, refused.stderr
    assert berg("run", *CPU, "--purse", "other", "true").returncode == 1
    assert berg("kill", "job").returncode == 0
    # what it has no rights for
    secret = ["-n", "hidden", "--purse", "agent", "--secret", "TOKEN", "echo {x}"]
    for options in ([], ["--grid", "x=1,2"]):
        refused = berg("run", *CPU, *options, *secret, TOKEN="x")
        assert refused.returncode == 1 and "ask the owner of the project" in refused.stderr
        assert "Machines may be left" not in refused.stderr, refused.stderr
    assert "hidden" not in {*berg("list").stdout.split()}
    assert [each["name"] for each in left(berg)["held"]] in ([], ["job"])
    costs = berg("costs", "--json")
    assert costs.returncode == 0 and "Clusters and their caches are not included" in costs.stderr
    pods = berg("run", "--cluster", "train", "--purse", "agent", "true")
    assert pods.returncode == 1 and "roles/container.developer" in pods.stderr

    berg.write_config(**agent.settings)
    closed = berg("purse", "close", "agent")
    assert closed.returncode == 0 and "remove-iam-policy-binding" in closed.stderr, closed.stderr
    settle(cloud)
    assert status("POST", upload + ledgers[0], data=b"{}") == 403
    assert status("POST", upload + ".berg/repos/x", data=b"{}") == 403


def test_an_account_that_could_change_its_purse_gets_none(berg, agent):
    settings = berg.bucket.config
    iam.bind(
        settings, iam.bucket_policy, "roles/storage.objectAdmin", f"serviceAccount:{agent.email}"
    )
    refused = berg("purse", "create", "agent", "--usd", "1", "--for", agent.email)
    assert refused.returncode == 1 and "has roles/storage.objectAdmin" in refused.stderr
    assert json.loads(berg("purse", "--json").stdout) == []


def test_without_the_right_the_grants_are_commands(berg, cloud, agent):
    cloud.fault("storage.buckets.setIamPolicy", status=403, times=99)
    made = berg("purse", "create", "agent", "--usd", "1", "--for", agent.email)
    assert made.returncode == 1 and "you lack the right to do this" in made.stderr, made.stderr
    commands = [line.split()[0] for line in made.stderr.splitlines() if "gcloud" in line]
    assert commands == ["gcloud"] * 5, made.stderr
    assert "!resource.name.startsWith" in made.stderr
    assert left(berg)["account"] == agent.email
