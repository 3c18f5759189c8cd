"""Service accounts on Compute Engine, firewall rules, and gcloud as the client of IAM and its
neighbours.
"""

import uuid

import pytest
import requests
from cloud_fixtures import POLICY_3, settle
from local_gcloud import Gcloud
from local_machines import ZONE, Client, body, until

from localcloud.identity.tokens import Tokens

PROJECT = "berg-local"
ACCOUNTS = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
RESOURCES = f"/cloudresourcemanager/v1/projects/{PROJECT}"
# What a machine runs to delete itself with the token of its account.
END = """
import json, os, urllib.request as r
host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
base = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/"
get = lambda what: r.urlopen(r.Request(base + what, headers={"Metadata-Flavor": "Google"})).read().decode()
print("I am", get("email"))
token = json.loads(get("token"))["access_token"]
try:
    r.urlopen(r.Request("URL", method="DELETE", headers={"Authorization": "Bearer " + token}))
except r.HTTPError as error:
    raise SystemExit(f"refused {error.code}")
"""


@pytest.fixture
def client(cloud):
    return Client(cloud.folder)


def call(client, verb, path, json=None):
    answer = client.session.request(verb, client.url + path, json=json)
    assert answer.ok, answer.text
    return answer.json()


@pytest.fixture
def account(client, cloud):
    """A new account, and what gives it a custom role with some permissions in the project."""
    email = call(client, "POST", ACCOUNTS, {"accountId": f"m-{uuid.uuid4().hex[:12]}"})["email"]
    settle(cloud)

    def grant(*permissions):
        role = {
            "roleId": f"r_{uuid.uuid4().hex[:12]}",
            "role": {"includedPermissions": permissions},
        }
        name = call(client, "POST", f"/iam/v1/projects/{PROJECT}/roles", role)["name"]
        policy = call(client, "POST", f"{RESOURCES}:getIamPolicy", POLICY_3)
        policy["bindings"].append({"role": name, "members": [f"serviceAccount:{email}"]})
        call(client, "POST", f"{RESOURCES}:setIamPolicy", {"policy": policy})
        settle(cloud)

    return email, grant


def as_account(client, email):
    """A client whose requests are those of an account."""
    other = Client(client.folder)
    other.session = requests.Session()
    other.session.headers["Authorization"] = f"Bearer {Tokens(client.folder).mint(email)}"
    return other


def message(answer):
    error = answer.json()["error"]
    return answer.status_code, error["errors"][0]["reason"], error["message"]


def test_a_machine_may_delete_itself_once_its_account_has_the_permission(client, account):
    email, grant = account
    name = f"mortal-{uuid.uuid4().hex[:8]}"
    url = f"{client.url}/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{name}"
    script = f"#!/bin/bash\ncat > /tmp/end.py <<'E'\n{END.replace('URL', url)}E\n"
    accounts = [{"email": email, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}]
    client.insert(
        name, f"{script}until python3 /tmp/end.py; do sleep 0.1; done\n", serviceAccounts=accounts
    )
    assert f"I am {email}" in client.console_with(name, "refused 403")
    grant("compute.instances.delete")
    until(lambda: client.get(name) is None, "the machine is gone")


