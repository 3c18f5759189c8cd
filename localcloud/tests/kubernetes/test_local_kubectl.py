"""kubectl, which no one here wrote, as a client of a cluster."""

import json
import os
import pty
import subprocess
import urllib.request

import pytest
from local_kube import job
from local_machines import until

WEB = "exec python3 -u -m http.server 0 --bind $MY_IP"
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "terminationGracePeriodSeconds": 1,
                "containers": [
                    {"name": "main", "image": "debian:12", "command": ["sleep", "infinity"]}
                ],
            },
        },
    },
}


@pytest.fixture
def shell(kube):
    """A pod to work with."""
    kube.create(job("work", "echo begun; exec sleep 600"))
    yield kube.pod("work")["metadata"]["name"]
    kube.kubectl("delete", "job", "work", "--wait", "--grace-period=0", "--force")
    until(lambda: not kube.pods("work"), "no pod is left")


def test_create_get_describe_and_delete(kube):
    body = job("made", "exec sleep 600")
    assert kube.kubectl("create", "-f", "-", stdin=json.dumps(body)) == "job.batch/made created\n"
    assert "AlreadyExists" in kube.run("create", "-f", "-", stdin=json.dumps(body)).stderr
    pod = kube.pod("made")["metadata"]["name"]
    assert kube.kubectl("get", "pods", "-l", "job-name=made", "--no-headers").split()[:3] == [
        pod,
        "1/1",
        "Running",
    ]
    described = kube.kubectl("describe", "pod", pod)
    assert "Successfully assigned default/" in described and "Started container main" in described
    assert "Pods Statuses:" in kube.kubectl("describe", "job", "made")
    assert "system" in kube.kubectl("describe", "nodes")
    assert kube.kubectl("delete", "job", "made") == 'job.batch "made" deleted\n'
    assert 'jobs.batch "made" not found' in kube.run("get", "job", "made").stderr
    until(lambda: not kube.pods("made"), "its pods are gone, too")


def test_an_unknown_field_is_refused(kube):
    body = job("typo", "true", paralellism=2)
    done = kube.run("create", "-f", "-", stdin=json.dumps(body))
    assert (
        done.returncode == 1
        and 'strict decoding error: unknown field "spec.paralellism"' in done.stderr
    )


@pytest.mark.parametrize("how", [(), ("--server-side",)], ids=["by the client", "by the server"])
def test_apply_changes_what_is_there(kube, how):
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings"},
        "data": {"a": "1"},
    }
    kube.kubectl("apply", *how, "-f", "-", stdin=json.dumps(settings))
    settings["data"]["b"] = "2"
    assert "settings" in kube.kubectl("diff", "-f", "-", stdin=json.dumps(settings), code=1)
    kube.kubectl("apply", *how, "-f", "-", stdin=json.dumps(settings))
    assert json.loads(kube.kubectl("get", "cm", "settings", "-o", "json"))["data"] == {
        "a": "1",
        "b": "2",
    }
    kube.kubectl("delete", "cm", "settings")


def test_logs_follow_until_the_pod_has_ended(kube):
    kube.create(job("talk", "for i in 1 2 3; do echo line $i; sleep 0.3; done"))
    until(lambda: kube.pods("talk"), "its pod")
    name = kube.pods("talk")[0]["metadata"]["name"]
    until(lambda: kube.run("logs", name).returncode == 0, "its log")
    assert kube.kubectl("logs", "-f", name) == "line 1\nline 2\nline 3\n"
    assert kube.kubectl("logs", "--tail=1", "job/talk") == "line 3\n"
    kube.kubectl("wait", "--for=condition=complete", "job/talk", "--timeout=20s")
    kube.kubectl("delete", "job", "talk")


def test_exec_passes_input_output_and_exit_code(kube, shell):
    done = kube.run(
        "exec", "-i", shell, "--", "sh", "-c", "cat; echo oops >&2; exit 7", stdin="through\n"
    )
    assert (done.stdout, done.returncode) == ("through\n", 7) and "oops" in done.stderr


def test_exec_with_a_terminal(kube, shell):
    ours, theirs = pty.openpty()
    command = kube.command("exec", "-it", shell, "--", "sh")
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL)
    os.close(theirs)
    said = os.read(ours, 1000)  # the prompt: the terminal is the shell's by now
    os.write(ours, b"tty; echo $HOSTNAME-$((40 + 2)); exit 3\r")
    while b"work-0-42" not in said:
        said += os.read(ours, 1000)
    assert process.wait(timeout=20) == 3 and b"/dev/pts/" in said, said
    os.close(ours)


@pytest.mark.skipif(os.getuid() != 0, reason="in a user namespace there is only root")
def test_cp_copies_both_ways(kube, shell, tmp_path):
    data = bytes(range(256)) * 4000
    (tmp_path / "there").write_bytes(data)
    kube.kubectl("cp", str(tmp_path / "there"), f"{shell}:/tmp/data")
    kube.kubectl("cp", f"{shell}:/tmp/data", str(tmp_path / "back"))
    assert (tmp_path / "back").read_bytes() == data


