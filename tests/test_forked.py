"""The server that the tests' commands are forked from has imported what they need."""

import forked


def test_commands_begin_with_all_of_berg_imported():
    found = forked.modules()
    assert {"berg.cli", "berg.laptop.launch", "berg.watch.page"} <= found
    assert {"urllib3", "google.cloud.compute_v1.services.instances"} <= found
    machines = {name for name in found if name.startswith("berg.machine.")}
    assert machines <= {"berg.machine.program"}, "all that is in there is for machines"
    assert "pytest" not in found, "importing it would take longer than most commands"
