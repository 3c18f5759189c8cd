"""Defaults of a repo, and `berg config set`, through the real command line."""

import json

import pytest
from conftest import Berg

from berg import plan as defaults

REPO = """
[tool.berg]
gpu-type = "t4"
num-gpus = 2
num-cpus = 4
disk-gb = 70
zones = ["us-central1-b"]
install-script = "setup.sh"
env = {WISH = "repo", LEVEL = 3}
results-dir = "mnist"
"""


def planned(berg: Berg, *arguments: str, **env: str) -> tuple[str, dict]:
    """The plan, and the request for the machine."""
    ran = berg("run", "--dry-run", "--json", *arguments, **env)
    assert ran.returncode == 0, ran.stderr
    return ran.stderr, json.loads(ran.stdout)["request"]


def refused(berg: Berg, *arguments: str, says: tuple[str, ...]) -> None:
    ran = berg(*arguments)
    assert (ran.returncode, ran.stdout) == (1, "") and "Traceback" not in ran.stderr, (
        ran.stdout,
        ran.stderr,
    )
    for part in says:
        assert part in ran.stderr, ran.stderr


@pytest.mark.parametrize(
    "file", ["pyproject.toml", pytest.param("berg.toml", marks=pytest.mark.slow)]
)
def test_a_repo_says_what_its_jobs_are(berg, file):
    (berg.repo / file).write_text(
        REPO if file == "pyproject.toml" else REPO.replace("[tool.berg]", "")
    )
    (berg.repo / "setup.sh").write_text("echo installing for $WISH\n")
    (berg.repo / "inner").mkdir()
    plan, _ = planned(berg, "-n", "job", "true")
    assert "n1-standard-4 with 2 x t4, 70 GB disk" in plan and "berg_results/mnist/job" in plan
    row = next(line for line in plan.splitlines() if line.startswith("Defaults"))
    assert f"(of {file})" in row and "gpu-type = t4" in row and "env = WISH=repo, LEVEL=3" in row
    ran = berg(
        "run",
        "-g",
        "0",
        "-n",
        "job",
        "--env",
        "LEVEL=4",
        "--wait",
        "echo $WISH $LEVEL",
        cwd=berg.repo / "inner",
    )
    assert ran.returncode == 0, ran.stderr
    assert "\ninstalling for repo\n" in berg.log("job") and "\nrepo 4\n" in berg.log("job")
    assert "us-central1-b" in berg.state("job")["zone"]
    assert "berg_results/mnist/job/berg_job_metadata.json" in berg.objects("berg_results/")


def test_what_is_given_comes_first(berg):
    (berg.repo / "berg.toml").write_text(REPO.replace("[tool.berg]", 'image = "no-such-image"'))
    (berg.repo / "setup.sh").write_text("true\n")
    image = ("--image", "common-cu124-v20250325-debian-11-py310")
    refused(berg, "run", "--dry-run", "--json", "true", says=("'no-such-image'",))
    plan, body = planned(
        berg, *image, "-t", "v100", "--zone", "us-central1-a", "--disk-gb", "80", "true"
    )
    assert {"key": "install-nvidia-driver", "value": "True"} in body["metadata"]["items"]
    assert "2 x v100, 80 GB disk" in plan and "n1-standard-16" in plan, (
        "the repo's 4 CPUs were for its own GPUs"
    )
    assert "Zones     us-central1-a" in plan
    row, left_out = plan.partition("Defaults")[2].splitlines()[:2]
    assert (
        "num-gpus = 2" in row
        and "gpu-type" not in row
        and "zones" not in row
        and "num-cpus" not in row
    )
    assert left_out.strip().startswith(
        "not image = no-such-image, gpu-type = t4, num-cpus = 4, disk-gb = 70, zones ="
    )
    assert left_out.endswith("(of berg.toml): what is given comes first")
    plan, _ = planned(berg, *image, "--machine-type", "g2-standard-4", "true")
    assert "g2-standard-4 with 1 x l4" in plan
    plan, _ = planned(berg, "true", BERG_ZONES="us-central1-a", BERG_DEFAULT_IMAGE=image[1])
    assert "Zones     us-central1-a" in plan and "zones = us-central1-a (of BERG_ZONES)\n" in plan
    assert (
        f"image = {image[1]} (of BERG_DEFAULT_IMAGE)\n" in plan
        and "not image = no-such-image, zones = us" in plan
    )
    given = planned(berg, *image, "--zone", "us-central1-a", "true", BERG_ZONES="us-central1-b")[0]
    assert "BERG_ZONES" not in given, "it has no part in it"
    named, _ = planned(berg, *image, "-r", "mine", "true")
    assert "berg_results/mine\n" in named
    guessed, _ = planned(berg, *image, "echo > /root/berg_results/own/x")
    assert "berg_results/own/x\n" in guessed