def test_methods_of_compute_need_their_permissions(client, account):
    email, grant = account
    machine, path = as_account(client, email), f"/zones/{ZONE}/instances"
    project = f"projects/{PROJECT}"
    target, manager = f"{project}{path}/x1", f"/regions/{ZONE[:-2]}/instanceGroupManagers/g"
    needs = {
        ("DELETE", f"{path}/x1"): ("compute.instances.delete", target),
        ("GET", path): ("compute.instances.list", project),
        ("GET", "/aggregated/instances"): ("compute.instances.list", project),
        ("POST", f"{path}/x1/setLabels"): ("compute.instances.setLabels", target),
        ("GET", f"{path}/x1/serialPort"): ("compute.instances.getSerialPortOutput", target),
        ("GET", f"/zones/{ZONE}/operations/o1"): (
            "compute.zoneOperations.get",
            f"{project}/zones/{ZONE}/operations/o1",
        ),
        ("GET", ""): ("compute.projects.get", project),
        ("GET", "/global/firewalls"): ("compute.firewalls.list", project),
        ("DELETE", manager): ("compute.instanceGroupManagers.delete", project + manager),
    }
    for (verb, what), (permission, resource) in needs.items():
        text = f"Required '{permission}' permission for '{resource}'"
        assert message(machine.call(verb, what, {} if verb == "POST" else None)) == (
            403,
            "forbidden",
            text,
        )
    grant(
        "compute.instances.delete",
        "compute.instances.list",
        "compute.instanceGroupManagers.delete",
    )
    text = f"Required 'compute.instanceGroups.delete' permission for '{project + manager}'"
    assert message(machine.call("DELETE", manager))[2] == text, "of the group's own as well"
    grant(
        "compute.instances.delete",
        "compute.instances.list",
        "compute.instanceGroupManagers.delete",
        "compute.instanceGroups.delete",
    )
    assert (
        machine.call("GET", path).status_code
        == machine.call("GET", "/aggregated/instances").status_code
        == 200
    )
    assert machine.call("DELETE", f"{path}/x1").status_code == 404
    assert machine.call("GET", f"{path}/x1").status_code == 403
    assert machine.call("DELETE", manager).status_code == 404
    # Images of public projects are everyone's.
    assert (
        machine.call("GET", "/global/images/family/debian-12", project="debian-cloud").status_code
        == 200
    )


def test_to_create_a_machine_takes_many_permissions(client, cloud, account):
    email, grant = account
    machine, path = as_account(client, email), f"/zones/{ZONE}/instances"
    name = f"made-{uuid.uuid4().hex[:8]}"
    accounts = [{"email": email, "scopes": []}]
    wanted = body(name, "#!/bin/bash\n", labels={"a": "b"}, serviceAccounts=accounts)
    missing = (
        "compute.instances.create",
        "compute.disks.create",
        "compute.instances.setMetadata",
        "compute.instances.setLabels",
        "compute.instances.setServiceAccount",
        "compute.subnetworks.use",
        "compute.subnetworks.useExternalIp",
    )
    for permission in missing:
        status, _, text = message(machine.call("POST", path, wanted))
        assert status == 403 and permission in text
        grant(permission)
    status, reason, text = message(machine.call("POST", path, wanted))
    assert (status, reason) == (400, "serviceAccountAccessDenied") and email in text
    policy = {
        "bindings": [
            {"role": "roles/iam.serviceAccountUser", "members": [f"serviceAccount:{email}"]}
        ]
    }
    call(client, "POST", f"{ACCOUNTS}/{email}:setIamPolicy", {"policy": policy})
    settle(cloud)
    assert machine.call("POST", path, wanted).status_code == 200
    client.delete(name)


def test_nobody_creates_a_machine_for_an_account_that_is_not_there(client):
    email = f"nobody@{PROJECT}.iam.gserviceaccount.com"
    answer = client.call(
        "POST", f"/zones/{ZONE}/instances", body("nobody", serviceAccounts=[{"email": email}])
    )
    text = f"The resource '{email}' of type 'serviceAccount' was not found."
    assert message(answer) == (404, "notFound", text)


def test_firewalls(client):
    named = {row["name"]: row for row in client.call("GET", "/global/firewalls").json()["items"]}
    names = [
        "default-allow-icmp",
        "default-allow-internal",
        "default-allow-rdp",
        "default-allow-ssh",
    ]
    assert sorted(named) == names
    ssh = named["default-allow-ssh"]
    assert ssh["allowed"] == [{"IPProtocol": "tcp", "ports": ["22"]}] and ssh["sourceRanges"] == [
        "0.0.0.0/0"
    ]
    assert ssh["priority"] == 65534 and ssh["direction"] == "INGRESS"
    rule = {
        "name": "iap",
        "allowed": [{"IPProtocol": "tcp", "ports": ["22"]}],
        "sourceRanges": ["35.235.240.0/20"],
    }
    done = client.wait(
        client.call("POST", "/global/firewalls", {**rule, "network": "global/networks/default"})
    )
    assert done["operationType"] == "insert" and done["targetLink"].endswith(
        "/global/firewalls/iap"
    )
    made = client.call("GET", "/global/firewalls/iap").json()
    assert (
        made["priority"] == 1000
        and made["sourceRanges"] == ["35.235.240.0/20"]
        and not made["disabled"]
    )
    assert message(client.call("POST", "/global/firewalls", rule))[:2] == (409, "alreadyExists")
    wrong = (
        {"allowed": []},
        {"network": "global/networks/x"},
        {"allowed": [{"IPProtocol": "tcp", "ports": ["9-1"]}]},
    )
    for fields in wrong:
        assert client.call(
            "POST", "/global/firewalls", {**rule, "name": "other", **fields}
        ).status_code in (400, 404)
    client.wait(client.call("DELETE", "/global/firewalls/iap"))
    assert client.call("GET", "/global/firewalls/iap").status_code == 404


