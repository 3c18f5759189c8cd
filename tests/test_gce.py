"""What is asked of Google for a machine."""

from types import SimpleNamespace

import pytest

from berg import gce


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("spot", [True, False])
def test_google_restarts_no_spot_machine(is_restarted, spot):
    """Google refuses a request that asks for both, such as that of `berg devbox --spot`."""
    job = SimpleNamespace(is_restarted=is_restarted, tpu="")
    offer = SimpleNamespace(shape=SimpleNamespace(num_gpus=0), reservation=None)
    model = "SPOT" if spot else "STANDARD"
    plan = SimpleNamespace(machine_seconds=60, job=job, spot=spot, model=model, offer=offer)
    asked = gce.scheduling(plan)
    assert asked["automaticRestart"] is (is_restarted and not spot)
    assert (asked.get("provisioningModel") == "SPOT") is spot
