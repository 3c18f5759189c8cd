"""What Google says of its room for Spot machines: shown, and the zones in that order."""

import pytest

PLAN = ("run", "--dry-run", "-t", "t4", "--spot")
PATH = "/compute/v1/projects/berg-local/regions/us-central1/advice/capacity"


def row(shown, label: str) -> str:
    assert shown.returncode == 0, shown.stderr
    _, _, rest = shown.stderr.partition(f"\n{label}")
    return rest.partition("\n")[0].strip()


def test_zones_come_in_the_order_of_their_odds(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    shown = berg(*PLAN, "-m", "2", "true")
    assert row(shown, "Zones") == "us-central1-b, us-central1-c, us-central1-f, us-central1-a"
    assert row(shown, "Odds") == "us-central1-b: obtainability 0.8, uptime about 4 h"
    assert "us-central1-a: obtainability 0.2, uptime about 0.2 h" in shown.stderr
    named = berg(*PLAN, "--zone", "us-central1-a", "--zone", "us-central1-b", "true")
    assert row(named, "Zones") == "us-central1-a, us-central1-b", "as they were given"


def test_only_spot_machines_are_asked_about(berg, cloud):
    assert "Odds" not in berg("run", "--dry-run", "-t", "t4", "true").stderr
    log = cloud.call("GET", "/_berg/requests")["requests"]
    assert not [each for each in log if each["method"] == "compute.advice.capacity"]


@pytest.mark.parametrize("status", [403, 404])
def test_who_may_not_ask_goes_on_without(berg, cloud, status):
    berg.allowed.append(status)
    cloud.fault("compute.advice.capacity", status=status, times=50)
    shown = berg(*PLAN, "true")
    assert row(shown, "Zones").startswith("us-central1-a, ") and "Odds" not in shown.stderr


def ask(cloud, **changes):
    body = {
        "size": 1,
        "instanceProperties": {"scheduling": {"provisioningModel": "SPOT"}},
        "instanceFlexibilityPolicy": {
            "instanceSelections": {"one": {"machineTypes": ["n1-standard-8"]}}
        },
        "distributionPolicy": {"targetShape": "ANY"},
    }
    return cloud.session.post(f"{cloud.url}{PATH}", json={**body, **changes}).status_code


def test_what_the_api_is_not_asked(cloud):
    assert ask(cloud) == 200
    model = {"scheduling": {"provisioningModel": "STANDARD"}}
    assert ask(cloud, instanceProperties=model) == 400
    assert ask(cloud, size=0) == 400
    assert ask(cloud, distributionPolicy={}) == 400
    far = {"targetShape": "ANY", "zones": [{"zone": "zones/us-east1-b"}]}
    assert ask(cloud, distributionPolicy=far) == 400
    tpu = {"instanceSelections": {"one": {"machineTypes": ["ct6e-standard-4t"]}}}
    assert ask(cloud, instanceFlexibilityPolicy=tpu) == 400
