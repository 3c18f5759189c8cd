"""Service accounts on Compute Engine."""

import time
import uuid

import pytest
from local_machines import LATE, ZONE, Client, body, error, until

PROJECT = "berg-local"
ACCOUNTS = f"/iam/v1/projects/{PROJECT}/serviceAccounts"
RESOURCES = f"/cloudresourcemanager/v1/projects/{PROJECT}"
# What a machine runs to delete itself with the token of its account.
END = """
import json, os, urllib.request as r
host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
base = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/"
get = lambda what: r.urlopen(r.Request(base + what, headers={"Metadata-Flavor": "Google"})).read().decode()
root = r.Request(f"http://{host}", headers={"Metadata-Flavor": "Google"})
assert r.urlopen(root).status == 200  # by which google-auth knows that it is on a machine
print("I am", get("email"))
token = json.loads(get("token"))["access_token"]
try:
    r.urlopen(r.Request("URL", method="DELETE", headers={"Authorization": "Bearer " + token}))
except r.HTTPError as error:
    raise SystemExit(f"refused {error.code}")
"""


@pytest.fixture
def account(cloud):
    """A new account, and what gives it a custom role with some permissions in the project."""
    email = cloud.call("POST", ACCOUNTS, {"accountId": f"m-{uuid.uuid4().hex[:12]}"})["email"]
    time.sleep(LATE)

    def grant(*permissions, late=LATE):
        role = {
            "roleId": f"r_{uuid.uuid4().hex[:12]}",
            "role": {"includedPermissions": permissions},
        }
        name = cloud.call("POST", f"/iam/v1/projects/{PROJECT}/roles", role)["name"]
        policy = cloud.call("POST", f"{RESOURCES}:getIamPolicy")
        policy["bindings"].append({"role": name, "members": [f"serviceAccount:{email}"]})
        cloud.call("POST", f"{RESOURCES}:setIamPolicy", {"policy": policy})
        time.sleep(late)

    return email, grant


def test_a_machine_may_delete_itself_once_its_account_has_the_permission(machines, account):
    email, grant = account
    name = f"mortal-{uuid.uuid4().hex[:8]}"
    url = f"{machines.url}/compute/v1/projects/{PROJECT}/zones/{ZONE}/instances/{name}"
    script = f"#!/bin/bash\ncat > /tmp/end.py <<'E'\n{END.replace('URL', url)}E\n"
    accounts = [{"email": email, "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}]
    machines.insert(
        name, f"{script}until python3 /tmp/end.py; do sleep 0.1; done\n", serviceAccounts=accounts
    )
    assert f"I am {email}" in machines.console_with(name, "refused 403")
    grant("compute.instances.delete")
    until(lambda: machines.get(name) is None, "the machine is gone")


def test_to_create_a_machine_takes_many_permissions(machines, cloud, account):
    email, grant = account
    cloud.call("POST", "/_berg/settings", {"grant_delay": 0, "account_delay": 0})
    machine, path = Client(machines.folder, email), f"/zones/{ZONE}/instances"
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
        status, _, text = error(machine.call("POST", path, wanted))
        assert status == 403 and permission in text
        grant(permission, late=0)
    status, reason, text = error(machine.call("POST", path, wanted))
    assert (status, reason) == (400, "serviceAccountAccessDenied") and email in text
    grant("iam.serviceAccounts.actAs", late=0)
    assert machine.call("POST", path, wanted).status_code == 200
    machines.delete(name)
