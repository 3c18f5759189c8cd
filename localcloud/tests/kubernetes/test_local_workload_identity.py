"""Workload Identity: which clusters and pools have it, and which pod gets whose token."""

import json

import pytest
import requests
from cloud_fixtures import POLICY_3, settle
from local_kube import PLACE, SCOPES, delete_cluster, job, make_cluster
from local_machines import until

POOL = "berg-local.svc.id.goog"
ACCOUNTS = "/iam/v1/projects/berg-local/serviceAccounts"
EMAIL = "berg-alice@berg-local.iam.gserviceaccount.com"
USER = "roles/iam.workloadIdentityUser"
ASK = """
import json, os, urllib.error, urllib.request

def ask(path, host=os.environ["GCE_METADATA_HOST"], method="GET"):
    url = "http://" + host + "/computeMetadata/v1/" + path
    made = urllib.request.Request(url, method=method, headers={"Metadata-Flavor": "Google"})
    try:
        return 200, urllib.request.urlopen(made, timeout=20).read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()

port = os.environ["GCE_METADATA_HOST"].partition(":")[2]
account = "instance/service-accounts/default/"
found = {path: ask(path) for path in os.environ["PATHS"].split()}
for name in os.environ.get("OTHERS", "").split():
    found[name] = ask(account + "token", name + ":" + port)
found["put"] = ask("instance/guest-attributes/a/b", method="PUT")
print(json.dumps(found))
"""


def clusters(cloud, verb: str, path: str, body: dict | None = None):
    return cloud.session.request(
        verb, f"{cloud.url}/container/v1/{PLACE}/clusters{path}", json=body
    )


def message(answer) -> str:
    return answer.json()["error"]["message"]


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster with Workload Identity, and a pool of its own."""
    identity = {"workloadIdentityConfig": {"workloadPool": POOL}}
    made = make_cluster(cloud, "wi", tmp_path_factory.mktemp("wi"), **identity)
    member = f"serviceAccount:{POOL}[alice/berg-pod]"
    cloud.call("POST", ACCOUNTS, {"accountId": "berg-alice", "serviceAccount": {}})
    assert set_policy(cloud, {"bindings": [{"role": USER, "members": [member]}]}).ok
    pool = {"name": "new", "initialNodeCount": 1, "config": {"oauthScopes": SCOPES}}
    made.done(clusters(cloud, "POST", "/wi/nodePools", {"nodePool": pool}).json())
    for namespace in ("alice", "bob"):
        make_namespace(made, namespace)
    settle(cloud)
    yield made
    delete_cluster(made)
    cloud.call("DELETE", f"{ACCOUNTS}/{EMAIL}")


def set_policy(cloud, policy: dict):
    return cloud.session.post(
        f"{cloud.url}{ACCOUNTS}/{EMAIL}:setIamPolicy", json={"policy": policy}
    )


def make_namespace(kube, name: str) -> None:
    """A namespace with an account that is to act as the one of Google's."""
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    annotated = {"name": "berg-pod", "annotations": {"iam.gke.io/gcp-service-account": EMAIL}}
    body = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": annotated}
    kube.create(body, namespace=name)


def answers(kube, name: str, namespace: str, paths: str, account: str = "berg-pod", **env) -> dict:
    """What a pod on the pool with Workload Identity is answered."""
    variables = [{"name": key, "value": value} for key, value in {"PATHS": paths, **env}.items()]
    pod = {
        "serviceAccountName": account,
        "nodeSelector": {"iam.gke.io/gke-metadata-server-enabled": "true"},
    }
    container = {"env": variables, "command": ["python3", "-c", ASK]}
    kube.create(job(name, "", pod=pod, container=container), namespace=namespace)
    ended = lambda: [
        each
        for each in kube.get("pods", namespace=namespace)["items"]
        if each["metadata"].get("labels", {}).get("batch.kubernetes.io/job-name") == name
        and each["status"].get("phase") in ("Succeeded", "Failed")
    ]
    (found,) = until(ended, "the pod has ended", 40)
    path = f"/api/v1/namespaces/{namespace}/pods/{found['metadata']['name']}/log"
    said = kube.raw("GET", path).text
    assert found["status"]["phase"] == "Succeeded", said
    return json.loads(said)


TOKEN = "instance/service-accounts/default/token"


