"""Cloud Build: an image built on Google's machines, from a source in the bucket, its log followed.

Builds act as an account of their own, `berg-builder`, which no job acts as: it may replace images
that others run.

For one platform, that of Google's machines, docker builds and Cloud Build pushes. For others docker
gets a builder of its own, which pushes, and the kernel programs that stand for other processors.
"""

import functools
import itertools
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from berg import BergError
from berg.config import Config
from berg.google import api, artifacts, grants, http, rights
from berg.google.grants import Grant
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
SOURCES, LOGS = ".berg/images", ".berg/builds"
PIECE = 1 << 20  # bytes of the log that are read at a time
LAST = 5  # lines of the log that an error repeats
ROLE = "roles/cloudbuild.builds.editor"
# on the bucket of the log, which Cloud Build reads as the account
READER = "roles/storage.legacyBucketReader"
# on objects of the bucket: to read the source, to write the log
ON_OBJECTS = (("roles/storage.objectViewer", SOURCES), ("roles/storage.objectUser", LOGS))


def account(config: Config) -> str:
    """Return the account that builds act as."""
    return grants.address(config, "berg-builder")


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
    show: Callable[[str], None],
) -> None:
    """Build and push an image from an archive; raises BergError with the last lines of the log if
    that fails.
    """
    bucket = Bucket(config)
    name = f"{SOURCES}/{image.rpartition('/')[2].replace(':', '-')}-{time.time_ns()}.tar.gz"
    bucket.upload(name, source)
    body = {
        "source": {"storageSource": {"bucket": bucket.name, "object": name}},
        "steps": steps(image, platforms, arguments),
        "images": [image] if platforms == [NATIVE] else [],
        "timeout": f"{TIMEOUT}s",
        "queueTtl": f"{QUEUE}s",
        "logsBucket": f"gs://{bucket.name}/{LOGS}",
        "options": {"logging": "GCS_ONLY"},
        "serviceAccount": f"projects/{config.project}/serviceAccounts/{account(config)}",
        "tags": ["berg"],
    }
    place = f"projects/{config.project}/locations/{config.region}"
    base = f"{config.service_url('cloudbuild')}/v1/{place}/builds"
    try:
        try:
            # A repeated request builds the same again, which costs minutes and changes nothing.
            begun = api.call(config, "POST", base, body)["metadata"]["build"]
        except (http.Forbidden, http.BadRequest) as error:
            raise refusal(config, error) from None
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
    try:
        api.call(config, "POST", f"{url}:cancel", {})
    except http.GoogleError:  # it has ended meanwhile
        pass


def missing(config: Config, look: Callable[..., dict[str, Any]]) -> list[Grant]:
    """Return what the account that builds lacks, in the order of making."""
    email = account(config)
    found = grants.missing_account(config, look, email, "Berg's builds of images")
    member = f"serviceAccount:{email}"
    if not grants.is_bound(look(artifacts.policy), artifacts.WRITER, member):
        command = artifacts.bind_command(config, member, artifacts.WRITER)
        bind = functools.partial(grants.bind, config, artifacts.policy, artifacts.WRITER, member)
        found.append(Grant(f"Let it push to the repository {artifacts.REPOSITORY}", command, bind))
    on_bucket, url = look(grants.bucket_policy), f"gs://{config.bucket}"
    wanted: list[tuple[str, dict[str, str] | None, str]] = [(READER, None, url)]
    for role, folder in ON_OBJECTS:
        expression = rights.is_below(config.bucket, f"{folder}/")
        condition = {"title": "berg-builder", "expression": expression}
        wanted.append((role, condition, f"{url}/{folder}/"))
    for role, given, where in wanted:
        if not grants.is_bound(on_bucket, role, member, given):
            limit = (
                f"'expression={given['expression']},title={given['title']}'" if given else "None"
            )
            command = (
                f"gcloud storage buckets add-iam-policy-binding {url} --member {member} "
                f"--role {role} --condition={limit}"
            )
            bind = functools.partial(grants.bind, config, grants.bucket_policy, role, member, given)
            found.append(Grant(f"Give it {role} on {where}", command, bind))
    return found


def prepare(config: Config, say: Callable[[str], None]) -> bool:
    """Create the account that builds, and give it what it lacks; return whether rights are new.

    Users that may not do that get the commands for an administrator.
    """
    look = grants.Look(config)
    lacking = missing(config, look)
    if look.refusals:
        say(f"You may not see what {account(config)} may do ({look.refusals[0]}). Building anyway")
        return False
    for each in lacking:
        say(each.text)
    is_new = bool(lacking)
    if refused := grants.make_all(lacking):
        commands = "\n  ".join(each.gcloud for each in lacking)
        say(f"You may not do that ({refused}). An administrator can:\n  {commands}")
        return False
    return is_new


def too_wide(config: Config) -> list[Grant]:
    """Return the removal of the right to push from accounts of machines: with it a job may replace
    images that others run.
    """
    try:
        bindings = artifacts.policy(config).get("bindings", [])
    except (http.Forbidden, http.NotFound):  # no repository, or the API is off
        return []
    where = f"--location {config.region} --project {config.project}"
    command = f"gcloud artifacts repositories remove-iam-policy-binding {artifacts.REPOSITORY}"
    found = []
    writers = [each["members"] for each in bindings if each["role"] == artifacts.WRITER]
    for member in itertools.chain(*writers):
        if grants.is_ours(config, email := member.partition(":")[2]):
            text = (
                f"Take {artifacts.WRITER} on the repository {artifacts.REPOSITORY} from {email}: "
                "with it a job may replace images that others run"
            )
            take = functools.partial(
                grants.unbind, config, artifacts.policy, artifacts.WRITER, member
            )
            what = f"{command} {where} --member {member} --role {artifacts.WRITER}"
            found.append(Grant(text, what, take))
    return found


def refusal(config: Config, error: Any) -> BergError:
    """Google's refusal of a build, with the next step."""
    said, email = http.words(error), account(config)
    if why := api.refused_to_all(config, error, "Cloud Build", "cloudbuild"):
        return BergError(why)
    if "actAs" in said or "serviceAccountUser" in said:
        return BergError(
            f"you may not let {email} build. {said} Run: {grants.act_as_command(config, email)}"
        )
    if "logs bucket" in said or "service account" in said:
        commands = "\n  ".join(each.gcloud for each in missing(config, lambda *_: {}))
        return Forbidden(
            f"Cloud Build refused the build: {said}. An administrator should run:\n  {commands}"
        )
    if error.status == 403:
        bind = (
            f"gcloud projects add-iam-policy-binding {config.project} --member "
            f"{grants.person(config)} --role {ROLE}"
        )
        return BergError(
            f"you may not build with Cloud Build ({said}). An administrator should run: {bind}"
        )
    return BergError(f"Cloud Build refused the build: {said}")
