import json

import pytest

from berg import BergError, job, validation
from berg.spec import JobSpec


def test_results_dir_is_read_off_the_command():
    guess = validation.sketchy_guess_at_results_dir_from_cmd
    assert (
        guess("python train.py --bs=256 --logdir=/root/berg_results/sweep1/bs_256")
        == "sweep1/bs_256"
    )
    assert guess("python train.py --logdir '/root/berg_results/a/b/' --x") == "a/b"
    assert guess("python a.py >/root/berg_results/x/log; true") == "x"
    assert guess("python a.py 2>&1 | tee -a /root/berg_results/x/log") == "x"
    assert guess("python a.py --out=/root/berg_results/x/model.safetensors") == "x"
    assert guess("python a.py --out /root/berg_results/x/model") == "x"
    assert guess("python a.py --save_path=/root/berg_results/x/best") == "x"
    assert (
        guess("python a.py --log-file /root/berg_results/x/run7")
        == "x"
        == guess("cc -o /root/berg_results/x/a a.c")
    )
    assert guess("python a.py --out /root/berg_results/model") is None
    assert guess("python a.py --out=/root/berg_results/sweep1/run7") == "sweep1/run7"
    assert guess("python a.py --model_dir /root/berg_results/x/model") == "x/model"
    assert guess("python a.py --logdir /root/berg_results/x/log") == "x/log"
    assert guess("python a.py --out '/root/berg_results/my runs/one'") == "my runs/one"
    assert guess(r"python a.py --out /root/berg_results/my\ runs/one") == "my runs/one"
    assert guess("bash -c 'python a.py --out /root/berg_results/a b'") == "a"
    assert guess("python -c \"open('/root/berg_results/x/f.txt', 'w')\"") == "x"
    assert guess("python a.py dir=/root/berg_results/a/b,lr=3") == "a/b"
    assert guess("python a.py --out /root/berg_results/a/run_$SEED/x") == "a"
    assert guess("python a.py --out /root/berg_results/run-$(date +%F)") is None
    assert guess("OUT=/root/berg_results/v1.5 python a.py; echo don't") == "v1.5"
    assert guess("python a.py > /root/berg_results/lr_0.1/out.log") == "lr_0.1"
    assert guess("python a.py > /root/berg_results/out.log") is None
    assert guess("ls /root/berg_results/") is None
    assert guess("python train.py") is None


@pytest.mark.parametrize("bad", ["", "/abs", "a//b", "../x", "a/./b", "a\nb", "a*", "a#b"])
def test_results_dirs_that_would_leave_their_folder_are_refused(bad):
    with pytest.raises(BergError, match="results dir"):
        validation.check_results_dir(bad)


@pytest.mark.parametrize(
    "bad", ["", "Upper", "1digit", "under_score", "dash-", "a" * 64, "ü", "a b", "a\n"]
)
def test_names_that_compute_engine_refuses_are_refused_here(bad):
    with pytest.raises(BergError, match="berg run -n"):
        job.check_name(bad)


@pytest.mark.parametrize("repo", ["My Repo", "123", "_", "x" * 100, "ünï", "-a-", "berg"])
def test_made_names_are_names(repo):
    names = {job.new_name(repo) for _ in range(50)}
    assert all(job.NAME.fullmatch(name) for name in names)
    assert len(names) > 40


def make_job(**changes) -> job.Job:
    values = {
        "job_name": "a",
        "cmd": "x",
        "results_dir": "a",
        "gcs_results_dir": "gs://b/berg_results/a",
    }
    values |= {
        "repo_name": "r",
        "git_commit": "c",
        "git_snapshot": "c",
        "snapshot": {"commit": "c"},
    }
    return job.Job(**{**values, **changes})


