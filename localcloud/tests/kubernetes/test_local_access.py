"""Who may do what in a cluster by Google's permissions, and how pods find each other by name."""

import uuid

import pytest
import requests
from cloud_fixtures import POLICY_3, settle
from local_kube import PLACE, SCOPES, job

from localcloud.identity.tokens import Tokens

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def account(kube):
    """The token of a service account that may look at clusters, and no more."""
    made = kube.cloud.call(
        "POST",
        "/iam/v1/projects/berg-local/serviceAccounts",
        {"accountId": f"look-{uuid.uuid4().hex[:8]}"},
    )
    base = "/cloudresourcemanager/v1/projects/berg-local"
    policy = kube.cloud.call("POST", f"{base}:getIamPolicy", POLICY_3)
    row = {"role": "roles/container.viewer", "members": [f"serviceAccount:{made['email']}"]}
    policy["bindings"] = [*policy.get("bindings", []), row]
    kube.cloud.call("POST", f"{base}:setIamPolicy", {"policy": policy})
    settle(kube.cloud)
    return made["email"], Tokens(kube.cloud.folder).mint(made["email"], 3600, SCOPES)


def test_googles_roles_count_in_a_cluster_and_role_bindings_add_to_them(kube, account):
    email, token = account
    assert kube.raw("GET", PODS, token=token).ok
    refused = kube.raw("DELETE", f"{PODS}/none", token=token)
    assert (
        refused.status_code == 403
        and 'requires one of ["container.pods.delete"]' in refused.json()["message"]
    )
    bearer = {"Authorization": f"Bearer {token}"}
    url = f"{kube.cloud.url}/container/v1/{PLACE}/clusters/kube"
    assert kube.cloud.session.get(url).ok
    assert (
        requests.get(url, headers=bearer).ok
        and requests.delete(url, headers=bearer).status_code == 403
    )
    api = "rbac.authorization.k8s.io"
    binding = {
        **{"apiVersion": f"{api}/v1", "kind": "RoleBinding", "metadata": {"name": "edits"}},
        "subjects": [{"apiGroup": api, "kind": "User", "name": email}],
        "roleRef": {"apiGroup": api, "kind": "ClusterRole", "name": "edit"},
    }
    kube.create(binding)
    map_ = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "by-the-account"}}
    assert kube.raw("POST", "/api/v1/namespaces/default/configmaps", map_, token=token).ok
    kube.kubectl("delete", "rolebinding", "edits")
    kube.kubectl("delete", "configmap", "by-the-account")


def test_pods_find_each_other_through_a_service(kube):
    spec = {
        "clusterIP": "None",
        "selector": {"job-name": "peers"},
        "publishNotReadyAddresses": True,
    }
    kube.create(
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "peers"}, "spec": spec}
    )
    other = "peers-$((1 - JOB_COMPLETION_INDEX)).peers"
    # Looked for there first: a name that is not known yet would be asked of the network.
    script = (
        f"until grep -q {other} /etc/hosts; do sleep 0.1; done; getent ahostsv4 {other}; sleep 1"
    )
    kube.create(job("peers", script, count=2, pod={"subdomain": "peers"}))
    assert kube.ended("peers")["type"] == "Complete"
    pods = {
        pod["status"]["podIP"]: kube.log(pod["metadata"]["name"]).split()[0]
        for pod in kube.pods("peers")
    }
    one, other = sorted(pods)
    assert pods == {one: other, other: one}
    kube.kubectl("delete", "service", "peers")