def test_the_users_settings_come_after_the_repo(berg):
    settings = json.loads((berg.home / "berg.json").read_text())
    berg.write_config(**settings, zones=["us-central1-a"])
    of_user = planned(berg, "-g", "0", "true")[0]
    assert "Zones     us-central1-a" in of_user
    assert f"Defaults  zones = us-central1-a (of {berg.home / 'berg.json'})\n" in of_user
    (berg.repo / "berg.toml").write_text('zones = ["us-central1-b"]\n')
    of_repo = planned(berg, "-g", "0", "true")[0]
    assert "Zones     us-central1-b" in of_repo and "berg.json" not in of_repo


def machines(plan: str) -> str:
    return next(line for line in plan.splitlines() if line.startswith("Machine"))


def test_a_person_has_gpus_of_their_own(berg):
    assert berg("config", "set", "gpu_type", "t4").returncode == 0
    assert berg("config", "set", "gpus", "4").returncode == 0
    plan, _ = planned(berg, "true")
    assert "4 x t4" in machines(plan)
    assert f"gpu-type = t4 (of {berg.home}/berg.json)" in plan and "num-gpus = 4 (of" in plan
    for words, what in (
        (["-g", "2"], "2 x t4"),
        (["-t", "l4"], "4 x l4"),
        (["-g", "0"], "n1-standard-8"),
        (["--machine-type", "n1-standard-2"], "n1-standard-2"),
        (["--machine-type", "a2-highgpu-1g"], "1 x a100"),
    ):
        plan, _ = planned(berg, *words, "true")
        assert what in machines(plan), plan
    plan, _ = planned(berg, "true", BERG_GPUS="1")
    assert "1 x t4" in machines(plan) and "num-gpus = 1 (of BERG_GPUS)" in plan
    (berg.repo / "berg.toml").write_text('gpu-type = "l4"\n')
    plan, _ = planned(berg, "true")
    assert "1 x l4" in machines(plan) and "(of berg.toml)" in plan and "berg.json" not in plan
    plan, _ = planned(berg, "true", BERG_GPUS="2")
    assert "2 x l4" in machines(plan)
    (berg.repo / "berg.toml").write_text('machine-type = "n1-standard-2"\n')
    plan, _ = planned(berg, "true")
    assert "n1-standard-2" in machines(plan) and "t4" not in machines(plan)
    refused(berg, "config", "set", "gpu_type", "k9", says=("unknown GPU type 'k9'",))
    refused(berg, "config", "set", "gpus", "many", says=("gpus must be a whole number",))


def test_every_variable_that_is_a_setting_is_named_with_its_value(berg):
    variables = {
        "BERG_REGION": "us-east1",
        "BERG_NETWORK": "default",
        "BERG_DEFAULT_DOCKER_IMAGE": "python:3.12",
    }
    plan, _ = planned(berg, "-g", "0", "true", **variables)
    assert (
        "Defaults  region = us-east1 (of BERG_REGION)\n" in plan and "Zones     us-east1-" in plan
    )
    assert "          network = default (of BERG_NETWORK)\n" in plan
    assert "BERG_DEFAULT_DOCKER_IMAGE" not in plan and "BERG_HOME" not in plan, (
        "they have no part in it"
    )


def test_a_sweep_has_its_folder_below_that_of_the_repo(berg):
    (berg.repo / "berg.toml").write_text('results-dir = "mnist"\n')
    ran = berg(
        "run", "-g", "0", "-n", "grid", "--grid", "lr=1,2", "--dry-run", "--json", "echo {lr}"
    )
    assert ran.returncode == 0 and "mnist/grid/0" in ran.stderr and "mnist/grid/1" in ran.stderr, (
        ran.stderr
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gpu-type = t4", ("berg.toml", "line 1", "cannot read")),
        ("gpu_type = 't4'", ("berg.toml", "no key 'gpu_type'", "gpu-type")),
        ("num-gpus = '2'", ("'num-gpus' must be a number",)),
        ("num-gpus = 1.5", ("'num-gpus' must be a number",)),
        ("disk-gb = true", ("'disk-gb' must be a number",)),
        ("zones = 'us-central1-a'", ("'zones' must be a list of texts",)),
        ("env = ['A=b']", ("'env' must be a table",)),
        ("spot = 'yes'", ("'spot' must be true or false",)),
        ("env = {BERG_JOB = 'x'}", ("BERG_JOB", "set by berg")),
        ("install-script = 'nope.sh'", ("nope.sh", "is not a file")),
        ("results-dir = '../up'", ("'../up/job'",)),
    ],
)
def test_a_wrong_default_is_named(berg, text, says):
    (berg.repo / "berg.toml").write_text(text)
    refused(berg, "run", "-g", "0", "-n", "job", "true", says=says)
    assert berg.machines() == {} and berg.objects(".berg/jobs/") == {}


