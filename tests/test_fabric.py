"""What the machines of a job talk over: the plan's line, networks for RoCE, and gIB on a machine."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import wait_for

from berg import BergError, job
from berg.google import api, fabric
from berg.google.shapes import choose
from berg.machine import fabric as on_machine
from berg.machine import installation, peers
from berg.spec import JobSpec

H200 = ("-m", "2", "-t", "h200", "-g", "8", "--max-hours", "1")
ZONE = "us-central1-ai1a"
NETWORKS = ["berg-fast", f"berg-roce-{ZONE}"]


@pytest.fixture
def settings(berg, cloud):
    """The settings, in a project without Berg's networks before and after."""
    found = cloud.settings(berg.bucket_name)
    remove_all(found)
    yield found
    berg.end_machines()
    remove_all(found)


def remove_all(settings) -> None:
    for name in fabric.networks(settings):
        fabric.remove(settings, name)


def policies(settings) -> list[str]:
    pages = api.pages(settings, "/aggregated/resourcePolicies")
    scopes = [scope for page in pages for scope in page.get("items", {}).values()]
    return [each["name"] for scope in scopes for each in scope.get("resourcePolicies", [])]


def dry(berg, *options: str) -> tuple[dict, str]:
    shown = berg("run", *options, "--dry-run", "--json", "--each", "torchrun train.py")
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout)["request"], shown.stderr


# --- the plan


@pytest.mark.parametrize(
    ("gpus", "hosts", "network", "says"),
    [
        ((8, "h200"), 2, "fast", "8 x RoCE, 3,200 Gbps between machines"),
        ((8, "b200"), 4, "fast", "8 x RoCE, 3,200 Gbps between machines"),
        ((8, "h200"), 2, "tcp", "one interface, 200 Gbps between machines"),
        ((1, "l4"), 2, "fast", "one interface, 16 Gbps between machines"),
        ((4, "t4"), 2, "fast", "one interface"),
        ((8, "h100"), 2, "fast", "TCP over one interface, about 1/10 of what these machines can"),
        ((8, "h200"), 1, "fast", None),
        ((0, None), 2, "fast", None),
    ],
)
def test_the_plan_says_what_machines_talk_over(gpus, hosts, network, says):
    rows = fabric.row(choose(*gpus, None, None), hosts, network)
    assert [text.partition(":")[0] for _, text in rows] == ([says] if says else [])


def test_machines_by_flex_start_get_ten_interfaces_and_no_policy(berg, settings):
    request, said = dry(berg, *H200, "--flex")
    properties = request["template"]["properties"]
    assert "Network   8 x RoCE, 3,200 Gbps between machines" in said
    kinds = [each["nicType"] for each in properties["networkInterfaces"]]
    assert kinds == ["GVNIC"] * 2 + ["MRDMA"] * 8
    assert len({each["subnetwork"] for each in properties["networkInterfaces"][1:]}) == 9
    assert ["accessConfigs" in each for each in properties["networkInterfaces"]] == [True] + [
        False
    ] * 9
    assert "resourcePolicies" not in properties
    assert fabric.networks(settings) == []


def test_one_machine_and_tcp_have_one_interface(berg, settings):
    for options in (("-t", "h200", "-g", "8", "--spot"), (*H200, "--spot", "--network", "tcp")):
        request, _ = dry(berg, *options)
        body = request.get("template", {}).get("properties") or request
        assert len(body["networkInterfaces"]) == 1 and "resourcePolicies" not in body


def test_a_network_that_is_not_berg_s_to_choose_is_refused(berg):
    refused = berg("run", "--network", "tcp", "--tpu", "v6e-1", "true")
    assert refused.returncode == 1 and "leave out --tpu" in refused.stderr


# --- the networks


