"""Tests of provision.py against the embedded cloud: no project, no bill, no network."""

import provision
import pytest
from google.api_core import exceptions
from google.cloud import compute_v1

ZONE = "us-central1-a"


@pytest.fixture
def client(localcloud):
    return localcloud.client(compute_v1.InstancesClient)


def machines(localcloud, client):
    listed = client.list(project=localcloud.project, zone=ZONE)
    return {each.name: each.machine_type.rpartition("/")[2] for each in listed}


def test_machines_come_and_go(localcloud, client):
    provision.apply(client, localcloud.project, ZONE, {"a": "e2-small", "b": "e2-medium"})
    assert machines(localcloud, client) == {"a": "e2-small", "b": "e2-medium"}
    provision.apply(client, localcloud.project, ZONE, {"b": "e2-medium", "c": "e2-small"})
    assert machines(localcloud, client) == {"b": "e2-medium", "c": "e2-small"}


def test_what_is_there_is_left_alone(localcloud, client):
    for _ in range(2):
        provision.apply(client, localcloud.project, ZONE, {"a": "e2-small"})
    assert localcloud.seen("compute.instances.insert") == 1


def test_a_zone_without_room_is_reported(localcloud, client):
    localcloud.control("POST", "stockout", {"zone": ZONE})
    with pytest.raises(exceptions.GoogleAPICallError, match="does not have enough resources"):
        provision.apply(client, localcloud.project, ZONE, {"a": "e2-small"})
    assert machines(localcloud, client) == {}


def test_a_refusal_reaches_the_caller(localcloud, client):
    localcloud.faults.add("compute.instances.insert", status=403, message="not yours")
    with pytest.raises(exceptions.Forbidden, match="not yours"):
        provision.apply(client, localcloud.project, ZONE, {"a": "e2-small"})
