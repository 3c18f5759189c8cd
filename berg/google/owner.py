"""Whose a bucket is: its name may be anybody's once it was deleted, and code and secrets' names
would then go to a stranger.

    BERG_HOME/buckets.json   name of a bucket -> number of the project that it belonged to when berg
                             first used it here

The bucket is asked once in each process, beside the first request that it is used for. Machines do
not ask: who submits their job did.
"""

import contextlib
import json
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from berg import BergError, computer
from berg import config as settings
from berg.config import Config
from berg.google import api
from berg.google.http import status_of

# By endpoint and bucket, and whether it is to be asked at all.
asked: dict[tuple[str | None, str, bool], Future[dict[str, Any]]] = {}
LOCK = threading.Lock()


def file() -> Path:
    return settings.home() / "buckets.json"


def known() -> dict[str, str]:
    """Return the numbers of projects by the names of their buckets, as far as they are known."""
    try:
        found = json.loads(file().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(bucket: str, number: str) -> None:
    """Keep whose a bucket is; "" forgets it."""
    numbers = {**known(), bucket: number}
    if not number:
        del numbers[bucket]
    with contextlib.suppress(OSError):  # a home that cannot be written knows nothing
        settings.make_private(file().parent)
        # Half of it would make any bucket look like the right one.
        computer.write(file(), json.dumps(numbers, indent=2) + "\n")


def about(config: Config) -> dict[str, Any]:
    """Return what the bucket says of itself: the number of its project, and where it lies."""
    url = f"{api.buckets_url(config)}/{config.bucket}"
    return api.call(config, "GET", url, fields="projectNumber,location")


def check(config: Config) -> dict[str, Any]:
    """Compare whose the bucket is with whose it was; raise BergError if that is another project.

    Return what it says of itself, {} for who may not know, or without a bucket. Raise Forbidden if
    that cannot be told of a bucket that told it before.
    """
    before = known().get(config.bucket, "")
    try:
        found = about(config)
    except Exception as error:
        status = status_of(error)
        if status == 404 or (status == 403 and not before):
            return {}  # whoever uses it says so
        raise
    now = found["projectNumber"]
    if not before:
        remember(config.bucket, now)
    elif before != now:
        init = f"berg init{' --local' if config.endpoint else ''}"
        raise BergError(
            f"the bucket {config.bucket!r} belonged to the project with number {before}, and now "
            f"to another one, number {now}: somebody else made a bucket of its name. Choose a "
            f"bucket of your own, or say that this one is meant: {init}"
        )
    return found


def confirmed(config: Config) -> "Future[dict[str, Any]]":
    """Return what becomes of `check`, which begins now unless it did before."""
    key = (config.endpoint, config.bucket, config.is_mine)
    with LOCK:
        if key not in asked:
            asked[key] = Future()
            if config.is_mine:
                threading.Thread(target=settle, args=(config, asked[key]), daemon=True).start()
            else:
                asked[key].set_result({})
        return asked[key]


def guard(config: Config, http: Any) -> None:
    """Let a session bring no answer, and send nothing, before the bucket is known to be ours."""
    answer, ask = confirmed(config), http.request

    def request(method: str, *arguments: Any, **options: Any) -> Any:
        if method != "GET":
            answer.result()
        response = ask(method, *arguments, **options)
        answer.result()
        return response

    http.request = request


def settle(config: Config, answer: "Future[dict[str, Any]]") -> None:
    """Let everybody who waits know what `check` found."""
    try:
        answer.set_result(check(config))
    except BaseException as error:
        answer.set_exception(error)
