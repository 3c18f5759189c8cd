"""Several H200 machines have RoCE's networks, made once, and NCCL its variables; or TCP on all of them."""

from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, commit, until
from inside import ALONE, job_of, plan_of, run_of, stand_ins, state_of

from berg import BergError, gce, google
from berg import job as jobs
from berg.features import roce
from berg.features.roce import Roce

H200 = ["-m", "2", "-t", "h200", "-g", "8", "--each"]
ZONE = "us-central1-ai1a"
# What Google's drivers and package show: eight devices and gIB, on top of folders of the kernel.
DEVICES = """
mount -t tmpfs none /sys/class
for n in 0 1 2 3 4 5 6 7; do
    mkdir -p /sys/class/infiniband/mlx5_$n/ports/1
    echo "4: ACTIVE" >/sys/class/infiniband/mlx5_$n/ports/1/state
done
mkdir -p /usr/local/gib/lib64 /usr/local/gib/scripts
echo export NCCL_NET=gIB NCCL_IB_TC=52 OTHER=1 >/usr/local/gib/scripts/set_nccl_env.sh
"""


@pytest.mark.slow
def test_spot_machines_get_networks_variables_and_go(cloud: Cloud, project: Path) -> None:
    commit(project, {"setup.sh": DEVICES})
    words = [*H200, "--spot", "--install", "bash setup.sh", "-n", "near"]
    show = "echo $NCCL_NET $NCCL_IB_TC${OTHER-} $LD_LIBRARY_PATH; sleep 300"
    done = cloud.run("run", *words, show, cwd=project)
    assert "8 x RoCE, 3,200 Gbps" in done.err and ZONE in done.err, done.err
    listed = google.items(cloud.config, "/aggregated/instances")
    machines = [row for row in listed if row["name"].startswith("near-")]
    assert [len(row["networkInterfaces"]) for row in machines] == [10, 10]
    assert all(row["resourcePolicies"][0].endswith("/near") for row in machines)
    until(lambda: cloud.log("near").count("gIB 52 /usr/local/gib/lib64") == 2)
    assert cloud.run("kill", "-y", "--now", "near").code == 0
    assert not gce.machines(cloud.config, "near") and not roce.policies(cloud.config, "near")


def test_over_tcp_machines_need_no_roce(cloud: Cloud, project: Path) -> None:
    words = [*H200, "--spot", "-z", "us-central1-b", "--network", "tcp", "true"]
    done = cloud.run("run", "--dry-run", *words, cwd=project)
    assert done.code == 0 and "about a tenth" in done.out, done.err


def pair(**about: Any) -> Any:
    about = {
        "machines": 2,
        "machine_type": "a3-ultragpu-8g",
        "gpus": 8,
        "gpu_type": "h200",
        **about,
    }
    return job_of(about.pop("name", "pair"), **about)


@pytest.mark.parametrize(
    ("about", "network", "is_wanted", "is_due"),
    [
        ({}, "fast", True, True),
        ({"machine_type": "a4-highgpu-8g"}, "fast", True, True),
        ({"machine_type": "a3-megagpu-8g"}, "fast", False, True),
        ({"machine_type": "a2-highgpu-1g"}, "fast", False, False),
        ({}, "tcp", False, True),
        ({"machines": 1}, "fast", False, False),
        ({"rows": [{"x": "1"}]}, "fast", False, False),
    ],
)
def test_which_machines_have_roce(about: Any, network: str, is_wanted: bool, is_due: bool) -> None:
    plan, own = plan_of(None, pair(**about)), Roce(network=network)
    assert own.is_wanted(plan.job) == is_wanted
    assert own.is_due(plan) == is_due
    if not is_wanted:
        own.change(plan)
        is_slow = plan.job.machine_type[:2] != "a2" and plan.job.machines > 1
        assert plan.rows["Network"].startswith("TCP over one interface")
        assert ("about a tenth" in plan.rows["Network"]) == is_slow


def test_the_request_of_near_machines(cloud: Cloud) -> None:
    job, before = pair(name="requested"), pair(name="before")
    plan = plan_of(cloud, job)
    roce.near(cloud.config, before, plan.request, ZONE)
    for each in (before, job):
        jobs.write_state(cloud.bucket, state_of(each, "FAILED"), 0)
    made = roce.near(cloud.config, job, plan.request, ZONE)
    own, base = f"berg-roce-{ZONE}", f"projects/{cloud.config.project}"
    named = [("berg-fast", "berg-fast", "GVNIC"), *((own, f"{own}-{n}", "MRDMA") for n in range(8))]
    path = f"{base}/regions/us-central1/subnetworks/"
    interfaces = [
        {"network": f"{base}/global/networks/{network}", "subnetwork": path + part, "nicType": kind}
        for network, part, kind in named
    ]
    interfaces = [*plan.request["networkInterfaces"], *interfaces]
    policies = {"resourcePolicies": ["requested"]}
    assert made == {**plan.request, "networkInterfaces": interfaces, **policies}
    (policy,) = roce.policies(cloud.config)  # that of a job that has ended is gone
    about = {"name": "requested", "groupPlacementPolicy": {"collocation": "COLLOCATED"}}
    assert about.items() <= policy.items()
    queued = {**plan.request, "scheduling": {"provisioningModel": "FLEX_START"}}
    bound = {**plan.request, "reservationAffinity": {"key": "x"}}
    for request in (queued, bound):
        assert "resourcePolicies" not in roce.near(cloud.config, job, request, ZONE)
    subnetworks = google.items(cloud.config, "/aggregated/subnetworks")
    ranges = {row["name"]: row["ipCidrRange"] for row in subnetworks}
    known = {"berg-fast": "192.168.64.0/22", f"berg-roce-{ZONE}-1": "192.168.136.0/21"}
    assert known.items() <= ranges.items()
    assert google.find(cloud.config, "/global/networks/berg-fast")["mtu"] == 8896
    Roce(network="tcp").forget(cloud.config, job)
    Roce().forget(cloud.config, pair(name="requested"))  # another job of the name
    assert roce.policies(cloud.config, "requested")
    Roce().forget(cloud.config, job)
    assert not roce.policies(cloud.config, "requested")


