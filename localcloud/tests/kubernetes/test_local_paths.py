"""What a cluster's API serves beside objects, and to whom: with all rights, with some, with none."""

import json
import shutil

import pytest
import requests

DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
CORE = "/api/v1/namespaces/default"


@pytest.fixture(scope="module")
def account(kube):
    """A service account without any right beside those of everybody who has a token."""
    name = "paths"
    kube.call("POST", f"{CORE}/serviceaccounts", {"metadata": {"name": name}})
    found = kube.call("POST", f"{CORE}/serviceaccounts/{name}/token", {"spec": {}})
    yield found["status"]["token"]
    kube.raw("DELETE", f"{CORE}/serviceaccounts/{name}")


def anonymous(kube, path: str, **headers) -> requests.Response:
    return requests.get(kube.server + path, headers=headers, verify=kube.ca, timeout=30)


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz/ping", "/logs", "/foo"])
def test_a_path_beside_discovery_takes_a_right(kube, account, path):
    found = kube.raw("GET", path, token=account)
    told = f'User "system:serviceaccount:default:paths" cannot get path "{path}"'
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    body |= {"message": f"forbidden: {told}", "reason": "Forbidden", "details": {}, "code": 403}
    assert (found.status_code, found.json()) == (403, body)


@pytest.mark.parametrize(
    "path",
    [
        *("/api", "/api/v1", "/apis", "/apis/batch", "/apis/batch/v1", "/version", "/healthz"),
        *("/livez", "/readyz", "/openapi/v2", "/openapi/v3", "/openapi/v3/api/v1"),
    ],
)
def test_everybody_with_a_token_may_discover(kube, account, path):
    assert kube.raw("GET", path, token=account).status_code == 200
    denied = kube.raw("POST", path, token=account)
    assert denied.status_code == 403 and f'cannot post path \\"{path}\\"' in denied.text
    if path not in ("/healthz", "/livez", "/readyz"):
        assert kube.raw("POST", path).status_code == 405


def test_what_one_may_do_with_a_path_can_be_asked(kube, account):
    reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"

    def may(token: str, verb: str, path: str) -> bool:
        body = {"spec": {"nonResourceAttributes": {"verb": verb, "path": path}}}
        return kube.raw("POST", reviews, body, token=token).json()["status"]["allowed"]

    assert may(account, "get", "/apis/batch") and not may(account, "get", "/metrics")
    assert not may(account, "post", "/apis/batch") and may("", "get", "/metrics")


