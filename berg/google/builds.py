"""Cloud Build: an image built on Google's machines, from a source in the bucket, its log followed.

Builds act as an account of their own, `berg-builder`, which no job acts as: it may replace images
that others run.

For one platform, that of Google's machines, docker builds and Cloud Build pushes. For others docker
gets a builder of its own, which pushes, and the kernel programs that stand for other processors.

Artifact Registry: the project's repository of container images, and what is in it.

Its images are called REGION-docker.pkg.dev/PROJECT/berg/NAME:TAG. Whoever pushes is
`oauth2accesstoken`, with an access token as the password.
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
from berg.google import api, iam
from berg.google.iam import Grant
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
    return iam.address(config, "berg-builder")


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
        except (api.Forbidden, api.BadRequest) as error:
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
    except api.GoogleError:  # it has ended meanwhile
        pass


def missing(config: Config, look: Callable[..., dict[str, Any]]) -> list[Grant]:
    """Return what the account that builds lacks, in the order of making."""
    email = account(config)
    found = iam.missing_account(config, look, email, "Berg's builds of images")
    member = f"serviceAccount:{email}"
    if not iam.is_bound(look(policy), WRITER, member):
        command = bind_command(config, member, WRITER)
        bind = functools.partial(iam.bind, config, policy, WRITER, member)
        found.append(Grant(f"Let it push to the repository {REPOSITORY}", command, bind))
    on_bucket, url = look(iam.bucket_policy), f"gs://{config.bucket}"
    wanted: list[tuple[str, dict[str, str] | None, str]] = [(READER, None, url)]
    for role, folder in ON_OBJECTS:
        expression = iam.is_below(config.bucket, f"{folder}/")
        condition = {"title": "berg-builder", "expression": expression}
        wanted.append((role, condition, f"{url}/{folder}/"))
    for role, given, where in wanted:
        if not iam.is_bound(on_bucket, role, member, given):
            text = f"Give it {role} on {where}"
            found.append(iam.bucket_grant(config, text, role, member, given))
    return found


def prepare(config: Config, say: Callable[[str], None]) -> bool:
    """Create the account that builds, and give it what it lacks; return whether rights are new.

    Users that may not do that get the commands for an administrator.
    """
    look = iam.Look(config)
    lacking = missing(config, look)
    if look.refusals:
        say(f"You may not see what {account(config)} may do ({look.refusals[0]}). Building anyway")
        return False
    for each in lacking:
        say(each.text)
    is_new = bool(lacking)
    if refused := iam.make_all(lacking):
        commands = "\n  ".join(each.gcloud for each in lacking)
        say(f"You may not do that ({refused}). An administrator can:\n  {commands}")
        return False
    return is_new


def too_wide(config: Config) -> list[Grant]:
    """Return the removal of the right to push from accounts of machines: with it a job may replace
    images that others run.
    """
    try:
        bindings = policy(config).get("bindings", [])
    except (api.Forbidden, api.NotFound):  # no repository, or the API is off
        return []
    where = f"--location {config.region} --project {config.project}"
    command = f"gcloud artifacts repositories remove-iam-policy-binding {REPOSITORY}"
    found = []
    writers = [each["members"] for each in bindings if each["role"] == WRITER]
    for member in itertools.chain(*writers):
        if iam.is_ours(config, email := member.partition(":")[2]):
            text = (
                f"Take {WRITER} on the repository {REPOSITORY} from {email}: "
                "with it a job may replace images that others run"
            )
            take = functools.partial(iam.unbind, config, policy, WRITER, member)
            what = f"{command} {where} --member {member} --role {WRITER}"
            found.append(Grant(text, what, take))
    return found


def refusal(config: Config, error: Any) -> BergError:
    """Google's refusal of a build, with the next step."""
    said, email = api.words(error), account(config)
    if why := api.refused_to_all(config, error, "Cloud Build", "cloudbuild"):
        return BergError(why)
    if "actAs" in said or "serviceAccountUser" in said:
        return BergError(
            f"you may not let {email} build. {said} Run: {iam.act_as_command(config, email)}"
        )
    if "logs bucket" in said or "service account" in said:
        commands = "\n  ".join(each.gcloud for each in missing(config, lambda *_: {}))
        return Forbidden(
            f"Cloud Build refused the build: {said}. An administrator should run:\n  {commands}"
        )
    if error.status == 403:
        bind = (
            f"gcloud projects add-iam-policy-binding {config.project} --member "
            f"{iam.person(config)} --role {ROLE}"
        )
        return BergError(
            f"you may not build with Cloud Build ({said}). An administrator should run: {bind}"
        )
    return BergError(f"Cloud Build refused the build: {said}")


REPOSITORY = "berg"

IMAGE_READER, WRITER = "roles/artifactregistry.reader", "roles/artifactregistry.writer"

PUSH = "artifactregistry.repositories.uploadArtifacts"

REPOSITORY_TIMEOUT = 300  # seconds until a new repository is there; it takes some


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
    except api.Forbidden as error:
        raise refusal_of_images(config, error, "see") from None
    body = {"format": "DOCKER", "description": "Images of berg's jobs", "labels": {"berg": "1"}}
    try:
        operation = ask(config, "POST", "/repositories", body, repositoryId=REPOSITORY)
    except api.Conflict:  # made by a request whose answer was lost, or by somebody else just now
        return False
    except api.Forbidden as error:
        raise refusal_of_images(config, error, "make") from None
    path = f"/operations/{api.last_part(operation['name'])}"

    def ended() -> dict[str, Any] | None:
        seen = ask(config, "GET", path)
        return seen if seen.get("done") else None

    done = operation if operation.get("done") else api.wait_for(ended, 0.3, REPOSITORY_TIMEOUT)
    if done is None:
        raise BergError(
            f"the repository {REPOSITORY} was not created within "
            f"{REPOSITORY_TIMEOUT // 60} minutes. Try again"
        )
    if failed := done.get("error"):
        raise BergError(
            f"the repository {REPOSITORY} could not be made: "
            f"{failed.get('message', 'no reason given')}"
        )
    return True


def refusal_of_images(config: Config, error: Any, verb: str) -> BergError:
    """Google's 403 with the next step."""
    said, where = api.words(error), f"--location {config.region} --project {config.project}"
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
            f"{bind_command(config, iam.person(config), WRITER)}"
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


def admit_readers(config: Config, role: str, say: Callable[[str], None]) -> bool:
    """Let the account of machines and nodes at the images; whether it had no such right.

    Who may not do that is told who else does what. The project's default account may already.
    """
    if not config.service_account:
        return False
    member = f"serviceAccount:{config.service_account}"
    try:
        return iam.bind(config, policy, role, member)
    except api.GoogleError as error:
        say(f"Pods may not be let at the image ({api.words(error)}). Somebody who may should run:")
        say(f"  {bind_command(config, member, role)}")
        return False


def digest(config: Config, name: str, tag: str) -> str:
    """The digest of the image that has a tag; "" if none has."""
    path = f"/repositories/{REPOSITORY}/packages/{name}/tags/{tag}"
    return api.last_part(api.find(config, url(config) + path).get("version", ""))