TCP = {"allowed": [{"IPProtocol": "tcp", "ports": ["22"]}]}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"sourceRanges": ["10.0.0.0/33"]},
            "'resource.sourceRanges[0]': '10.0.0.0/33'. Must be a CIDR address range.",
        ),
        ({"sourceRanges": ["10.0.0.1/8"]}, "Must be a CIDR address range."),
        ({"sourceRanges": ["anywhere"]}, "Must be a CIDR address range."),
        ({"sourceRanges": ["0.0.0.0/0", "::/0"]}, "A rule has either IPv4 or IPv6 ranges."),
        ({"allowed": [{"IPProtocol": "quic"}]}, "'resource.allowed[0].IPProtocol': 'quic'"),
        ({"allowed": [{"IPProtocol": "300"}]}, "'resource.allowed[0].IPProtocol': '300'"),
        ({"allowed": [{"IPProtocol": "icmp", "ports": ["22"]}]}, "Ports may only be specified for"),
        ({"denied": [{"IPProtocol": "tcp", "ports": ["22"]}]}, "Exactly one of the fields"),
        ({"targetTags": ["Web"]}, "'resource.targetTags[0]': 'Web'. Must be a match of regex"),
        (
            {"sourceTags": ["a"], "targetServiceAccounts": ["a@b.iam.gserviceaccount.com"]},
            "may not be used together",
        ),
        ({"direction": "EGRESS", "sourceTags": ["a"]}, "'resource.sourceTags'"),
        ({"priority": 65536}, "Priority must be between"),
        ({"name": "Bad"}, "Must be a match of regex"),
    ],
)
def test_firewall_rules_that_make_no_sense(client, fields, words):
    status, _, text = message(
        client.call("POST", "/global/firewalls", {"name": "odd", **TCP, **fields})
    )
    assert status == 400 and words in text, text
    assert client.call("GET", "/global/firewalls/odd").status_code == 404


# --- gcloud


@pytest.fixture
def gcloud(client, tmp_path):
    client.call("GET", "")
    return Gcloud(client.url, PROJECT, client.session.credentials.token, tmp_path)


SCOPED = """#!/bin/bash
exec 2>&1
M=http://$GCE_METADATA_HOST/computeMetadata
FLAVOR="Metadata-Flavor: Google"
MACHINES=URL/compute/v1/projects/berg-local/zones/ZONE/instances
token=$(curl -s -H "$FLAVOR" $M/v1/instance/service-accounts/default/token | grep -o 'ya29[^"]*')
curl -s -o /dev/null -w "buckets %{http_code}\n" -H "Authorization: Bearer $token" "URL/storage/v1/b?project=berg-local"
curl -s -w "machines %{http_code}\n" -H "Authorization: Bearer $token" $MACHINES
curl -s -o /dev/null -w "moved %{http_code} %{redirect_url}\n" -H "$FLAVOR" "$M/v1/instance?alt=text"
curl -s -L -H "$FLAVOR" $M/v1 | tr '\n' ' '
echo end
"""


def test_scopes_of_a_machine_and_metadata_paths_without_a_slash(client):
    name = f"scoped-{uuid.uuid4().hex[:8]}"
    accounts = [
        {"email": "default", "scopes": ["https://www.googleapis.com/auth/devstorage.read_only"]}
    ]
    script = SCOPED.replace("URL", client.url).replace("ZONE", ZONE)
    client.insert(name, script, serviceAccounts=accounts)
    console = client.console_with(name, "end")
    assert "buckets 200" in console and "machines 403" in console
    assert "ACCESS_TOKEN_SCOPE_INSUFFICIENT" in console
    moved = next(line for line in console.splitlines() if "moved" in line)
    assert "moved 301" in moved and moved.endswith("/computeMetadata/v1/instance/?alt=text")
    assert "instance/ project/ universe/ end" in console
    client.delete(name)