def test_each_region_has_a_range_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[dict[str, str]] = []
    monkeypatch.setattr(google, "items", lambda *_, **__: there)
    for region in ("us-east1", "us-central1", "us-east1"):
        asked = [body for _, body in roce.steps(ALONE, f"{region}-a", region)]
        there += [
            {"network": roce.FAST, "region": region, **body}
            for body in asked
            if body["name"] == roce.FAST and "ipCidrRange" in body
        ]
    ranges = [row["ipCidrRange"] for row in there]
    assert len(there) == 2 and not roce.overlaps(ranges[:1], ranges[1:])


def test_ranges_overlap_or_do_not() -> None:
    assert roce.overlaps(["10.0.0.0/8"], ["192.168.0.0/16", "10.4.0.0/14"])
    assert not roce.overlaps(["10.0.0.0/8", "192.168.64.0/18"], ["192.168.128.0/18"])


def test_zones_that_have_roce_and_room_for_its_networks(cloud: Cloud) -> None:
    assert roce.zones_with(cloud.config, ["us-central1-a", ZONE]) == [ZONE]
    with pytest.raises(BergError, match=f"no RoCE in us-central1-a.*{ZONE}.*--network tcp"):
        roce.zones_with(cloud.config, ["us-central1-a"])


@pytest.mark.parametrize(
    ("create", "zones"), [(gce.create, ["a-1", "a-2"]), (None, ["a-1"])], ids=["one", "group"]
)
def test_a_group_has_one_zone(monkeypatch: pytest.MonkeyPatch, create: Any, zones: Any) -> None:
    monkeypatch.setattr(roce, "zones_with", lambda config, zones: ["a-1", "a-2"])
    plan = plan_of(None, pair())
    plan.create = create or (lambda *words: "")
    Roce().change(plan)
    assert plan.zones == zones and plan.rows["Zones"] == ", ".join(zones)
    assert "8 x RoCE" in plan.rows["Network"] and plan.create is not gce.create


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with gIB and seven links that are up."""
    own = {"DEVICES": tmp_path / "sys", "GIB": tmp_path / "gib", "LINKS": 0}
    stand_ins(monkeypatch, {f"berg.features.roce.{name}": value for name, value in own.items()})
    (tmp_path / "gib/lib64").mkdir(parents=True)
    (tmp_path / "gib/scripts").mkdir()
    (tmp_path / "gib/scripts/set_nccl_env.sh").write_text(
        "export NCCL_NET=X NCCL_A='b c' OTHER=1\n"
    )
    for number in range(8):
        port = tmp_path / f"sys/mlx5_{number}/ports/1"
        port.mkdir(parents=True)
        (port / "state").write_text("4: ACTIVE\n" if number else "1: DOWN\n")
    return tmp_path


def test_machines_use_roce_if_all_of_them_can(
    cloud: Cloud, devices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/lib/x")
    monkeypatch.setattr("berg.machines.interface", lambda _: "eth7")
    job = pair(name="all-can", env={"NCCL_A": "mine"})
    run = run_of(cloud, devices, job)
    assert roce.fault(run) == "7 of 8 interfaces for RoCE are up"
    (devices / "sys/mlx5_0/ports/1/state").write_text("4: ACTIVE\n")
    assert roce.fault(run) == ""
    run.variables, run.peers.records = {"LR": "1"}, {1: {"roce": ""}}
    run.peers.missed = {1: 0}
    with Roce().around(run):
        interface = dict.fromkeys(["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"], "eth7")
        libraries = {"LD_LIBRARY_PATH": f"{devices}/gib/lib64:/usr/lib/x"}
        own = {"LR": "1", "NCCL_NET": "X", "NCCL_A": "mine"}
        assert run.variables == {**own, **libraries, **interface}
        assert (run.folders, run.container) == ([devices / "gib"], ["--device=/dev/infiniband"])
    run = run_of(cloud, devices, job)
    run.peers.records, run.peers.missed = {1: {"roce": "gIB cannot be installed"}}, {1: 0}
    with Roce().around(run):
        assert run.variables["NCCL_NET"] == "Socket" and not run.folders and not run.container
    said = run.log.read_text()
    assert "Machines talk over TCP: all-can-1: gIB cannot be installed\n" in said
    run = run_of(cloud, devices, pair(machines=1))
    with Roce().around(run):
        assert not run.variables
