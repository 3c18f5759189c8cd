"""A job that is root on its machine, and holds its token, tries what it can.

Each test is a row of the table in docs/security.md, which `make hostile` writes: what was tried, and
what became of it.
"""

import json
import os
import re
import urllib.parse
from pathlib import Path

import pytest
from conftest import Berg, wait_for

from berg import job, plan

TABLE = os.environ.get("HOSTILE_TABLE")  # the page to write
BEGIN, END = "<!-- hostile -->\n", "<!-- end of hostile -->"
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EVIL = "ssh-ed25519 AAAAEVIL evil"

ATTACK = '''
"""Runs as root on a machine; notes Google's answer to each request."""
import json, os, sys, urllib.error, urllib.parse, urllib.request

server = f"http://{os.environ['GCE_METADATA_HOST']}/computeMetadata/v1/instance/"

def ask(url, method="GET", data=None, headers=None):
    try:
        made = urllib.request.Request(url, data=data, method=method, headers=headers or {})
        with urllib.request.urlopen(made, timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()

about = json.loads(ask(server + "?recursive=true", headers={"Metadata-Flavor": "Google"})[1])
token = json.loads(ask(server + "service-accounts/default/token", headers={"Metadata-Flavor": "Google"})[1])
base = about["attributes"]["berg-endpoint"]
headers = {"Authorization": "Bearer " + token["access_token"], "Content-Type": "application/json"}
found = {}
for name, (method, path, body) in json.load(open("attacks.json")).items():
    data = None if body is None else body.encode()
    found[name] = ask(base + path, method, data, headers)[0]
with open(os.environ["BERG_RESULTS_DIR"] + "/answers.json", "w") as file:
    json.dump(found, file)
'''


@pytest.fixture(scope="module")
def rows():
    """What was tried and what became of it; written into the page at the end."""
    found: list[tuple[str, str]] = []
    yield found
    if not TABLE:
        return
    page = Path(TABLE)
    head, _, rest = page.read_text().partition(BEGIN)
    lines = ["| a job with root and its machine's token tries | what becomes of it |", "|---|---|"]
    lines += [f"| {tried} | {became} |" for tried, became in found]
    page.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


def submit(berg: Berg, name: str, command: str, *options: str) -> None:
    ran = berg("run", "-g", "0", "-n", name, *options, command)
    assert ran.returncode == 0, ran.stderr


def ended(berg: Berg, name: str, seconds: float = 60) -> dict:
    wait_for(lambda: berg.state(name)["state"] in job.FINAL, seconds, f"the end of {name}")
    return berg.state(name)


def attacks(bucket: str, wheel: str, pack: str) -> dict[str, tuple[str, str, str | None]]:
    """Return what is refused: a name, and method, path and body of the request."""

    def put(name: str) -> tuple[str, str, str]:
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        return "POST", f"/upload/storage/v1/b/{bucket}/o?{query}", "evil"

    def there(name: str) -> str:
        return f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"

    source = urllib.parse.quote("berg_results/attack/x", safe="")
    compose = {"sourceObjects": [{"name": "berg_results/attack/x"}]}
    compute = "/compute/v1/projects/berg-local/zones/us-central1-a/instances"
    return {
        "to replace berg's wheel": put(wheel),
        "to add a package below `.berg/dist/`": put(".berg/dist/evil.whl"),
        "to delete berg's wheel": ("DELETE", there(wheel), None),
        "to change the wheel's custom metadata": (
            "PATCH",
            there(wheel),
            '{"metadata": {"a": "b"}}',
        ),
        "to rewrite an object onto the wheel": (
            "POST",
            f"/storage/v1/b/{bucket}/o/{source}/rewriteTo/b/{bucket}/o/"
            + urllib.parse.quote(wheel, safe=""),
            "{}",
        ),
        "to compose objects onto the wheel": (
            "POST",
            there(wheel) + "/compose",
            json.dumps(compose),
        ),
        "to replace a pack of the code": put(pack),
        "to replace its own job's metadata": put(".berg/jobs/attack_metadata.json"),
        "to replace another job's metadata": put(".berg/jobs/other_metadata.json"),
        "to write a sweep's record": put(".berg/sweeps/lr.json"),
        "to write a data set": put("data/mnist/train.bin"),
        "to write beside berg's prefixes": put("berg_resultsx/a"),
        "to change the bucket": ("PATCH", f"/storage/v1/b/{bucket}", '{"labels": {"a": "b"}}'),
        "to read who may use the bucket": ("GET", f"/storage/v1/b/{bucket}/iam", None),
        "to give itself the bucket": (
            "PUT",
            f"/storage/v1/b/{bucket}/iam",
            '{"bindings": [{"role": "roles/storage.admin", "members": ["allUsers"]}]}',
        ),
        "to list the project's secrets": (
            "GET",
            "/secretmanager/v1/projects/berg-local/secrets",
            None,
        ),
        "to change its machine's metadata, and the hashes there": (
            "POST",
            f"{compute}/attack/setMetadata",
            '{"items": []}',
        ),
        "to create a machine": ("POST", compute, '{"name": "evil"}'),
    }


