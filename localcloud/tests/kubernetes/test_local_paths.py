"""What a cluster's API server answers besides objects."""

import pytest


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz", "/version"])
def test_health_without_a_token_and_never_with_a_bad_one(kube, path):
    anonymous = {"Authorization": None}
    assert kube.raw("GET", path, headers=anonymous).ok
    assert kube.raw("GET", path, token="bad").status_code == 401


def test_who_may_not_is_told_so_of_what_is_not_there(kube):
    name = "nothing"
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    path = f"/api/v1/namespaces/default/serviceaccounts/{name}"
    token = kube.call("POST", f"{path}/token", {"spec": {}})["status"]["token"]
    found = kube.raw("GET", "/apis/foo.org/v1/namespaces/default/bars/x", token=token)
    told = 'bars.foo.org "x" is forbidden: User "system:serviceaccount:default:nothing" cannot get '
    told += 'resource "bars" in API group "foo.org" in the namespace "default"'
    assert (found.status_code, found.json()["message"]) == (403, told)
    assert kube.raw("GET", "/apis/foo.org/v1/namespaces/default/bars/x").status_code == 404
    kube.call("DELETE", path)
