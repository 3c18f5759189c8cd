"""Clusters of the embedded cloud, for clients that share no code with berg."""

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import requests
from local_machines import until

PLACE = "projects/berg-local/locations/us-central1-a"
SYSTEM = {
    "name": "system",
    "initialNodeCount": 1,
    "config": {"machineType": "e2-medium", "diskSizeGb": 30},
}
# Two T4 a node; it scales from 0.
GPUS = {
    "name": "t4",
    "initialNodeCount": 0,
    "autoscaling": {
        "enabled": True,
        "minNodeCount": 0,
        "maxNodeCount": 4,
        "locationPolicy": "ANY",
    },
    "config": {
        "machineType": "n1-standard-4",
        "diskType": "pd-ssd",
        "diskSizeGb": 100,
        "accelerators": [
            {
                "acceleratorType": "nvidia-tesla-t4",
                "acceleratorCount": "2",
                "gpuDriverInstallationConfig": {"gpuDriverVersion": "LATEST"},
            }
        ],
        "oauthScopes": ["https://www.googleapis.com/auth/cloud-platform"],
    },
}
TOLERATED = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def job(name: str, script: str, count: int = 1, gpus: int = 0, **spec) -> dict:
    """An indexed Job of pods that run a script."""
    container = {"name": "main", "image": "debian:12", "command": ["bash", "-c", script]}
    pod = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}
    pod["shareProcessNamespace"] = True
    pod |= spec.pop("pod", {})
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": gpus}}
        pod["nodeSelector"] = {"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}
        pod["tolerations"] = [TOLERATED]
    container |= spec.pop("container", {})
    base = {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {**base, **spec, "template": {"spec": pod}},
    }


class Kube:
    """A cluster, and requests to its API server."""

    def __init__(self, cloud, name: str, folder: Path):
        self.cloud, self.name, self.folder = cloud, name, folder
        found = self.google("GET", f"{PLACE}/clusters/{name}")
        self.server = f"https://{found['endpoint']}"
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(base64.b64decode(found["masterAuth"]["clusterCaCertificate"]))

    def google(self, verb: str, path: str, body=None) -> dict:
        return self.cloud.call(verb, f"/container/v1/{path}", body)

    def raw(self, verb: str, path: str, body=None, headers=None, **query) -> requests.Response:
        """With a token of the laptop's."""
        return self.cloud.session.request(
            verb,
            self.server + path,
            data=body and json.dumps(body),
            headers={"Content-Type": "application/json", **(headers or {})},
            params=query,
            verify=self.ca,
            timeout=60,
        )

    def call(self, verb: str, path: str, body=None, **query) -> dict:
        answer = self.raw(verb, path, body, **query)
        assert answer.ok, answer.text
        return answer.json()

    def create(self, body: dict) -> dict:
        group = "/api/v1" if body["apiVersion"] == "v1" else f"/apis/{body['apiVersion']}"
        path = f"{group}/namespaces/default/{body['kind'].lower()}s"
        return self.call("POST", path, body, fieldValidation="Strict")

    def get(self, kind: str, name: str = "", **query) -> dict:
        group = "/apis/batch/v1" if kind == "jobs" else "/api/v1"
        path = f"{group}/namespaces/default/{kind}{'/' + name if name else ''}"
        return self.call("GET", path, **query)

    def pods(self, job: str = "") -> list[dict]:
        query = {"labelSelector": f"batch.kubernetes.io/job-name={job}"} if job else {}
        return self.get("pods", **query)["items"]

    def pod(self, job: str, phase: str = "Running") -> dict:
        """A job's first pod, once it is in a phase."""
        found = lambda: next(
            (pod for pod in self.pods(job) if pod["status"].get("phase") == phase), None
        )
        return until(found, f"a pod of {job} is {phase}")

    def ended(self, name: str, seconds: float = 30) -> dict:
        """The condition with which a job has ended."""
        final = lambda: next(
            (
                row
                for row in self.get("jobs", name)["status"].get("conditions", [])
                if row["type"] in ("Complete", "Failed")
            ),
            None,
        )
        return until(final, f"{name} has ended", seconds)

    def log(self, pod: str) -> str:
        return self.raw("GET", f"/api/v1/namespaces/default/pods/{pod}/log").text

    def events(self, name: str) -> list[tuple[str, str]]:
        rows = self.get("events", fieldSelector=f"involvedObject.name={name}")["items"]
        return [(row["reason"], row["message"]) for row in rows]

    def delete(self, name: str) -> None:
        """Delete a job and wait until its pods are gone."""
        path = f"/apis/batch/v1/namespaces/default/jobs/{name}"
        self.call("DELETE", path, {"propagationPolicy": "Background"})
        until(lambda: not self.pods(name), f"no pod of {name} is left")

    def kubectl(self, *words: str) -> str:
        done = self.run(*words)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout

    def command(self, *words: str) -> list[str]:
        if not shutil.which("kubectl"):
            pytest.skip("kubectl is not installed")
        where = ["--server", self.server, "--certificate-authority", str(self.ca)]
        return ["kubectl", *where, "--token", self.cloud.token, *words]

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess:
        environment = {**os.environ, "HOME": str(self.folder), "KUBECONFIG": "/dev/null"}
        return subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            input=stdin,
            env=environment,
            timeout=60,
        )


def make_cluster(cloud, name: str, folder: Path) -> Kube:
    """A cluster with a small pool, and one with GPUs."""
    body = {"cluster": {"name": name, "nodePools": [SYSTEM, GPUS]}}
    operation = cloud.call("POST", f"/container/v1/{PLACE}/clusters", body)
    kube = Kube(cloud, name, folder)
    path = f"{PLACE}/operations/{operation['name']}"
    ended = lambda: (found := kube.google("GET", path))["status"] == "DONE" and found
    assert "error" not in until(ended, "the end of its creation")
    return kube
