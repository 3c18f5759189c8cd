"""How clients are led to an embedded cloud: settings, credentials, and words that explain them.

It needs only the standard library: the program's help imports it.
"""

from pathlib import Path

from localcloud.identity.tokens import LAPTOP, Tokens

PROJECT = "berg-local"
# As gcloud names the services; the first two have their version in the address.
VERSIONED = ("compute", "storage")
SERVICES = (
    *VERSIONED,
    "secretmanager",
    "iam",
    "cloudresourcemanager",
    "serviceusage",
    "container",
    "monitoring",
    "artifactregistry",
)
TEXT = """\
The embedded cloud listens at {url} (project {project}, state in {folder}).

google-cloud-compute and google-cloud-storage:
    export GOOGLE_APPLICATION_CREDENTIALS={folder}/credentials.json
    compute_v1.InstancesClient(client_options={{"api_endpoint": "{url}"}})
    storage.Client(project="{project}", client_options={{"api_endpoint": "{url}"}})

gcloud, and what else reads these variables:
{exports}

Access tokens for other clients: python -m localcloud --token {folder}
Ctrl-C ends its machines, then the cloud.
"""


def access_token(folder: Path) -> str:
    """Return a new access token of the cloud's owner, good for an hour."""
    return Tokens(folder).mint(LAPTOP)


def environment(folder: Path, port: int, project: str) -> dict[str, str]:
    """Return the variables that lead gcloud and Google's libraries to this cloud.

    gcloud's own settings are left alone, and nothing of it leaves this computer: no usage reports,
    no look for updates, none for a metadata server.
    """
    found = {
        "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "credentials.json"),
        "GOOGLE_CLOUD_PROJECT": project,
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_CORE_PROJECT": project,
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
        "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "GCE_METADATA_ROOT": "127.0.0.1:9",
    }
    for service in SERVICES:
        version = "v1/" if service in VERSIONED else ""
        address = f"http://127.0.0.1:{port}/{service}/{version}"
        found[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"] = address
    return found


def how_to_use(folder: Path, port: int, project: str) -> str:
    """Return what a person who started the cloud needs to know."""
    rows = [
        f"    export {key}={value}" for key, value in environment(folder, port, project).items()
    ]
    token = f"    export CLOUDSDK_AUTH_ACCESS_TOKEN=$(python -m localcloud --token {folder})"
    exports = "\n".join([*rows, token])
    url = f"http://127.0.0.1:{port}"
    return TEXT.format(url=url, project=project, folder=folder, exports=exports)
