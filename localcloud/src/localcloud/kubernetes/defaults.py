"""What Kubernetes fills into an object that is made, and what GKE adds.

Not covered: defaults of fields that nothing here looks at.
"""

import base64

TRACKING = "batch.kubernetes.io/job-tracking"  # finalizer of a job's pods, until they are counted
INDEX = "batch.kubernetes.io/job-completion-index"
GPU = "nvidia.com/gpu"
POD = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
    "enableServiceLinks": True,
}
CONTAINER = {"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}


def fill(plural: str, body: dict) -> None:
    """What an object that is made lacks."""
    if plural == "pods":
        fill_pod(body["spec"])
        fill_new_pod(body)
    elif plural == "jobs":
        fill_pod(body["spec"]["template"]["spec"])
        fill_job(body)
    elif plural == "secrets":
        body.setdefault("type", "Opaque")
        for key, text in (body.pop("stringData", None) or {}).items():
            body.setdefault("data", {})[key] = base64.b64encode(text.encode()).decode()


def fill_pod(spec: dict) -> None:
    for key, value in POD.items():
        spec.setdefault(key, value)
    for container in spec["containers"]:
        tag = container["image"].partition("@")[0].rpartition("/")[2].partition(":")[2]
        container.setdefault(
            "imagePullPolicy", "Always" if tag in ("", "latest") else "IfNotPresent"
        )
        resources = container.setdefault("resources", {})
        for name, amount in (resources.get("limits") or {}).items():
            resources.setdefault("requests", {}).setdefault(name, amount)
        for key, value in CONTAINER.items():
            container.setdefault(key, value)
    for volume in spec.get("volumes") or []:
        for source in ("secret", "configMap", "downwardAPI", "projected"):
            if isinstance(volume.get(source), dict):
                volume[source].setdefault("defaultMode", 0o644)
        if len(volume) == 1:
            volume["emptyDir"] = {}


def fill_new_pod(body: dict) -> None:
    """What admission adds to pods, and no template shows."""
    tolerations = body["spec"].setdefault("tolerations", [])
    for what in ("not-ready", "unreachable"):
        row = {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute"}
        tolerations.append({**row, "tolerationSeconds": 300})
    body["status"] = {"phase": "Pending"}


def fill_job(body: dict) -> None:
    spec, uid, name = body["spec"], body["metadata"]["uid"], body["metadata"]["name"]
    for key, value in {"parallelism": 1, "backoffLimit": 6, "suspend": False}.items():
        spec.setdefault(key, value)
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")
    labels = {
        **{"batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": name},
        **{"controller-uid": uid, "job-name": name},
    }
    template = spec["template"]
    template["metadata"] = template.get("metadata") or {}
    template["metadata"]["labels"] = {**(template["metadata"].get("labels") or {}), **labels}
    spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    body["metadata"]["labels"] = body["metadata"].get("labels") or dict(
        template["metadata"]["labels"]
    )
    body["status"] = {}
