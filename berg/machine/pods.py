"""What a worker in a pod asks of Kubernetes, and how people come in there.

Its account may list the pods of its namespace, and nothing else: no pod changes a Job, not even
its own, which ends by the exit code of its pod (boot.py). People come through the cluster's API: an
ssh server for one connection is run in the pod, with a host key of its own.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from berg import job
from berg.config import Config
from berg.gke import client
from berg.machine import boot

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST_KEY = boot.BERG / "ssh_host_key"
INDEX = "batch.kubernetes.io/job-completion-index"


def namespace() -> str:
    return (ACCOUNT / "namespace").read_text().strip()


def ask(path: str) -> dict[str, Any]:
    """What the API of the cluster that this pod is in has at a path; trouble that may pass is
    waited for.
    """
    where = (
        f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}"
    )
    token = (ACCOUNT / "token").read_text().strip()  # it changes by the hour
    server = client.Server("of this pod", where, Config(), str(ACCOUNT / "ca.crt"), token=token)
    return dict(client.call(server, "GET", path))


def living(job_name: str, count: int, others: bool = False) -> dict[str, str]:
    """Return the phases of the job's pods that live, by the names of its machines; with `others`
    but for this one.
    """
    path = f"/api/v1/namespaces/{namespace()}/pods?labelSelector=berg-job%3D{job_name}"
    found = ask(path)["items"]
    there = [pod for pod in found if pod["status"].get("phase") in ("Pending", "Running")]
    there = [pod for pod in there if not (others and pod["metadata"]["uid"] == boot.POD)]
    names = job.machine_names(job_name, count)
    ranked = {int(pod["metadata"]["labels"].get(INDEX, 0)): pod for pod in there}
    return {names[rank]: pod["status"]["phase"] for rank, pod in sorted(ranked.items())}


def open_to_ssh(install: bool) -> list[str]:
    """Make what an ssh server needs; its public host keys, none where the image has no server.

    With `install` it is installed from Debian's packages, with what else people use.
    """
    if install and not (shutil.which("sshd", path="/usr/sbin:/usr/bin") and shutil.which("rsync")):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ["openssh-server", "rsync"]
        for command in (
            ["update", "-q"],
            ["install", "-q", "-y", "--no-install-recommends", *packages],
        ):
            subprocess.run(["apt-get", *command], env=environment, stdout=subprocess.DEVNULL)
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        return []
    Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    if not HOST_KEY.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(HOST_KEY)]
        subprocess.run(command, check=True, capture_output=True)
    return [" ".join(HOST_KEY.with_suffix(".pub").read_text().split()[:2])]
