"""What is asked of Google for a machine."""

from types import SimpleNamespace

import pytest

from berg import gce
from berg.config import Config
from berg.google import instances


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("spot", [True, False])
def test_google_restarts_no_spot_machine(is_restarted, spot):
    """Google refuses a request that asks for both, such as that of `berg devbox --spot`."""
    job = SimpleNamespace(is_restarted=is_restarted, tpu="", keeps_disk=spot)
    offer = SimpleNamespace(shape=SimpleNamespace(num_gpus=0, stop_action={}), reservation=None)
    model = "SPOT" if spot else "STANDARD"
    plan = SimpleNamespace(machine_seconds=60, job=job, model=model, offer=offer)
    asked = gce.scheduling(plan)
    assert asked["automaticRestart"] is (is_restarted and not spot)
    assert (asked.get("provisioningModel") == "SPOT") is spot
    assert asked["instanceTerminationAction"] == ("STOP" if spot else "DELETE")


def test_filters_are_bracketed_and_quoted():
    """As Google's reference writes them where there are several."""
    asked = instances.ours(Config(bucket="my.bucket"))
    assert asked == '(labels.berg="1") AND (labels.berg-bucket="my-bucket")'


@pytest.mark.parametrize("options", [(), ("--spot",), ("-m", "2")], ids=["one", "group", "bulk"])
def test_a_free_trial_is_named_and_no_other_zone_is_tried(berg, cloud, options):
    cloud.call("POST", "/_berg/settings", {"free_trial": 1})
    done = berg("run", "-t", "l4", "-n", "trial", *options, "true")
    assert done.returncode == 1 and berg.machines() == {}
    said = " ".join(done.stderr.split())
    assert "currently in the free tier where non-TPU accelerators are not available" in said
    assert "Upgrade it to a paid account, which keeps its credit" in said, said
    assert "Try other zones" not in said and "Creating the machine in us-central1-b" not in said
    started = berg("run", "-g", "0", "-n", "plain", "sleep 600")
    assert started.returncode == 0, started.stderr
    assert berg("kill", "--now", "plain").returncode == 0
