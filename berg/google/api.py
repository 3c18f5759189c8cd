"""The HTTP client for Google's APIs: requests, retries, operations, and what their errors mean.

berg/machine/boot.py imports the standard library alone and keeps a copy of RETRIED.
"""

import contextlib
import functools
import json
import math
import os
import random
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

from berg import BergError, job, plain
from berg import config as credentials
from berg.config import Config

Found = TypeVar("Found")

# Codes of failed creations: where there is no room. Any other code fails only its own request.
BLOCKS_ZONE = {
    "ZONE_RESOURCE_POOL_EXHAUSTED",
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
    "insufficientCapacity",
    "UNSUPPORTED_OPERATION",
    "RESOURCE_NOT_READY",
    "RESOURCE_NOT_FOUND",
}
BLOCKS_REGION = ("QUOTA_EXCEEDED", "quotaExceeded")
BLOCKS_ALL = ("GPUS_ALL_REGIONS", "CPUS_ALL_REGIONS")
SUMMARY = "VM_MIN_COUNT_NOT_REACHED"  # first error of a bulk insert; the next one is the cause

EXTERNAL, OS_LOGIN = "constraints/compute.vmExternalIpAccess", "constraints/compute.requireOsLogin"
SHIELDED, LOCATIONS = "constraints/compute.requireShieldedVm", "constraints/gcp.resourceLocations"
FREE_TRIAL = "free tier where non-TPU accelerators are not available"

ADVICE = {  # pattern in Google's message -> the next step
    r"/networks/\S+'\.? (The referenced network resource cannot be found|was not found)": (
        "Name another network: berg config set network NAME, or create it: gcloud compute networks "
        "create NAME"
    ),
    EXTERNAL: "Give --no-external-ip, or for all machines: berg config set no_external_ip true",
    OS_LOGIN: "Log in as root, with keys that berg manages: berg config set ssh_user root",
    LOCATIONS: "Choose a region that the organisation allows (--region), or for all jobs: berg "
    "config set region REGION",
    FREE_TRIAL: "Google gives a free trial no GPUs. Upgrade it to a paid account, which keeps its "
    "credit: https://console.cloud.google.com/billing. Until then: -g 0",
}

# The answer to a person's credentials without a quota project; the number is gcloud's own project.
QUOTA_PROJECT = re.compile(r"requires a quota project|in project 764086051850 ")
ENABLING = 180  # seconds until an API that was enabled answers

CONNECT, LOOKS, CHANGES = 10, 30, 150  # seconds; Google answers a wait for an operation after 120
CONNECTIONS = 64  # kept open to one server
BLOCK = 1 << 20  # bytes that are read at a time
RETRIED = (408, 429, 500, 502, 503, 504)  # statuses that a repeated request may not meet again
UNTRUSTED = ("CERTIFICATE_VERIFY_FAILED", "NO_CERTIFICATE_OR_CRL_FOUND")  # OpenSSL's words
SOON = 1  # seconds of silence after which the user hears what is waited for
SLOW = 5  # seconds of retries after which the user is informed

PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")  # as requests reads them
NO_FEDERATION = "the token of Workload Identity Federation"

notify: Callable[[str], None] = functools.partial(plain.echo, err=True)  # on machines: the log
notified: dict[str, float] = {}  # message -> when; parallel requests wait for the same thing

# time.monotonic() until which 403 is retried, in a process of a machine: rights that were granted
# a moment ago take minutes to count.
forbidden_passes_until = -math.inf


class Denied(BergError):
    """The user lacks a right."""


class NoRoom(BergError):
    """There is no capacity, or no quota, for these machines now; others may start."""


