"""Any JSON in any record of the bucket: no command that reads it crashes, writes outside of its
folder, or prints what steers a terminal.

A sound bucket is changed in one to three places, or a record of it is something else altogether.
The bucket is in memory, and Compute Engine has nothing, so that hundreds of commands run in seconds.
"""

import copy
import hashlib
import json
import os
import re
import threading
from http.client import HTTPConnection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from memory_bucket import Memory

import berg
from berg import BergError, cli, config, gce, job, plain
from berg.commands.terminal import complete_names, complete_zones
from berg.google import api, sending, storage
from berg.laptop import launch
from berg.plan import Offer
from berg.watch import serve

EVIL = [
    "",
    "..",
    "../../evil",
    "/etc/evil",
    "\x1b]0;evil\x07",
    "\x9b31m\u202eevil",
    "a\0b",
    "a\nb",
    "\ud800",
    "-rf",
    "$(evil)",
    "{0.__class__}",
    "[bold]%s",
    "x" * 5000,
    "2026-99-99T00:00:00Z",
    "evil/../evil",
]
HUGE = [10**400, -(10**400), 10**30, 2**63, -1, 0]  # what no float holds, and no clock
LEAVES = st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.sampled_from(EVIL)
LEAVES |= st.sampled_from(HUGE)
LEAVES |= st.floats(allow_nan=True) | st.text(max_size=8)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*EVIL, "commit", "packs", "name"]), inner, max_size=3)
    ),
    max_leaves=6,
)
RAW = st.sampled_from(["", "{", "[" * 50_000, '{"a": 1, "a": 2}', "null", "\x1b[2J"])
RAW |= st.text(max_size=20)
SPEC = {"num_gpus": 0, "env": ["A=b"], "zones": ["us-central1-a"], "secrets": [], "data": []}
SPEC |= {"mount": ["mnist:/mnt/data"], "regions": [], "pod_patch": None, "queue": None}


def sound(name: str, sweep: str = "") -> tuple[dict[str, Any], dict[str, Any]]:
    """A job that failed, and its state, as JSON."""
    this = job.Job(name, "exit 3", f"out/{name}", "gs://b/out", "proj", "c0ffee", "c0ffee")
    commit = "c0ffef" if sweep else "c0ffee"
    this.snapshot = {"commit": commit, "branch": "main", "packs": [], "submodules": {}}
    this.max_run_seconds, this.created_by = 3600, "tester"
    this.sweep, this.params = sweep, {"lr": "0.1"} if sweep else {}
    this.machine_type, this.created_at = "n1-standard-8", "2026-01-01T00:00:00Z"
    state = job.State("FAILED", exit_code=3, job=this.summary(), started_at=this.created_at)
    return {**json.loads(this.to_json()), "spec": dict(SPEC)}, json.loads(state.to_json())


