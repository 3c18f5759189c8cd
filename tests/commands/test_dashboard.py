"""`berg dashboard`, and what machines write for it where `berg init --monitoring` said so."""

import json
import time
from dataclasses import replace
from datetime import datetime, timezone

import nvidia_smi
import pytest
from conftest import wait_for
from local_gcloud import Gcloud

from berg.machine.usage import points
from berg.watch import dashboard
from localcloud.identity.tokens import LAPTOP, Tokens

DASHBOARDS = "/monitoring/v1/projects/berg-local/dashboards"


@pytest.fixture(autouse=True)
def none_before(cloud):
    for each in cloud.call("GET", DASHBOARDS).get("dashboards", []):
        cloud.call("DELETE", f"/monitoring/v1/{each['name']}")


def written(cloud, metric: str) -> list[dict]:
    now = datetime.fromtimestamp(time.time() + 60, timezone.utc).isoformat().replace("+00:00", "Z")
    query = f"filter=metric.type%3D%22{metric}%22&interval.startTime=2020-01-01T00:00:00Z&interval.endTime={now}"
    return cloud.call("GET", f"/monitoring/v3/projects/berg-local/timeSeries?{query}").get(
        "timeSeries", []
    )


@pytest.mark.slow
def test_made_shown_brought_up_to_date_and_deleted(berg, cloud, tmp_path):
    missing = berg("dashboard", "--delete", "-y")
    assert (
        missing.returncode == 1
        and "has no dashboard of berg's. To create it: berg dashboard\n" in missing.stderr
    )
    assert cloud.call("GET", DASHBOARDS) == {}, "nothing was made"
    made = berg("dashboard")
    assert made.returncode == 0 and "Created Berg training" in made.stderr, made.stderr
    assert "are empty until machines may write them: berg init --monitoring" in made.stderr
    (there,) = cloud.call("GET", DASHBOARDS)["dashboards"]
    id = there["name"].rpartition("/")[2]
    assert made.stdout == "" and "The embedded cloud keeps it, and has no page" in made.stderr
    console = "https://console.cloud.google.com/monitoring/dashboards/builder"
    of_google = replace(cloud.settings(), endpoint="")
    assert dashboard.address(of_google, there) == f"{console}/{id}?project=berg-local"
    cloud.call(
        "PATCH",
        f"/monitoring/v1/{there['name']}",
        {**dashboard.body(), "mosaicLayout": {"columns": 1}, "etag": there["etag"]},
    )
    again = berg("dashboard", "--json", BERG_MONITORING="1")
    assert "Updated Berg training" in again.stderr and "are empty" not in again.stderr
    shown = json.loads(again.stdout)
    assert (
        shown["name"] == there["name"] and shown["mosaicLayout"] == dashboard.body()["mosaicLayout"]
    )
    # A filter with a variable holds only for charts that name the variable.
    assert [each for each in shown["dashboardFilters"] if each["labelKey"] == "berg-job"]
    assert not [each for each in shown["dashboardFilters"] if "templateVariable" in each]
    titles = berg("dashboard")
    assert "\n  CPU\n" in titles.stderr
    assert "\n  Network\n" in titles.stderr
    assert berg("dashboard", "--delete", "--json").returncode == 2
    gcloud = Gcloud(cloud.url, "berg-local", Tokens(cloud.folder).mint(LAPTOP), tmp_path)
    assert "Berg training" in gcloud("monitoring", "dashboards", "list")
    assert (
        gcloud("monitoring", "dashboards", "describe", there["name"]).count(
            "custom.googleapis.com/berg/"
        )
        == 3
    )
    assert (
        berg("dashboard", "--delete", stdin="n\n").returncode == 130
        and cloud.call("GET", DASHBOARDS)["dashboards"]
    )
    assert (
        berg("dashboard", "--delete", "-y").returncode == 0 and cloud.call("GET", DASHBOARDS) == {}
    )


def test_a_dashboard_of_somebody_else_is_left_alone(berg, cloud):
    theirs = {**dashboard.body(), "labels": {}}
    cloud.call("POST", DASHBOARDS, theirs)
    assert berg("dashboard", "--delete", "-y").returncode == 1
    assert "Created" in berg("dashboard").stderr
    assert berg("dashboard", "--delete", "-y").returncode == 0
    assert [each.get("labels", {}) for each in cloud.call("GET", DASHBOARDS)["dashboards"]] == [{}]


