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
    (project / "pyproject.toml").rename(project.parent / "pyproject.toml")  # of anybody
    assert "n1-standard-4" not in cloud.run(*plan, cwd=project, BERG_GPUS="0").out


def test_shells_complete(cloud: Cloud) -> None:
    assert "_BERG_COMPLETE=zsh_complete" in cloud.run("completion", "zsh").out