def test_a_job_makes_its_networks_and_a_policy_that_goes_with_it(berg, settings):
    ran = berg(
        "run",
        *H200,
        "--spot",
        "--each",
        "--wait",
        "-n",
        "near",
        "echo $BERG_NODE_RANK > $BERG_RESULTS_DIR/$BERG_NODE_RANK",
    )
    assert ran.returncode == 0, ran.stderr
    assert sorted(fabric.networks(settings)) == NETWORKS
    assert policies(settings) == ["near"]
    assert {"0", "1"} <= {name.rpartition("/")[2] for name in berg.objects("berg_results/near/")}
    berg("kill", "near")
    wait_for(lambda: not berg.machines(), what="the end of the machines")
    api.delete(settings, "/regions/us-central1/instanceGroupManagers/near", wait_for_it=True)
    fabric.delete_policies(settings, f"for berg's jobs in gs://{berg.bucket_name}", "near")
    assert policies(settings) == []
    assert sorted(fabric.networks(settings)) == NETWORKS


def test_a_devbox_of_two_machines_is_close_and_its_policy_goes_with_it(berg, cloud, settings):
    made = berg("devbox", *H200, "--spot", "-n", "box")
    assert made.returncode == 0, made.stderr
    machine = cloud.instances()["box-0"]
    assert machine["resourcePolicies"][0].endswith("/us-central1/resourcePolicies/box")
    assert len(machine["networkInterfaces"]) == 10
    assert berg("kill", "box").returncode == 0
    assert policies(settings) == []


def test_the_zone_in_which_a_search_ends_gets_its_network(berg, cloud, settings):
    cloud.call("POST", "/_berg/stockout", {"zone": ZONE})
    try:
        made = berg(
            "devbox", *H200, "--spot", "-n", "box", "--zone", ZONE, "--zone", "us-central1-b"
        )
    finally:
        cloud.call("POST", "/_berg/stockout", {"zone": ZONE, "on": False})
    assert made.returncode == 0, made.stderr
    assert "berg-roce-us-central1-b" in fabric.networks(settings)
    assert berg("kill", "box").returncode == 0
    assert policies(settings) == []


def test_where_there_is_no_room_no_policy_is_left(berg, cloud, settings):
    cloud.call("POST", "/_berg/stockout", {})
    try:
        refused = berg("devbox", *H200, "--spot", "-n", "box")
    finally:
        cloud.call("POST", "/_berg/stockout", {"on": False})
    assert refused.returncode == 1 and policies(settings) == []


def test_a_full_quota_of_networks_is_named_before_anything_exists(berg, cloud, settings):
    quotas = {each["metric"]: each for each in api.call(settings, "GET", "")["quotas"]}
    before = quotas["NETWORKS"]
    cloud.call("POST", "/_berg/quotas", {"metric": "NETWORKS", "limit": before["usage"] + 1})
    try:
        refused = berg("run", *H200, "--spot", "true")
    finally:
        cloud.call("POST", "/_berg/quotas", {"metric": "NETWORKS", "limit": before["limit"]})
    assert refused.returncode == 1
    assert "RoCE needs 2 more of the quota NETWORKS, of which 1 of 2 are in use" in refused.stderr
    assert "https://console.cloud.google.com/iam-admin/quotas?project=berg-local" in refused.stderr
    assert fabric.networks(settings) == [] and not berg.machines()


def test_with_a_full_quota_zones_that_have_their_network_are_left(settings):
    fabric.make(settings, ZONE)
    full = [{"metric": "NETWORKS", "limit": 3, "usage": 3}]
    zones = ["us-central1-b", ZONE]
    assert fabric.with_room(settings, zones, NETWORKS, full) == [ZONE]
    assert fabric.with_room(settings, zones, NETWORKS, [{**full[0], "limit": 4}]) == zones


def test_two_computers_make_the_same_networks_at_once(berg, settings):
    berg.allowed = {400}  # the range is that of another region meanwhile
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda zone: fabric.make(settings, zone), [ZONE, ZONE, "us-west1-a", ZONE]))
    assert len(fabric.networks(settings)) == 3
    ranges = [
        each["ipCidrRange"]
        for page in api.pages(settings, "/aggregated/subnetworks", filter='name="berg-fast"')
        for scope in page.get("items", {}).values()
        for each in scope.get("subnetworks", [])
    ]
    assert len(set(ranges)) == 2


