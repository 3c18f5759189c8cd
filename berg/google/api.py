"""Single requests to Google's APIs, retried where that is safe; operations, and what their errors
mean.

Waiting is a request of berg's own, too: google-cloud-compute asks Google's own host about an
operation, whatever endpoint it was given.

What errors of Google's mean, in a sentence for people, with the next step.

Not covered: errors of one request that its caller can say more about.

Requests to Google: what they raise, which are sent again, and how long berg waits for something.

408, 429, 500, 502, 503, 504 and broken connections pass. Any other status is the same each time,
and so is a certificate that cannot be verified or read. berg/machine/boot.py imports the standard
library alone and keeps a copy of the statuses.
"""

import contextlib
import functools
import json
import math
import os
import random
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar

from berg import BergError, plain
from berg import config as credentials
from berg.config import Config

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
        except Forbidden as error:
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
    except (Forbidden, NotFound):
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
        answer = send(config, method, url, timeout, params=query or None, json=body)
        return answer.json() if answer.content else {}

    answer: dict[str, Any] = retrying()(once)()
    return answer


def find(config: Config, path: str, project: str = "", **query: Any) -> dict[str, Any]:
    """GET what is at a path; {} if there is nothing."""
    try:
        return call(config, "GET", path, project=project, **query)
    except NotFound:
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


def items(config: Config, path: str, key: str = "items", **query: Any) -> Iterator[dict[str, Any]]:
    """Return what a list has, page by page; an aggregated one has a list for each place."""
    for page in pages(config, path, **query):
        found = page.get(key, [])
        if isinstance(found, list):
            yield from found
            continue
        for place in found.values():
            yield from place.get(last_part(path), [])


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
    except NotFound:
        return
    except BadRequest as error:  # another request is deleting it
        if error.reason != "resourceNotReady":
            raise
        if wait_for_it:
            wait_for(lambda: not find(config, path, fields="name"), 0.5)
        return
    if wait_for_it:
        wait(config, operation)


def write(config: Config, path: str, body: dict[str, Any]) -> None:
    """POST a body once, however often it is sent, and wait for what it began."""
    wait(config, call(config, "POST", path, body, requestId=str(uuid.uuid4())))


PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")  # as requests reads them

NO_FEDERATION = "the token of Workload Identity Federation"

Explain = Callable[[BaseException, Config | None], str | None]


def explain(error: BaseException, config: Config | None = None) -> str | None:
    """Return a sentence and the next step for an error of Google's; None for any other error."""
    kinds: tuple[Explain, ...] = (
        explain_credentials,
        explain_network,
        explain_retried,
        explain_missing_bucket,
        explain_forbidden,
        explain_refusal,
    )
    for kind in kinds:
        if words := kind(error, config):
            return words
    return None


def init_command(config: Config | None) -> str:
    return "berg init --local" if config and config.endpoint else "berg init"


def explain_credentials(error: BaseException, config: Config | None) -> str | None:
    from google.auth import exceptions as auth

    if isinstance(error, auth.DefaultCredentialsError):
        file = os.environ.get(credentials.VARIABLE)
        if file and not (config and config.credentials_file) and not Path(file).exists():
            return (
                f"there is no file {file}, which {credentials.VARIABLE} names. Correct that "
                f"variable, or: unset {credentials.VARIABLE}"
            )
        return f"no Google credentials found. {renewal(config)}"
    if isinstance(error, (auth.RefreshError, auth.OAuthError, Unauthorized)):
        if source := federation(config):
            return f"{NO_FEDERATION} from {source} is refused: {error}. {renewal(config)}"
        return f"your Google credentials have expired or were revoked. {renewal(config)}"
    return None


def federation(config: Config | None) -> str:
    """Return what gives the tokens of Workload Identity Federation; "" for other credentials."""
    file = (config and config.credentials_file) or os.environ.get(credentials.VARIABLE)
    try:
        row = json.loads(Path(file or "").read_text())
        if row["type"] != "external_account":
            return ""
        source = row.get("credential_source", {})
        where = (
            source.get("url") or source.get("file") or source.get("executable", {}).get("command")
        )
        return f"{where or 'its source'} ({file}), exchanged at {row.get('token_url')},"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""


def renewal(config: Config | None) -> str:
    """Say how to get new credentials."""
    if not config or not config.credentials_file:
        file = os.environ.get(credentials.VARIABLE)
        return f"Renew {file}" if file else "Run: gcloud auth application-default login"
    if config.endpoint:
        return "Restart the embedded cloud: berg local stop && berg local start"
    return f"Renew {config.credentials_file}"


