"""`berg profile`: real profiles of real programs, and a sentence for what cannot be profiled."""

import gzip
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from conftest import commit, wait_for

from berg import BergError
from berg.code import dist
from berg.machine import boot, profile
from berg.watch import board

SPIN = """
import sys, time
def busy():
    end = time.time() + float(sys.argv[1])
    while time.time() < end:
        sum(range(1000))
busy()
print("ran to its end")
"""
JAX = """
import os, time
import jax, jax.numpy as jnp
jax.profiler.start_server(int(os.environ["BERG_PROFILER_PORT"]))
multiply = jax.jit(lambda a: jnp.tanh(a @ a).sum())
ones = jnp.ones((300, 300))
multiply(ones).block_until_ready()
print("listens", flush=True)
end = time.time() + 60
while time.time() < end:
    multiply(ones).block_until_ready()
"""

TORCH = """
import os, sys, time
import torch
print("imported", flush=True)
model, asked = torch.nn.Linear(64, 64), os.path.join(os.environ["KINETO_IPC_SOCKET_DIR"], f"taken-{os.getpid()}")
end = time.time() + 300
while time.time() < end:  # or so long after a profile of it was asked for
    model(torch.randn(32, 64)).square().mean().backward()
    time.sleep(0.01)  # for a small profile
    if len(sys.argv) > 1 and os.path.exists(asked):
        end, sys.argv = time.time() + float(sys.argv[1]), []
print("ran to its end", flush=True)
"""


def running(berg, name: str, command: str, *more: str) -> None:
    started = berg("run", "-g", "0", "-n", name, *more, command)
    assert started.returncode == 0, started.stderr
    wait_for(lambda: berg.state(name)["state"] not in ("SUBMITTED", "STARTING", "INSTALLING"), 60)
    assert berg.state(name)["state"] == "RUNNING", berg.log(name)


@pytest.mark.slow
def test_python_is_profiled_from_outside_and_runs_on(berg):
    (berg.repo / "spin.py").write_text(SPIN)
    commit(berg.repo)
    running(berg, "spins", "python3 spin.py 30; python3 -c 'print(\"the end\")'")
    done = berg("profile", "spins", "-s", "2", "--json")
    assert done.returncode == 0, done.stderr
    assert "spins: py-spy: Python from outside" in done.stderr
    (file,) = json.loads(done.stdout)["files"]
    assert file.startswith(str(berg.home / "berg_results/spins/profiles/"))
    profile = json.loads(Path(file).read_text())
    assert "busy" in [frame["name"] for frame in profile["shared"]["frames"]]
    assert [
        name
        for name in berg.objects("berg_results/spins/profiles/")
        if name.endswith("spins.speedscope.json")
    ]
    again = berg("profile", "spins", "-s", "1")
    assert again.returncode == 0 and "https://www.speedscope.app" in again.stderr
    wait_for(lambda: berg.state("spins")["state"] == "SUCCEEDED", 90)
    log = berg.log("spins")
    assert "ran to its end\nthe end\n" in log and log.count("[berg] Took a profile of ") == 2
    assert "profile" not in berg("log", "spins").stdout.replace("Took a profile", "").replace(
        "/profiles/", ""
    )
    over = berg("profile", "spins")
    assert (
        over.returncode == 1
        and "spins is finished (SUCCEEDED). Only a running command can be profiled" in over.stderr
    )


def jax_running(berg, name: str) -> None:
    pytest.importorskip("jax")
    (berg.repo / "train.py").write_text(JAX)
    commit(berg.repo)
    running(berg, name, f"{sys.executable} train.py", "--env", "JAX_PLATFORMS=cpu")
    wait_for(lambda: "listens" in berg.log(name), 90)