def test_who_may_not_make_networks_reads_what_an_owner_can_do(settings, monkeypatch):
    def refuse(config, path, body):
        raise api.Forbidden("Required 'compute.networks.create' permission")

    monkeypatch.setattr(fabric.api, "write", refuse)
    with pytest.raises(BergError) as refused:
        fabric.make(settings, ZONE)
    said = refused.value.message
    assert f"berg init --fast-network {ZONE}" in said and said.count("gcloud compute") == 12


def test_who_may_not_see_firewalls_uses_what_an_owner_made(settings, monkeypatch):
    fabric.make(settings, ZONE)
    find = api.find

    def refuse(config, path, **more):
        if "/firewalls/" in path:
            raise api.Forbidden("Required 'compute.firewalls.get' permission")
        return find(config, path, **more)

    made: list[str] = []
    monkeypatch.setattr(fabric.api, "find", refuse)
    monkeypatch.setattr(fabric.api, "write", lambda config, path, body: made.append(path))
    fabric.make(settings, ZONE)
    assert made == [], "all was there"


def test_the_ranges_are_others_where_the_machines_own_overlap(settings, monkeypatch):
    monkeypatch.setattr(fabric.api, "find", lambda *_, **__: {"ipCidrRange": "192.168.0.0/16"})
    assert fabric.ranges(settings, "us-central1") == fabric.RANGES[1]


def test_init_makes_and_deletes_the_networks(berg, settings):
    made = berg("init", "--fast-network", ZONE)
    assert made.returncode == 0, made.stderr
    assert sorted(fabric.networks(settings)) == NETWORKS
    refused = berg("init", "--fast-network", "us-central1-c")
    assert refused.returncode == 1 and "no network for RoCE in us-central1-c" in refused.stderr
    assert berg("init", "--remove-fast-network").returncode == 0
    assert fabric.networks(settings) == []
    assert berg("init", "--fast-network", ZONE, "--remove-fast-network").returncode == 2


def test_reap_leaves_the_networks(berg, settings):
    fabric.make(settings, ZONE)
    reaped = berg("reap", "-y")
    assert reaped.returncode == 0, reaped.stderr
    assert sorted(fabric.networks(settings)) == NETWORKS


def test_the_policy_of_a_group_that_waits_for_room_stays(settings, monkeypatch):
    """No machine has it yet, however old it is."""
    path = fabric.policy_of(ZONE, "waits", "berg-local")
    fabric.make_policy(settings, path, "of these tests")
    fabric.delete_policies(settings, "of these tests")
    assert policies(settings) == ["waits"], "it is young"
    monkeypatch.setattr(fabric, "YOUNG", -1)
    fabric.delete_policies(settings, "of these tests", groups=["waits"])
    assert policies(settings) == ["waits"]
    fabric.delete_policies(settings, "of these tests")
    assert policies(settings) == []


# --- on a machine


@pytest.fixture
def gib(tmp_path, monkeypatch):
    """A machine with eight devices for RoCE and gIB; a function that turns one port off."""
    for number in range(8):
        port = tmp_path / f"infiniband/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n")
    (tmp_path / "gib/lib64").mkdir(parents=True)
    scripts = tmp_path / "gib/scripts"
    scripts.mkdir()
    script = "export NCCL_NET=gIB NCCL_IB_TC=52\nexport OTHER=1\necho ready\n"
    (scripts / "set_nccl_env.sh").write_text(script)
    monkeypatch.setattr(on_machine, "DEVICES", tmp_path / "infiniband")
    monkeypatch.setattr(on_machine, "GIB", tmp_path / "gib")
    return tmp_path


def the_job(**more) -> job.Job:
    values = {"machine_type": "a3-ultragpu-8g", "num_machines": 2, "spec": JobSpec(), **more}
    return SimpleNamespace(**values)


