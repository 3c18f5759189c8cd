"""What a worker in a pod asks Kubernetes, and the ssh server of a pod.

The pod's account may only list the pods of its namespace: no pod changes a Job, also not its own,
which ends by the exit code of its pod (boot.py). Logins come through the cluster's API: the pod
runs an ssh server for one connection, with a host key of its own.
"""

import os
import shutil
import subprocess
from pathlib import Path

from berg import job
from berg.config import Config
from berg.gke import client
from berg.machine import boot

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
HOST_KEY = boot.BERG / "ssh_host_key"
INDEX = "batch.kubernetes.io/job-completion-index"


def living(job_name: str, count: int, others: bool = False) -> dict[str, str]:
    """Return the phases of the job's living pods, by the names of its machines; with `others`
    without this one.
    """
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token = (ACCOUNT / "token").read_text().strip()  # it changes by the hour
    authority = str(ACCOUNT / "ca.crt")
    server = client.Server(
        "of this pod", f"https://{host}:{port}", Config(), authority, token=token
    )
    namespace = (ACCOUNT / "namespace").read_text().strip()
    path = f"/api/v1/namespaces/{namespace}/pods?labelSelector=berg-job%3D{job_name}"
    ranked = {}
    for pod in client.call(server, "GET", path)["items"]:
        about, phase = pod["metadata"], pod["status"].get("phase")
        if phase in ("Pending", "Running") and not (others and about["uid"] == boot.POD):
            ranked[int(about["labels"].get(INDEX, 0))] = phase
    names = job.machine_names(job_name, count)
    return {names[rank]: phase for rank, phase in sorted(ranked.items())}


def open_to_ssh(install: bool) -> list[str]:
    """Prepare an ssh server; return its public host keys, none if the image has no server.

    With `install`, install it and rsync from Debian's packages.
    """
    if install and not (shutil.which("sshd", path="/usr/sbin:/usr/bin") and shutil.which("rsync")):
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        packages = ["--no-install-recommends", "openssh-server", "rsync"]
        for words in (["update", "-q"], ["install", "-q", "-y", *packages]):
            subprocess.run(["apt-get", *words], env=environment, stdout=subprocess.DEVNULL)
    if not shutil.which("sshd", path="/usr/sbin:/usr/bin"):
        return []
    Path("/run/sshd").mkdir(parents=True, exist_ok=True)
    if not HOST_KEY.exists():
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(HOST_KEY)]
        subprocess.run(command, check=True, capture_output=True)
    return [" ".join(HOST_KEY.with_suffix(".pub").read_text().split()[:2])]
