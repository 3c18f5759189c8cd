"""Many small requests about a bucket's objects in one: Cloud Storage takes a hundred at a time.

Not covered: content, which no batch carries.
"""

import email.parser
import json
from typing import Any
from urllib.parse import quote

from berg.config import Config
from berg.google import api, http, owner

MOST = 100  # calls in one batch
BOUNDARY = "berg-5b0f6d2c9e7a4c1f8d3b6a4e2c1d0f97"
ABSENT = 404
REFUSED = 412  # the object is at another generation


def about(config: Config, names: list[str], fields: str) -> list[dict[str, Any] | None]:
    """Return what the bucket says of at most MOST objects, None for those that are not there.

    Raises GoogleError.
    """
    answers = ask(config, [f"GET {path_of(config, name)}?fields={fields}" for name in names])
    return [None if status == ABSENT else body for status, body in answers]


def delete(config: Config, objects: list[tuple[str, int]]) -> None:
    """Delete at most MOST objects that are at these generations still; others stay.

    Raises GoogleError.
    """
    calls = [
        f"DELETE {path_of(config, name)}?ifGenerationMatch={generation}"
        for name, generation in objects
    ]
    ask(config, calls)


def path_of(config: Config, name: str) -> str:
    """Return the path of an object in requests."""
    return f"/storage/v1/b/{config.bucket}/o/{quote(name, safe='')}"


def ask(config: Config, calls: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return status and answer of each call, a method with a path; all may be repeated."""
    answers: list[tuple[int, dict[str, Any]]] = http.retrying()(ask_once)(config, calls)
    return answers


def ask_once(config: Config, calls: list[str]) -> list[tuple[int, dict[str, Any]]]:
    """Send calls in one request; raise GoogleError for any that failed."""
    known = owner.confirmed(config)
    if not all(call.startswith("GET ") for call in calls):
        known.result()
    body = "".join(map(part, range(len(calls)), calls)) + f"--{BOUNDARY}--\r\n"
    headers = {"Content-Type": f"multipart/mixed; boundary={BOUNDARY}"}
    url = f"{api.storage_url(config)}/batch/storage/v1"
    response = http.send(config, "POST", url, 150, data=body.encode(), headers=headers)
    known.result()
    answers = answers_in(response.headers["Content-Type"], response.content)
    for call, (status, answer) in zip(calls, answers, strict=True):
        if status >= 400 and status not in (ABSENT, REFUSED):
            told = answer.get("error", {}).get("message", "unknown error")
            raise http.error_of(status, f"{call}: {told}")
    return answers


def part(number: int, call: str) -> str:
    """Return one call as a part of a batch."""
    return (
        f"--{BOUNDARY}\r\nContent-Type: application/http\r\nContent-ID: <berg+{number}>\r\n\r\n"
        f"{call} HTTP/1.1\r\n\r\n\r\n"
    )


def answers_in(kind: str, content: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Return the status and the JSON of each part of an answer to a batch, in the calls' order."""
    head = f"Content-Type: {kind}\r\n\r\n".encode()
    whole: Any = email.parser.BytesParser().parsebytes(head + content)
    found = {}
    for each in whole.get_payload():
        number = int(each["Content-ID"].rpartition("+")[2].rstrip(">"))
        found[number] = answer_in(each.get_payload(decode=True))
    return [found[number] for number in sorted(found)]


def answer_in(answer: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and the JSON of an HTTP answer."""
    head, _, body = answer.replace(b"\r\n", b"\n").partition(b"\n\n")
    return int(head.split()[1]), json.loads(body) if body.strip() else {}