def test_nccl_gets_the_variables_of_google_s_script(gib):
    assert on_machine.variables(the_job()) == {
        "NCCL_NET": "gIB",
        "NCCL_IB_TC": "52",
        "LD_LIBRARY_PATH": str(gib / "gib/lib64"),
    }


@pytest.mark.parametrize(
    "more",
    [{"num_machines": 1}, {"spec": JobSpec(network="tcp")}, {"machine_type": "g2-standard-4"}],
)
def test_other_jobs_get_none(gib, more):
    assert on_machine.variables(the_job(**more)) == {}


def test_a_machine_with_a_dead_interface_talks_over_tcp_and_says_so(gib):
    (gib / "infiniband/mlx5_3/ports/1/state").write_text("1: DOWN\n")
    said = []
    on_machine.install(SimpleNamespace(job=the_job(), say=said.append))
    assert said == ["7 of 8 interfaces for RoCE are up here: machines talk over TCP"]
    assert on_machine.variables(the_job()) == {}


def test_nccl_talks_over_tcp_everywhere_if_one_machine_lacks_roce(gib):
    """One that has it would not get through to one that has not."""
    assert on_machine.fault() == ""
    faults = {"near-1": "7 of 8 interfaces for RoCE are up"}
    assert on_machine.variables(the_job(), faults) == {"NCCL_NET": "Socket"}
    assert on_machine.variables(the_job(machine_type="g2-standard-4"), faults) == {}
    (gib / "infiniband/mlx5_3/ports/1/state").write_text("1: DOWN\n")
    assert on_machine.fault() == faults["near-1"]


def test_the_source_of_gib_does_not_stay(gib, monkeypatch):
    """Each later apt-get update would fail where it cannot be reached."""
    (gib / "gib/lib64").rmdir()
    sources = gib / "apt/sources.list.d"
    sources.mkdir(parents=True)
    monkeypatch.setattr(on_machine, "APT", gib / "apt")
    monkeypatch.setattr(on_machine.boot, "request", lambda _: (b"key", None))

    def refuse(*_: object) -> None:
        assert (sources / "berg-gib.list").exists()
        raise OSError("E: The repository does not have a Release file.")

    monkeypatch.setattr(on_machine.boot, "apt_install", refuse)
    said = []
    on_machine.install(SimpleNamespace(job=the_job(), machine=None, say=said.append))
    assert "gIB cannot be installed, machines talk over TCP: E: The repo" in said[0]
    assert said[0].endswith("An image can have it: berg image create --with roce")
    assert not [*sources.iterdir()]
    assert on_machine.fault() == "gIB is not installed"


def test_an_interface_is_found_by_its_address():
    names = [name for _, name in socket.if_nameindex() if name != "lo"]
    assert peers.interface("127.64.0.9") == "lo"
    assert peers.interface("203.0.113.77") == "eth0"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.77", 9))  # sends nothing
        assert peers.interface(probe.getsockname()[0]) in names


def test_the_machine_s_own_library_path_stays(gib, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib64")
    found = on_machine.variables(the_job())["LD_LIBRARY_PATH"]
    assert found == f"{gib / 'gib/lib64'}:/usr/local/cuda/lib64"
    assert "LD_LIBRARY_PATH" not in installation.names_in_container(["LD_LIBRARY_PATH"], set())


@pytest.mark.parametrize(("machine_type", "has_it"), [("a3-ultragpu-8g", True), ("g2-", False)])
def test_a_container_gets_gib_where_it_is_used_whatever_the_user_s_variables(
    gib, machine_type, has_it
):
    this = the_job(machine_type=machine_type, gpus_per_machine=8, tpu="", data=[], mounts=[])
    this.docker, this.shell, this.cmd = "image", ["bash", "-c"], "true"
    words = installation.container_command(this, Path("/"), ["NCCL_NET"])
    assert ("--device=/dev/infiniband" in words) is has_it
    line = f'export LD_LIBRARY_PATH="{gib / "gib/lib64"}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"\n'
    assert (line in words[-1]) is has_it
