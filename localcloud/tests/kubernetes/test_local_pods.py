"""What pods are given, and what they may do."""

import asyncio
import base64
import json
import os
import ssl

import aiohttp
import pytest
from local_kube import job
from local_machines import until


def run(kube, name: str, script: str, **more) -> str:
    """What a pod prints that runs to its end."""
    kube.create(job(name, script, **more))
    kube.ended(name)
    return kube.log(kube.pods(name)[0]["metadata"]["name"])


def test_config_maps_secrets_and_folders_are_mounted(kube):
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "map"},
            "data": {"a.txt": "from a map"},
        }
    )
    secret = {"token": base64.b64encode(b"from a secret").decode()}
    kube.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hidden"}, "data": secret}
    )
    volumes = [
        {"name": "map", "configMap": {"name": "map"}},
        {"name": "hidden", "secret": {"secretName": "hidden", "defaultMode": 0o400}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
        {"name": "scratch", "emptyDir": {}},
    ]
    targets = {"map": "/map", "hidden": "/hidden", "shm": "/dev/shm", "scratch": "/scratch"}
    mounts = [{"name": name, "mountPath": target} for name, target in targets.items()]
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "token"}}}]
    script = "cat /map/a.txt /hidden/token; echo; echo $KEY; stat -c %a /hidden/token; df /dev/shm | tail -1; "
    script += "echo x >/scratch/y && echo written; touch /map/z 2>/dev/null || echo read-only"
    said = run(
        kube,
        "mounts",
        script,
        pod={"volumes": volumes},
        container={"volumeMounts": mounts, "env": env},
    )
    lines = said.splitlines()
    assert lines[:3] == ["from a mapfrom a secret", "from a secret", "400"]
    assert lines[3].startswith("tmpfs") and lines[4:] == ["written", "read-only"]


def test_a_pod_knows_itself_and_what_is_written_on_it(kube):
    paths = {
        "NAME": "metadata.name",
        "IP": "status.podIP",
        "NODE": "spec.nodeName",
        "UID": "metadata.uid",
    }
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in paths.items()
    ]
    item = {"path": "kill", "fieldRef": {"fieldPath": "metadata.annotations['berg-kill']"}}
    script = "echo $NAME $IP $NODE; while [ ! -s /told/kill ]; do sleep 0.1; done; cat /told/kill"
    container = {"env": env, "volumeMounts": [{"name": "told", "mountPath": "/told"}]}
    kube.create(
        job(
            "knows",
            script,
            pod={"volumes": [{"name": "told", "downwardAPI": {"items": [item]}}]},
            container=container,
        )
    )
    pod = kube.pod("knows")
    kube.kubectl("annotate", "pod", pod["metadata"]["name"], "berg-kill=now")
    assert kube.ended("knows")["type"] == "Complete"
    first, last = kube.log(pod["metadata"]["name"]).splitlines()
    assert (
        first.split() == [pod["metadata"]["name"], pod["status"]["podIP"], pod["spec"]["nodeName"]]
        and last == "now"
    )


def test_a_pod_waits_for_what_it_is_to_be_given(kube):
    env = [{"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "later", "key": "k"}}}]
    kube.create(job("waits", "echo $KEY", container={"env": env}))
    state = lambda: kube.pods("waits")[0]["status"]["containerStatuses"][0]["state"].get(
        "waiting", {}
    )
    until(
        lambda: kube.pods("waits") and kube.pods("waits")[0]["status"].get("containerStatuses"),
        "it is taken",
    )
    until(lambda: state().get("reason") == "CreateContainerConfigError", "it says so")
    assert state()["message"] == 'secret "later" not found'
    data = {"k": base64.b64encode(b"come").decode()}
    kube.create({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "later"}, "data": data})
    kube.ended("waits")
    assert kube.log(kube.pods("waits")[0]["metadata"]["name"]) == "come\n"


def test_an_image_that_cannot_be_pulled(kube):
    route = "/_berg/clusters/kube/images"
    kube.cloud.call("POST", route, {"image": "private/", "error": "pull access denied"})
    kube.create(job("pulls", "true", container={"image": "registry.example/private/image:1"}))
    reason = lambda: [
        row["state"].get("waiting", {})
        for pod in kube.pods("pulls")
        for row in pod["status"].get("containerStatuses", [])
    ]
    until(lambda: any(row.get("reason") == "ImagePullBackOff" for row in reason()), "it backs off")
    assert "pull access denied" in reason()[0]["message"]
    name = kube.pods("pulls")[0]["metadata"]["name"]
    assert any("Failed to pull image" in message for _, message in kube.events(name))
    answer = kube.raw("GET", f"/api/v1/namespaces/default/pods/{name}/log")
    assert answer.status_code == 400 and "waiting to start" in answer.json()["message"]
    kube.cloud.call("POST", route, {"image": "private/", "on": False})
    assert kube.ended("pulls")["type"] == "Complete"


def test_a_pod_that_runs_out_of_memory(kube):
    kube.create(job("large", "exec sleep 600"))
    kube.cloud.call("POST", f"/_berg/pods/{kube.pod('large')['metadata']['name']}/oom")
    kube.ended("large")
    (pod,) = kube.pods("large")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("OOMKilled", 137)


RULES = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}]
ASK = """python3 - <<'END'
import json, os, ssl, urllib.error, urllib.request
here = "/var/run/secrets/kubernetes.io/serviceaccount/"
host = f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
context = ssl.create_default_context(cafile=here + "ca.crt")
for path in ("pods", "secrets"):
    url = f"{host}/api/v1/namespaces/{open(here + 'namespace').read()}/{path}"
    request = urllib.request.Request(url, headers={"Authorization": "Bearer " + open(here + "token").read()})
    try:
        print(path, urllib.request.urlopen(request, context=context).status)
    except urllib.error.HTTPError as error:
        print(path, error.code, json.load(error)["message"])
END"""


