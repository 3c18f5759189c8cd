"""Jobs whose machines are in groups leave nothing when they end; where Google lets a machine not
delete itself, it says so, and what it costs is counted.
"""

from conftest import wait_for

PROJECT = "berg-local"
KINDS = {
    "spot": ("--spot", "-g", "0"),
    "pair": ("--flex", "-m", "2", "-t", "l4", "--max-hours", "1"),
    "slice": ("--tpu", "v5p-2x2x2", "--zone", "us-central1-a"),
}


def groups(cloud) -> list[str]:
    """Names of all groups."""
    path = f"/compute/v1/projects/{PROJECT}/aggregated/instanceGroupManagers"
    scopes = cloud.call("GET", path)["items"].values()
    return [each["name"] for scope in scopes for each in scope.get("instanceGroupManagers", [])]


def test_jobs_in_groups_end_as_the_account_of_the_machines_and_leave_nothing(berg, cloud, account):
    for name, options in KINDS.items():
        started = berg("run", "-n", name, *options, "true")
        assert started.returncode == 0, started.stderr
    assert {
        each["email"] for made in berg.machines().values() for each in made["serviceAccounts"]
    } == {account}
    for name in KINDS:
        wait_for(lambda name=name: berg.state(name)["state"] == "SUCCEEDED", 120, name)
    wait_for(lambda: not berg.machines() and not groups(cloud), 120, "the end of all machines")
