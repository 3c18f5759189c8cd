"""What a cluster says of changes of objects, and what it warns of as it takes them, in Kubernetes'
words; a pod's new image; rights that nobody may give who lacks them.
"""

import json
from pathlib import Path

import pytest
from local_kube import job
from local_machines import until

CHANGES = json.loads(Path(__file__).with_name("changes.json").read_text())
CORE = "/api/v1/namespaces/default"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ROLES = f"{RBAC}/namespaces/default/roles"
BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
MERGE = {"Content-Type": "application/merge-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
NOWHERE = {"nodeSelector": {"no": "where"}}


def pod(name: str, **spec) -> dict:
    about = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
    main = {"name": "main", "image": "debian:12", "command": ["sleep", "600"]}
    return {**about, "spec": {"containers": [main], "terminationGracePeriodSeconds": 1, **spec}}


@pytest.fixture(scope="module")
def there(kube):
    """Objects that nothing comes of."""
    init = {"name": "init", "image": "debian:12"}
    limits = {"tolerations": [{"key": "a", "operator": "Exists"}], "activeDeadlineSeconds": 3600}
    kube.create(pod("lasting", **NOWHERE, initContainers=[init], **limits))
    kube.create(pod("gated", **NOWHERE, schedulingGates=[{"name": "a.b/g"}, {"name": "h"}]))
    jobs = (
        job("lasting", "true", suspend=True),
        job("plain", "true", suspend=True, completions=3, completionMode="NonIndexed"),
        job("begun", "true", pod=NOWHERE),
    )
    for each in jobs:
        kube.create(each)
    template = {"metadata": {"labels": {"a": "b"}}}
    template["spec"] = {"containers": [{"name": "main", "image": "x"}]}
    spec = {"replicas": 0, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    about = {"kind": "Deployment", "metadata": {"name": "lasting"}}
    kube.create({"apiVersion": "apps/v1", **about, "spec": spec})
    yield kube
    for each in jobs:
        path = f"/apis/batch/v1/namespaces/default/jobs/{each['metadata']['name']}"
        kube.call("DELETE", path, propagationPolicy="Background")
    for path in (f"{CORE}/pods/lasting", f"{CORE}/pods/gated"):
        kube.call("DELETE", path)
    kube.call("DELETE", "/apis/apps/v1/namespaces/default/deployments/lasting")


@pytest.mark.parametrize(
    ("name", "path", "content", "body", "code", "message"), CHANGES, ids=[row[0] for row in CHANGES]
)
def test_a_change_is_answered_in_kubernetes_words(there, name, path, content, body, code, message):
    """A message that ends with * is the beginning of one."""
    found = there.raw("PATCH", path, body, headers={"Content-Type": content}, dryRun="All")
    told = None if found.ok else found.json()["message"]
    if message and message.endswith("*"):
        told, message = told and told[: len(message) - 1], message[:-1]
    assert (found.status_code, told) == (code, message)


def test_a_gated_pod_waits_and_says_so(there):
    accept = {"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}
    path = f"{CORE}/pods/gated"
    why = lambda: [each.get("reason") for each in there.call("GET", path)["status"]["conditions"]]
    until(lambda: "conditions" in there.call("GET", path)["status"], "conditions", 20)
    assert why() == ["SchedulingGated"]
    assert there.raw("GET", path, headers=accept).json()["rows"][0]["cells"][2] == "SchedulingGated"


def test_nobody_gives_a_right_that_he_lacks(kube):
    about = lambda kind, name: {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name},
    }
    verbs = ["create", "update", "get"]
    own = [
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": verbs},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]
    # `bind` and `escalate` are verbs of their own, which "*" of resources does not give.
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "writer"}})
    kube.call("POST", ROLES, {**about("Role", "writer"), "rules": own})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "writer"}
    subject = {"kind": "ServiceAccount", "name": "writer", "namespace": "default"}
    bound = {**about("RoleBinding", "writer"), "roleRef": reference, "subjects": [subject]}
    kube.call("POST", BINDINGS, bound)
    path = f"{CORE}/serviceaccounts/writer/token"
    token = kube.call("POST", path, {"spec": {}})["status"]["token"]
    ask = lambda where, body: kube.raw("POST", where, body, token=token, dryRun="All")

    rules = [{"apiGroups": [""], "resources": ["pods", "secrets"], "verbs": ["get", "list"]}]
    found = ask(ROLES, {**about("Role", "more"), "rules": rules})
    who = 'user "system:serviceaccount:default:writer" (groups=["system:serviceaccounts" '
    who += '"system:serviceaccounts:default" "system:authenticated"]) is attempting to grant RBAC '
    who += "permissions not currently held:\n"
    told = 'roles.rbac.authorization.k8s.io "more" is forbidden: ' + who
    told += '{APIGroups:[""], Resources:["pods"], Verbs:["list"]}\n'
    told += '{APIGroups:[""], Resources:["secrets"], Verbs:["get" "list"]}'
    assert (found.status_code, found.json()["message"]) == (403, told)
    rules[0] |= {"resources": ["pods"], "verbs": ["get"], "resourceNames": ["one"]}
    assert ask(ROLES, {**about("Role", "less"), "rules": rules}).status_code == 201

    admin = {**reference, "kind": "ClusterRole", "name": "cluster-admin"}
    found = ask(BINDINGS, {**bound, **about("RoleBinding", "all"), "roleRef": admin})
    told = 'rolebindings.rbac.authorization.k8s.io "all" is forbidden: ' + who
    told += '{APIGroups:["*"], Resources:["*"], Verbs:["*"]}'
    assert (found.status_code, found.json()["message"][: len(told)]) == (403, told)
    same = {**bound, **about("RoleBinding", "same")}
    assert ask(BINDINGS, same).status_code == 201
    gone = {**same, "roleRef": {**reference, "name": "nobody"}}
    assert ask(BINDINGS, gone).status_code == 404
    for where in (f"{BINDINGS}/writer", f"{ROLES}/writer", f"{CORE}/serviceaccounts/writer"):
        kube.call("DELETE", where)