class OperationFailed(BergError):
    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code

    @property
    def blocks(self) -> str:
        """Where another try is useless: "zone", "region" or "all"; "" if capacity is not the
        cause.
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
            # Of machines with TPUs, see groups.tpu_error: it may be an internal error after all.
            is_guess = self.message.startswith("INTERNAL_ERROR")
            return f"out of stock ({self.message})" if is_guess else "out of stock"
        if self.code == "alreadyExists":
            return f"{self.message}. Choose another name: -n NAME"
        if advice := advise(self.message):
            return f"{self.message} {advice}"
        return f"{self.message} ({self.code})" if self.code else self.message


class GoogleError(Exception):
    """An answer with a status of 400 or more. The message begins with the request."""

    status = 0

    def __init__(self, message: str, status: int = 0, errors: Sequence[dict[str, Any]] = ()):
        super().__init__(message)
        self.message = message
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


class NoAnswer(Exception):
    """A server that cannot be reached, or an answer that breaks off; holds urllib3's error."""

    @property
    def kind(self) -> str:
        cause = self.args[0]
        return type(cause).__name__ if isinstance(cause, Exception) else "IncompleteRead"


class RetryError(Exception):
    """A request that failed each time, for as long as it was retried."""

    def __init__(self, cause: Exception):
        super().__init__(f"{cause}; it was retried")
        self.cause = cause


def error_of(status: int, message: str, errors: Sequence[dict[str, Any]] = ()) -> GoogleError:
    return KINDS.get(status, GoogleError)(message, status, errors)


def refusal(request: str, status: int, content: bytes) -> GoogleError:
    """Return the error in an answer to a request, such as "GET URL"."""
    text = content.decode(errors="replace")
    try:
        error = json.loads(text)["error"]
        message, errors = error["message"], error.get("errors", ())
    except (ValueError, KeyError, TypeError):
        message, errors = text or "unknown error", ()
    return error_of(status, f"{request}: {message}", errors)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise GoogleError or NoAnswer for errors of google-cloud-compute and google-cloud-storage."""
    import requests
    from google.api_core import exceptions

    try:
        yield
    except exceptions.GoogleAPICallError as error:
        raise error_of(int(error.code or 0), error.message, error.errors) from error
    except requests.RequestException as error:
        raise NoAnswer(error) from error


@dataclass
class Route:
    """How a server is reached: the proxy and the certificates of the environment."""

    pool: Any  # urllib3's, which keeps its connections
    proxy: str | None
    cafile: str | None  # certificates that are trusted
    capath: str | None  # a folder of them


routes: dict[tuple[str, str, int], Route] = {}
LOCK = threading.Lock()  # of `routes`


def route_to(url: str, ca: str = "") -> Route:
    """Return the route to an address, the same in all threads; `ca` is a file of certificates."""
    origin = "/".join(url.split("/", 3)[:3])
    key = (origin, ca, Path(ca).stat().st_mtime_ns if ca else 0)  # a new certificate, a new route
    with LOCK:
        if key not in routes:
            routes[key] = make_route(origin, ca)
        return routes[key]


def make_route(origin: str, ca: str) -> Route:
    import ssl

    import requests
    import urllib3
    from requests.adapters import HTTPAdapter

    settings = requests.Session().merge_environment_settings(origin, {}, None, ca or None, None)
    trusted: Any = settings["verify"]
    if trusted is True:
        trusted = requests.utils.DEFAULT_CA_BUNDLE_PATH
    cafile, capath = (None, trusted) if Path(trusted).is_dir() else (trusted, None)
    options: dict[str, Any] = {}
    if origin.startswith("https:"):  # urllib3 would read the certificates for each connection
        options["ssl_context"] = ssl.create_default_context(cafile=cafile, capath=capath)
    proxy = requests.utils.select_proxy(origin, settings["proxies"])
    pool: Any
    if proxy:
        adapter: Any = HTTPAdapter(pool_maxsize=CONNECTIONS, pool_block=True)
        pool = adapter.proxy_manager_for(proxy, **options)
    else:
        pool = urllib3.PoolManager(maxsize=CONNECTIONS, block=True, **options)
    return Route(pool, proxy, cafile, capath)


def kept_connections() -> Any:
    """Return an adapter for a session of requests that uses the connections of this module: each
    new one waits for two handshakes.
    """
    from requests.adapters import HTTPAdapter

    class Adapter(HTTPAdapter):
        def get_connection_with_tls_context(self, request: Any, *_: Any, **__: Any) -> Any:
            return route_to(request.url).pool.connection_from_url(request.url)

    return Adapter()


@functools.cache
def refresher() -> Any:
    """Return what google-auth asks for tokens with."""
    from google.auth.transport.requests import Request

    return Request()


def signed(config: Config, method: str, url: str, headers: dict[str, str]) -> dict[str, str]:
    """Return headers with a token, which is renewed if it is old."""
    found = dict(headers)
    config.credentials.before_request(refresher(), method, url, found)
    return found


def open_answer(
    config: Config,
    method: str,
    url: str,
    timeout: tuple[float, float],
    headers: dict[str, str],
    body: bytes | None = None,
    ca: str = "",
) -> Any:
    """Send one request; return urllib3's answer with any status, whose content is yet to be read.

    It is signed unless it has an Authorization. `timeout`: seconds to connect, and between two
    pieces of the answer. Raises NoAnswer.
    """
    sent = time.time()
    if "Authorization" in headers:
        return exchange(method, url, timeout, headers, body, ca)
    answer = exchange(method, url, timeout, signed(config, method, url, headers), body, ca)
    if answer.status == 401:  # the token was revoked before its time
        answer.drain_conn()
        config.credentials.refresh(refresher())
        answer = exchange(method, url, timeout, signed(config, method, url, headers), body, ca)
    if "Date" in answer.headers:
        date = parsedate_to_datetime(answer.headers["Date"]).timestamp()
        # Of whole seconds. A clock that was there between the request and its answer may be right.
        job.clock_is_behind = max(date - time.time(), 0) + min(date + 1 - sent, 0)
    return answer


def exchange(
    method: str,
    url: str,
    timeout: tuple[float, float],
    headers: dict[str, str],
    body: bytes | None = None,
    ca: str = "",
) -> Any:
    """Send a request as it is; return urllib3's answer as `open_answer` does."""
    import urllib3

    try:
        return route_to(url, ca).pool.request(
            method,
            url,
            headers={"Accept-Encoding": "gzip", **headers},
            body=body,
            timeout=urllib3.Timeout(connect=timeout[0], read=timeout[1]),
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
        )
    except urllib3.exceptions.HTTPError as error:
        raise NoAnswer(error) from error