def explain_network(error: BaseException, config: Config | None) -> str | None:
    import requests
    from google.auth import exceptions as auth

    if not isinstance(error, (auth.TransportError, requests.ConnectionError, requests.Timeout)):
        return None
    if config and config.endpoint:
        return (
            f"cannot reach {config.endpoint}. Check the network, or set up an embedded cloud: "
            "berg init --local"
        )
    if name := next((name for name in PROXIES if os.environ.get(name)), ""):
        # without its user and password
        address = re.sub(r"//[^/@]*@", "//", os.environ[name])
        return (
            f"cannot reach Google Cloud through the proxy {address} ({name}). Check the proxy and "
            "the network, and try again"
        )
    if isinstance(error, auth.TransportError) and (source := federation(config)):
        return f"{NO_FEDERATION} from {source} does not come. Check that both answer"
    return "cannot reach Google Cloud. Check the network and try again"


def explain_retried(error: BaseException, config: Config | None) -> str | None:
    if not isinstance(error, RetryError):
        return None
    if config and (words := explain(error.cause, config)):
        return words
    return f"{error.cause}; it was retried. Try again later"


def explain_missing_bucket(error: BaseException, config: Config | None) -> str | None:
    if not isinstance(error, NotFound):
        return None
    if "specified bucket does not exist" not in str(error):
        return None
    bucket = config.bucket if config else ""
    step = init_command(config)
    return f"bucket {bucket!r} does not exist. Create it, or choose another one: {step}"


def explain_forbidden(error: BaseException, config: Config | None) -> str | None:
    if not isinstance(error, Forbidden):
        return None
    if config and lacks_quota_project(error):
        return name_quota_project(config)
    if is_off(error):
        return f"an API is not enabled: {error.message}"
    bucket, project = (config.bucket, config.project) if config else ("", "")
    if "/storage/v1/" not in error.message:  # in the request, which comes first
        return f"you lack a right in the project {project!r}: {words(error)}. See: berg doctor"
    return (
        f"access to bucket {bucket!r} is forbidden: it belongs to somebody else, or you lack the "
        f"role roles/storage.objectAdmin on it ({error.message}). "
        f"Choose another one: {init_command(config)}"
    )


def explain_refusal(error: BaseException, config: Config | None) -> str | None:
    """Explain what is left of Google's answers, in its own words."""
    if not isinstance(error, GoogleError):
        return None
    if error.status == 507:
        return str(error.message)  # the embedded cloud's full disk, in its own sentence
    cloud = "The embedded cloud" if config and config.endpoint else "Google"
    refused = f"{cloud} refused: {error.message} (HTTP {error.status})"
    return f"{refused} {advise(error.message)}".rstrip()


Found = TypeVar("Found")

RETRIED = (408, 429, 500, 502, 503, 504)

# how OpenSSL says it, whatever library wraps the error
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "NO_CERTIFICATE_OR_CRL_FOUND")

SLOW = 5  # seconds of retries, after which the user is informed: here, and on machines in the log

notify: Callable[[str], None] = functools.partial(plain.echo, err=True)

told: dict[str, float] = {}  # what was said, and when: several requests at a time wait for the same

# time.monotonic() until which 403 may pass, in a process of a machine: rights that were granted a
# moment ago count after minutes. On a laptop the user has to fix it.
forbidden_passes_until = -math.inf


class GoogleError(Exception):
    """An answer of Google's with a status of 400 or more."""

    status = 0

    def __init__(self, message: str, status: int = 0, errors: Sequence[dict[str, Any]] = ()):
        super().__init__(message)
        self.message = message  # the request comes first
        self.status = status or self.status
        self.errors = errors

    @property
    def reason(self) -> str:
        """Google's one word for what was wrong with the request."""
        return self.errors[0].get("reason", "") if self.errors else ""

    def __str__(self) -> str:
        return f"{self.status} {self.message}"


class BadRequest(GoogleError):
    status = 400


class Unauthorized(GoogleError):
    status = 401


class Forbidden(GoogleError):
    status = 403


class NotFound(GoogleError):
    status = 404


class Conflict(GoogleError):
    status = 409


class PreconditionFailed(GoogleError):
    status = 412


KINDS: dict[int, type[GoogleError]] = {
    kind.status: kind
    for kind in (BadRequest, Unauthorized, Forbidden, NotFound, Conflict, PreconditionFailed)
}


class RetryError(Exception):
    """A request that failed each time, for as long as it was retried."""

    def __init__(self, cause: Exception):
        super().__init__(f"{cause}; it was retried")
        self.cause = cause


def error_of(status: int, message: str, errors: Sequence[dict[str, Any]] = ()) -> GoogleError:
    return KINDS.get(status, GoogleError)(message, status, errors)


