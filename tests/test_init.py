"""Setup: what init makes, what doctor finds, and that a setting is checked before it is written."""

import json
from pathlib import Path

from conftest import Cloud


def test_doctor_names_what_is_lacking_and_init_repairs_it(cloud: Cloud) -> None:
    assert cloud.run("doctor").code == 0
    role = "/iam/v1/projects/berg-local/roles/bergMachine"
    cloud.call("PATCH", role, {"includedPermissions": ["compute.instances.get"], "stage": "GA"})
    done = cloud.run("doctor", "--json")
    rows = {row["check"]: row for row in json.loads(done.out)}
    assert done.code == 1 and rows["account"]["status"] == "failed"
    assert rows["account"]["fix"] == "berg init" and rows["bucket"]["status"] == "ok"
    assert cloud.run("init", "--local", "-y").code == 0
    assert cloud.run("doctor").code == 0


def test_doctor_without_settings_says_where_to_begin(cloud: Cloud, tmp_path: Path) -> None:
    done = cloud.run("doctor", BERG_HOME=str(tmp_path))
    assert done.code == 1 and "berg init" in done.out and "rights" not in done.out
    (tmp_path / "berg.json").mkdir()
    for home in (tmp_path, Path(__file__)):  # neither is a folder with settings
        done = cloud.run("list", BERG_HOME=str(home))
        assert done.code == 1 and "berg.json" in done.err, done.err


def test_wrong_settings_are_refused_and_change_nothing(cloud: Cloud) -> None:
    before = (cloud.home / ".berg/berg.json").read_bytes()
    for key, value in {
        "region": "mars-west1", "zones": "us-central1-a,us-central1-zz", "bucket": "no-such-bucket-x",
        "network": "nowhere", "service_account": "nobody@berg-local.iam.gserviceaccount.com",
        "project": "no-such-project", "gpus": "many", "default_image": "none/no-such-image",
    }.items():  # fmt: skip
        done = cloud.run("config", "set", key, value)
        assert done.code == 1 and value.split(",")[-1].split("/")[-1] in done.err, (key, done.err)
    assert (cloud.home / ".berg/berg.json").read_bytes() == before


def test_a_setting_says_what_set_it(cloud: Cloud) -> None:
    assert cloud.run("config", "set", "zones", "us-central1-a,us-central1-b").code == 0
    shown = json.loads(cloud.run("config", "list", "--json", BERG_REGION="us-east1").out)
    assert shown["zones"] == ["us-central1-a", "us-central1-b"] and shown["region"] == "us-east1"
    assert shown["sources"]["zones"].endswith("berg.json")
    assert shown["sources"]["region"] == "BERG_REGION" and shown["sources"]["network"] == "default"
    assert cloud.run("config", "unset", "zones").code == 0
    assert cloud.run("config", "get", "zones").out.strip() == ""


def test_settings_and_the_repository_are_defaults_of_a_plan(cloud: Cloud, project: Path) -> None:
    plan = ("run", "--dry-run", "--install", "none", "true")
    done = cloud.run(
        *plan, cwd=project, BERG_GPUS="2", BERG_GPU_TYPE="t4", BERG_ZONES="us-central1-a"
    )
    assert "2 x t4" in done.out and "us-central1-b" not in done.out
    (project / "pyproject.toml").write_text("[tool.berg]\nnum-gpus = 0\ncpus = 4\n")
    assert "n1-standard-4" in cloud.run(*plan, cwd=project).out
    of_commands = '[tool.berg]\ndocker = "python:3.12"\nmax-silence = "1h"\n'
    (project / "pyproject.toml").write_text(of_commands)
    box = cloud.run("devbox", "-g", "0", "--dry-run", cwd=project)
    assert box.code == 0 and "python:3.12" not in box.out, box.err
    (project / "pyproject.toml").rename(project.parent / "pyproject.toml")  # of anybody
    assert "n1-standard-4" not in cloud.run(*plan, cwd=project, BERG_GPUS="0").out