def test_what_the_token_may_not(berg, rows):
    (berg.repo / "attack.py").write_text(ATTACK)
    (berg.repo / "attacks.json").write_text("{}")
    submit(berg, "other", "true")
    ended(berg, "other")
    wheel = next(name for name in berg.objects(".berg/dist/") if name.endswith(".whl"))
    pack = next(iter(berg.objects(".berg/repos/")))
    tried = attacks(berg.bucket_name, wheel, pack)
    (berg.repo / "attacks.json").write_text(json.dumps(tried))
    protected = {**berg.objects(".berg/dist/"), **berg.objects(".berg/repos/")}
    submit(berg, "attack", "touch $BERG_RESULTS_DIR/x; sleep 1; python3 attack.py")
    assert ended(berg, "attack")["state"] == "SUCCEEDED", berg.log("attack")
    results = berg.objects("berg_results/attack/answers.json")
    answers = json.loads(results["berg_results/attack/answers.json"])
    rows += [(name, f"refused: {status}") for name, status in answers.items()]
    assert answers == dict.fromkeys(tried, 403)
    now = berg.objects(".berg/")
    assert {name: now[name] for name in protected} == protected


def test_berg_and_job_that_were_replaced_are_not_run(berg, cloud, rows):
    """Somebody with the bucket's rights changes them between submit and boot."""
    berg.allowed.append(400)
    cloud.call("POST", "/_berg/stockout", {"on": True})
    for name in ("wheel", "changed"):
        submit(berg, name, "echo ran", "--wait-for-capacity")
    path = ".berg/jobs/changed_metadata.json"
    metadata = json.loads(berg.bucket.read(path))
    berg.bucket.write(path, json.dumps({**metadata, "cmd": "echo evil"}))
    cloud.call("POST", "/_berg/stockout", {"on": False})
    state = ended(berg, "changed", 90)
    assert state["state"] == "FAILED" and "is not what was submitted" in state["reason"]
    assert "evil" not in berg.log("changed")
    assert ended(berg, "wheel")["state"] == "SUCCEEDED"
    rows.append(("whoever may write it, to change a job before its machine boots", state["reason"]))


def test_a_wheel_that_was_replaced_is_not_run_and_the_next_submit_mends_it(berg, cloud, rows):
    berg.allowed.append(400)
    cloud.call("POST", "/_berg/stockout", {"on": True})
    submit(berg, "waits", "echo ran", "--wait-for-capacity")
    wheel = next(name for name in berg.objects(".berg/dist/") if name.endswith(".whl"))
    berg.bucket.write(wheel, b"evil")
    cloud.call("POST", "/_berg/stockout", {"on": False})
    state = ended(berg, "waits", 90)
    assert state["state"] == "FAILED" and "is not what was submitted" in state["reason"]
    wait_for(lambda: "waits" not in berg.machines())
    rows.append(
        ("whoever may write it, to replace berg's wheel", "the machine: it is not run; FAILED")
    )
    ran = berg("run", "-g", "0", "-n", "after", "true")
    assert f"{wheel} was not what berg sent: somebody replaced it" in ran.stderr + ran.stdout
    assert ended(berg, "after")["state"] == "SUCCEEDED"
    rows.append(("the same", "the next submit replaces it and says so"))


def test_cards_of_strangers_open_no_machine(berg, rows):
    for number in (0, 1):
        name = f"duo-{number}"
        card = {"name": name, "rank": number, "internal_ip": "10.9.9.9", "node_key": EVIL}
        card |= {"instance_id": "1", "host_keys": ["ssh-ed25519 AAAAEVIL"], "introduced": True}
        failed = {"phase": "FAILED", "reason": "evil"}
        path = f".berg/machines/duo/{name}-x.json" if number else ".berg/machines/duo/duo-7.json"
        berg.bucket.write(path, json.dumps(card), metadata=failed)
    reading = "cat ~/.ssh/authorized_keys ~/.ssh/known_hosts ~/berg/cluster.json"
    submit(berg, "duo", f"{reading}; true", "-m", "2")
    state = ended(berg, "duo", 120)
    assert state["state"] == "SUCCEEDED", state
    log = berg.log("duo")
    assert "EVIL" not in log and "10.9.9.9" not in log
    assert "is not signed by a machine of this job" in log
    rows.append(
        ("a machine's card with a key, a host key and FAILED", "ignored, and said in the log")
    )


