"""Machines without external addresses, and with OS Login: what organisations ask for."""

import json
import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from conftest import POLICY_3, settle, wait_for
from local_gcloud import Gcloud

from localcloud.identity.tokens import Tokens
from localcloud.machines import sshd

PROJECT = "/cloudresourcemanager/v1/projects/berg-local"
COMPUTE = "/compute/v1/projects/berg-local"
SUBNET = f"{COMPUTE}/regions/us-central1/subnetworks/default/setPrivateIpGoogleAccess"
EXTERNAL, OS_LOGIN = "constraints/compute.vmExternalIpAccess", "constraints/compute.requireOsLogin"
SHIELDED, LOCATIONS = "constraints/compute.requireShieldedVm", "constraints/gcp.resourceLocations"
ADVICE = "Give --no-external-ip, or for all machines: berg config set no_external_ip true"
needs_sshd = pytest.mark.skipif(
    os.geteuid() != 0 or bool(sshd.obstacle()),
    reason=f"no ssh into machines on port 22 here: {sshd.obstacle()}",
)


@pytest.fixture
def forbid(cloud):
    """Put an organisation policy in force, for this test."""

    def call(constraint: str, *allowed: str) -> None:
        policy = {"listPolicy": {"allValues": "DENY"}} if constraint == EXTERNAL else {}
        policy = {"listPolicy": {"allowedValues": [*allowed]}} if allowed else policy
        policy = policy or {"booleanPolicy": {"enforced": True}}
        cloud.call(
            "POST", f"{PROJECT}:setOrgPolicy", {"policy": {"constraint": constraint, **policy}}
        )

    yield call
    for constraint in (EXTERNAL, OS_LOGIN, SHIELDED, LOCATIONS):
        cloud.call("POST", f"{PROJECT}:clearOrgPolicy", {"constraint": constraint})


@pytest.fixture
def private_access(cloud):
    """The subnetwork of us-central1 leads to Google's APIs."""
    cloud.call("POST", SUBNET, {"privateIpGoogleAccess": True})
    yield
    cloud.call("POST", SUBNET, {"privateIpGoogleAccess": False})


@pytest.fixture
def gcloud(berg, tmp_path):
    """What gcloud needs in the environment to know the embedded cloud, as a person would set it."""
    if not shutil.which("gcloud"):
        pytest.skip("gcloud is not installed")
    berg.cloud.call("GET", COMPUTE)
    return Gcloud(
        berg.cloud.url, "berg-local", berg.cloud.session.credentials.token, tmp_path
    ).settings


@pytest.mark.parametrize(
    "options", [(), ("--spot",), ("-m", "2")], ids=["insert", "group", "bulk insert"]
)
def test_what_an_organisation_refuses_is_said_with_the_option_that_helps(berg, forbid, options):
    forbid(EXTERNAL)
    done = berg("run", "-g", "0", "-n", "out", *options, "true")
    assert done.returncode == 1 and done.stdout == "", done.stderr
    assert f"Constraint {EXTERNAL} violated for project" in done.stderr and ADVICE in done.stderr
    assert berg.machines() == {} and not berg.bucket.exists(".berg/jobs/out_state.json")


def test_no_machine_without_a_way_to_google_is_made(berg):
    done = berg("run", "-g", "0", "--no-external-ip", "true")
    assert done.returncode == 1 and berg.machines() == {}
    assert (
        "berg: a machine without an external address reaches nothing of Google's from the subnetwork default in "
        "us-central1. Allow it: gcloud compute networks subnets update default --region us-central1 --project berg-local "
        "--enable-private-ip-google-access\n"
    ) in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [(), ("--spot",), ("-m", "2", "--each")], ids=["one", "group", "cluster"]
)
def test_jobs_run_without_external_addresses(berg, forbid, private_access, options):
    forbid(EXTERNAL)
    berg.write_config(
        **{**json.loads((berg.home / "berg.json").read_text()), "no_external_ip": not options}
    )
    asked = [] if not options else ["--no-external-ip"]
    run = berg.start(
        "run", "-g", "0", "-n", "inside", *asked, *options, "--wait", "sleep 2; echo it runs"
    )
    machines = wait_for(berg.machines, what="machines")
    assert not [row for row in machines.values() if "accessConfigs" in row["networkInterfaces"][0]]
    _, said = run.communicate(timeout=90)
    assert run.returncode == 0, said
    assert "Network   no external address; ssh goes through IAP, with gcloud" in said
    assert (
        "us-central1 has no Cloud NAT: the machines do not reach pip and the internet. "
        "To create one: gcloud compute routers" in said
    )
    assert "it runs" in berg.log("inside")


