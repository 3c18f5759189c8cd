"""Requests to Google: what they raise, which are sent again, and how long berg waits for something.

408, 429, 500, 502, 503, 504 and broken connections pass. Any other status is the same each time,
and so is a certificate that cannot be verified or read. berg/machine/boot.py imports the standard
library alone and keeps a copy of the statuses.
"""

import contextlib
import functools
import json
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from berg import plain
from berg.config import Config

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