def sound_bucket() -> dict[str, Any]:
    """What lies in the bucket: JSON by the names of the objects, or a text as it is."""
    one, state = sound("one")
    first, first_state = sound("lr-0", "lr")
    card = {"name": "one", "rank": 0, "instance_id": "1", "host_keys": ["ssh-ed25519 AAAA"]}
    gpu = {"index": 0, "percent": 50.0, "memory_mb": 1.0, "memory_total_mb": 2.0, "watt": 70.0}
    sample = {"time": 1767225600.0, "cpu_percent": 3.5, "memory_bytes": 9, "gpus": [gpu]}
    software = {"python": "3.12.3", "driver": "580.1", "packages": {"torch": "2.9.0"}}
    return {
        ".berg/jobs/one_metadata.json": one,
        ".berg/jobs/one_state.json": state,
        ".berg/jobs/lr-0_metadata.json": first,
        ".berg/jobs/lr-0_state.json": first_state,
        ".berg/index/living/.complete": "",
        ".berg/index/living/one": "",
        ".berg/index/recent/tester/8232774399-one": "",
        ".berg/index/recent/tester/8232774399-lr.sweep": "",
        ".berg/sweeps/lr.json": {"jobs": ["lr-0"], "claim": "c", "sha256": []},
        ".berg/machines/one/one.json": card,
        ".berg/folders/one/a": {"folder": "other"},
        ".berg/logs/one/one.20260101-000000.log": "[berg] Running: exit 3\nloss 1\n",
        ".berg/logs/one/one.20260101-000000.usage.jsonl": sample,
        ".berg/logs/one/one.20260101-000000.software.json": software,
        "berg_results/out/one/metrics.jsonl": {"step": 1, "loss": 0.5},
        "berg_results/out/lr-0/metrics.jsonl": {"step": 1, "loss": 0.5},
        "berg_results/other/x": "x",
        "data/mnist/manifest.json": {"name": "mnist", "files": 1, "bytes": 1},
        "data/mnist/a": "x",
    }


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value in a JSON value, its own first."""
    inner = value.items() if isinstance(value, dict) else []
    if isinstance(value, list):
        inner = enumerate(value)
    return [path, *(each for key, part in inner for each in places(part, (*path, key)))]


SOUND = sound_bucket()
PLACES = [(name, path) for name in SOUND for path in places(SOUND[name])]
# Names of objects are UTF-8, which has no halves of letters, and have no line breaks.
ODD = [evil for evil in EVIL[1:] if "\ud800" not in evil and "\n" not in evil and len(evil) < 1000]
NAMES = [*SOUND, *(f".berg/jobs/{evil}_state.json" for evil in ODD)]
NAMES += [f"berg_results/out/one/{evil}" for evil in ODD]
NAMES += [f".berg/logs/one/{evil}.log" for evil in ODD]
CHANGES = st.lists(st.tuples(st.sampled_from(PLACES), VALUES), min_size=1, max_size=3)


def changed(changes: list[Any], replaced: dict[str, str]) -> dict[str, Any]:
    found = copy.deepcopy(SOUND)
    for (name, path), value in changes:
        if not path:
            found[name] = value
            continue
        inside = found[name]
        try:
            for key in path[:-1]:
                inside = inside[key]
            inside[path[-1]] = value
        except (TypeError, KeyError, IndexError):
            pass  # what was there went with an earlier change
    return {**found, **replaced}


COMMANDS = [
    ["list"],
    ["list", "--json", "-c"],
    ["list", "-a", "-v"],
    ["list", "-a", "--json"],
    ["show", "one"],
    ["show", "@", "--json"],
    ["show", "lr"],
    ["show", "lr", "--json"],
    ["log", "one"],
    ["tail", "one"],
    ["log", "lr/0"],
    ["log", "--color", "one"],
    ["log", "--machine", "one", "one"],
    ["fetch", "one"],
    ["fetch", "lr"],
    ["fetch", "one", "--json"],
    ["wait", "one", "lr"],
    ["wait", "one", "--json"],
    ["diff", "one", "lr-0"],
    ["diff", "one", "lr-0", "--json"],
    ["costs"],
    ["costs", "--json"],
    ["top", "--once"],
    ["top", "one", "--once"],
    ["top", "one", "--once", "--json"],
    ["tensorboard", "one", "--once"],
    ["tensorboard", "lr", "--once"],
    ["page", "--export", "berg_results/out/page", "one", "lr"],
    ["ssh", "one", "--worker", "0", "--dry-run"],
    ["open", "one", "--code"],
    ["stop", "one"],
    ["start", "one"],
    ["reap", "-y"],
    ["reap", "--json"],
    ["data", "ls"],
    ["data", "ls", "mnist"],
    ["list", "-a", "--limit", "1"],
    ["show", "lr/0"],
    ["log", "lr"],
    ["tail", "lr/0"],
    ["fetch", "lr/0"],
    ["fetch", "one", "--watch"],
    ["sync", "one"],
    ["diff", "lr-0", "one"],
    ["page", "--export", "berg_results/out/page", "@"],
    ["ssh", "lr/0", "--dry-run"],
    ["stop", "--now", "one"],
    ["profile", "lr/0"],
    ["cluster", "cache", "train"],
    ["rerun", "lr/0", "--dry-run", "--json"],
    ["rerun", "@", "--dry-run", "--json", "--spot"],
    ["run", "--resume", "lr/0", "--dry-run", "--json"],
    ["data", "pull", "mnist", "berg_results/out/mnist"],
    ["data", "rm", "mnist", "-y"],
    ["profile", "one"],
    ["rerun", "one", "--dry-run", "--json"],
    ["run", "--resume", "one", "--dry-run", "--json"],
    ["run", "--resume", "lr", "--dry-run", "--json"],
    ["kill", "one"],
    ["kill", "lr"],
    ["rm", "-y", "one", "lr"],
    ["rm", "-y", "one*"],
]
GENTLE = COMMANDS[:-4]  # they delete no job
PAGES = ["/", "/job/one/", "/sweep/lr/", "/job/one/log", "/job/one/kill", "/job/one/log.txt"]
PAGES += ["/job/one/?find=loss", "/job/one/files/metrics.jsonl"]
# Where commands write: results, and what berg remembers.
OURS = ("berg_results/out/", "berg_results/lr/results.csv", "berg_results/other/", ".berg/")


def nothing(config: Any, method: str, path: str, *_: Any, **__: Any) -> dict[str, Any]:
    """Compute Engine without a machine, a cluster or a secret."""
    if method == "DELETE" or "clusters/" in path or "Guest" in path:
        raise api.NotFound("nothing is there")
    return {"status": "DONE", "defaultServiceAccount": "1-compute@x"}


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A laptop, whose cloud has nothing but a bucket in memory."""
    home = tmp_path_factory.mktemp("home")
    (home / ".berg").mkdir()
    values = {"project": "p", "bucket": "b", "user": "tester", "endpoint": "http://127.0.0.1:9"}
    (home / ".berg/berg.json").write_text(json.dumps(values))
    memory = Memory()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.delenv("BERG_HOME", raising=False)
        patch.setenv("BERG_ZONES", "")
        patch.chdir(home)
        memory.stand_in(patch)
        patch.setattr(api, "call", nothing)
        patch.setattr(config.Config, "credentials", None)
        patch.setattr(storage, "check_owner", lambda config: None)
        patch.setattr(launch, "check_bucket", lambda config: "us-central1")
        patch.setattr(launch.dist, "build", lambda: ("", b""))
        patch.setattr(launch.dist, "build_wheel", lambda: ("berg.whl", b""))
        patch.setattr(gce, "offer", an_offer)
        patch.setattr("time.sleep", give_up_soon())
        yield SimpleNamespace(home=home, memory=memory)


