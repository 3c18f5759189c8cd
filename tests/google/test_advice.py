"""What Google says of its room for Spot machines: shown, and the zones in that order."""

import json

import pytest

PLAN = ("run", "--dry-run", "--json", "-t", "t4", "--spot")
PATH = "/compute/v1/projects/berg-local/regions/us-central1/advice/capacity"


def row(shown, label: str) -> str:
    assert shown.returncode == 0, shown.stderr
    _, _, rest = shown.stderr.partition(f"\n{label}")
    return rest.partition("\n")[0].strip()


def test_zones_come_in_the_order_of_their_odds(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    shown = berg(*PLAN, "-m", "2", "true")
    assert row(shown, "Zones") == "us-central1-b, us-central1-c, us-central1-f, us-central1-a"
    assert row(shown, "Odds") == "us-central1-b: obtainability 0.8, uptime about 4h"
    assert "us-central1-a: obtainability 0.2, uptime about 10m" in shown.stderr
    assert "preempted" not in shown.stderr, "Google has no history of GPUs that are attached"
    named = berg(*PLAN, "--zone", "us-central1-a", "--zone", "us-central1-b", "true")
    assert row(named, "Zones") == "us-central1-a, us-central1-b", "as they were given"


def test_what_was_preempted_stands_beside_the_odds(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    shown = berg("run", "--dry-run", "--json", "-t", "l4", "--spot", "true")
    said = "us-central1-b: obtainability 0.8, uptime about 4h, 12 % preempted"
    assert row(shown, "Odds") == said
    assert "us-central1-a: obtainability 0.2, uptime about 10m, 60 % preempted" in shown.stderr


def test_gpus_shows_the_odds_of_the_best_zone(berg, cloud):
    cloud.call("POST", "/_berg/stockout", {"zone": "us-central1-a"})
    shown = berg("gpus")
    assert shown.returncode == 0, shown.stderr
    lines = {line.split()[0]: " ".join(line.split()) for line in shown.stdout.splitlines()}
    assert " 0.8, 4h, 12% " in lines["l4"] and " 0.8, 4h, ? " in lines["t4"]
    assert "SPOT ODDS are Google's" in shown.stderr
    listed = {each["type"]: each for each in json.loads(berg("gpus", "--json").stdout)}
    odds = listed["l4"]["spot_odds"]
    assert odds["zone"] != "us-central1-a" and odds["preempted"] == pytest.approx(0.12)
    assert (odds["obtainability"], odds["uptime"]) == (0.8, 14400)


@pytest.mark.parametrize("status", [403, 404])
def test_gpus_goes_on_without_odds(berg, cloud, status):
    berg.allowed.append(status)
    cloud.fault("compute.advice.capacity", status=status, times=500)
    shown = berg("gpus")
    assert shown.returncode == 0, shown.stderr
    assert "12 %" not in shown.stdout and "SPOT ODDS" not in shown.stderr


def test_only_spot_machines_are_asked_about(berg, cloud):
    assert "Odds" not in berg("run", "--dry-run", "--json", "-t", "t4", "true").stderr
    log = cloud.call("GET", "/_berg/requests")["requests"]
    assert not [each for each in log if each["method"] == "compute.advice.capacity"]


@pytest.mark.parametrize("status", [403, 404])
def test_who_may_not_ask_goes_on_without(berg, cloud, status):
    berg.allowed.append(status)
    cloud.fault("compute.advice.capacity", status=status, times=50)
    shown = berg(*PLAN, "true")
    assert row(shown, "Zones").startswith("us-central1-a, ") and "Odds" not in shown.stderr


def test_what_the_history_is_not_asked(cloud):
    path = f"{cloud.url}{PATH}History"
    spot = {"scheduling": {"provisioningModel": "SPOT"}, "machineType": "g2-standard-8"}
    good = {"instanceProperties": spot, "types": ["PREEMPTION"]}

    def answer(**changes):
        return cloud.session.post(path, json={**good, **changes})

    found = answer().json()
    assert len(found["preemptionHistory"]) == 30 and found["location"].endswith("us-central1")
    assert answer(locationPolicy={"location": "zones/us-central1-a"}).status_code == 200
    assert answer(locationPolicy={"location": "zones/us-east1-b"}).status_code == 400
    assert answer(types=[]).status_code == 400
    assert answer(types=["PRICE"]).status_code == 501
    gpu = {"acceleratorType": "nvidia-tesla-t4", "acceleratorCount": 1}
    for other in (
        {"machineType": "ct6e-standard-4t"},
        {"machineType": "n1-standard-8", "guestAccelerators": [gpu]},
        {"machineType": "n2-custom-2-4096"},
        {"scheduling": {"provisioningModel": "STANDARD"}},
    ):
        assert answer(instanceProperties={**spot, **other}).status_code == 400


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