def test_a_pods_account_may_what_its_roles_say(kube):
    denied = run(kube, "stranger", ASK)
    words = 'pods is forbidden: User "system:serviceaccount:default:default" cannot list resource "pods" in API group ""'
    assert f'{words} in the namespace "default"' in denied
    meta = {"metadata": {"name": "worker"}}
    api = "rbac.authorization.k8s.io/v1"
    subjects = [{"kind": "ServiceAccount", "name": "worker", "namespace": "default"}]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "worker"}
    for body in (
        {"apiVersion": "v1", "kind": "ServiceAccount", **meta},
        {"apiVersion": api, "kind": "Role", **meta, "rules": RULES},
        {"apiVersion": api, "kind": "RoleBinding", **meta, "roleRef": role, "subjects": subjects},
    ):
        kube.create(body)
    allowed = run(kube, "friend", ASK, pod={"serviceAccountName": "worker"})
    assert "pods 200" in allowed and "secrets 403" in allowed


def test_a_stranger_is_not_let_in(kube):
    answer = kube.raw("GET", "/api/v1/namespaces/default/pods", token="nobody")
    assert answer.status_code == 401 and answer.json()["reason"] == "Unauthorized"


def test_a_container_that_ends_is_begun_again(kube):
    script = "echo again; sleep 0.2; exit 1"
    container = {"name": "main", "image": "debian:12", "command": ["bash", "-c", script]}
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "restless"},
        "spec": {"containers": [container]},
    }
    kube.create(json.loads(json.dumps(body)))
    row = lambda: kube.get("pods", "restless")["status"]["containerStatuses"][0]
    until(lambda: kube.get("pods", "restless")["status"].get("containerStatuses"), "it began")
    until(lambda: row()["restartCount"] >= 2, "it was begun again")
    until(
        lambda: row()["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff",
        "it backs off",
    )
    assert kube.kubectl("logs", "restless", "--previous") == "again\n"
    kube.kubectl("delete", "pod", "restless", "--grace-period=1")


@pytest.mark.skipif(os.getuid() != 0, reason="in a user namespace there is only root")
def test_root_in_a_pod_may_do_what_containerd_lets_it(kube):
    script = "mount -t tmpfs none /mnt 2>/dev/null && echo mounts; chown 7 /root && echo chowns; "
    script += "grep CapEff /proc/self/status"
    kube.create(job("usual", f"{script}; exec sleep 60"))
    name = kube.pod("usual")["metadata"]["name"]
    usual = until(lambda: "CapEff" in (log := kube.log(name)) and log, "its log")
    assert "chowns" in usual and "mounts" not in usual and "00000000a80425fb" in usual
    assert "00000000a80425fb" in kube.kubectl(
        "exec", name, "--", "grep", "CapEff", "/proc/self/status"
    )
    asks = {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"], "drop": ["NET_RAW"]}}}
    kube.create(job("asks", script, container=asks))
    kube.ended("asks")
    assert "00000000a80c05fb" in kube.log(kube.pods("asks")[0]["metadata"]["name"])
    kube.create(job("all", script, container={"securityContext": {"privileged": True}}))
    kube.ended("all")
    assert "mounts" in kube.log(kube.pods("all")[0]["metadata"]["name"])


def test_a_command_hears_text_frames(kube):
    """The official client for Python sends strings as they are; others send bytes."""
    kube.create(job("hearing", "exec sleep 600"))
    path = f"{kube.server}/api/v1/namespaces/default/pods/{kube.pod('hearing')['metadata']['name']}/exec"
    query = [("command", "head"), ("command", "-n1"), ("stdin", "true"), ("stdout", "true")]
    headers = {"Authorization": f"Bearer {kube.token}"}
    trust = ssl.create_default_context(cafile=kube.ca)

    async def talk() -> bytes:
        said = b""
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.ws_connect(
                path, params=query, protocols=("v4.channel.k8s.io",), ssl=trust
            ) as socket,
        ):
            await socket.send_str("\0höre\n")
            async for message in socket:
                said += message.data[1:] if message.data[0] == 1 else b""
        return said

    assert asyncio.run(asyncio.wait_for(talk(), 20)) == "höre\n".encode()