def test_a_job_survives_its_json():
    before = make_job(cmd="échø 'x y' \"$Z\"", env={"K": "v=1"}, max_run_seconds=60)
    before.spec = JobSpec(zones=("a", "b"), pod_patch={"spec": {"x": [1]}}, max_cost=1.5)
    assert job.from_json(before.to_json().encode(), "a") == before


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"job_name": "a"}',
        make_job(results_dir="../x").to_json().encode(),
        make_job(git_snapshot="--upload-pack=evil").to_json().encode(),
        make_job(git_snapshot="c0ffee\n").to_json().encode(),
        make_job(git_snapshot="").to_json().encode(),
        make_job(snapshot={"commit": "HEAD"}).to_json().encode(),
        make_job(snapshot={"commit": "c", "submodules": {"lib": {"commit": "-x"}}})
        .to_json()
        .encode(),
    ],
)
def test_a_damaged_job_is_named(data):
    with pytest.raises(BergError, match="a_metadata.json is damaged.*berg run"):
        job.from_json(data, "a")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cmd": " "}, "cmd is empty"),
        ({"cmd": ["ls"]}, "cmd is"),
        ({"num_machines": "2"}, "num_machines is '2'"),
        ({"num_machines": 0}, "num_machines is 0"),
        ({"num_machines": True}, "num_machines is 'True'"),
        ({"env": None}, "env is 'None'"),
        ({"env": {"A": None}}, "env is"),
        ({"env": {"A": "x\0y"}}, "a text has a NUL"),
        ({"env": {"A=B": "x"}}, "env has a name that is none"),
        ({"repo_name": "../x"}, "repo_name is '../x'"),
        ({"run_on": "all"}, "run_on is 'all'"),
        ({"max_run_seconds": -1}, "max_run_seconds is -1"),
        ({"snapshot": "x"}, "snapshot is 'x'"),
        ({"installation": []}, "it is no JSON object"),
        ({"installation": {"venv": "../.venv"}}, "its installation has the path '../.venv'"),
        ({"installation": {"folder": "/etc"}}, "its installation has the path '/etc'"),
        ({"installation": {"steps": ["pip install x"]}}, "steps is"),
        ({"installation": {"steps": [[]]}}, "its installation has odd steps"),
        ({"installation": {"steps": [["a\0b"]]}}, "a text has a NUL"),
        ({"installation": {"may_fail": [0]}}, "its installation has odd steps"),
        ({"installation": {"python": "3.12; rm"}}, "its installation has the python"),
        ({"install_secrets": "TOKEN"}, "install_secrets is 'TOKEN'"),
        ({"spec": []}, "spec: it is no JSON object"),
        ({"spec": {"num_gpus": "1"}}, "num_gpus is '1'"),
        ({"spec": {"zones": [1]}}, "zones is"),
        ({"spec": {"max_restarts": -1}}, "--max-restarts -1 is not possible"),
        ({"spec": {"cluster": "../x"}}, "'../x' is no name of a resource"),
        ({"spec": {"image": "../x/y"}}, "'../x' is no project"),
        ({"spec": {"install_script": "a\0b"}}, "a text has a NUL"),
    ],
)
def test_an_odd_job_is_refused_with_what_is_odd(changes, says):
    data = json.dumps({**json.loads(make_job().to_json()), **changes}).encode()
    with pytest.raises(BergError, match="a_metadata.json is damaged") as error:
        job.from_json(data, "a")
    assert says in error.value.message


def test_deep_nesting_is_damage():
    deep = b"[" * 100_000
    with pytest.raises(BergError, match="damaged"):
        job.from_json(deep, "a")
    with pytest.raises(ValueError, match="no state"):
        job.state_from_json(deep)


@pytest.mark.parametrize(
    "odd",
    [[], {"state": "READY"}, {"state": []}, {"restarts": "1"}, {"exit_code": "1"}, {"job": []}],
)
def test_an_odd_state_is_none(odd):
    values = odd if isinstance(odd, list) else {**json.loads(job.State().to_json()), **odd}
    with pytest.raises(ValueError, match="no state"):
        job.state_from_json(json.dumps(values))
    with pytest.raises(ValueError, match="job: machines is"):
        job.state_from_json(json.dumps({"state": "RUNNING", "job": {"machines": "three"}}))


def test_a_job_of_another_name_or_of_a_newer_berg_is_refused():
    with pytest.raises(BergError, match="damaged"):
        job.from_json(make_job().to_json().encode(), "b")
    with pytest.raises(BergError, match="newer"):
        job.from_json(make_job(version=99, berg_version="9.0").to_json().encode(), "a")


def test_unknown_fields_of_a_state_are_passed_over():
    state = job.State(state="RUNNING")
    text = json.dumps({**json.loads(state.to_json()), "later": 1})
    assert job.state_from_json(text) == state
    assert [s for s in (*job.ACTIVE, *job.FINAL) if job.State(state=s).final] == list(job.FINAL)


@pytest.mark.parametrize(
    ("cmd", "params", "reason"),
    [
        ("x" * 20_000, {}, ""),
        ("🚀\n" * 20_000, {}, "🚀" * 5000),
        ("x", {f"param{n}": str(n) for n in range(3000)}, "e" * 9000),
        ("x", {"🚀" * 3000: "日" * 3000, "lr": "0.1"}, "é" * 4000),
    ],
)
def test_a_state_fits_into_custom_metadata(cmd, params, reason):
    """Cloud Storage takes 8 KiB of it for an object, keys counted."""
    folder = "日" * 330
    this = make_job(cmd=cmd, params=params, sweep="s", results_dir=folder, created_by="ü" * 100)
    state = job.State(job=this.summary(), reason=reason, machine="m" * 63, zone="us-central1-a")
    text = state.to_json()
    assert len("state") + len(text.encode()) <= 8192
    again = job.state_from_json(text)
    assert (again.job.results_dir, again.job.repo, again.machine) == (folder, "r", "m" * 63)
    assert again.to_json() == text and state.reason == reason
    assert again.reason[:29] == reason[:29] and again.job.cmd[:29] == cmd[:29]
    short = job.State(job=make_job(cmd="python train.py").summary(), reason="it failed")
    assert job.state_from_json(short.to_json()) == short