def test_the_repo_may_say_it_and_no_address_counts_against_a_quota(berg, cloud, private_access):
    (berg.repo / "berg.toml").write_text("no-external-ip = true\n")
    cloud.call(
        "POST", "/_berg/quotas", {"metric": "IN_USE_ADDRESSES", "limit": 0, "region": "us-central1"}
    )
    try:
        done = berg("run", "-g", "0", "--dry-run", "--json", "true")
        with_address = berg(
            "run",
            "-g",
            "0",
            "--dry-run",
            "--json",
            "true",
            cwd=berg.repo,
            BERG_NO_EXTERNAL_IP="false",
        )
        wrong = berg("run", "-g", "0", "--dry-run", "--json", "true", BERG_NO_EXTERNAL_IP="maybe")
    finally:
        cloud.call(
            "POST",
            "/_berg/quotas",
            {"metric": "IN_USE_ADDRESSES", "limit": 2000, "region": "us-central1"},
        )
    assert "accessConfigs" not in json.loads(done.stdout)["request"]["networkInterfaces"][0], (
        done.stderr
    )
    assert (
        "IN_USE_ADDRESSES" not in done.stderr
        and "no-external-ip = true (of berg.toml)" in done.stderr
    )
    assert "accessConfigs" in json.loads(with_address.stdout)["request"]["networkInterfaces"][0]
    assert " of 0 in use; this needs 1" in with_address.stderr  # other tests' nodes may hold some
    assert (
        wrong.returncode == 1
        and "no_external_ip must be true or false, not 'maybe'" in wrong.stderr
    )


@pytest.mark.slow
def test_nodes_of_a_cluster_have_external_addresses_only_where_they_may(
    berg, cloud, forbid, private_access
):
    settle(cloud)
    cloud.call("POST", "/_berg/settings", {"give_up": 0.5, "operation": 0.2})
    create = ["cluster", "create", "closed", "-g", "0", "--machine-type", "n1-standard-4"]
    inside = {"BERG_NO_EXTERNAL_IP": "true"}
    nodes = lambda: [
        row for name, row in cloud.instances().items() if name.startswith("gke-closed-")
    ]
    has_address = lambda row: "accessConfigs" in row["networkInterfaces"][0]
    assert berg(*create).returncode == 0
    assert [has_address(row) for row in nodes()] == [True]
    late = berg(*create, **inside)
    assert late.returncode == 0 and "The nodes of closed have external addresses" in late.stderr
    assert berg("cluster", "delete", "closed", "-y").returncode == 0
    forbid(EXTERNAL)
    refused = berg(*create)
    assert (
        refused.returncode == 1 and f"Constraint {EXTERNAL} violated for project" in refused.stderr
    ), refused.stderr
    mend = "berg cluster delete closed, berg config set no_external_ip true, and make it again"
    assert mend in refused.stderr
    assert mend in berg(*create).stderr
    assert berg("cluster", "delete", "closed", "-y").returncode == 0
    made = berg(*create, **inside)
    assert made.returncode == 0 and "external addresses" not in made.stderr, made.stderr
    try:
        assert "external addresses" not in berg(*create, **inside).stderr
        # of machines: nodes are what they are
        (berg.repo / "berg.toml").write_text("no-external-ip = true\n")
        done = berg("run", "--cluster", "closed", "-n", "inside", "--wait", "true", **inside)
        assert done.returncode == 0, done.stderr
        assert "IAP" not in done.stderr, "pods are reached through the cluster's API"
        assert [has_address(row) for row in nodes()] == [False, False]
    finally:
        assert berg("cluster", "delete", "closed", "-y").returncode == 0