def test_a_role_may_give_a_path(kube, account):
    rbac, name = "/apis/rbac.authorization.k8s.io/v1", {"metadata": {"name": "paths"}}
    rules = [{"verbs": ["get"], "nonResourceURLs": ["/metrics", "/healthz/*"]}]
    kube.call("POST", f"{rbac}/clusterroles", {**name, "rules": rules})
    who = [{"kind": "ServiceAccount", "name": "paths", "namespace": "default"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "paths"}
    kube.call("POST", f"{rbac}/clusterrolebindings", {**name, "roleRef": role, "subjects": who})
    try:
        kube.raw("GET", f"{CORE}/configmaps/none-such")
        found = kube.raw("GET", "/metrics", token=account).text
        row = 'apiserver_request_total{code="404",resource="configmaps",verb="get"} '
        assert row in found and "# TYPE apiserver_request_total counter" in found
        assert kube.raw("GET", "/healthz/ping", token=account).text == "ok"
        assert kube.raw("GET", "/", token=account).status_code == 403
    finally:
        for plural in ("clusterroles", "clusterrolebindings"):
            kube.raw("DELETE", f"{rbac}/{plural}/paths")


def test_health_without_a_token_and_never_with_a_bad_one(kube):
    for path in ("/healthz", "/livez", "/readyz", "/version"):
        assert anonymous(kube, path).status_code == 200
        assert anonymous(kube, path, Authorization="Bearer bad").status_code == 401
    for path in ("/api", "/", "/metrics", "/openapi/v3"):
        assert anonymous(kube, path).status_code == 401


def test_health_is_told_check_by_check(kube):
    assert kube.raw("GET", "/livez").text == "ok"
    lines = kube.raw("GET", "/readyz", verbose="", exclude="etcd").text.splitlines()
    assert lines[0] == "[+]ping ok" and lines[-1] == "readyz check passed"
    assert "[+]etcd excluded: ok" in lines and "[+]informer-sync ok" in lines
    warned = kube.raw("GET", "/livez", verbose="", exclude="foo").text
    assert 'cannot be excluded: no matches for "foo"\n' in warned
    assert kube.raw("GET", "/readyz/foo").text == "404 page not found\n"


def test_the_root_lists_what_is_there(kube):
    paths = kube.call("GET", "/")["paths"]
    assert paths == sorted(paths)
    assert {"/api", "/apis/batch/v1", "/openapi/v2", "/readyz/ping", "/version"} <= {*paths}
    for path in paths:
        assert kube.raw("GET", path).status_code == 200, path


def test_openapi_is_one_document_too(kube):
    found = kube.call("GET", "/openapi/v2")
    assert found["swagger"] == "2.0" and "#/components" not in json.dumps(found)
    job = found["definitions"]["io.k8s.api.batch.v1.Job"]
    spec = job["properties"]["spec"]["allOf"][0]["$ref"].removeprefix("#/definitions/")
    assert "completions" in found["definitions"][spec]["properties"]


def test_discovery_that_a_client_has_is_not_sent_again(kube):
    first = kube.raw("GET", "/apis", headers={"Accept": DISCOVERY})
    assert first.headers["Vary"] == "Accept" and first.headers["Cache-Control"] == "public"
    headers = {"Accept": DISCOVERY, "If-None-Match": first.headers["ETag"]}
    again = kube.raw("GET", "/apis", headers=headers)
    assert (again.status_code, again.content) == (304, b"")


def test_who_may_not_is_told_so_of_what_is_not_there(kube, account):
    found = kube.raw("GET", "/apis/foo.org/v1/namespaces/default/bars/x", token=account)
    told = 'bars.foo.org "x" is forbidden: User "system:serviceaccount:default:paths" cannot get '
    told += 'resource "bars" in API group "foo.org" in the namespace "default"'
    assert (found.status_code, found.json()["message"]) == (403, told)
    assert kube.raw("GET", "/apis/foo.org/v1/namespaces/default/bars/x").status_code == 404


YAML = {"Content-Type": "application/yaml"}
HEAD = "kind: ConfigMap\napiVersion: v1\nmetadata: {name: twice}\n"


def test_not_all_that_there_is_can_be_deleted_at_once(kube):
    assert kube.raw("DELETE", "/api/v1/namespaces").status_code == 405
    rows = {row["name"]: row for row in kube.call("GET", "/api/v1")["resources"]}
    assert "deletecollection" not in rows["namespaces"]["verbs"]
    assert "deletecollection" in rows["configmaps"]["verbs"]


def test_only_some_objects_count_their_changes(kube):
    made = kube.call("POST", f"{CORE}/configmaps", {"metadata": {"name": "uncounted"}})
    assert "generation" not in made["metadata"]
    kube.call("DELETE", f"{CORE}/configmaps/uncounted")
    budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    made = kube.call("POST", budgets, {"metadata": {"name": "counted"}, "spec": {}})
    assert made["metadata"]["generation"] == 1
    kube.call("DELETE", f"{budgets}/counted")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed")
def test_kubectl_reads_paths(kube):
    assert kube.kubectl("get", "--raw", "/readyz?verbose").endswith("readyz check passed\n")
    assert '"swagger"' in kube.kubectl("get", "--raw", "/openapi/v2")
    assert "resourcequotas" in kube.kubectl("api-resources")
    assert "completions" in kube.kubectl("explain", "job.spec")
