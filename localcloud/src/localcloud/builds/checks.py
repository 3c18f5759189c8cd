"""What Cloud Build asks of a build's words: limits, names, and `$WORDS`, which are substitutions.

Not covered: the substitutions themselves. A word that Cloud Build knows is a 501, `$$` is a `$`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from localcloud.errors import ApiError

MOST_STEPS = MOST_ARGUMENTS = MOST_IMAGES = 100
MOST_TAGS = 64
LONGEST_ARGUMENT = 10_000  # characters
WORD = re.compile(r"\$(?:(\$)|\{([A-Z_][A-Z0-9_]*)\}|([A-Z_][A-Z0-9_]*))")
OF_ALL_BUILDS = ("PROJECT_ID", "BUILD_ID", "PROJECT_NUMBER", "LOCATION")
OF_TRIGGERS = (
    "TRIGGER_NAME",
    "COMMIT_SHA",
    "REVISION_ID",
    "SHORT_SHA",
    "REPO_NAME",
    "REPO_FULL_NAME",
    "BRANCH_NAME",
    "TAG_NAME",
    "REF_NAME",
    "TRIGGER_BUILD_CONFIG_PATH",
    "SERVICE_ACCOUNT_EMAIL",
    "SERVICE_ACCOUNT",
)
TAG = r"\w[\w.-]{0,127}"
PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
IMAGE = (
    rf"(?:[a-zA-Z0-9.-]+(?::\d+)?/)?{PART}(?:/{PART})*(?:(?::{TAG})|(?:@sha256:[0-9a-f]{{64}}))?"
)


def bad(message: str) -> ApiError:
    return ApiError(400, "invalid", message)


def check(body: dict) -> None:
    """Raise Cloud Build's refusal of what a build's steps, images and tags say."""
    check_steps(body["steps"])
    check_words(body)
    images, tags = body.get("images") or [], body.get("tags") or []
    if len(images) > MOST_IMAGES:
        raise bad(f"invalid build: cannot specify more than {MOST_IMAGES} images to build")
    for image in images:
        if not re.fullmatch(IMAGE, image):
            raise bad(f'invalid build: invalid image name "{image}"')
    if len(tags) > MOST_TAGS:
        raise bad(f"invalid build: number of tags {len(tags)} exceeded (max: {MOST_TAGS})")
    for tag in tags:
        if not re.fullmatch(TAG, tag, re.ASCII):
            raise bad(f'invalid build: invalid build tag "{tag}": must match format "^({TAG})$"')


def check_steps(steps: list[dict]) -> None:
    ids: set[str] = set()
    if len(steps) > MOST_STEPS:
        raise bad(f"invalid build: cannot specify more than {MOST_STEPS} build steps")
    for number, step in enumerate(steps):
        arguments, id = step.get("args") or [], step.get("id")
        if len(arguments) > MOST_ARGUMENTS:
            why = f"too many args (max: {MOST_ARGUMENTS})"
            raise bad(f"invalid build: build step {number} {why}")
        for at, each in enumerate(arguments):
            if len(each) > LONGEST_ARGUMENT:
                why = f"arg {at} too long (max: {LONGEST_ARGUMENT})"
                raise bad(f"invalid build: build step {number} {why}")
        if id and (id in ids or id == "-"):
            raise bad(f'invalid build: build step #{number} - "{id}": the ID is not unique')
        ids.add(id or "")


def check_words(body: dict) -> None:
    """Refuse each `$WORD`: nothing is put in its place here, and few could be."""
    for text in texts(body):
        for escaped, braced, plain in WORD.findall(text):
            word = braced or plain
            if escaped:
                continue
            if word in OF_ALL_BUILDS or word in OF_TRIGGERS:
                why = f"The embedded cloud puts nothing in the place of ${word}"
                raise ApiError(501, "notImplemented", why)
            if word.startswith("_"):
                why = "is not matched in the substitution data"
            else:
                why = "is not a valid built-in substitution"
            raise bad(
                "generic::invalid_argument: invalid value for 'build.substitutions': "
                f'key in the template "{word}" {why}'
            )


def texts(body: dict) -> Iterator[str]:
    """The texts of a build in which Cloud Build looks for `$WORDS`."""
    for step in body["steps"]:
        yield from (step.get("name", ""), step.get("dir", ""), *(step.get("args") or []))
    yield from (body.get("images") or [])
    yield from (body.get("tags") or [])


def plain(text: str) -> str:
    """A step's word as the step sees it."""
    return text.replace("$$", "$")
