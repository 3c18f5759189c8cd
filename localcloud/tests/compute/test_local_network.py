# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Ways to and from machines of the embedded cloud: private access, keys of the metadata, IAP's
tunnel.

gcloud and OpenSSH are the clients, where they are installed.
"""

import os
import subprocess

import pytest
from local_gcloud import Gcloud
from local_machines import ZONE, client, ssh, until  # noqa: F401 (a fixture)

from localcloud.machines import sshd

REGION = "us-central1"
needs_sshd = pytest.mark.skipif(
    os.geteuid() != 0 or bool(sshd.obstacle()), reason="no ssh into machines on port 22 here"
)


@pytest.fixture
def gcloud(client, tmp_path):
    return Gcloud(client.folder, tmp_path)


# --- ways out


def test_without_an_address_google_answers_by_private_access_only(client, gcloud):
    """The machine says how a request to the list of buckets ends."""
    script = (
        "#!/usr/bin/env python3\nimport json, time, urllib.request as u\n"
        "import os\nhost = os.environ['GCE_METADATA_HOST']\n"
        "ask = u.Request(f'http://{host}/computeMetadata/v1/instance/service-accounts/default/token',"
        " headers={'Metadata-Flavor': 'Google'})\n"
        "token = json.load(u.urlopen(ask))['access_token']\n"
        f"url = '{client.url}/storage/v1/b?project=berg-local'\n"
        "for n in range(6000):\n"
        "    try:\n        u.urlopen(u.Request(url, headers={'Authorization': f'Bearer {token}'}))\n"
        "        print('reached', n, flush=True)\n"
        "    except OSError as error:\n        print('cut', n, type(error).__name__, flush=True)\n"
        "    time.sleep(0.2)\n"
    )
    client.insert("inside", script, networkInterfaces=[{}])

    def last() -> str:
        lines = [
            line
            for line in client.console("inside").splitlines()
            if ": cut " in line or ": reached " in line
        ]
        return (
            lines[-1].partition('/bin/bash"): ')[2] or lines[-1].partition("startup-script: ")[2]
            if lines
            else ""
        )

    def comes(word: str) -> None:
        until(lambda: last().startswith(word), f"{word} on the console")

    comes("cut")
    subnet = ("compute", "networks", "subnets")
    gcloud(*subnet, "update", "default", "--region", REGION, "--enable-private-ip-google-access")
    described = gcloud(
        *subnet, "describe", "default", "--region", REGION, "--format=value(privateIpGoogleAccess)"
    )
    assert described == "True\n"
    comes("reached")
    gcloud(*subnet, "update", "default", "--region", REGION, "--no-enable-private-ip-google-access")
    comes("cut")
    client.delete("inside")


# --- ways in


def items(metadata: dict) -> dict[str, str]:
    return {item["key"]: item["value"] for item in metadata.get("items", [])}


def tell(client, name: str, **values: str | None) -> None:
    """Change what the metadata says of a machine, or of the project."""
    path = f"/zones/{ZONE}/instances/{name}" if name else ""
    there = client.call("GET", path).json()["metadata" if name else "commonInstanceMetadata"]
    merged = {**items(there), **{key.replace("_", "-"): value for key, value in values.items()}}
    rows = [{"key": key, "value": value} for key, value in merged.items() if value is not None]
    path += "/setMetadata" if name else "/setCommonInstanceMetadata"
    client.wait(client.call("POST", path, {"fingerprint": there["fingerprint"], "items": rows}))


@pytest.fixture
def key(tmp_path):
    """Paths of a key, and its public line."""

    def make(name: str) -> tuple[str, str]:
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", tmp_path / name],
            check=True,
        )
        return str(tmp_path / name), (tmp_path / f"{name}.pub").read_text().strip()

    return make


def enters(client, name: str, private: str) -> bool:
    address = client.get(name)["networkInterfaces"][0]["networkIP"]
    words = ssh(private, f"root@{address}", "hostname")
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode == 0 and done.stdout == f"{name}\n"


@needs_sshd
def test_keys_of_a_machine_and_of_the_project_let_root_in(client, key):
    mine, public_mine = key("mine")
    shared, public_shared = key("shared")
    other, public_other = key("other")
    items = [{"key": "ssh-keys", "value": f"root:{public_mine}"}]
    tell(client, "", startup_script="#!/bin/bash\necho from the project\n")
    client.insert("door", metadata={"items": items})
    client.console_with("door", "startup-script: from the project")
    until(lambda: enters(client, "door", mine), "my key")
    assert not enters(client, "door", shared)
    tell(client, "", ssh_keys=f"root:{public_shared}\nanna:{public_other}")
    until(lambda: enters(client, "door", shared), "the project's key")
    assert not enters(client, "door", other), "another user's key"
    tell(client, "", ssh_keys=None, startup_script=None)
    client.delete("door")


@needs_sshd
def test_gcloud_s_ssh_and_scp(client, gcloud, tmp_path):
    """As Google's own client does it: it makes a key, hands it to the project, and waits until that
    lets it in.
    """
    gcloud.settings["HOME"] = str(tmp_path)
    key = str(tmp_path / "google_compute_engine")
    subprocess.run(["ssh-keygen", "-q", "-t", "rsa", "-N", "", "-f", key], check=True)
    client.insert("plain")
    hosts = f"--ssh-key-file={key}", "--strict-host-key-checking=no", "--zone", ZONE
    flags = [f"--ssh-flag=-o UserKnownHostsFile={tmp_path}/known"]
    assert (
        gcloud("compute", "ssh", "root@plain", *hosts, *flags, "--command", "hostname; id -u")
        == "plain\n0\n"
    )
    (tmp_path / "sent").write_text("some data")
    scp = ["--scp-flag=-o", f"--scp-flag=UserKnownHostsFile={tmp_path}/known"]
    gcloud("compute", "scp", str(tmp_path / "sent"), "root@plain:/root/there", *hosts, *scp)
    gcloud("compute", "scp", "root@plain:/root/there", str(tmp_path / "back"), *hosts, *scp)
    assert (tmp_path / "back").read_text() == "some data"
    tell(client, "", ssh_keys=None)
    client.delete("plain")


@needs_sshd
def test_a_tunnel_of_gcloud_s_reaches_a_machine_without_an_address(client, gcloud, key, tmp_path):
    private, public = key("me")
    client.insert(
        "deep",
        networkInterfaces=[{}],
        metadata={"items": [{"key": "ssh-keys", "value": f"root:{public}"}]},
    )
    url = client.url.replace("http://127.0.0.1", "wss://127.0.0.2")

    def tunnel(name: str, port: str = "22") -> list[str]:
        words = ["gcloud", "compute", "start-iap-tunnel", name, port, "--listen-on-stdin"]
        words += ["--zone", ZONE, "--verbosity=error", f"--iap-tunnel-url-override={url}/v4"]
        return [*words, "--iap-tunnel-insecure-disable-websocket-cert-check"]

    environment = {**os.environ, **gcloud.settings}
    proxy = " ".join(tunnel("deep"))
    data = os.urandom(3 << 20)
    # One way after the other: gcloud's sender waits for its own queue where both are full.
    for command, sent, back in (("cat >data", data, b""), ("cat data", b"", data)):
        words = ssh(private, "root@deep", command, ProxyCommand=proxy)
        done = subprocess.run(words, input=sent, capture_output=True, env=environment, timeout=90)
        assert done.returncode == 0 and done.stdout == back, done.stderr

    def refusal(*words: str) -> str:
        done = subprocess.run(
            tunnel(*words), input="", capture_output=True, text=True, env=environment, timeout=90
        )
        return done.stderr  # gcloud's exit code is 0 all the same

    assert "4003" in refusal("deep", "9")
    assert "4047" in refusal("nobody")
    (tmp_path / "token").write_text("nobody's")
    assert "401" in refusal("deep")
    client.delete("deep")