def test_port_forward_reaches_what_the_pod_listens_on(kube, tmp_path):
    container = {
        "env": [{"name": "MY_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    }
    kube.create(
        job("web", f"mkdir /www; cd /www; echo hello >index.html; {WEB}", container=container)
    )
    name = kube.pod("web")["metadata"]["name"]
    until(lambda: "port " in kube.log(name), "it listens")
    port = kube.log(name).split("port ")[1].split()[0]
    out = (tmp_path / "out").open("w+")
    process = subprocess.Popen(
        kube.command("port-forward", name, f":{port}"), stdout=out, stderr=out
    )
    try:
        until(lambda: "Forwarding from" in (tmp_path / "out").read_text(), "kubectl listens")
        here = (tmp_path / "out").read_text().split("127.0.0.1:")[1].split()[0]
        for _ in range(3):
            assert (
                urllib.request.urlopen(f"http://127.0.0.1:{here}/", timeout=10).read() == b"hello\n"
            )
    finally:
        process.terminate()
        process.wait()
        kube.kubectl("delete", "job", "web", "--grace-period=0", "--force")


def test_a_deployment_keeps_its_pods(kube):
    kube.kubectl("apply", "-f", "-", stdin=json.dumps(DEPLOYMENT))
    kube.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    pods = kube.get("pods", labelSelector="app=web")["items"]
    assert len(pods) == 2
    kube.kubectl("delete", "pod", pods[0]["metadata"]["name"], "--grace-period=1")
    kube.kubectl("rollout", "status", "deployment/web", "--timeout=20s")
    until(lambda: len(kube.get("pods", labelSelector="app=web")["items"]) == 2, "two again")
    kube.kubectl("delete", "deployment", "web")
    until(lambda: not kube.get("pods", labelSelector="app=web")["items"], "none")


def test_a_node_that_is_cordoned_gets_no_pods(kube):
    (name,) = [
        node["metadata"]["name"]
        for node in kube.get("nodes")["items"]
        if "system" in node["metadata"]["name"]
    ]
    kube.kubectl("cordon", name)
    assert "SchedulingDisabled" in kube.kubectl("get", "node", name)
    kube.kubectl("uncordon", name)
    assert "SchedulingDisabled" not in kube.kubectl("get", "node", name)


@pytest.mark.slow
def test_what_kubectl_makes_without_a_file(kube, tmp_path):
    """It sends these in protobuf."""
    (tmp_path / "bytes").write_bytes(b"\0\xff")
    kube.kubectl("create", "namespace", "spare")
    kube.kubectl(
        "create", "configmap", "words", "--from-literal=a=b", f"--from-file={tmp_path / 'bytes'}"
    )
    kube.kubectl("create", "secret", "generic", "hidden", "--from-literal=key=value")
    kube.kubectl("create", "serviceaccount", "someone")
    kube.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods")
    kube.kubectl(
        "create", "rolebinding", "reads", "--role=reader", "--serviceaccount=default:someone"
    )
    kube.kubectl("create", "quota", "few", "--hard=pods=2,cpu=500m", "-n", "spare")
    seen = lambda *words: kube.kubectl("get", *words)
    assert seen("cm", "words", "-o", "jsonpath={.data.a} {.binaryData.bytes}") == "b AP8="
    assert seen("secret", "hidden", "-o", "jsonpath={.type} {.data.key}") == "Opaque dmFsdWU="
    assert seen("role", "reader", "-o", "jsonpath={.rules}") == (
        '[{"apiGroups":[""],"resources":["pods"],"verbs":["get","list"]}]'
    )
    assert (
        seen("rolebinding", "reads", "-o", "jsonpath={.subjects[0].name} {.roleRef.name}")
        == "someone reader"
    )
    assert (
        seen("quota", "few", "-n", "spare", "-o", "jsonpath={.spec.hard}")
        == '{"cpu":"500m","pods":"2"}'
    )
    kube.kubectl("create", "job", "said", "--image=debian:12", "--", "echo", "hello")
    kube.kubectl("wait", "--for=condition=complete", "job/said", "--timeout=20s")
    assert kube.kubectl("logs", "job/said") == "hello\n"
    kube.kubectl(
        "create", "deployment", "many", "--image=debian:12", "--replicas=2", "--", "sleep", "600"
    )
    kube.kubectl("rollout", "status", "deployment/many", "--timeout=20s")
    kube.kubectl("expose", "deployment", "many", "--port=80", "--target-port=8000")
    ports = seen(
        "service",
        "many",
        "-o",
        "jsonpath={.spec.ports[0].port} {.spec.ports[0].targetPort} {.spec.selector.app}",
    )
    assert ports == "80 8000 many"
    assert kube.kubectl("auth", "can-i", "create", "jobs") == "yes\n"
    kube.kubectl(
        "delete", "service/many", "deployment/many", "job/said", "rolebinding/reads", "role/reader"
    )
    kube.kubectl("delete", "sa/someone", "secret/hidden", "cm/words", "namespace/spare")


def test_a_node_is_drained(kube):
    kube.create(
        job(
            "moved",
            "exec sleep 600",
            pod={"restartPolicy": "Never", "terminationGracePeriodSeconds": 1},
        )
    )
    pod = kube.pod("moved")
    node = pod["spec"]["nodeName"]
    kube.kubectl("drain", node, "--force", "--pod-selector=job-name=moved")
    assert pod["metadata"]["name"] not in [each["metadata"]["name"] for each in kube.pods("moved")]
    kube.kubectl("uncordon", node)
    kube.kubectl("delete", "job", "moved")