def test_what_a_repository_cannot_say_is_refused(cloud: Cloud, project: Path) -> None:
    """It may set options of jobs; it answers no question, and takes nothing of this computer."""
    run = ("run", "-g", "0", "--dry-run", "true")
    for line, says in {
        "max-hour = 2": "max-hour is nothing",
        "yes = true": "yes is nothing",
        'env-file = "/etc/passwd"': "env-file is nothing",
        'env = ["HOME"]': "env needs NAME=VALUE",
        "max-hours = 'soon'": "soon",
        "max-hours = ": "not valid TOML",
    }.items():
        (project / "pyproject.toml").write_text(f"[tool.berg]\n{line}\n")
        done = cloud.run(*run, cwd=project)
        assert done.code in (1, 2) and says in done.err, (line, done.err)
    (project / "pyproject.toml").write_text(
        "[tool.berg]\nmax-hours = 2\nresults-dir = 'ours'\nenv = ['LR=1']\nno-external-ip = false\n"
    )
    plan = cloud.run(*run, "--json", cwd=project, BERG_NO_EXTERNAL_IP="true")
    assert plan.code == 1 and "without an external address" in plan.err, plan.err
    plan = cloud.run(*run, "--json", cwd=project)
    said = json.loads(plan.out)
    assert said["max_run_seconds"] == 7200 and said["results"].endswith("/ours/"), said


def test_settings_are_replaced_and_buckets_made_only_with_a_yes(
    cloud: Cloud, tmp_path: Path
) -> None:
    own = {"BERG_HOME": str(tmp_path)}
    (tmp_path / "berg.json").write_text('{"project": "mine", "bucket": "b"}')
    done = cloud.run("init", "--local", **own)
    assert done.code == 1 and "would replace" in done.err, done.err
    assert json.loads((tmp_path / "berg.json").read_text())["project"] == "mine"
    (tmp_path / "berg.json").unlink()
    google = {"BERG_ENDPOINT": cloud.config.endpoint}
    google["BERG_CREDENTIALS_FILE"] = cloud.config.credentials_file
    words = [
        "init",
        "--project",
        "berg-local",
        "--region",
        "us-central1",
        "--bucket",
        "made-by-init",
    ]
    done = cloud.run(*words, **own, **google)
    assert done.code == 1 and "answer with -y" in done.err, done.err
    assert not (tmp_path / "berg.json").exists()
    assert cloud.run(*words, "-y", **own, **google).code == 0
    made = cloud.call("GET", "/storage/v1/b/made-by-init")
    assert made["iamConfiguration"]["publicAccessPrevention"] == "enforced"
    saved = json.loads((tmp_path / "berg.json").read_text())
    assert saved["bucket"] == "made-by-init" and saved["service_account"].startswith("berg-worker@")
    cloud.call("DELETE", "/storage/v1/b/made-by-init")
    done = cloud.run("list", **own)
    assert done.code == 1 and "made-by-init does not exist. Create it: berg init" in done.err
    cloud.call("POST", "/storage/v1/b?project=berg-local", {"name": "made-by-init"})  # by somebody
    (tmp_path / "berg.json").unlink()
    assert cloud.run(*words, "-y", **own, **google).code == 0
    policy = cloud.call("GET", "/storage/v1/b/made-by-init/iam")
    assert saved["service_account"] in json.dumps(policy), "its machines may use it again"
    cloud.call("DELETE", "/storage/v1/b/made-by-init")


def test_what_doctor_finds_has_the_command_that_helps(cloud: Cloud) -> None:
    compute, services = (
        "/compute/v1/projects/berg-local",
        "/serviceusage/v1/projects/berg-local/services",
    )
    rules = cloud.call("GET", f"{compute}/global/firewalls")["items"]
    (rule,) = [row for row in rules if row["name"] == "default-allow-ssh"]
    cloud.call("DELETE", f"{compute}/global/firewalls/default-allow-ssh")
    cloud.call("POST", f"{services}/iam.googleapis.com:disable", {})
    try:
        done = cloud.run("doctor", "--json")
    finally:
        cloud.call("POST", f"{services}/iam.googleapis.com:enable", {})
        kept = {
            key: rule[key] for key in ("name", "network", "allowed", "sourceRanges", "direction")
        }
        cloud.call("POST", f"{compute}/global/firewalls", kept)
    rows = {row["check"]: row for row in json.loads(done.out)}
    assert done.code == 1 and rows["apis"]["status"] == "failed"
    assert rows["apis"]["fix"].startswith("gcloud services enable iam.googleapis.com")
    assert rows["network"]["status"] == "warning"
    assert "firewall-rules create default-allow-ssh --allow tcp:" in rows["network"]["fix"]


def test_shells_complete(cloud: Cloud) -> None:
    assert "_BERG_COMPLETE=zsh_complete" in cloud.run("completion", "zsh").out
