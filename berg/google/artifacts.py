"""Artifact Registry: the project's repository of container images, and what is in it.

Its images are called REGION-docker.pkg.dev/PROJECT/berg/NAME:TAG. Whoever pushes is
`oauth2accesstoken`, with an access token as the password.
"""

from collections.abc import Callable
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, grants, http

REPOSITORY = "berg"
READER, WRITER = "roles/artifactregistry.reader", "roles/artifactregistry.writer"
PUSH = "artifactregistry.repositories.uploadArtifacts"
TIMEOUT = 300  # seconds until a new repository is there; it takes some


def registry(config: Config) -> str:
    """URL of the registry of the settings' region."""
    return config.endpoint or f"https://{config.region}-docker.pkg.dev"


def host(config: Config) -> str:
    return registry(config).partition("://")[2]


def full_name(config: Config, name: str, tag: str) -> str:
    """What an image is called everywhere. A project of a domain has a slash there in place of its
    colon.
    """
    return f"{host(config)}/{config.project.replace(':', '/')}/{REPOSITORY}/{name}:{tag}"


def ask(
    config: Config, method: str, path: str, body: dict[str, Any] | None = None, **query: Any
) -> dict[str, Any]:
    """One request below the region's place."""
    return api.call(config, method, url(config) + path, body, **query)


def url(config: Config) -> str:
    place = f"projects/{config.project}/locations/{config.region}"
    return f"{config.service_url('artifactregistry')}/v1/{place}"


def ensure(config: Config) -> bool:
    """Make the repository if there is none; return whether it was made. Raises BergError."""
    try:
        if api.find(config, f"{url(config)}/repositories/{REPOSITORY}"):
            return False
    except http.Forbidden as error:
        raise refusal(config, error, "see") from None
    body = {"format": "DOCKER", "description": "Images of berg's jobs", "labels": {"berg": "1"}}
    try:
        operation = ask(config, "POST", "/repositories", body, repositoryId=REPOSITORY)
    except http.Conflict:  # made by a request whose answer was lost, or by somebody else just now
        return False
    except http.Forbidden as error:
        raise refusal(config, error, "make") from None
    path = f"/operations/{api.last_part(operation['name'])}"

    def ended() -> dict[str, Any] | None:
        seen = ask(config, "GET", path)
        return seen if seen.get("done") else None

    done = operation if operation.get("done") else http.wait_for(ended, 0.3, TIMEOUT)
    if done is None:
        raise BergError(
            f"the repository {REPOSITORY} was not created within {TIMEOUT // 60} minutes. Try again"
        )
    if failed := done.get("error"):
        raise BergError(
            f"the repository {REPOSITORY} could not be made: "
            f"{failed.get('message', 'no reason given')}"
        )
    return True


def refusal(config: Config, error: Any, verb: str) -> BergError:
    """Google's 403 with the next step."""
    said, where = http.words(error), f"--location {config.region} --project {config.project}"
    if why := api.refused_to_all(config, error, "Artifact Registry", "artifactregistry"):
        return BergError(why)
    create = f"gcloud artifacts repositories create {REPOSITORY} --repository-format docker {where}"
    return BergError(
        f"you may not {verb} the repository {REPOSITORY} ({said}). Somebody who may should run: "
        f"{create}"
    )


def check_push(config: Config) -> None:
    """Raise BergError unless the person may push images."""
    held = ask(
        config, "POST", f"/repositories/{REPOSITORY}:testIamPermissions", {"permissions": [PUSH]}
    )
    if not held.get("permissions"):
        raise BergError(
            f"you may not push images to the repository {REPOSITORY} of {config.project}. Somebody "
            "who may should run: "
            f"{bind_command(config, grants.person(config), WRITER)}"
        )


def bind_command(config: Config, member: str, role: str) -> str:
    where = f"--location {config.region} --project {config.project}"
    return (
        f"gcloud artifacts repositories add-iam-policy-binding {REPOSITORY} {where} --member "
        f"{member} --role {role}"
    )


def policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the repository's policy, or write it."""
    if new is None:
        return ask(config, "GET", f"/repositories/{REPOSITORY}:getIamPolicy")
    return ask(config, "POST", f"/repositories/{REPOSITORY}:setIamPolicy", {"policy": new})


def admit(config: Config, role: str, say: Callable[[str], None]) -> bool:
    """Let the account of machines and nodes at the images; whether it had no such right.

    Who may not do that is told who else does what. The project's default account may already.
    """
    if not config.service_account:
        return False
    member = f"serviceAccount:{config.service_account}"
    try:
        return grants.bind(config, policy, role, member)
    except http.GoogleError as error:
        say(f"Pods may not be let at the image ({http.words(error)}). Somebody who may should run:")
        say(f"  {bind_command(config, member, role)}")
        return False


def digest(config: Config, name: str, tag: str) -> str:
    """The digest of the image that has a tag; "" if none has."""
    path = f"/repositories/{REPOSITORY}/packages/{name}/tags/{tag}"
    return api.last_part(api.find(config, url(config) + path).get("version", ""))
