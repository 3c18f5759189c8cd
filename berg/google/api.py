"""Single requests to Google's APIs, retried where that is safe; operations, and what their errors
mean.

Waiting is a request of berg's own, too: google-cloud-compute asks Google's own host about an
operation, whatever endpoint it was given.
"""

import re
import time
import uuid
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from berg import BergError, plain
from berg.config import Config
from berg.google import http

# What a failed create blocks; whatever is not named here blocks only itself and is told to the
# user.
BLOCKS_ZONE = {
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "insufficientCapacity",
}
BLOCKS_ZONE |= {"UNSUPPORTED_OPERATION", "RESOURCE_NOT_READY", "RESOURCE_NOT_FOUND"}
BLOCKS_REGION = ("QUOTA_EXCEEDED", "quotaExceeded")
BLOCKS_ALL = ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS")
SUMMARY = (
    "VM_MIN_COUNT_NOT_REACHED"  # the first error of a bulk insert; the cause is the one after it
)
EXTERNAL, OS_LOGIN = "constraints/compute.vmExternalIpAccess", "constraints/compute.requireOsLogin"
SHIELDED, LOCATIONS = "constraints/compute.requireShieldedVm", "constraints/gcp.resourceLocations"
FREE_TRIAL = "free tier where non-TPU accelerators are not available"
ADVICE = {  # what Google says, policies of organisations among it, and what to do then
    r"/networks/\S+'\.? (The referenced network resource cannot be found|was not found)": (
        "Name another network: berg config set network NAME, or make it: gcloud compute networks "
        "create NAME"
    ),
    EXTERNAL: "Give --no-external-ip, or for all machines: berg config set no_external_ip true",
    OS_LOGIN: "Log in as root, whose keys berg brings itself: berg config set ssh_user root",
    LOCATIONS: "Choose a region that the organisation allows (--region), or for all jobs: berg "
    "config set region REGION",
    FREE_TRIAL: "Google gives a free trial no GPUs. Upgrade it to a paid account, which keeps its "
    "credit: https://console.cloud.google.com/billing. Until then: -g 0",
}
# What an API says to credentials of gcloud's that name no quota project: one is needed, or gcloud's
# own has it off.
QUOTA_PROJECT = re.compile(r"requires a quota project|in project 764086051850 ")
OFF_API = re.compile(r"apis/api/([a-z]+\.googleapis\.com)/overview")
ENABLING = 180  # seconds until an API that was enabled answers
LOOKS, CHANGES = 30, 150  # seconds for an answer; a wait for an operation takes two minutes


class Denied(BergError):
    """What somebody has no right to do."""


class NoRoom(BergError):
    """There is no room, or no quota, for these machines now; for others there may be."""


class OperationFailed(BergError):
    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code

    @property
    def blocks(self) -> str:
        """What it makes no sense to try again: the zone, the region, or all; "" for what is no
        matter of room.
        """
        if self.code in BLOCKS_REGION:
            return "all" if any(metric in self.message for metric in BLOCKS_ALL) else "region"
        if FREE_TRIAL in self.message:
            return ""
        return "zone" if self.code in BLOCKS_ZONE | {SUMMARY} else ""

    def explain(self, region: str) -> str:
        """What happened, and the next step."""
        if self.code in BLOCKS_REGION:
            where = "the whole project" if self.blocks == "all" else region
            return (
                f"quota of {where}: {self.message} Raise it: "
                "https://console.cloud.google.com/iam-admin/quotas"
            )
        if (
            self.code.startswith("ZONE_RESOURCE_POOL_EXHAUSTED")
            or self.code == "insufficientCapacity"
        ):
            # Of machines with TPUs, see tpus.meaning: it may be an internal error after all.
            is_guess = self.message.startswith("INTERNAL_ERROR")
            return f"out of stock ({self.message})" if is_guess else "out of stock"
        if self.code == "alreadyExists":
            return f"{self.message}. Choose another name: -n NAME"
        if advice := advise(self.message):
            return f"{self.message} {advice}"
        return f"{self.message} ({self.code})" if self.code else self.message


def advise(message: str) -> str:
    """What to do about what Google says, if that is known."""
    return next((advice for said, advice in ADVICE.items() if re.search(said, message)), "")


def is_off(error: Any) -> bool:
    """Whether a request was refused because the project has not enabled the API."""
    if lacks_quota_project(error):
        return False
    return "has not been used in project" in error.message or "accessNotConfigured" in str(
        error.errors
    )


def when_on(config: Config, ask: Callable[[], Any]) -> Any:
    """Ask, and ask again while Google refuses as off an API that was enabled a moment ago.

    Raises Google's refusal if the API is off, or does not answer in ENABLING seconds.
    """
    until = time.monotonic() + ENABLING
    is_told = False
    while True:
        try:
            return ask()
        except http.Forbidden as error:
            if time.monotonic() > until or not was_enabled(config, error):
                raise
        if not is_told:
            plain.echo("An API was just enabled; Google needs up to 3 minutes", err=True)
            is_told = True
        time.sleep(2)