def test_two_places_for_defaults_are_one_too_many(berg):
    (berg.repo / "berg.toml").write_text("spot = true\n")
    (berg.repo / "pyproject.toml").write_text("[tool.other]\nx = 1\n")
    assert ", spot" in planned(berg, "-g", "0", "true")[0]
    (berg.repo / "pyproject.toml").write_text("[tool.berg]\nspot = false\n")
    refused(berg, "run", "-g", "0", "true", says=("berg.toml and [tool.berg]", "Keep one"))
    (berg.repo / "pyproject.toml").write_text("[tool]\nberg = 3\n")
    (berg.repo / "berg.toml").unlink()
    refused(berg, "run", "-g", "0", "true", says=("pyproject.toml", "tool.berg"))


def test_durations_of_a_repo_and_of_options_have_units(berg):
    (berg.repo / "berg.toml").write_text('max-hours = "90m"\nsample-seconds = "1m"\n')
    shown = berg("run", "-g", "0", "-n", "job", "--dry-run", "--json", "true")
    assert "1h 30m" in shown.stderr and shown.returncode == 0, shown.stderr
    for text in ("2h", "120m", "7200s", "2"):
        shown = berg("run", "-g", "0", "--max-hours", text, "--dry-run", "--json", "true")
        assert "2h" in shown.stderr, text
    (berg.repo / "berg.toml").write_text('max-hours = "soon"\n')
    refused(berg, "run", "-g", "0", "true", says=("'max-hours' must be a duration, such as 90s",))
    (berg.repo / "berg.toml").unlink()
    words = ("run", "-g", "0", "--flex", "true", "--queue-timeout")
    for text in ("48", "soon", "nan", "h"):
        done = berg(*words, text)
        assert done.returncode == 2 and f"'{text}' is not a duration" in done.stderr
    assert berg("config", "set", "max_stopped_days", "3d").returncode == 0
    assert berg("config", "get", "max_stopped_days").stdout == "3\n"
    refused(berg, "config", "set", "max_stopped_days", "36h", says=("whole days",))


def test_every_key_is_explained():
    from test_readme import ROOT

    page = (ROOT / "docs/settings.md").read_text()
    assert [key for key in defaults.KEYS if f"`{key}`" not in page] == []


def test_settings_are_set_and_taken_out(berg):
    def setting(key: str):
        return json.loads(berg("config", "show", "--json").stdout)[key]

    assert berg("config", "set", "zones", "us-central1-a,us-central1-f").returncode == 0
    assert setting("zones") == ["us-central1-a", "us-central1-f"]
    assert berg("config", "get", "zones").stdout == "us-central1-a,us-central1-f\n"
    assert berg("config", "get", "region", BERG_REGION="europe-west4").stdout == "europe-west4\n"
    assert berg("config", "set", "ssh_port", "2222").returncode == 0 and setting("ssh_port") == 2222
    said = berg("config", "set", "user", "somebody", BERG_USER="other").stderr
    assert 'user is "somebody"' in said and "BERG_USER is set, and takes precedence" in said
    bucket = setting("bucket")
    assert berg("config", "unset", "zones").returncode == 0 and setting("zones") == []
    assert (
        "zones" not in json.loads((berg.home / "berg.json").read_text())
        and setting("bucket") == bucket
    )
    before = (berg.home / "berg.json").read_text()
    for words in (("set", "colour", "blue"), ("unset", "colour"), ("get", "colour")):
        unknown = berg("config", *words)
        assert (unknown.returncode, unknown.stdout) == (2, "")
        assert "'colour' is not one of" in unknown.stderr and "'default_image'" in unknown.stderr
    refused(
        berg,
        "config",
        "set",
        "ssh_port",
        "many",
        says=("ssh_port must be a whole number, not 'many'",),
    )
    refused(berg, "config", "set", "ssh_port", "70000", says=("1 to 65535",))
    refused(berg, "config", "set", "zones", "mars", says=("'mars' is not a zone",))
    refused(berg, "config", "set", "bucket", "", says=("berg config unset bucket",))
    refused(berg, "config", "set", "endpoint", "google", says=("berg config unset endpoint",))
    assert (berg.home / "berg.json").read_text() == before
    (berg.home / "berg.json").write_text("{broken")
    refused(berg, "config", "set", "user", "me", says=("not valid JSON at line 1",))
