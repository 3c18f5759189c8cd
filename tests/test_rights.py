"""A job is root on its machine and has its machine's token: what that may not do, whoever wrote the job."""

import json
from pathlib import Path

import pytest
from conftest import Cloud, commit

ATTACK = """\
import json, os, urllib.error, urllib.request

host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
asked = urllib.request.Request(
    f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token",
    headers={"Metadata-Flavor": "Google"},
)
token = json.load(urllib.request.urlopen(asked))["access_token"]
attacks, found = json.load(open("attacks.json")), {}
for name, (method, url, body) in attacks.items():
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    try:
        made = urllib.request.Request(url, data=data, method=method, headers=headers)
        found[name] = urllib.request.urlopen(made).status
    except urllib.error.HTTPError as error:
        found[name] = error.code
print("found", json.dumps(found))
"""


@pytest.mark.slow
def test_the_token_of_a_machine_may_do_little(cloud: Cloud, project: Path) -> None:
    secrets = "/secretmanager/v1/projects/berg-local/secrets"
    body = {"replication": {"automatic": {}}}
    cloud.call("POST", f"{secrets}?secretId=another-job", body)
    cloud.call("POST", f"{secrets}/another-job:addVersion", {"payload": {"data": "eA=="}})
    compute = "/compute/v1/projects/berg-local"
    instances = f"{compute}/zones/us-central1-a/instances"
    project_ = "/cloudresourcemanager/v1/projects/berg-local"
    account = f"/iam/v1/projects/berg-local/serviceAccounts/{cloud.config.service_account}"
    bucket = f"/storage/v1/b/{cloud.config.bucket}"
    machine = {"name": "evil", "machineType": "zones/us-central1-a/machineTypes/e2-medium"}
    key = {"items": [{"key": "ssh-keys", "value": "root:ssh-ed25519 AAAA evil"}]}
    attacks = {
        "create a machine": ("POST", instances, machine),
        "make a template": ("POST", f"{compute}/global/instanceTemplates", {"name": "evil"}),
        "let itself in elsewhere": ("POST", f"{instances}/other/setMetadata", key),
        "open a firewall": ("POST", f"{compute}/global/firewalls", {"name": "evil"}),
        "read a secret": ("GET", f"{secrets}/another-job/versions/latest:access", None),
        "make a secret": ("POST", f"{secrets}?secretId=evil", body),
        "give itself rights": ("POST", f"{project_}:setIamPolicy", {"policy": {"bindings": []}}),
        "make a key": ("POST", f"{account}/keys", {}),
        "let others use the bucket": ("PUT", f"{bucket}/iam", {"bindings": []}),
        "make the bucket public": ("PATCH", bucket, {"acl": []}),
        "delete the bucket": ("DELETE", bucket, None),
        "list its objects": ("GET", f"{bucket}/o?maxResults=1", None),
    }
    told = {name: (method, cloud.config.endpoint + path, body)
            for name, (method, path, body) in attacks.items()}  # fmt: skip
    commit(project, {"attacks.json": json.dumps(told), "attack.py": ATTACK})
    words = ["run", "-g", "0", "-n", "attacks", "--wait", "python3 attack.py"]
    assert cloud.run(*words, cwd=project).code == 0, cloud.log("attacks")
    (line,) = [line for line in cloud.log("attacks").splitlines() if line.startswith("found ")]
    found = json.loads(line[6:])
    assert found.pop("list its objects") == 200
    assert {*found.values()} == {403}, found
    cloud.call("DELETE", f"{secrets}/another-job")
