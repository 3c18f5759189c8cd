"""Service Usage: which APIs a project has turned on; what calls to the others are answered.

A project starts with every API on that the embedded cloud serves. Changes are stored in
projects.json.

Not covered: what services need of each other, quotas, services of folders and organizations, and
all but a name and a title of the services' configurations.
"""

from typing import Any

from localcloud.call import Call, Cloud
from localcloud.errors import ApiError, error_info

TITLES = {
    "artifactregistry": "Artifact Registry API",
    "cloudbilling": "Cloud Billing API",
    "cloudresourcemanager": "Cloud Resource Manager API",
    "compute": "Compute Engine API",
    "container": "Kubernetes Engine API",
    "iam": "Identity and Access Management (IAM) API",
    "iap": "Cloud Identity-Aware Proxy API",
    "logging": "Cloud Logging API",
    "monitoring": "Cloud Monitoring API",
    "oslogin": "Cloud OS Login API",
    "secretmanager": "Secret Manager API",
    "serviceusage": "Service Usage API",
    "storage": "Cloud Storage API",
    "storage-component": "Cloud Storage",
    "tpu": "Cloud TPU API",
}
ENABLED = (
    "cloudbilling",
    "cloudresourcemanager",
    "compute",
    "container",
    "iam",
    "oslogin",
    "secretmanager",
    "serviceusage",
    "storage",
    "artifactregistry",
    "monitoring",
    "storage-component",
)
KIND = "type.googleapis.com/google.api.serviceusage.v1."


def enabled(cloud: Cloud, project: str) -> list[str]:
    """The services that a project has turned on, without `.googleapis.com`."""
    return cloud.projects[project].get("services", list(ENABLED))


def turn(cloud: Cloud, project: str, service: str, on: bool) -> None:
    others = [name for name in enabled(cloud, project) if name != service]
    cloud.projects[project]["services"] = sorted([*others, service] if on else others)
    cloud.save_projects()


def check(cloud: Cloud, call: Call) -> None:
    """Raise Google's 403 for a call to an API that its project has turned off."""
    service, project = call.method.partition(".")[0], project_of(cloud, call)
    if project is None or service in enabled(cloud, project):
        return
    number, title = cloud.projects[project]["number"], TITLES[service]
    host = f"{service}.googleapis.com"
    url = f"https://console.developers.google.com/apis/api/{host}/overview?project={number}"
    message = (
        f"{title} has not been used in project {number} before or it is disabled. Enable it by visiting {url} then "
        "retry. If you enabled this API recently, wait a few minutes for the action to propagate to our systems and "
        "retry."
    )
    links = [{"description": "Google developers console API activation", "url": url}]
    info = error_info(
        "SERVICE_DISABLED",
        "googleapis.com",
        service=host,
        serviceTitle=title,
        consumer=f"projects/{number}",
        containerInfo=number,
        activationUrl=url,
    )
    details = [
        info,
        {"@type": "type.googleapis.com/google.rpc.Help", "links": links},
    ]
    raise ApiError(403, "accessNotConfigured", message, domain="usageLimits", details=details)


def project_in(call: Call) -> str:
    """The project that a request to Resource Manager names."""
    return (call.params.get("projectId") or call.params.get("resource", "")).removeprefix(
        "projects/"
    )


def project_of(cloud: Cloud, call: Call) -> str | None:
    """The id of the project that a request is about; None if it names none that is there."""
    params = call.params
    if call.method.startswith("cloudbilling."):  # it names none: the caller's own counts
        return cloud.project_named(
            call.request.headers.get("X-Goog-User-Project") or next(iter(cloud.projects))
        )
    if call.method.startswith("storage.") and "project" not in params:
        name = params.get("bucket") or params.get("destinationBucket", "")
        return (cloud.storage.bucket(name) or {}).get("project")
    if call.method.startswith("cloudresourcemanager."):
        name = project_in(call)
    else:
        path = next(
            (params[key] for key in ("name", "parent", "resource") if "/" in str(params.get(key))),
            "",
        )
        name = params.get("project") or path.split("/")[path.startswith("projects/")]
    return cloud.project_named(name)


# --- handlers


def named(cloud: Cloud, call: Call, parent: str) -> str:
    kind, project = parent.split("/")[:2]
    found = cloud.project_named(project) if kind == "projects" else None
    if found is None:
        raise ApiError(403, "forbidden", f"Project '{project}' not found or permission denied.")
    return found


def check_known(service: str) -> str:
    short = service.removesuffix(".googleapis.com")
    if short not in TITLES or short == service:
        message = f"Not found or permission denied for service(s): {service}."
        raise ApiError(403, "forbidden", message)
    return short


def present(cloud: Cloud, project: str, service: str) -> dict:
    parent, host = f"projects/{cloud.projects[project]['number']}", f"{service}.googleapis.com"
    state = "ENABLED" if service in enabled(cloud, project) else "DISABLED"
    shown = {"name": f"{parent}/services/{host}", "parent": parent, "state": state}
    return {**shown, "config": {"name": host, "title": TITLES[service]}}


async def batch_get(cloud: Cloud, call: Call) -> dict:
    project, names = named(cloud, call, call.params["parent"]), call.params.get("names") or []
    return {
        "services": [present(cloud, project, check_known(name.split("/")[3])) for name in names]
    }


async def change(cloud: Cloud, call: Call) -> dict:
    """Enable or disable one service."""
    name, on = call.params["name"], call.method.endswith("enable")
    project, service = named(cloud, call, name), check_known(name.split("/")[3])
    turn(cloud, project, service, on)
    kind = "EnableServiceResponse" if on else "DisableServiceResponse"
    return operation({"@type": KIND + kind, "service": present(cloud, project, service)})


def operation(response: dict[str, Any]) -> dict:
    """An operation that is done."""
    return {"name": "operations/noop.DONE_OPERATION", "done": True, "response": response}


HANDLERS = {
    "serviceusage.services.batchGet": batch_get,
    "serviceusage.services.enable": change,
    "serviceusage.services.disable": change,
}
