"""The folders of buckets that pods see as files: volumes of Kubernetes Engine's driver for gcsfuse.

The driver puts a container with gcsfuse beside the job's, which ends with it. Not covered: clusters
without Workload Identity, where a pod has no account that could read a bucket by it.
"""

from typing import Any

from berg import BergError
from berg.google import container
from berg.google.mounts import wanted
from berg.spec import JobSpec

DRIVER = "gcsfuse.csi.storage.gke.io"
# The second one: no limit of what the cache takes of the node's disk beside its own.
ANNOTATIONS = {"gke-gcsfuse/volumes": "true", "gke-gcsfuse/ephemeral-storage-limit": "0"}
# What gcsfuse's profile for training says, in words that older drivers know as well.
TRAINING = (
    "implicit-dirs",
    "metadata-cache:ttl-secs:-1",
    "metadata-cache:negative-ttl-secs:0",
    "metadata-cache:stat-cache-max-size-mb:-1",
    "file-cache:enable-parallel-downloads:true",
)
USUAL_DISK = 20  # GB of a node whose disk is not known


def check(cluster: dict[str, Any], spec: JobSpec) -> None:
    """Raise BergError for mounts that pods of a cluster cannot have."""
    if not spec.mount:
        return
    name, place = cluster["name"], cluster["location"]
    if not container.workload_pool(cluster):
        raise BergError(
            f"--mount: pods of the cluster {name} have no account of their own (docs/gke.md, Whose "
            "pods are whose). Bring the data instead: --data"
        )
    if not container.has_gcsfuse(cluster):
        raise BergError(
            f"--mount: the cluster {name} has no driver for gcsfuse. Who administers it runs: "
            f"gcloud container clusters update {name} --location {place} "
            "--update-addons GcsFuseCsiDriver=ENABLED"
        )
    for text in spec.mount:
        if "," in wanted(text)[0]:
            raise BergError(f"--mount {text}: a pod cannot have a folder with a comma in its name")


def add(template: dict[str, Any], mounts: list[dict[str, Any]], disk_gb: int) -> None:
    """Let a template's pods have folders of buckets, of which the node's disk keeps a part."""
    if not mounts:
        return
    template["metadata"]["annotations"] |= ANNOTATIONS
    pod = template["spec"]
    cache_mb = (disk_gb or USUAL_DISK) * 1024 // 2 // len(mounts)
    for number, wish in enumerate(mounts):
        name = f"berg-mount-{number}"
        options = [f"only-dir={wish['prefix']}", *TRAINING, f"file-cache:max-size-mb:{cache_mb}"]
        attributes = {"bucketName": wish["bucket"], "mountOptions": ",".join(options)}
        source = {"driver": DRIVER, "readOnly": True, "volumeAttributes": attributes}
        pod["volumes"].append({"name": name, "csi": source})
        place = {"name": name, "mountPath": wish["path"], "readOnly": True}
        pod["containers"][0]["volumeMounts"].append(place)