@pytest.mark.slow
@needs_sshd
def test_ssh_and_sync_through_gcloud_s_own_tunnel(berg, gcloud, private_access):
    started = berg("run", "-g", "0", "-n", "deep", "--no-external-ip", "sleep 1000")
    assert started.returncode == 0, started.stderr
    first = berg("ssh", "deep", "--", "hostname", **gcloud)
    assert (first.returncode, first.stdout) == (0, "deep\n"), first.stderr
    assert "with gcloud's account: the one that `gcloud auth list` shows\n" in first.stderr
    assert "NumPy" not in first.stderr
    folder = Path(gcloud["CLOUDSDK_CONFIG"], "configurations")
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "config_default").write_text("[core]\naccount = ann@example.com\n")
    dry = berg("ssh", "deep", "--dry-run", "--", "hostname", **gcloud)
    assert "with gcloud's account: ann@example.com\n" in dry.stderr
    shown = dry.stdout
    assert (
        "gcloud compute start-iap-tunnel deep %p --listen-on-stdin --project berg-local" in shown
        and "ProxyCommand=" in shown
    )
    environment = berg.environment(**gcloud)
    plain = ["ssh", "-F", str(berg.home / "ssh/deep"), "deep", "hostname; exit 5"]
    done = subprocess.run(plain, capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stdout) == (5, "deep\n"), done.stderr
    (berg.repo / "more.py").write_text("print(7)\n")
    synced = berg("sync", "deep", "--once", **gcloud)
    assert synced.returncode == 0, synced.stderr
    assert berg("ssh", "deep", "--", "cat more.py", **gcloud).stdout == "print(7)\n"
    tools = berg.home / "tools"
    tools.mkdir()
    for name in ("ssh", "git"):
        (tools / name).symlink_to(shutil.which(name))
    without = berg("ssh", "deep", "--", "hostname", PATH=str(tools))
    assert (
        without.returncode == 1
        and "berg: gcloud is not installed; berg reaches machines" in without.stderr
    )
    assert berg("kill", "deep", "--now").returncode == 0


@pytest.mark.slow
@needs_sshd
def test_root_logs_in_where_os_login_is_required(berg, cloud, forbid):
    """Google's agent leaves the metadata's keys alone then; berg's worker does not."""
    there = cloud.call("GET", COMPUTE)["commonInstanceMetadata"]
    on = {
        "fingerprint": there["fingerprint"],
        "items": [{"key": "enable-oslogin", "value": "TRUE"}],
    }
    cloud.call("POST", f"{COMPUTE}/setCommonInstanceMetadata", on)
    try:
        forbid(OS_LOGIN)
        assert berg("run", "-g", "0", "-n", "login", "sleep 1000").returncode == 0
        done = berg(
            "ssh", "login", "--", "grep -c Added.by.Google ~/.ssh/authorized_keys; hostname"
        )
        assert done.stdout == "0\nlogin\n", done.stderr
        other = berg("run", "-g", "0", "true", BERG_SSH_USER="anna")
        assert other.returncode == 1 and f"Constraint {OS_LOGIN} violated" in other.stderr
        assert (
            "Log in as root, with keys that berg manages: berg config set ssh_user root"
            in other.stderr
        )
    finally:
        there = cloud.call("GET", COMPUTE)["commonInstanceMetadata"]
        cloud.call(
            "POST",
            f"{COMPUTE}/setCommonInstanceMetadata",
            {"fingerprint": there["fingerprint"], "items": []},
        )
    assert berg("kill", "login", "--now").returncode == 0


@pytest.mark.slow
def test_doctor_names_what_policies_and_networks_ask_for(berg, cloud, forbid):
    def look(**env: str) -> dict[str, dict]:
        return {each["check"]: each for each in json.loads(berg("doctor", "--json", **env).stdout)}

    assert look()["policies"]["status"] == "ok"
    for constraint in (EXTERNAL, OS_LOGIN):
        forbid(constraint)
    findings = look(BERG_SSH_USER="anna")
    assert findings["policies"]["status"] == "failed"
    mends = [
        each["fix"] for each in json.loads(berg("doctor", "--json", BERG_SSH_USER="anna").stdout)
    ]
    assert {"berg config set no_external_ip true", "berg config set ssh_user root"} <= set(mends)
    inside = {"BERG_NO_EXTERNAL_IP": "true"}
    findings = look(**inside)
    assert findings["policies"]["found"].startswith(
        "refused, but not used by berg: external addresses, machines without"
    )
    assert (
        findings["egress: google"]["status"] == "failed"
        and findings["egress: internet"]["status"] == "warning"
    )
    assert findings["firewall"]["status"] == findings["rights: tunnels"]["status"] == "ok"
    if shutil.which("gcloud"):  # its advice, as it stands, mends it
        gcloud = Gcloud(
            cloud.url, "berg-local", cloud.session.credentials.token, berg.home
        ).settings
        for check in ("egress: google", "egress: internet"):
            command = ["bash", "-c", findings[check]["fix"]]
            subprocess.run(command, check=True, env={**os.environ, **gcloud}, capture_output=True)
        findings = look(**inside)
        assert (
            findings["egress: google"]["status"] == findings["egress: internet"]["status"] == "ok"
        )
        cloud.call("DELETE", f"{COMPUTE}/regions/us-central1/routers/berg-nat")
        cloud.call("POST", SUBNET, {"privateIpGoogleAccess": False})