SOUND = {"state": "SUCCEEDED", "job": {"cmd": "true", "results_dir": "done", "kind": "job"}}
DEEP = "[" * 100_000
STATES: dict[str, str | dict] = {
    "`../` as results folder": {**SOUND, "job": {"results_dir": "../.ssh"}},
    "an absolute results folder": {**SOUND, "job": {"results_dir": "/etc"}},
    "a NUL in the results folder": {**SOUND, "job": {"results_dir": "a\0b"}},
    "a string of a megabyte": {**SOUND, "reason": "x" * 1_000_000},
    "JSON that is nested 100,000 times": DEEP,
    "a key that is there twice": '{"state": "KILLED", "state": "SUCCEEDED"}',
    "NaN": '{"state": "SUCCEEDED", "ran_seconds": NaN}',
    "a number beyond all": '{"state": "SUCCEEDED", "ran_seconds": 1e999}',
    "a list as state": "[]",
    "a text as number": {**SOUND, "attempt": "1; rm -rf ~"},
    "a number as text": {**SOUND, "reason": 7},
    "an unknown state": {**SOUND, "state": "OWNED"},
    "another job's machine, as a path": {**SOUND, "machine": "../../zones/x/instances/y"},
    "a place that is none": {**SOUND, "job": {"place": "evil"}},
    "a zone with an escape sequence": {**SOUND, "zone": "\x1b]0;evil\x07"},
    "escapes in the reason": {**SOUND, "reason": "\x1b]0;evil\x07\x9b31m\u202eevil"},
    "escapes in the command": {**SOUND, "job": {"cmd": "\x1b[2Jevil", "results_dir": "done"}},
    "escapes in its user": {**SOUND, "job": {"user": "\x1b[2Jevil", "results_dir": "done"}},
    "another job's state, KILLED": {**SOUND, "state": "KILLED", "reason": "killed by evil"},
}
COMMANDS = {
    "list": ("list", "-a"),
    "show": ("show", "done"),
    "log": ("log", "done"),
    "fetch": ("fetch", "done"),
    "rerun": ("rerun", "done", "--dry-run"),
    "kill": ("kill", "done"),
    "rm": ("rm", "-y", "done"),
}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def check_new(new: set[str]) -> None:
    """Only results were written, below the job's own folder, and berg's own notes."""
    known = ("home/berg_results/done/", "home/repos/", "home/names")  # the last is completion's
    odd = [path for path in new if not path.startswith(known)]
    assert not odd, odd


@pytest.mark.parametrize("what", STATES)
def test_states_that_are_odd(berg, what, rows):
    """They are damaged, or harmless; no command crashes, or writes where it should not."""
    berg.allowed += [400, 404]
    state = STATES[what]
    text = state if isinstance(state, str) else json.dumps(state)
    metadata = {"state": text} if len(text) < 8000 else {}
    berg.bucket.write(job.state_path("done"), text, metadata=metadata)
    berg.bucket.write("berg_results/done/model.pt", b"weights")
    berg.bucket.write("berg_results/.ssh/authorized_keys", EVIL.encode())
    outside = berg.repo.parent
    before, became = files(outside), []
    for name, arguments in COMMANDS.items():
        ran = berg(*arguments)
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said, f"{name}: {said}"
        assert not STEERING.search(said), f"{name}: {said!r}"
        assert ran.returncode in (0, 1, 2), f"{name}: {ran}"
        if "damaged" in said:
            became.append(f"{name}: damaged")
        elif ran.returncode:
            became.append(f"{name}: refused")
        else:
            became.append(f"{name}: as usual")
    check_new(files(outside) - before)
    names = berg.home / "names"
    assert not (names.exists() and STEERING.search(names.read_text()))
    assert not list(outside.rglob("authorized_keys"))
    rows.append((f"a state with {what}", ", ".join(became)))


NAMES = {
    "`..` in a result's name": "berg_results/done/../../../evil",
    "an absolute path behind the results": "berg_results/done//etc/evil",
    "an escape in a result's name": "berg_results/done/\x1b]0;evil\x07",
    "a backslash in a result's name": "berg_results/done/..\\evil",
    "an odd log's name": ".berg/logs/done/../evil\x1b[2J.log",
    "a job's name with `..`": ".berg/jobs/../evil_state.json",
    "a job's name with an escape": ".berg/jobs/\x1b]0;evil\x07_state.json",
}


@pytest.mark.parametrize("what", NAMES)
def test_names_that_are_odd(berg, what, rows):
    berg.allowed += [400, 404]
    text = json.dumps(SOUND)
    berg.bucket.write(job.state_path("done"), text, metadata={"state": text})
    berg.bucket.write(NAMES[what], text, metadata={"state": text})
    outside = berg.repo.parent
    before = files(outside)
    became = []
    for name in ("list", "show", "log", "fetch"):
        ran = berg(*COMMANDS[name])
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said and not STEERING.search(said), f"{name}: {said!r}"
        became.append(f"{name}: {'refused' if ran.returncode else 'as usual'}")
    check_new(files(outside) - before)
    names = berg.home / "names"
    assert not (names.exists() and STEERING.search(names.read_text()))
    rows.append((what, ", ".join(became)))