def was_enabled(config: Config, error: Any) -> bool:
    """Return whether the API that a request was refused for is on by what Service Usage says."""
    named = OFF_API.search(error.message)
    if not named or not is_off(error):
        return False
    url = f"{config.service_url('serviceusage')}/v1/projects/{config.project}/services/{named[1]}"
    try:
        return call(config, "GET", url).get("state") == "ENABLED"
    except (http.Forbidden, http.NotFound):
        return False


def lacks_quota_project(error: Any) -> bool:
    """Whether a request was refused because a person's credentials do not say whose quota it counts
    against.
    """
    return bool(QUOTA_PROJECT.search(error.message))


def name_quota_project(config: Config) -> str:
    """What is wrong then, and the command that mends it."""
    command = f"gcloud auth application-default set-quota-project {config.project}"
    return f"your Google credentials do not say which project's quota they use. Run: {command}"


def refused_to_all(config: Config, error: Any, name: str, service: str) -> str:
    """Return what is wrong and what mends it where no right would help; "" where one would."""
    if lacks_quota_project(error):
        return name_quota_project(config)
    mend = enable_command(config, service)
    return f"the {name} API of {config.project} is off. Turn it on: {mend}" if is_off(error) else ""


def enable_command(config: Config, *services: str) -> str:
    """What enables APIs, such as "compute"."""
    hosts = " ".join(f"{service}.googleapis.com" for service in services)
    return f"gcloud services enable {hosts} --project {config.project}"


def call(
    config: Config,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    project: str = "",
    **query: Any,
) -> dict[str, Any]:
    """One request below the project, or to a whole address; raises
    http.GoogleError.

    Every method used here may be repeated: reads, and writes that carry a requestId or a
    fingerprint.
    """
    url = path if path.startswith("http") else config.compute_url(project) + path
    timeout = LOOKS if method == "GET" else CHANGES

    def once() -> dict[str, Any]:
        answer = http.send(config, method, url, timeout, params=query or None, json=body)
        return answer.json() if answer.content else {}

    answer: dict[str, Any] = http.retrying()(once)()
    return answer


def find(config: Config, path: str, project: str = "", **query: Any) -> dict[str, Any]:
    """GET what is at a path; {} if there is nothing."""
    try:
        return call(config, "GET", path, project=project, **query)
    except http.NotFound:
        return {}


def storage_url(config: Config) -> str:
    return config.endpoint or "https://storage.googleapis.com"


def buckets_url(config: Config) -> str:
    return f"{storage_url(config)}/storage/v1/b"


def now(config: Config) -> float:
    """The time by Google's clock, as of its last answer: this computer's may be wrong. Seconds
    since 1970.
    """
    return time.time() + config.clock_is_behind


def time_of(timestamp: str) -> datetime:
    """A time in Google's words, RFC 3339."""
    return datetime.fromisoformat(timestamp.replace("Z", "+00:00"))


def age_seconds(config: Config, timestamp: str) -> float:
    return now(config) - time_of(timestamp).timestamp()


def pages(config: Config, path: str, **query: Any) -> Iterable[dict[str, Any]]:
    token = None
    while True:
        answer = call(config, "GET", path, **query, **({"pageToken": token} if token else {}))
        yield answer
        token = answer.get("nextPageToken")
        if not token:
            return


def last_part(url: str) -> str:
    return url.rpartition("/")[2]


def wait(config: Config, operation: dict[str, Any]) -> None:
    """Wait for an operation; raises OperationFailed with Google's code."""
    scope = next(
        (f"{key}s/{last_part(operation[key])}" for key in ("zone", "region") if key in operation),
        "global",
    )
    path = f"/{scope}/operations/{operation['name']}"
    while operation["status"] != "DONE":
        operation = call(config, "POST", f"{path}/wait")
    errors = operation.get("error", {}).get("errors", [])
    for error in [each for each in errors if each.get("code") != SUMMARY] or errors:
        raise OperationFailed(error.get("code", ""), error.get("message", ""))


def delete(config: Config, path: str, wait_for_it: bool = False) -> None:
    """Delete what is at a path below the project; what is gone already is fine."""
    try:
        operation = call(config, "DELETE", path, requestId=str(uuid.uuid4()))
    except http.NotFound:
        return
    except http.BadRequest as error:  # another request is deleting it
        if error.reason != "resourceNotReady":
            raise
        if wait_for_it:
            http.wait_for(lambda: not find(config, path, fields="name"), 0.5)
        return
    if wait_for_it:
        wait(config, operation)


def write(config: Config, path: str, body: dict[str, Any]) -> None:
    """POST a body once, however often it is sent, and wait for what it began."""
    wait(config, call(config, "POST", path, body, requestId=str(uuid.uuid4())))
