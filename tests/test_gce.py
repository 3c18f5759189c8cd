"""What is asked of Google for a machine."""

from types import SimpleNamespace

import pytest

from berg import gce
from berg.config import Config
from berg.google import api, instances


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


@pytest.mark.parametrize("group", ["", "of two"])
def test_an_insert_that_fails_deletes_what_it_made_alone(monkeypatch, group):
    """Another computer may have made a machine of the name meanwhile."""
    there, deleted = {"one-0": "1", "one-1": "2"}, []
    operation = SimpleNamespace(name="made", target_id=1, operation_group_id=group)
    monkeypatch.setattr(instances, "send_insert", lambda *_: operation)
    targets = [{"targetId": "1"}, {"targetId": "3"}, {}]
    monkeypatch.setattr(api, "items", lambda *_, **asked: targets if group in str(asked) else [])
    monkeypatch.setattr(api, "find", lambda _, path, **__: {"id": there[api.last_part(path)]})
    monkeypatch.setattr(api, "delete", lambda _, path, **__: deleted.append(api.last_part(path)))

    def fail(*_) -> None:
        raise api.OperationFailed("QUOTA_EXCEEDED", "no")

    monkeypatch.setattr(api, "wait", fail)
    body = {"disks": [{"autoDelete": True}]}
    with pytest.raises(api.OperationFailed):
        instances.insert(Config(), "z", body, [*there])
    assert deleted == ["one-0"]


def test_of_two_waits_that_failed_the_last_one_s_reason_counts(monkeypatch):
    """Google names them by when they began, and sorts no list that it filters."""
    rows = [
        {
            "insertTime": f"2026-01-05T0{hour}:00:00.000-08:00",
            "targetLink": f"https://x/zones/z/instances/{name}",
            "error": {"errors": [{"message": f"{name} at {hour}"}]},
        }
        for hour, name in ((1, "one"), (3, "one"), (2, "one"), (4, "two"))
    ]
    monkeypatch.setattr(api, "items", lambda *_, **asked: () if "orderBy" in asked else rows)
    assert instances.why_gone(Config(), "one", "z") == "one at 3"
    assert instances.why_gone(Config(), "three", "z") == ""