def blocks_of(answer: Any) -> Iterator[bytes]:
    """Yield the bytes of an answer; raise NoAnswer if it breaks off."""
    import urllib3

    read = 0
    try:
        while block := answer.read(BLOCK):
            read += len(block)
            yield block
        answer.release_conn()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise NoAnswer(error) from error
    finally:
        hang_up(answer)  # without effect on a connection that was released
    expected = answer.headers.get("Content-Length")
    if expected is not None and read != int(expected):
        raise NoAnswer(f"{read} of {expected} bytes came")


def hang_up(answer: Any) -> None:
    """Close the connection of an answer that is not read to its end, and let another one be opened:
    a pool has CONNECTIONS at most.
    """
    answer.close()
    answer.release_conn()


def content_of(answer: Any) -> bytes:
    """Return all bytes of an answer of Google's own, which may be compressed."""
    import gzip

    data = b"".join(blocks_of(answer))
    return gzip.decompress(data) if answer.headers.get("Content-Encoding") == "gzip" else data


@dataclass
class Answer:
    """A whole answer, with a status below 400."""

    headers: Any
    content: bytes

    def json(self) -> Any:
        return json.loads(self.content) if self.content else {}


def send(
    config: Config,
    method: str,
    url: str,
    body: Any = None,
    kind: str = "application/json",
    timeout: float = LOOKS,
) -> Answer:
    """Send one signed request, once; raise GoogleError or NoAnswer.

    `body` is bytes of that `kind`, or becomes JSON.
    """
    headers, data = {}, None
    if body is not None:
        headers["Content-Type"] = kind
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = open_answer(config, method, url, (CONNECT, timeout), headers, data)
    content = content_of(answer)
    if answer.status >= 400:
        raise refusal(f"{method} {url}", answer.status, content)
    return Answer(answer.headers, content)


