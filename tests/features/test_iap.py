"""A machine without an external address is reached through Google's proxy."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud
from google.auth.transport.requests import Request
from inside import ALONE, job_of, plan_of

from berg import BergError, gce
from berg.config import Config
from berg.features import iap

SUBNETWORK = "/compute/v1/projects/berg-local/regions/us-central1/subnetworks/default"


@pytest.fixture
def private_access(cloud: Cloud) -> Iterator[None]:
    """Machines without an address outside reach Google's APIs, in us-central1 alone."""
    path = f"{SUBNETWORK}/setPrivateIpGoogleAccess"
    cloud.call("POST", path, {"privateIpGoogleAccess": True})
    yield
    cloud.call("POST", path, {"privateIpGoogleAccess": False})


@pytest.mark.usefixtures("private_access")
def test_a_setting_gives_no_machine_an_external_address(cloud: Cloud, project: Path) -> None:
    done = cloud.run("run", "-g", "0", "--dry-run", "true", cwd=project, BERG_NO_EXTERNAL_IP="true")
    assert done.code == 0 and "ssh goes through IAP" in done.out, done.err


@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud makes the tunnel")
@pytest.mark.slow
@pytest.mark.usefixtures("private_access")
def test_ssh_goes_through_the_proxy(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    words = ["run", "-g", "0", "-n", "inside", "--no-external-ip", "sleep 300"]
    cloud.ok(*words, cwd=project)
    (machine,) = gce.machines(cloud.config, "inside")
    assert not machine.address
    credentials = cloud.config.credentials
    credentials.refresh(Request())
    (tmp_path / "token").write_text(credentials.token)
    env = {
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(tmp_path / "token"),
        "CLOUDSDK_API_ENDPOINT_OVERRIDES_COMPUTE": f"{cloud.config.endpoint}/compute/v1/",
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }
    done = cloud.run("ssh", "inside", "hostname", **env)
    cloud.run("kill", "-y", "--now", "inside")
    assert done.code == 0 and done.out == "inside\n", done.err


@pytest.mark.usefixtures("private_access")
def test_no_interface_has_an_address_outside_and_a_region_without_nat_is_named(
    cloud: Cloud, faults: Any
) -> None:
    plan = plan_of(cloud, job_of("no-address"))
    plan.request["networkInterfaces"] += [{"network": "x", "accessConfigs": [{}]}]
    iap.Iap(no_external_ip=True).change(plan)
    assert [each.get("accessConfigs") for each in plan.request["networkInterfaces"]] == [None, None]
    assert plan.rows["Network"].endswith(
        "without Cloud NAT in us-central1 nothing can be downloaded there"
    )
    plan.zones = ["us-central1-a", "us-west1-b", "us-west1-c"]
    open_it = "--region us-west1 --project berg-local --enable-private-ip-google-access"
    with pytest.raises(BergError, match=open_it):
        iap.Iap(no_external_ip=True).change(plan)
    faults("compute.routers.list", status=403, times=3)
    iap.Iap(no_external_ip=True).change(plan)
    assert "without Cloud NAT" not in plan.rows["Network"], (
        "where nobody may look, there may be one"
    )


def test_the_tunnel_leads_to_the_machine_by_its_zone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gcloud").write_text("")
    (tmp_path / "gcloud").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = gce.Instance("inside1", "us-central1-f", "RUNNING", "inside1")
    assert iap.Iap().tunnel(Config(project="p"), machine) == [
        f"{tmp_path}/gcloud", "compute", "start-iap-tunnel", "inside1", "%p", "--listen-on-stdin",
        "--project", "p", "--zone", "us-central1-f", "--verbosity=error",
    ]  # fmt: skip
    assert "wss://127.0.0.2:9/v4" in " ".join(iap.Iap().tunnel(ALONE, machine))
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    with pytest.raises(BergError, match="needs gcloud"):
        iap.Iap().tunnel(Config(project="p"), machine)


@pytest.mark.parametrize(
    ("text", "is_due"), [("true", True), ("1", True), ("YES", True), ("", False), ("false", False)]
)
def test_a_setting_says_that_no_machine_has_an_address(text: str, is_due: bool) -> None:
    plan = plan_of(None, job_of("setting"))
    plan.config = Config(no_external_ip=text)
    assert iap.Iap().is_due(plan) == is_due
