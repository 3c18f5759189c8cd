"""The official client of Kubernetes for Python: jobs, logs, exec in text, a forwarded port.

Runs in an environment of its own. It prints a line for each step that went well.

Usage: python kube_tour.py KUBECONFIG
"""

import json
import sys
import time

from kubernetes import client, config, watch
from kubernetes.stream import portforward, stream

SERVER = "import http.server as h; h.test(h.SimpleHTTPRequestHandler, port=8765)"


def step(what: str) -> None:
    print(what, flush=True)


def pod_of(name: str, command: list[str]) -> client.V1Pod:
    container = client.V1Container(name="main", image="python:3.12", command=command)
    spec = client.V1PodSpec(
        containers=[container], restart_policy="Never", termination_grace_period_seconds=1
    )
    return client.V1Pod(metadata=client.V1ObjectMeta(name=name, labels={"tour": "1"}), spec=spec)


def wait_for_phase(name: str, phase: str) -> None:
    for _ in range(300):
        if core.read_namespaced_pod(name, "default").status.phase == phase:
            return
        time.sleep(0.2)
    raise SystemExit(f"{name} is not {phase}")


config.load_kube_config(sys.argv[1])
core, batch = client.CoreV1Api(), client.BatchV1Api()
template = client.V1PodTemplateSpec(
    metadata=client.V1ObjectMeta(labels={"tour": "1"}),
    spec=pod_of("none", ["bash", "-c", "echo from the job"]).spec,
)
spec = client.V1JobSpec(template=template, backoff_limit=0)
job = client.V1Job(metadata=client.V1ObjectMeta(name="tour"), spec=spec)
batch.create_namespaced_job("default", job)
for event in watch.Watch().stream(batch.list_namespaced_job, "default", timeout_seconds=60):
    if event["object"].status.succeeded:
        break
else:
    raise SystemExit("the job did not end")
step("job")
(pod,) = core.list_namespaced_pod("default", label_selector="job-name=tour").items
assert core.read_namespaced_pod_log(pod.metadata.name, "default") == "from the job\n"
step("log")
batch.delete_namespaced_job("tour", "default", propagation_policy="Background")
step("deleted")
core.create_namespaced_pod("default", pod_of("serves", ["python3", "-c", SERVER]))
wait_for_phase("serves", "Running")
ways = {"stderr": True, "stdin": True, "stdout": True, "tty": False, "_preload_content": False}
command = ["bash", "-c", "read line; echo heard $line; exit 3"]
inside = stream(core.connect_get_namespaced_pod_exec, "serves", "default", command=command, **ways)
inside.write_stdin("said\n")  # as text
inside.run_forever(timeout=20)
assert inside.read_stdout() == "heard said\n" and inside.returncode == 3
step("exec")
for _ in range(50):  # until it listens
    try:
        forwarded = portforward(
            core.connect_get_namespaced_pod_portforward, "serves", "default", ports="8765"
        )
        socket = forwarded.socket(8765)
        socket.settimeout(20)
        socket.sendall(b"GET / HTTP/1.0\r\n\r\n")
        answer = b""
        while data := socket.recv(65536):
            answer += data
        if answer:
            break
    except (OSError, RuntimeError):
        pass
    time.sleep(0.3)
assert answer.startswith(b"HTTP/1.0 200"), (answer, forwarded.error(8765))
step("port")
refused = portforward(
    core.connect_get_namespaced_pod_portforward, "serves", "default", ports="8766"
)
for _ in range(100):
    if refused.error(8766):
        break
    time.sleep(0.1)
assert "connection refused" in refused.error(8766), refused.error(8766)
step("refused port")
core.delete_namespaced_pod("serves", "default", grace_period_seconds=0)
listed = json.loads(
    core.list_namespaced_pod("default", _preload_content=False, limit=5).data.decode()
)
assert listed["kind"] == "PodList"
step("done")