def an_offer(settings: Any, spec: Any, choice: Any, sweep: int) -> Offer:
    zones = settings.zones or ["us-central1-a"]
    return Offer(choice.shape, choice.hosts, "projects/p/global/images/i", zones, [], "Google")


def give_up_soon() -> Any:
    count = [0]

    def sleep(seconds: float) -> None:
        count[0] += 1
        assert count[0] < 100_000, "a command waits for ever"

    return sleep


def files(home: Path) -> set[str]:
    return {str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir()}


def check_output(name: str, text: str) -> None:
    found = plain.CONTROLS.search(text)
    assert not found, f"{name} prints {found and found[0]!r}: {text!r}"


def run(arguments: list[str]) -> None:
    """One command: it may refuse, in words; but it is one of berg's."""
    done = CliRunner().invoke(cli.cli, arguments)
    assert "Usage: " not in done.output, done.output
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    check_output(str(arguments), done.output)


def use_python() -> None:
    """What programs use: a word of trouble is a BergError."""
    try:
        this = berg.Job("one")
        check_output("berg.Job", this.state.reason + this.state.job.results_dir)
        check_output("berg.Job.wait", this.wait(0.1).reason)
        this.logs()
        this.fetch()
        this.kill()
    except BergError as error:
        assert error.message
    except TimeoutError:  # what its state says is not over
        pass


