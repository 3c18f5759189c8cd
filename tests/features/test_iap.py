"""A machine without an external address is reached through Google's proxy."""

import shutil
from pathlib import Path

import pytest
from conftest import Cloud
from google.auth.transport.requests import Request

SUBNETWORK = "/compute/v1/projects/berg-local/regions/us-central1/subnetworks/default"


def open_google(cloud: Cloud) -> None:
    cloud.call("POST", f"{SUBNETWORK}/setPrivateIpGoogleAccess", {"privateIpGoogleAccess": True})


def test_without_a_way_to_google_no_machine_is_made(cloud: Cloud, project: Path) -> None:
    if cloud.call("GET", SUBNETWORK).get("privateIpGoogleAccess"):
        pytest.skip("another test has opened it")
    done = cloud.run("run", "-g", "0", "--no-external-ip", "--dry-run", "true", cwd=project)
    assert done.code == 1 and "--enable-private-ip-google-access" in done.err
    open_google(cloud)
    done = cloud.run("run", "-g", "0", "--dry-run", "true", cwd=project, BERG_NO_EXTERNAL_IP="true")
    assert done.code == 0 and "ssh goes through IAP" in done.out, done.err


@pytest.mark.skipif(not shutil.which("gcloud"), reason="gcloud makes the tunnel")
def test_ssh_goes_through_the_proxy(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    open_google(cloud)
    words = ["run", "-g", "0", "-n", "inside", "--no-external-ip", "sleep 300"]
    done = cloud.run(*words, cwd=project)
    assert done.code == 0, done.err
    zone = done.err.split("Created inside in ")[1].split()[0]
    url = f"/compute/v1/projects/berg-local/zones/{zone}/instances/inside"
    assert "accessConfigs" not in cloud.call("GET", url)["networkInterfaces"][0]
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
