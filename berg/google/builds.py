"""Cloud Build: an image built on Google's machines, from a source in the bucket, its log followed.

For one platform, that of Google's machines, docker builds and Cloud Build pushes. For others docker
gets a builder of its own, which pushes, and the kernel programs that stand for other processors.
"""

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, grants
from berg.google.storage import Bucket

# What builds run, by digest: who can move a tag of theirs would have the build's rights.
DOCKER = (
    "gcr.io/cloud-builders/docker"
    "@sha256:3d00b6c1a9b862621c30fc74d4f2abfc62bcbdee631ed3febd31e7edbdf6252c"
)
BINFMT = (
    "tonistiigi/binfmt:qemu-v10.2.3"
    "@sha256:400a4873b838d1b89194d982c45e5fb3cda4593fbfd7e08a02e76b03b21166f0"
)
BUILDKIT = (
    "moby/buildkit:v0.31.2@sha256:2f5adac4ecd194d9f8c10b7b5d7bceb5186853db1b26e5abd3a657af0b7e26ec"
)
CREATE = ["buildx", "create", "--name", "berg", "--driver", "docker-container"]
CREATE += ["--driver-opt", f"image={BUILDKIT}"]
NATIVE = "linux/amd64"
TIMEOUT, QUEUE = 7200, 1800  # seconds that a build may run, and wait before
INTERVAL = 2.0  # seconds between two looks at a build
UNDER_WAY = ("STATUS_UNKNOWN", "PENDING", "QUEUED", "WORKING")
LOGS = ".berg/builds"
PIECE = 1 << 20  # bytes of the log that are read at a time
LAST = 5  # lines of the log that an error repeats
ROLE = "roles/cloudbuild.builds.editor"
# of the bucket of the log, at which Cloud Build looks as the account
READER = "roles/storage.legacyBucketReader"


class Forbidden(BergError):
    """A build whose account had no right to push, or to read, or to write its log."""


def steps(image: str, platforms: list[str], arguments: list[str]) -> list[dict[str, Any]]:
    """What docker does with the source: a Dockerfile, and beside it the context."""
    words = ["--tag", image, "--file", "Dockerfile", *arguments, "context"]
    if platforms == [NATIVE]:
        commands = [["build", *words]]
    else:
        others = ",".join(each.partition("/")[2] for each in platforms if each != NATIVE)
        commands = [
            ["run", "--privileged", "--rm", BINFMT, "--install", others],
            [*CREATE, "--use"],
            ["buildx", "build", "--platform", ",".join(platforms), "--push", *words],
        ]
    return [{"name": DOCKER, "args": each} for each in commands]


def run(
    config: Config,
    image: str,
    platforms: list[str],
    arguments: list[str],
    source: Path,
    account: str,
    show: Callable[[str], None],
) -> None:
    """Build and push an image from an archive; raises BergError with the last lines of the log if
    that fails.
    """
    from google.api_core import exceptions

    bucket = Bucket(config)
    name = f".berg/images/{image.rpartition('/')[2].replace(':', '-')}-{time.time_ns()}.tar.gz"
    bucket.upload(name, source)
    body = {
        "source": {"storageSource": {"bucket": bucket.name, "object": name}},
        "steps": steps(image, platforms, arguments),
        "images": [image] if platforms == [NATIVE] else [],
        "timeout": f"{TIMEOUT}s",
        "queueTtl": f"{QUEUE}s",
        "logsBucket": f"gs://{bucket.name}/{LOGS}",
        "options": {"logging": "GCS_ONLY"},
        "serviceAccount": f"projects/{config.project}/serviceAccounts/{account}",
        "tags": ["berg"],
    }
    place = f"projects/{config.project}/locations/{config.region}"
    base = f"{config.service_url('cloudbuild')}/v1/{place}/builds"
    try:
        try:
            # A repeated request builds the same again, which costs minutes and changes nothing.
            begun = api.call(config, "POST", base, body)["metadata"]["build"]
        except (exceptions.Forbidden, exceptions.BadRequest) as error:
            raise refusal(config, error, account) from None
        url = f"{base}/{begun['id']}"
        try:
            build, last = follow(config, url, begun["id"], bucket, show)
        except BaseException:  # somebody left, or it does not end
            show(f"Cancelling the build {begun['id']}")
            cancel(config, url)
            raise
    finally:
        bucket.delete(name)
    if build["status"] != "SUCCESS":
        why = (
            build.get("failureInfo", {}).get("detail")
            or build.get("statusDetail")
            or "no reason given"
        )
        raise (Forbidden if "403" in why + last else BergError)(
            f"Cloud Build could not build the image ({build['status']}): {why}\n{last}\n"
            f"All of its log: gs://{bucket.name}/{LOGS}/log-{build['id']}.txt"
        )


def follow(
    config: Config, url: str, id: str, bucket: Bucket, show: Callable[[str], None]
) -> tuple[dict[str, Any], str]:
    """Show the log of a build until that has ended; returns how, and its last lines."""
    log, at, rest = f"{LOGS}/log-{id}.txt", 0, b""
    kept: deque[str] = deque(maxlen=LAST)
    end = time.monotonic() + TIMEOUT + QUEUE + 300
    while True:
        build = api.call(config, "GET", url)
        data = bucket.read_from(log, at, at + PIECE) or b""
        at += len(data)
        over = build["status"] not in UNDER_WAY and len(data) < PIECE
        *lines, rest = (rest + data).split(b"\n")
        for line in lines + [rest] * over:
            text = line.decode(errors="replace").rstrip()
            show(text)
            kept.extend([text] if text else [])
        if over:
            return build, "\n".join(kept)
        if time.monotonic() > end:
            raise BergError(f"the build does not end. See: {build.get('logUrl', url)}")
        if len(data) < PIECE:
            time.sleep(INTERVAL)


def cancel(config: Config, url: str) -> None:
    from google.api_core import exceptions

    try:
        api.call(config, "POST", f"{url}:cancel", {})
    except exceptions.GoogleAPICallError:  # it has ended meanwhile
        pass


def admit(config: Config) -> bool:
    """Let the account that builds see the bucket of its log; whether it had no such right.

    Who may not do that is told by the refusal. The project's default account may already.
    """
    from google.api_core import exceptions

    if not config.service_account:
        return False
    try:
        return grants.bind(
            config, grants.bucket_policy, READER, f"serviceAccount:{config.service_account}"
        )
    except exceptions.GoogleAPICallError:
        return False


def refusal(config: Config, error: Any, account: str) -> BergError:
    """Google's refusal of a build, with the next step."""
    said = api.words(error)
    if why := api.refused_to_all(config, error, "Cloud Build", "cloudbuild"):
        return BergError(why)
    if "actAs" in said or "serviceAccountUser" in said:
        return BergError(
            f"you may not let {account} build. {said} Run: {grants.act_as_command(config, account)}"
        )
    if "logs bucket" in said:
        bind = (
            f"gcloud storage buckets add-iam-policy-binding gs://{config.bucket} --member "
            f"serviceAccount:{account}"
        )
        return Forbidden(
            f"Cloud Build refused the build: {said}. Somebody who may should run: {bind} --role "
            f"{READER}"
        )
    if error.code == 403:
        bind = (
            f"gcloud projects add-iam-policy-binding {config.project} --member "
            f"{grants.person(config)} --role {ROLE}"
        )
        return BergError(
            f"you may not build with Cloud Build ({said}). Somebody who may should run: {bind}"
        )
    return BergError(f"Cloud Build refused the build: {said}")