def test_what_one_may_not_do_is_a_sentence(berg, cloud):
    cloud.fault("monitoring.projects.dashboards.list", status=403, times=1)
    refused = berg("dashboard")
    assert (
        refused.returncode == 1
        and "you lack roles/monitoring.dashboardEditor on berg-local" in refused.stderr
    )
    with cloud.without("monitoring"):
        off = berg("dashboard")
    mend = "gcloud services enable monitoring.googleapis.com --project berg-local"
    assert (
        off.returncode == 1
        and f"the Cloud Monitoring API of berg-local is off. Turn it on: {mend}" in off.stderr
    )


@pytest.mark.slow
def test_init_gives_the_machines_account_the_right_to_write_metrics_and_jobs_use_it(berg, cloud):
    known = berg.cloud.settings()
    where = {"BERG_ENDPOINT": known.endpoint, "BERG_CREDENTIALS_FILE": known.credentials_file}

    def init(*more: str):
        """Set up anew, with the embedded cloud in Google's place."""
        file = berg.home / "berg.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), "endpoint": None}))
        wanted = [
            "--project",
            "berg-local",
            "--region",
            "us-central1",
            "--bucket",
            berg.bucket_name,
            "-y",
        ]
        return berg("init", *wanted, *more, **where)

    without = init()
    assert without.returncode == 0, without.stderr
    assert "metricWriter" not in without.stderr
    done = init("--monitoring")
    assert done.returncode == 0, done.stderr
    assert (
        "roles/monitoring.metricWriter in the project berg-local, to write metrics and no more"
        in done.stderr
    )
    settings = json.loads((berg.home / "berg.json").read_text())
    assert settings["monitoring"] == 1
    assert "nothing was changed" in init().stderr, "it stays as it was answered"
    options = nvidia_smi.bring(berg.repo, nvidia_smi.busy(87, 3))
    ran = berg("run", "-n", "busy", *options, "--sample-seconds", "1", "--wait", "sleep 5")
    assert ran.returncode == 0, ran.stderr
    assert "Cloud Monitoring" not in berg.log("busy")
    found = {
        each["metric"]["labels"]["accelerator"]: each
        for each in written(cloud, "custom.googleapis.com/berg/accelerator_percent")
    }
    values = {
        key: [point["value"]["doubleValue"] for point in each["points"]]
        for key, each in found.items()
    }
    assert values == {"0": [87.0], "1": [3.0]}, "once a minute, not with each sample"
    labels = found["0"]["resource"]["labels"]
    assert (
        labels["instance_id"].isdigit()
        and labels["zone"].startswith("us-central1-")
        and labels["project_id"] == "berg-local"
    )
    (memory,) = written(cloud, "custom.googleapis.com/berg/memory_percent")
    assert 0 < memory["points"][0]["value"]["doubleValue"] < 100
    assert len(written(cloud, "custom.googleapis.com/berg/accelerator_memory_percent")) == 2
    no = init("--no-monitoring")
    assert (
        no.returncode == 0 and json.loads((berg.home / "berg.json").read_text())["monitoring"] == 0
    )


@pytest.mark.slow
def test_a_machine_that_may_not_write_says_so_once_and_the_job_goes_on(berg, cloud):
    berg.allowed.append(500)
    cloud.fault("monitoring.projects.timeSeries.create", status=403, times=9)
    ran = berg(
        "run",
        "-g",
        "0",
        "-n",
        "mute",
        "--sample-seconds",
        "1",
        "--wait",
        "sleep 4",
        BERG_MONITORING="1",
    )
    assert ran.returncode == 0, ran.stderr
    wait_for(
        lambda: berg.log("mute").count("Cloud Monitoring gets no samples of this machine") == 1
    )


def test_a_sample_as_time_series():
    config = type("Settings", (), {"project": "p"})
    gpus = [
        {"index": 0, "percent": None, "memory_mb": 10, "memory_total_mb": 40},
        {"index": 1.0, "percent": 5.0},
    ]
    found = points(config, "z", "7", {"time": 0, "memory_percent": 3, "gpus": gpus, "tpus": None})
    values = [(each["metric"], each["points"][0]["value"]["doubleValue"]) for each in found]
    own = "custom.googleapis.com/berg/"
    assert values == [
        ({"type": f"{own}memory_percent"}, 3.0),
        ({"type": f"{own}accelerator_memory_percent", "labels": {"accelerator": "0"}}, 25.0),
        ({"type": f"{own}accelerator_percent", "labels": {"accelerator": "1"}}, 5.0),
    ]
    assert found[0]["points"][0]["interval"] == {"endTime": "1970-01-01T00:00:00Z"}
    assert points(config, "z", "7", {"memory_percent": None}) == []