def test_a_generated_name_has_room_for_its_end(kube):
    body = {**job("x", "true"), "metadata": {"generateName": "g" * 70}, "apiVersion": "batch/v1"}
    body["spec"]["completionMode"] = "NonIndexed"
    path = "/apis/batch/v1/namespaces/default/jobs"
    name = kube.call("POST", path, body, dryRun="All")["metadata"]["name"]
    assert name.startswith("g" * 58) and len(name) == 63


def test_nothing_more_comes_into_a_namespace_that_goes(kube):
    about = lambda kind, **meta: {"apiVersion": "v1", "kind": kind, "metadata": meta}
    kube.call("POST", "/api/v1/namespaces", about("Namespace", name="goes"))
    maps = "/api/v1/namespaces/goes/configmaps"
    kube.call("POST", maps, about("ConfigMap", name="held", finalizers=["a.b/c"]))
    gone = kube.call("DELETE", "/api/v1/namespaces/goes")
    assert gone["status"]["phase"] == "Terminating"
    found = kube.raw("POST", maps, about("ConfigMap", name="more")).json()
    why = "unable to create new content in namespace goes because it is being terminated"
    assert found["message"] == f'configmaps "more" is forbidden: {why}'
    (cause,) = found["details"]["causes"]
    assert (cause["reason"], cause["field"]) == ("NamespaceTerminating", "metadata.namespace")
    kube.raw("PATCH", f"{maps}/held", {"metadata": {"finalizers": None}}, headers=MERGE)


def test_requests_for_tokens_and_reviews_come_back_whole(kube):
    path = f"{CORE}/serviceaccounts/default/token"
    made = kube.call("POST", path, {"spec": {}})
    assert made["metadata"]["name"] == "default" and made["spec"]["expirationSeconds"] == 3600
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": "default"}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    found = kube.call("POST", path, {"spec": spec})
    assert found["kind"] == "SelfSubjectAccessReview"
    assert found["apiVersion"] == "authorization.k8s.io/v1"


def test_services_get_what_they_do_not_say(kube):
    spec = {"ports": [{"port": 80}], "selector": {"a": "b"}, "sessionAffinity": "ClientIP"}
    body = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "usual"}, "spec": spec}
    made = kube.call("POST", f"{CORE}/services", body, dryRun="All")["spec"]
    assert made["internalTrafficPolicy"] == "Cluster"
    assert made["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