def refusal(request: str, status: int, content: bytes) -> GoogleError:
    """Return the error that an answer to a request, such as "GET URL", stands for."""
    text = content.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        message, errors = error["message"], error.get("errors", ())
    except (ValueError, KeyError, TypeError):
        message, errors = text or "unknown error", ()
    return error_of(status, f"{request}: {message}", errors)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise GoogleError for errors of google-cloud-storage and google-cloud-compute."""
    from google.api_core import exceptions

    try:
        yield
    except exceptions.GoogleAPICallError as error:
        raise error_of(int(error.code or 0), error.message, error.errors) from error


def send(config: Config, method: str, url: str, timeout: float, **options: Any) -> Any:
    """Send one signed request; return the answer or raise GoogleError."""
    response = config.session.request(method, url, timeout=(10, timeout), **options)
    if "Date" in response.headers:
        date = parsedate_to_datetime(response.headers["Date"])
        config.clock_is_behind = date.timestamp() - time.time()
    if response.status_code >= 400:
        raise refusal(f"{method} {response.url}", response.status_code, response.content)
    return response


def is_retried(status: int) -> bool:
    """Return whether a request that was answered with this status may succeed if it is repeated."""
    return status in RETRIED


def is_transient(error: BaseException) -> bool:
    """Return whether a request that ended with this error may succeed if it is repeated."""
    from google.auth.exceptions import TransportError

    if status := status_of(error):
        # Too many requests in a minute are a 403 at Compute Engine; with the next minute they are
        # allowed again.
        return is_retried(status) or (
            isinstance(error, Forbidden) and error.reason == "rateLimitExceeded"
        )
    if isinstance(error, TransportError) and error.args:  # it holds what broke
        return is_transient(error.args[0])
    return is_connection_error(error)


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error, 0 for none."""
    if isinstance(error, GoogleError):
        return error.status
    # The libraries' errors have nothing but the response where content is uploaded.
    response = getattr(error, "response", None)
    return int(getattr(response, "status_code", None) or 0)


def is_connection_error(error: BaseException) -> bool:
    """Return whether a connection could not be made, or broke."""
    import http.client

    import requests
    import urllib3.exceptions

    if any(word in str(error) for word in UNTRUSTED):
        return False
    broken = (
        ConnectionError,
        requests.ConnectionError,
        requests.Timeout,
        requests.exceptions.ChunkedEncodingError,
        http.client.BadStatusLine,
        http.client.IncompleteRead,
        http.client.ResponseNotReady,
        urllib3.exceptions.PoolError,
        urllib3.exceptions.ProtocolError,
        urllib3.exceptions.SSLError,
        urllib3.exceptions.TimeoutError,
    )
    return isinstance(error, broken)


def retrying(
    passes: Callable[[Exception], bool] = is_transient,
    seconds: float = 90,
    what: str = "Google Cloud",
    *,
    forbidden: bool = True,
    initial: float = 0.5,
    maximum: float = 15,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that repeats a call for so long while its error passes, with jitter.

    With `forbidden` also 403, for as long as that may pass. Raises RetryError when time is up.
    After some seconds the user reads that berg waits for `what`; "" says nothing.
    """

    def decorate(ask: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(ask)
        def asked(*given: Any, **options: Any) -> Any:
            began, longest, is_told = time.monotonic(), initial, False
            while True:
                try:
                    return ask(*given, **options)
                except Exception as error:
                    now, end = time.monotonic(), began + seconds
                    if forbidden and status_of(error) == 403 and now < forbidden_passes_until:
                        end = max(end, forbidden_passes_until)
                    elif not passes(error):
                        raise
                    pause = max(random.uniform(0, longest), getattr(error, "retry_after", 0))
                    if now + pause > end:
                        raise RetryError(error) from error
                    if what and now - began > SLOW and not is_told:
                        tell_of_retries(what, error)
                        is_told = True
                time.sleep(pause)
                longest = min(longest * 2, maximum)

        return asked

    return decorate


def tell_of_retries(what: str, error: Exception) -> None:
    """Say what berg waits for, and why; the same once in two minutes."""
    message = words(error) if getattr(error, "message", "") else ""
    why = message or f"no connection ({type(error).__name__})"
    late = ""
    if status_of(error) == 403:
        late = "; rights that were granted just now take minutes"
    minutes, now = "15" if late else "two", time.time()
    sentence = f"Waiting for {what}, and trying again for up to {minutes} minutes: {why}{late}"
    if now - told.get(sentence, -math.inf) > 120:
        told[sentence] = now
        notify(sentence)


def words(error: Any) -> str:
    """What Google says in an error, without the request."""
    return re.sub(r"^[A-Z]+ https?://\S+: ", "", error.message).rstrip(".")


def wait_for(look: Callable[[], Found], every: float, limit: float = math.inf) -> Found:
    """Return what `look` returns as soon as that is true, or after `limit` seconds whatever it is.

    `every` is in seconds, too.
    """
    end = time.monotonic() + limit
    while not (found := look()) and time.monotonic() < end:
        time.sleep(every)
    return found