def test_pools_have_the_metadata_server(cloud, kube):
    found = cloud.call("GET", f"/container/v1/{PLACE}/clusters/wi")
    assert found["workloadIdentityConfig"] == {"workloadPool": POOL}
    modes = {each["config"]["workloadMetadataConfig"]["mode"] for each in found["nodePools"]}
    assert modes == {"GKE_METADATA"}


def test_a_pod_gets_the_token_of_the_account_that_its_own_names(cloud, kube):
    node = next(
        each
        for name, each in cloud.instances().items()
        if each["labels"].get("goog-k8s-node-pool-name") == "new"
    )
    address = node["networkInterfaces"][0]["networkIP"]
    theirs = node["serviceAccounts"][0]["email"]
    make_victim(kube)
    other = kube.get("pods", "victim", namespace="bob")["status"]["podIP"]
    paths = f"{TOKEN} instance/zone instance/name instance/preempted instance/?recursive=true "
    paths += f"project/project-id instance/service-accounts/{theirs}/token"
    paths += " instance/service-accounts/default/email"
    found = answers(kube, "own", "alice", paths, OTHERS=f"{address} {other}")
    assert found["instance/service-accounts/default/email"] == [200, EMAIL]
    assert found["project/project-id"] == [200, "berg-local"]
    assert found["instance/zone"][1].endswith("/zones/us-central1-a")
    assert set(json.loads(found["instance/?recursive=true"][1])) == {
        *("attributes", "hostname", "id", "serviceAccounts", "zone"),
    }
    codes = {path: found[path][0] for path in ("instance/name", "instance/preempted", "put")}
    assert codes == {"instance/name": 404, "instance/preempted": 404, "put": 405}
    refused = {path: found[path][0] for path in (address, other)}
    assert refused == {address: 403, other: 403}  # the node's, and another pod's
    assert found[f"instance/service-accounts/{theirs}/token"][0] == 404
    token = json.loads(found[TOKEN][1])["access_token"]
    assert cloud.call("POST", f"{ACCOUNTS}/{EMAIL}:getIamPolicy", {})
    headers = {"Authorization": f"Bearer {token}"}
    answer = requests.get(f"{cloud.url}/storage/v1/b?project=berg-local", headers=headers)
    assert answer.status_code == 403 and EMAIL in message(answer)


def make_victim(kube) -> None:
    """A pod of somebody else's that stays."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "victim"},
        "spec": {
            "serviceAccountName": "berg-pod",
            "terminationGracePeriodSeconds": 0,
            "nodeSelector": {"iam.gke.io/gke-metadata-server-enabled": "true"},
            "containers": [{"name": "main", "image": "debian:12", "command": ["sleep", "1000"]}],
        },
    }
    kube.create(pod, namespace="bob")
    phase = lambda: kube.get("pods", "victim", namespace="bob")["status"]["phase"] == "Running"
    until(phase, "the other pod runs", 30)


def test_a_pod_without_the_binding_gets_no_token_and_one_without_an_annotation_is_itself(
    cloud, kube
):
    refused = answers(kube, "refused", "bob", TOKEN)[TOKEN]
    assert refused[0] == 403 and "iam.serviceAccounts.getAccessToken" in refused[1]
    email = "instance/service-accounts/default/email"
    found = answers(kube, "itself", "bob", f"{TOKEN} {email}", account="default")
    assert found[email] == [200, POOL]
    token = json.loads(found[TOKEN][1])["access_token"]
    ask = lambda: requests.get(
        f"{cloud.url}/storage/v1/b?project=berg-local", headers={"Authorization": f"Bearer {token}"}
    )
    assert ask().status_code == 403
    number = cloud.call("GET", "/cloudresourcemanager/v1/projects/berg-local")["projectNumber"]
    principal = (
        f"principal://iam.googleapis.com/projects/{number}/locations/global/"
        f"workloadIdentityPools/{POOL}/subject/ns/bob/sa/default"
    )
    project = f"{cloud.url}/cloudresourcemanager/v1/projects/berg-local"
    before = cloud.session.post(f"{project}:getIamPolicy", json=POLICY_3).json()
    more = {"role": "roles/storage.admin", "members": [principal]}
    changed = {**before, "version": 3, "bindings": [*before["bindings"], more]}
    assert cloud.session.post(f"{project}:setIamPolicy", json={"policy": changed}).ok
    settle(cloud)
    try:
        assert ask().status_code == 200
    finally:
        back = {"version": 3, "bindings": before["bindings"]}
        assert cloud.session.post(f"{project}:setIamPolicy", json={"policy": back}).ok
