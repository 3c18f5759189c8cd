"""Guest attributes of the embedded cloud: written by the machine, read by the API."""

import asyncio
from types import SimpleNamespace

import pytest

from localcloud.compute.state import Compute
from localcloud.errors import ApiError
from localcloud.machines import guest_attributes
from localcloud.machines.guest_attributes import PATH

KEY = f"{PATH}hostkeys/ssh-ed25519"


@pytest.fixture
def machine():
    items: dict[str, str] = {"enable-guest-attributes": "TRUE"}
    return SimpleNamespace(
        id="1",
        project="p",
        path="projects/p/zones/z/instances/a",
        guest_attributes={},
        items=items,
        metadata=lambda common: items,
    )


@pytest.fixture
def compute(machine):
    return SimpleNamespace(
        common_metadata=lambda project: {},
        guest_writes={},
        save=lambda instance: None,
        get=lambda *where: machine,
    )


def read(compute: Compute, path: str) -> list[dict[str, str]]:
    params = {"project": "p", "zone": "z", "instance": "a", "queryPath": path}
    answer = asyncio.run(guest_attributes.get(compute, SimpleNamespace(params=params)))
    return answer["queryValue"]["items"]


def test_what_a_machine_wrote_is_read_by_namespace_and_key(compute, machine):
    with pytest.raises(ApiError, match="The resource 'hostkeys/' of type 'Guest Attribute' was"):
        read(compute, "hostkeys/")
    assert guest_attributes.write(compute, machine, KEY, b"AAAA") == 200
    assert guest_attributes.write(compute, machine, f"{PATH}a/b", b"c") == 200
    item = {"namespace": "hostkeys", "key": "ssh-ed25519", "value": "AAAA"}
    assert read(compute, "hostkeys/") == read(compute, "hostkeys/ssh-ed25519") == [item]
    assert len(read(compute, "")) == 2


def test_what_is_refused(compute, machine):
    for path in (PATH, f"{PATH}hostkeys", f"{PATH}hostkeys/", f"{PATH}a/b/c", f"{PATH}a b/c"):
        assert guest_attributes.write(compute, machine, path, b"x") == 400
    assert guest_attributes.write(compute, machine, KEY, b"x" * (256 << 10)) == 200
    assert guest_attributes.write(compute, machine, KEY, b"x" * (257 << 10)) == 413
    assert guest_attributes.write(compute, machine, f"{PATH}a/b", b"x") == 200
    assert guest_attributes.write(compute, machine, KEY, b"x") == 429
    machine.items["enable-guest-attributes"] = "FALSE"
    assert guest_attributes.write(compute, machine, KEY, b"x") == 403
    with pytest.raises(ApiError):
        read(compute, "hostkeys/")
