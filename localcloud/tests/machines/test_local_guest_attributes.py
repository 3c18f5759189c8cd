"""Guest attributes of the embedded cloud: what machines may not write."""

from types import SimpleNamespace

from localcloud.machines import guest_attributes
from localcloud.machines.guest_attributes import PATH

KEY = f"{PATH}hostkeys/ssh-ed25519"


def test_what_is_refused():
    items = {"enable-guest-attributes": "TRUE"}
    machine = SimpleNamespace(id="1", guest_attributes={}, metadata=lambda common: items)
    compute = SimpleNamespace(
        common_metadata=lambda project: {}, guest_writes={}, save=lambda instance: None
    )
    machine.project = "p"
    for path in (PATH, f"{PATH}hostkeys", f"{PATH}hostkeys/", f"{PATH}a/b/c", f"{PATH}a b/c"):
        assert guest_attributes.write(compute, machine, path, b"x") == 400
    assert guest_attributes.write(compute, machine, KEY, b"x" * (256 << 10)) == 200
    assert guest_attributes.write(compute, machine, KEY, b"x" * (257 << 10)) == 413
    assert guest_attributes.write(compute, machine, f"{PATH}a/b", b"x") == 200
    assert guest_attributes.write(compute, machine, KEY, b"x") == 429
    items["enable-guest-attributes"] = "FALSE"
    assert guest_attributes.write(compute, machine, KEY, b"x") == 403