SECRET = "X=~/.ssh/id_rsa"
EVIL_SETTINGS = {"project": "evil", "bucket": "evil", "endpoint": "http://evil", "region": "evil"}
EVIL_SETTINGS |= {"service_account": "evil@evil", "credentials_file": "/evil", "user": "evil"}
EVIL_SETTINGS |= {"network": "evil", "subnetwork": "evil", "ssh_user": "evil"}


def record(berg: Berg, name: str, **changes: object) -> bytes:
    """A job that failed, as its record lies in the bucket; without a machine that ran it."""
    spec = {"num_gpus": 0, **EVIL_SETTINGS, **changes.pop("spec", {})}
    this = job.Job(name, "exit 3", name, f"gs://b/{name}", "proj", "c0ffee", "c0ffee", spec=spec)
    this.snapshot = {"commit": "c0ffee", "packs": [], "submodules": {}}
    this.max_run_seconds, this.max_restarts = 3600, 20
    for key, value in changes.items():
        setattr(this, key, value)
    state = job.State("FAILED", exit_code=3, job=this.summary()).to_json()
    berg.bucket.write(job.state_path(name), state, metadata={"state": state})
    text = this.to_json().encode()
    berg.bucket.write(job.metadata_path(name), text)
    return text


def test_what_a_record_says_of_secrets_and_settings_is_not_believed_by_resume(berg, rows):
    key = berg.home / ".ssh/id_rsa"
    record(berg, "sly", spec={"secrets": [SECRET], "notify": SECRET}, secrets=["X"], notify=True)
    refused = berg("run", "--resume", "sly", HOME=str(berg.home))
    assert "sly had secrets, which berg asks for anew: --secret X" in refused.stderr
    record(berg, "sly", spec={"secrets": [SECRET], "notify": SECRET}, notify=True)
    shown = berg("run", "--resume", "sly", "--dry-run", HOME=str(berg.home))
    assert shown.returncode == 0, shown.stderr
    assert "Nobody is told of its end" in shown.stderr and "evil" not in shown.stdout
    assert not key.exists(), "nothing looked for it"
    rows.append(("a record that names a file of the laptop as secret, `--resume`", "asked anew"))
    rows.append(("a record that names a project, an endpoint, an account", "ignored"))


@pytest.mark.parametrize(
    "spec",
    [{"zones": ["../../evil"]}, {"image_project": "a/../b"}, {"num_gpus": "0"}, {"zones": [[1]]}],
)
def test_a_record_whose_options_are_none_is_damaged(berg, spec):
    record(berg, "odd", spec=spec)
    for command in (("run", "--resume", "odd"), ("rerun", "odd")):
        refused = berg(*command, "--dry-run")
        assert refused.returncode == 1 and "options of odd are damaged" in refused.stderr


def test_what_differs_from_the_first_run_is_said(berg):
    record(berg, "old", machine_type="n1-standard-96", image="projects/evil/global/images/evil")
    shown = berg("run", "--resume", "old", "--dry-run")
    assert "machine type: n1-standard-96 before, now n1-standard-8" in shown.stderr
    assert "image: projects/evil/global/images/evil before, now projects/" in shown.stderr
    assert "evil" not in shown.stdout


def test_a_sweeps_record_that_was_replaced_makes_no_request(berg, rows):
    texts = [record(berg, f"lr-{n}", sweep="lr", params={"x": str(n)}) for n in (0, 1)]
    hashes = [plan.sha256(text) for text in texts]
    machines = {"us-central1-a": {"serviceAccounts": [{"email": "evil"}], "labels": {"evil": "1"}}}
    evil = {"jobs": ["lr-0", "lr-1"], "sha256": hashes, "place": "gce", "machines": machines}
    berg.bucket.write(job.sweep_path("lr"), json.dumps(evil))
    shown = berg("run", "--resume", "lr", "--dry-run")
    assert shown.returncode == 0 and "evil" not in shown.stdout, shown.stderr
    assert json.loads(shown.stdout)["instanceProperties"]["scheduling"]["maxRunDuration"]
    record(berg, "lr-0", sweep="lr", cmd="echo evil")
    refused = berg("run", "--resume", "lr", "--dry-run")
    assert refused.returncode == 1 and "lr-0_metadata.json is not what was sub" in refused.stderr
    rows.append(("whoever may write it, to put a request into a sweep's record", "ignored"))
    rows.append(("whoever may write it, to change a job of a sweep, `--resume`", "refused"))