@pytest.mark.slow
def test_a_profiler_server_writes_what_tensorboard_reads(berg):
    jax_running(berg, "jaxes")
    done = berg("profile", "jaxes", "-s", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert "the command's profiler server" in done.stderr
    (file,) = [Path(each) for each in json.loads(done.stdout)["files"]]
    assert file.name == "jaxes.xplane.pb" and file.stat().st_size > 1000
    assert file.parent.parent == berg.home / "berg_results/jaxes/plugins/profile"
    assert berg.state("jaxes")["state"] == "RUNNING"


@pytest.mark.slow
def test_tensorboard_s_profile_plugin_shows_it(berg):
    pytest.importorskip(
        "xprof", reason="TensorBoard's profile plugin is not installed, 100 MB: pip install xprof"
    )
    jax_running(berg, "seen")
    assert berg("profile", "seen", "-s", "1").returncode == 0
    process = berg.start("tensorboard", "seen")
    try:
        address = process.stdout.readline().strip()

        def ask(what: str, **query: str):
            answer = requests.get(f"{address}data/plugin/profile/{what}", params=query, timeout=60)
            return answer.json() if answer.ok else None

        (run,) = wait_for(lambda: ask("runs"))
        assert run.startswith("seen/") and {"overview_page", "trace_viewer@"} <= set(
            ask("run_tools", run=run)
        )
        assert ask("hosts", run=run, tag="trace_viewer@") == [{"hostname": "seen"}]
        trace = ask("data", run=run, tag="trace_viewer@", host="seen")
        assert any("PjitFunction" in each["name"] for each in trace["traceEvents"])
        assert "selfTimePercent" in json.dumps(ask("data", run=run, tag="overview_page", host=""))
    finally:
        process.terminate()
        process.communicate(timeout=30)


def torch_running(berg, name: str, *more: str, command: str = f"{sys.executable} train.py") -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed: make test installs it")
    (berg.repo / "train.py").write_text(TORCH)
    commit(berg.repo)
    running(berg, name, command, "--profile", "--env", "OMP_NUM_THREADS=1", *more)
    machines = 2 if "-m" in more else 1
    wait_for(lambda: berg.log(name).count("imported") == machines, 90)


def events(file: Path) -> list[str]:
    with gzip.open(file) as trace:
        return [each["name"] for each in json.load(trace)["traceEvents"]]


@pytest.mark.slow
def test_pytorch_takes_its_own_profile_on_every_machine_at_once(berg):
    torch_running(berg, "torches", "-m", "2", "--each")
    done = berg("profile", "torches", "-s", "1", "--json")
    assert done.returncode == 0, done.stderr
    for machine in ("torches-0", "torches-1"):
        assert f"{machine}: PyTorch's profiler (Kineto)" in done.stderr
    files = sorted(Path(each) for each in json.loads(done.stdout)["files"])
    assert [file.name for file in files] == [f"torches-{n}.pt.trace.json.gz" for n in (0, 1)]
    assert files[0].parent.parent == berg.home / "berg_results/torches/profiles"
    for file in files:
        found = events(file)
        assert (
            found.count("aten::linear") > 10
            and "autograd::engine::evaluate_function: MeanBackward0" in found
        )
    again = berg("profile", "torches", "-s", "1", "--machine", "torches-1")
    assert again.returncode == 0 and "https://ui.perfetto.dev" in again.stderr
    assert len(again.stdout.splitlines()) == 1 and "aten::linear" in events(
        Path(again.stdout.strip())
    )
    long = berg("profile", "torches", "-s", "61")
    assert long.returncode == 1 and "give it 60 s at most (-s)" in long.stderr
    assert berg.state("torches")["state"] == "RUNNING"


@pytest.mark.slow
def test_a_command_that_ends_while_pytorch_takes_its_profile_ends_well(berg):
    torch_running(berg, "ends", command=f"{sys.executable} train.py 12")
    done = berg("profile", "ends", "-s", "15")
    assert done.returncode == 0, done.stderr
    assert "aten::linear" in events(Path(done.stdout.strip()))
    wait_for(lambda: berg.state("ends")["state"] not in ("RUNNING", "UPLOADING"), 60)
    state = berg.state("ends")
    assert state["state"] == "SUCCEEDED" and "ran to its end" in berg.log("ends"), state


@pytest.mark.slow
def test_a_command_that_ends_before_pytorch_begins_says_so(berg):
    torch_running(berg, "brief", command=f"{sys.executable} train.py 0")
    done = berg("profile", "brief", "-s", "1")
    assert (
        done.returncode == 1
        and "brief: the command ended before its profile was taken" in done.stderr
    )
    wait_for(lambda: berg.state("brief")["state"] == "SUCCEEDED", 60)


@pytest.mark.slow
def test_a_python_that_would_crash_is_left_to_py_spy(berg):
    torch_running(berg, "alone", command=f"{sys.executable} -E train.py")
    done = berg("profile", "alone", "-s", "1")
    assert done.returncode == 0 and "alone: py-spy: Python from outside" in done.stderr


@pytest.mark.slow
def test_each_job_of_a_sweep_can_be_profiled_and_its_python_is_as_it_was(berg):
    (berg.repo / "site").mkdir()
    (berg.repo / "site/sitecustomize.py").write_text("print('the own sitecustomize')")
    (berg.repo / "site/theirs.py").write_text("")
    commit(berg.repo)
    command = "test -S $KINETO_IPC_SOCKET_DIR/dynolog && python3 -c 'import sys, theirs, sitecustomize; print(sys.path)'"
    wishes = ("--profile", "--env", "PYTHONPATH=site", "--grid", "n=0,1", "--parallel", "1")
    done = berg("run", "-g", "0", "-n", "some", *wishes, "--wait", f"{command}; : {{n}}")
    assert done.returncode == 0, done.stderr
    for name in ("some-0", "some-1"):
        assert "the own sitecustomize\n['', " in berg.log(name) and "machine/guard" not in berg.log(
            name
        )
    plain = berg("run", "-g", "0", "-n", "plain", "--wait", "! env | grep KINETO")
    assert plain.returncode == 0


@pytest.mark.slow
def test_every_machine_of_a_cluster_is_asked_at_once(berg):
    (berg.repo / "spin.py").write_text(SPIN)
    commit(berg.repo)
    running(berg, "pair", "python3 spin.py 60", "-m", "2", "--each")
    both = json.loads(berg("profile", "pair", "-s", "1", "--json").stdout)
    assert {name: each["kind"] for name, each in both["machines"].items()} == {
        "pair-0": "py-spy",
        "pair-1": "py-spy",
    }
    assert sorted(Path(file).name for file in both["files"]) == [
        f"pair-{n}.speedscope.json" for n in (0, 1)
    ]
    assert len({Path(file).parent for file in both["files"]}) == 1
    one = json.loads(berg("profile", "pair", "-s", "1", "--machine", "pair-1", "--json").stdout)
    assert list(one["machines"]) == ["pair-1"] and len(one["files"]) == 1


@pytest.mark.slow
def test_two_at_once_and_a_command_that_ends(berg):
    (berg.repo / "spin.py").write_text(SPIN)
    commit(berg.repo)
    running(berg, "short", "python3 spin.py 25")
    assert berg("profile", "short", "-s", "1").returncode == 0  # which brings py-spy
    first = berg.start("profile", "short", "-s", "60")
    wait_for(lambda: '"value": "short 60"' in json.dumps(berg.machines()["short"]["metadata"]))
    second = berg("profile", "short", "-s", "1")
    assert second.returncode == 1 and "another profile is being taken just now" in second.stderr
    output, words = first.communicate(timeout=120)
    assert first.returncode in (0, 1), words
    told = ("ended before its profile was taken", "could not be downloaded")
    assert "short.speedscope.json" in output or any(each in words for each in told), words
    wait_for(lambda: berg.state("short")["state"] == "SUCCEEDED", 60)
    assert "ran to its end" in berg.log("short")


@pytest.mark.slow
def test_what_cannot_be_profiled_is_a_sentence(berg):
    running(berg, "sleeps", "sleep 60")
    none = berg("profile", "sleeps", "-s", "1")
    assert none.returncode == 1
    assert (
        "there is nothing to profile: no python runs, and no program listens on BERG_PROFILER_PORT"
        in none.stderr
    )
    wrong = berg("profile", "sleeps", "--machine", "other")
    assert wrong.returncode == 1 and "sleeps has no machine 'other'. It has: sleeps" in wrong.stderr
    assert (
        berg("profile", "nobody").returncode == 1
        and berg("profile", "sleeps", "-s", "0").returncode == 2
    )
    assert berg.state("sleeps")["state"] == "RUNNING"


@pytest.mark.slow
def test_a_machine_that_goes_meanwhile_is_named(berg):
    (berg.repo / "spin.py").write_text(SPIN)
    commit(berg.repo)
    running(berg, "goes", "python3 spin.py 90")
    asking = berg.start("profile", "goes", "-s", "40")
    wait_for(lambda: "goes 40" in json.dumps(berg.machines()["goes"]["metadata"]))
    zone = berg.machines()["goes"]["zone"].rpartition("/")[2]
    berg.cloud.call("DELETE", f"/compute/v1/projects/berg-local/zones/{zone}/instances/goes")
    _, words = asking.communicate(timeout=120)
    assert asking.returncode == 1
    assert (
        "goes: it is gone" in words
        or "goes: the job ended before" in words
        or "goes: the command ended" in words
    ), words


def test_the_hottest_lines_of_a_profile(tmp_path):
    frames = [{"name": name, "file": "/root/code/a.py", "line": 7} for name in "abc"]
    samples = {"type": "sampled", "samples": [[0, 1], [0, 1], [0, 2], []], "weights": [3, 2, 4, 1]}
    file = tmp_path / "one.speedscope.json"
    file.write_text(json.dumps({"shared": {"frames": frames}, "profiles": [samples]}))
    assert board.hottest(file) == [" 50.0 %  b (a.py:7)", " 40.0 %  c (a.py:7)"]
    assert board.hottest(file, 1) == [" 50.0 %  b (a.py:7)"]
    assert board.hottest(tmp_path / "trace.json.gz") == []


def test_a_profile_of_what_is_not_there_does_not_begin(berg):
    refused = berg("profile", "nosuch")
    assert refused.returncode == 1 and "Profiling" not in refused.stderr, refused.stderr


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"shared": {"frames": []}, "profiles": [{"samples": [[7]], "weights": [1]}]}',
        '{"shared": {"frames": ["x"]}, "profiles": [{"samples": [[0]], "weights": ["1"]}]}',
        '{"shared": {"frames": ["x"]}, "profiles": [{"samples": [[0]], "weights": [1]}]}',
        '{"shared": {"frames": [{"name": "x"}, {"name": "y"}]}, "profiles": [{"samples": '
        f'[[0], [1]], "weights": [{10**400}, {1 - 10**400}]}}]}}',
    ],
)
def test_a_profile_that_is_none_has_no_hottest_lines(tmp_path, text):
    file = tmp_path / "a.speedscope.json"
    file.write_text(text)
    assert board.hottest(file) == []


def test_py_spy_comes_with_bergs_packages(monkeypatch, tmp_path, packages):
    """Also on a machine whose image has the packages already: it reads the archive, and no index."""
    monkeypatch.setenv("BERG_HOME", str(packages))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    name, content = dist.build()
    digest = hashlib.sha256(content).hexdigest()
    machine = SimpleNamespace(packages=f".berg/dist/{name}", packages_sha256=digest, bucket="b")
    machine.read = lambda name: (content, "1")
    monkeypatch.setattr(boot, "BERG", tmp_path)
    monkeypatch.setattr(profile, "TOOLS", tmp_path / "tools")
    program = profile.provide_py_spy(machine)
    shown = subprocess.run([program, "--version"], capture_output=True, text=True)
    assert shown.stdout.strip() == dist.PY_SPY.replace("==", " ")
    (tmp_path / "tools/bin/py-spy").unlink()
    machine.packages_sha256 = "of another archive"
    monkeypatch.setattr(profile.sys, "executable", "false")  # no pip
    with pytest.raises(BergError, match="could not be installed"):
        profile.provide_py_spy(machine)