def complete() -> None:
    """What the shell offers: words of Google's kind."""
    offered = [name for begun in ("", "lr/") for name in complete_names(None, None, begun)]
    offered += complete_zones(None, None, "")
    odd = [word for word in offered if not re.fullmatch(r"[a-z0-9]([a-z0-9/-]*[a-z0-9])?", word)]
    assert not odd, odd


@pytest.fixture(scope="module")
def site(world):
    made = serve.Server(config.load_ready(), 0, None)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def look(site: Any, address: str) -> None:
    line = HTTPConnection("127.0.0.1", site.server_port, timeout=20)
    line.request("GET", f"/{site.token}/" + address.removeprefix("/"))
    answer = line.getresponse()
    text = answer.read().decode()
    line.close()
    if "html" in answer.headers["Content-Type"]:
        check_output(address, text)
        assert "an error in berg" not in text, text


def fill(world: Any, objects: dict[str, Any]) -> None:
    world.memory.blobs.clear()
    for name, value in objects.items():
        if (
            name == ".berg/sweeps/lr.json" and value == SOUND[name]
        ):  # else its hash would protect it
            first = json.dumps(objects.get(".berg/jobs/lr-0_metadata.json"))
            value = {**value, "sha256": [hashlib.sha256(first.encode()).hexdigest()]}
        text = value if isinstance(value, str) else json.dumps(value)
        world.memory.put(name, text, custom_metadata(name, value, text))


def custom_metadata(name: str, value: Any, text: str) -> dict[str, str]:
    """What an object says beside its content: Cloud Storage has texts alone there."""
    if name.endswith("_state.json"):
        return {"state": text}
    if name.startswith(".berg/folders/") and isinstance(value, dict):
        return {key: str(each) for key, each in value.items()}
    if name.startswith("berg_results/other/"):
        return {sending.WRITER: "one/one"}
    return {}


# FUZZ=500 looks further, at other buckets each time.
FEW = settings(
    max_examples=int(os.environ.get("FUZZ", "8")),
    derandomize="FUZZ" not in os.environ,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
    database=None,
)


@given(changes=CHANGES, replaced=st.dictionaries(st.sampled_from(NAMES), RAW, max_size=2))
@FEW
def test_any_bucket_is_read_without_harm(world, site, changes, replaced):
    objects = changed(changes, replaced)
    fill(world, objects)
    for command in COMMANDS:
        run(command)
    fill(world, objects)  # some of them delete
    use_python()
    complete()
    for address in PAGES:
        look(site, address)
    odd = [path for path in files(world.home) if not path.startswith(OURS)]
    assert not odd, odd
    assert not plain.CONTROLS.search((world.home / ".berg/names").read_text())


def test_one_job_of_a_sweep_whose_state_is_damaged_does_not_run_again(world):
    objects = sound_bucket()
    objects[".berg/jobs/lr-0_state.json"]["claim"] = ["evil"]
    fill(world, objects)
    refused = CliRunner().invoke(cli.cli, ["run", "--resume", "lr/0", "--dry-run", "--json"])
    assert refused.exit_code == 1 and "lr-0 cannot run again: its state is da" in refused.output


def test_a_sound_bucket_is_read(world, site):
    fill(world, sound_bucket())
    for command in GENTLE:
        run(command)
    fill(world, sound_bucket())
    shown = CliRunner().invoke(cli.cli, ["run", "--resume", "lr", "--dry-run", "--json"])
    assert shown.exit_code == 0, shown.output
    assert CliRunner().invoke(cli.cli, ["show", "one"]).exit_code == 0
    for address in PAGES:
        look(site, address)
