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
    job = SimpleNamespace(is_restarted=is_restarted, tpu="", stops_when_idle=spot)
    offer = SimpleNamespace(shape=SimpleNamespace(num_gpus=0), reservation=None)
    model = "SPOT" if spot else "STANDARD"
    plan = SimpleNamespace(machine_seconds=60, job=job, spot=spot, model=model, offer=offer)
    asked = gce.scheduling(plan)
    assert asked["automaticRestart"] is (is_restarted and not spot)
    assert (asked.get("provisioningModel") == "SPOT") is spot
    assert asked["instanceTerminationAction"] == ("STOP" if spot else "DELETE")


def test_filters_are_bracketed_and_quoted():
    """As Google's reference writes them where there are several."""
    asked = instances.ours(Config(bucket="my.bucket"))
    assert asked == '(labels.berg="1") AND (labels.berg-bucket="my-bucket")'