HOST = "host-project"
SHARED = {"BERG_NETWORK": f"projects/{HOST}/global/networks/default"}
LINK = "https://www.googleapis.com/compute/v1"
IN_HOST = f"projects/{HOST}/regions/us-central1/subnetworks/default"


@pytest.fixture
def host(cloud):
    """The path of a project that shares its network."""
    cloud.call("POST", "/_berg/projects", {"project": HOST})
    return f"/compute/v1/projects/{HOST}"


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"BERG_SUBNETWORK": "default"},
        {"BERG_SUBNETWORK": IN_HOST},
        {
            "BERG_NETWORK": f"{LINK}/{SHARED['BERG_NETWORK']}",
            "BERG_SUBNETWORK": f"{LINK}/{IN_HOST}",
        },
    ],
    ids=["network", "subnetwork by name", "subnetwork by path", "addresses"],
)
def test_a_machine_is_on_the_network_of_a_host_project(berg, cloud, host, more):
    done = berg("run", "-g", "0", "-n", "shared", "sleep 1000", **{**SHARED, **more})
    assert done.returncode == 0, done.stderr
    (interface,) = cloud.instances()["shared"]["networkInterfaces"]
    assert interface["network"].endswith(f"/{SHARED['BERG_NETWORK']}")
    assert interface["subnetwork"].endswith(f"/{IN_HOST}")
    assert berg("kill", "shared", "--now").returncode == 0


@pytest.mark.parametrize("options", [("--spot",), ("-m", "2")], ids=["group", "bulk insert"])
def test_several_machines_are_on_the_network_of_a_host_project(berg, cloud, host, options):
    done = berg("run", "-g", "0", "-n", "both", *options, "--dry-run", "--json", "true", **SHARED)
    assert done.returncode == 0, done.stderr
    assert f'"subnetwork": "{IN_HOST}"' in done.stdout
    assert f'"network": "{SHARED["BERG_NETWORK"]}"' in done.stdout


def test_ways_out_of_a_shared_network_are_its_host_project_s(berg, cloud, host, private_access):
    inside = {**SHARED, "BERG_NO_EXTERNAL_IP": "true"}
    done = berg("run", "-g", "0", "--dry-run", "--json", "true", **inside)
    assert done.returncode == 1, "the own project's subnetwork says nothing about the host's"
    assert (
        f"gcloud compute networks subnets update default --region us-central1 --project {HOST} "
        "--enable-private-ip-google-access"
    ) in done.stderr
    at = f"{host}/regions/us-central1/subnetworks/default/setPrivateIpGoogleAccess"
    cloud.call("POST", at, {"privateIpGoogleAccess": True})
    try:
        run = berg("run", "-g", "0", "-n", "inner", "--wait", "echo it runs", **inside)
        assert run.returncode == 0, run.stderr
        assert f"routers create berg-nat --region us-central1 --project {HOST}" in run.stderr
    finally:
        cloud.call("POST", at, {"privateIpGoogleAccess": False})


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"BERG_NETWORK": "host-project/default"},
            "network 'host-project/default' is neither a name nor a path such as "
            "projects/HOST/global/networks/NAME",
        ),
        (
            {**SHARED, "BERG_SUBNETWORK": "projects/host-project/subnetworks/default"},
            "is neither a name nor a path such as projects/HOST/regions/REGION/subnetworks/NAME",
        ),
        (
            {"BERG_SUBNETWORK": IN_HOST},
            f"is in the project {HOST}, and the network default in berg-local. Name that project's "
            f"network: berg config set network projects/{HOST}/global/networks/NAME",
        ),
        (
            {**SHARED, "BERG_SUBNETWORK": IN_HOST.replace("central1", "east1")},
            "is in us-east1, not in us-central1. Choose zones there",
        ),
        (
            {"BERG_NETWORK": "projects/nowhere/global/networks/default"},
            "The referenced network resource cannot be found",
        ),
    ],
)
def test_a_wrong_path_of_a_network_is_refused(berg, cloud, host, settings, words):
    berg.allowed = [400]
    done = berg("run", "-g", "0", "true", **settings)
    assert done.returncode == 1 and words in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and berg.machines() == {}