def with_query(url: str, query: dict[str, Any]) -> str:
    """Return an address with parameters, but for those that are None."""
    given = {key: value for key, value in query.items() if value is not None}
    separator = "&" if "?" in url else "?"
    return f"{url}{separator}{urlencode(given, doseq=True)}" if given else url


def call(
    config: Config,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    project: str = "",
    **query: Any,
) -> dict[str, Any]:
    """Return the JSON of an answer; `path` is below the project, or a whole address.

    Retried: use it for reads, and for writes with a requestId or a fingerprint. Raises GoogleError.
    """
    url = path if path.startswith("http") else config.compute_url(project) + path
    url, timeout = with_query(url, query), LOOKS if method == "GET" else CHANGES
    return dict(retry(lambda: send(config, method, url, body, timeout=timeout).json()))


def find(config: Config, path: str, project: str = "", **query: Any) -> dict[str, Any]:
    """GET what is at a path; {} if there is nothing."""
    try:
        return call(config, "GET", path, project=project, **query)
    except NotFound:
        return {}


def pages(config: Config, path: str, **query: Any) -> Iterable[dict[str, Any]]:
    """Yield the pages of a list."""
    return paged(lambda token: call(config, "GET", path, **query, pageToken=token))


def paged(ask: Callable[[str | None], dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the pages of a list; `ask` gets the token of a page, None for the first one."""
    token = None
    while True:
        page = ask(token)
        yield page
        token = page.get("nextPageToken")
        if not token:
            return


def items(config: Config, path: str, key: str = "items", **query: Any) -> Iterator[dict[str, Any]]:
    """Yield what a list has, page by page; an aggregated one has a list for each place."""
    for page in pages(config, path, **query):
        found = page.get(key, [])
        if isinstance(found, list):
            yield from found
            continue
        for place in found.values():
            yield from place.get(last_part(path), [])


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
    """Delete what is at a path below the project, if it is there."""
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
    """POST a body, and wait for its operation."""
    wait(config, call(config, "POST", path, body, requestId=str(uuid.uuid4())))


def storage_url(config: Config) -> str:
    return config.endpoint or "https://storage.googleapis.com"


def buckets_url(config: Config) -> str:
    return f"{storage_url(config)}/storage/v1/b"


def last_part(url: str) -> str:
    return url.rpartition("/")[2]


def wait_for(look: Callable[[], Found], every: float, limit: float = math.inf) -> Found:
    """Return what `look` returns once that is true, or after `limit` seconds whatever it is.

    `every` is the pause in seconds.
    """
    end = time.monotonic() + limit
    while not (found := look()) and time.monotonic() < end:
        time.sleep(every)
    return found


@contextlib.contextmanager
def waiting(text: str, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Say what is waited for, if that takes longer than SOON seconds."""
    timer = threading.Timer(SOON, say or notify, [text])
    timer.daemon = True
    if not plain.for_program():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def status_of(error: BaseException) -> int:
    """Return the HTTP status of an error, 0 for none."""
    return error.status if isinstance(error, GoogleError) else 0


def is_transient(error: BaseException) -> bool:
    """Return whether a request that ended with this error may succeed if it is repeated."""
    from google.auth.exceptions import TransportError

    if isinstance(error, GoogleError):
        # Compute Engine answers too many requests in a minute with 403.
        return error.status in RETRIED or (
            isinstance(error, Forbidden) and error.reason == "rateLimitExceeded"
        )
    if isinstance(error, TransportError):  # of a connection that broke it holds the error
        is_broken = bool(error.args) and isinstance(error.args[0], Exception)
    else:
        is_broken = isinstance(error, (NoAnswer, ConnectionError))
    return is_broken and not any(word in str(error) for word in UNTRUSTED)


def retry(
    ask: Callable[[], Found],
    passes: Callable[[Exception], bool] = is_transient,
    seconds: float = 90,
    what: str = "Google Cloud",
    *,
    forbidden: bool = True,
    initial: float = 0.5,
    maximum: float = 15,
) -> Found:
    """Return what `ask` returns; repeat it for so many seconds while its error passes.

    Pauses have jitter. With `forbidden` also 403, for as long as that may pass. Raises RetryError
    when time is up. After some seconds the user reads that berg waits for `what`; "" is silent.
    """
    began, longest, is_notified = time.monotonic(), initial, False
    while True:
        try:
            return ask()
        except Exception as error:
            now, end = time.monotonic(), began + seconds
            if forbidden and status_of(error) == 403 and now < forbidden_passes_until:
                end = max(end, forbidden_passes_until)
            elif not passes(error):
                raise
            pause = max(random.uniform(0, longest), getattr(error, "retry_after", 0))
            if now + pause > end:
                raise RetryError(error) from error
            if what and now - began > SLOW and not is_notified:
                notify_of_retries(what, error)
                is_notified = True
        time.sleep(pause)
        longest = min(longest * 2, maximum)


def notify_of_retries(what: str, error: Exception) -> None:
    """Say what berg waits for, and why; the same message once in two minutes."""
    why = words(error) if getattr(error, "message", "") else ""
    why = why or f"no connection ({getattr(error, 'kind', type(error).__name__)})"
    minutes, late = "two", ""
    if status_of(error) == 403:
        minutes, late = "15", "; rights that were granted just now take minutes"
    message = f"Waiting for {what}, retrying for up to {minutes} minutes: {why}{late}"
    if time.time() - notified.get(message, -math.inf) > 120:
        notified[message] = time.time()
        notify(message)


def words(error: Any) -> str:
    """Return Google's message in an error, without the request."""
    return re.sub(r"^[A-Z]+ https?://\S+: ", "", error.message).rstrip(".")


def advise(message: str) -> str:
    """Return the next step after a message of Google's, "" if none is known."""
    return next((advice for pattern, advice in ADVICE.items() if re.search(pattern, message)), "")


def is_off(error: Any) -> bool:
    """Return whether a request was refused because the project has not enabled the API."""
    if lacks_quota_project(error):
        return False
    return "has not been used in project" in error.message or "accessNotConfigured" in str(
        error.errors
    )


def when_on(config: Config, ask: Callable[[], Found]) -> Found:
    """Ask, and ask again while Google answers that an API is off which was just enabled.

    Raises Google's refusal if the API is off, or does not answer in ENABLING seconds.
    """
    until = time.monotonic() + ENABLING
    is_notified = False
    while True:
        try:
            return ask()
        except Forbidden as error:
            if time.monotonic() > until or not was_enabled(config, error):
                raise
        if not is_notified:
            plain.echo("An API was just enabled; Google needs up to 3 minutes", err=True)
            is_notified = True
        time.sleep(2)


def was_enabled(config: Config, error: Any) -> bool:
    """Return whether Service Usage lists as enabled the API that a request was refused for."""
    named = re.search(r"apis/api/([a-z]+\.googleapis\.com)/overview", error.message)
    if not named or not is_off(error):
        return False
    url = f"{config.service_url('serviceusage')}/v1/projects/{config.project}/services/{named[1]}"
    try:
        return call(config, "GET", url).get("state") == "ENABLED"
    except (Forbidden, NotFound):
        return False


def lacks_quota_project(error: Any) -> bool:
    """Return whether a request was refused because a person's credentials have no quota project."""
    return bool(QUOTA_PROJECT.search(error.message))


def name_quota_project(config: Config) -> str:
    """Return what is wrong then, and the command that fixes it."""
    command = f"gcloud auth application-default set-quota-project {config.project}"
    return f"your Google credentials do not say which project's quota they use. Run: {command}"


def refused_to_all(config: Config, error: Any, name: str, service: str) -> str:
    """Return the problem and its fix where no right would help; "" where one would."""
    if lacks_quota_project(error):
        return name_quota_project(config)
    fix = enable_command(config, service)
    return f"the {name} API of {config.project} is off. Turn it on: {fix}" if is_off(error) else ""


def enable_command(config: Config, *services: str) -> str:
    """Return the command that enables APIs, such as "compute"."""
    hosts = " ".join(f"{service}.googleapis.com" for service in services)
    return f"gcloud services enable {hosts} --project {config.project}"


def explain(error: BaseException, config: Config | None = None) -> str | None:
    """Return a sentence and the next step for an error of Google's; None for any other error."""
    if found := explain_credentials(error, config) or explain_network(error, config):
        return found
    if isinstance(error, RetryError):
        found = explain(error.cause, config) if config else None
        return found or f"{error.cause}; it was retried. Try again later"
    return explain_refusal(error, config) if isinstance(error, GoogleError) else None


def explain_refusal(error: GoogleError, config: Config | None) -> str:
    if isinstance(error, NotFound) and "specified bucket does not exist" in str(error):
        bucket = config.bucket if config else ""
        return (
            f"bucket {bucket!r} does not exist. Create it, or choose another one: "
            f"{init_command(config)}"
        )
    if isinstance(error, Forbidden):
        return explain_forbidden(error, config)
    if error.status == 507:
        return error.message  # the embedded cloud's full disk, in its own sentence
    cloud = "The embedded cloud" if config and config.endpoint else "Google"
    refused = f"{cloud} refused: {error.message} (HTTP {error.status})"
    return f"{refused} {advise(error.message)}".rstrip()


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
    """Return how to get new credentials."""
    if not config or not config.credentials_file:
        file = os.environ.get(credentials.VARIABLE)
        return f"Renew {file}" if file else "Run: gcloud auth application-default login"
    if config.endpoint:
        return "Restart the embedded cloud: berg local stop && berg local start"
    return f"Renew {config.credentials_file}"


def explain_network(error: BaseException, config: Config | None) -> str | None:
    from google.auth import exceptions as auth

    if not isinstance(error, (auth.TransportError, NoAnswer)):
        return None
    if config and config.endpoint:
        return (
            f"cannot reach {config.endpoint}. Check the network, or set up an embedded cloud: "
            "berg init --local"
        )
    if name := next((name for name in PROXIES if os.environ.get(name)), ""):
        address = re.sub(r"//[^/@]*@", "//", os.environ[name])  # without user and password
        return (
            f"cannot reach Google Cloud through the proxy {address} ({name}). Check the proxy and "
            "the network, and try again"
        )
    if isinstance(error, auth.TransportError) and (source := federation(config)):
        return f"{NO_FEDERATION} from {source} does not come. Check that both answer"
    return "cannot reach Google Cloud. Check the network and try again"


def explain_forbidden(error: Forbidden, config: Config | None) -> str:
    if config and lacks_quota_project(error):
        return name_quota_project(config)
    if is_off(error):
        return f"an API is not enabled: {error.message}"
    bucket, project = (config.bucket, config.project) if config else ("", "")
    if "/storage/v1/" not in error.message:  # in the request, which comes first
        return f"you lack a right in the project {project!r}: {words(error)}. See: berg doctor"
    return (
        f"access to bucket {bucket!r} is forbidden: another project owns it, or you lack the "
        f"role roles/storage.objectAdmin on it ({error.message}). "
        f"Choose another one: {init_command(config)}"
    )