@pytest.fixture
def person(berg, cloud):
    """Roles of an account in a project, and the environment in which berg acts as that account."""
    made = {"accountId": f"p-{uuid.uuid4().hex[:9]}"}
    email = cloud.call("POST", "/iam/v1/projects/berg-local/serviceAccounts", made)["email"]
    file = berg.home / "person.json"
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(file, email)
    cloud.call("POST", "/_berg/settings", {"grant_delay": 0})

    def give(project: str, role: str) -> dict[str, str]:
        policy = {"bindings": [{"role": role, "members": [f"serviceAccount:{email}"]}]}
        at = f"/cloudresourcemanager/v1/projects/{project}"
        old = cloud.call("POST", f"{at}:getIamPolicy", POLICY_3)
        bindings = [*old.get("bindings", []), *policy["bindings"]]
        cloud.call(
            "POST", f"{at}:setIamPolicy", {"policy": {**old, "version": 3, "bindings": bindings}}
        )
        return {"BERG_CREDENTIALS_FILE": str(file)}

    return give


def test_doctor_looks_at_the_host_project(berg, cloud, host, person):
    def look(**env: str) -> dict[str, dict]:
        found = json.loads(berg("doctor", "--json", **env).stdout)
        return {each["check"]: each for each in found}

    findings = look(**SHARED)
    assert findings["rights: network"]["status"] == "ok"
    assert findings["firewall"]["status"] == "ok"
    me = person("berg-local", "roles/compute.instanceAdmin.v1")
    findings = look(**SHARED, **me)
    lacking = findings["rights: network"]
    assert lacking["status"] == "failed"
    assert lacking["found"] == (
        "you lack compute.subnetworks.use, compute.subnetworks.useExternalIp on the subnetwork "
        f"default in us-central1 of {HOST}"
    )
    assert lacking["fix"].startswith(f"gcloud projects add-iam-policy-binding {HOST} --member ")
    assert lacking["fix"].endswith("--role roles/compute.networkUser")
    assert findings["firewall"]["status"] == "warning", "which it may not see"
    person(HOST, "roles/compute.networkUser")
    assert look(**SHARED, **me)["rights: network"]["status"] == "ok"
    rule = {
        "name": "shut",
        "network": "global/networks/default",
        "denied": [{"IPProtocol": "all"}],
        "priority": 10,
    }
    cloud.call("POST", f"{host}/global/firewalls", rule)
    try:
        assert look()["firewall"]["status"] == "ok", "the own network's"
        shut = look(**SHARED)["firewall"]
        assert shut["status"] == "warning" and f"--project {HOST} --network default" in shut["fix"]
    finally:
        cloud.call("DELETE", f"{host}/global/firewalls/shut")


def test_google_asks_for_the_permissions_in_the_host_project(berg, cloud, host, person):
    me = person("berg-local", "roles/editor")
    done = berg("run", "-g", "0", "-n", "mine", "sleep 1000", **SHARED, **me)
    assert done.returncode == 1 and berg.machines() == {}
    assert f"Required 'compute.subnetworks.use' permission for 'projects/{HOST}'" in done.stderr


def test_places_that_the_organisation_allows_are_looked_at(berg, cloud, forbid):
    def look() -> dict:
        found = json.loads(berg("doctor", "--json").stdout)
        return next(each for each in found if each["check"] == "policies")

    forbid(SHIELDED)
    assert look()["found"] == "refused, but not used by berg: images that cannot be Shielded VMs"
    for allowed in ("in:us-locations", "us-central1", "in:us-central1-locations"):
        forbid(LOCATIONS, allowed)
        assert look()["status"] == "ok", allowed
    forbid(LOCATIONS, "in:europe-locations")
    found = look()
    assert found["status"] == "warning"
    assert found["found"].endswith("in in:europe-locations, and your region is us-central1")
    done = berg("run", "-g", "0", "true")
    assert done.returncode == 1 and berg.machines() == {}
    assert "berg config set region REGION" in " ".join(done.stderr.split()), done.stderr


def test_no_cluster_is_made_on_the_network_of_a_host_project(berg, cloud, host):
    done = berg("cluster", "create", "lent", "-g", "0", **SHARED)
    assert done.returncode == 1, done.stdout
    assert "berg makes no clusters on a network of another project" in done.stderr
    assert "lent" not in berg("cluster", "list").stdout
