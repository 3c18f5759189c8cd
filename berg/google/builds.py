"""Container images: Cloud Build, the project's repository in Artifact Registry, and the digest that
a tag names in any registry.

Images are called REGION-docker.pkg.dev/PROJECT/berg/NAME:TAG. Builds act as an account of their
own, `berg-builder`, which no job acts as: it may replace images that others run.

Not covered: registries that take a password.
"""

import functools
import hashlib
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from berg import BergError
from berg.config import Config
from berg.google import api, iam
from berg.google.iam import Grant
from berg.google.storage import Bucket

# What builds run, by digest: a user that could move a tag of theirs would have the build's rights.
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
UNDER_WAY = ("STATUS_UNKNOWN", "PENDING", "QUEUED", "WORKING")
SOURCES, LOGS = ".berg/images", ".berg/builds"
PIECE = 1 << 20  # bytes of the log that are read at a time
LAST = 5  # lines of the log that an error repeats
REPOSITORY = "berg"
REPOSITORY_TIMEOUT = 300  # seconds until a new repository exists
ROLE = "roles/cloudbuild.builds.editor"
READER, WRITER = "roles/artifactregistry.reader", "roles/artifactregistry.writer"
# What the account that builds needs on the bucket: Cloud Build looks for the bucket of the log, and
# reads the source and writes the log as the account. A role, and the folder that it holds for.
ON_BUCKET = (
    ("roles/storage.legacyBucketReader", ""),
    ("roles/storage.objectViewer", SOURCES),
    ("roles/storage.objectUser", LOGS),
)


class Forbidden(BergError):
    """A build whose account had no right to push, to read, or to write its log."""


def account(config: Config) -> str:
    """Return the account that builds act as."""
    return iam.address(config, "berg-builder")


# --- Cloud Build


def steps(image: str, platforms: list[str], arguments: list[str]) -> list[dict[str, Any]]:
    """Return what docker does with the source: a Dockerfile, and next to it the context.

    For Google's own platform docker builds and Cloud Build pushes. For others docker gets a builder
    of its own, which pushes, and kernel programs that emulate the other processors.
    """
    words = ["--tag", image, "--file", "Dockerfile", *arguments, "context"]
    commands = [["build", *words]]
    if platforms != [NATIVE]:
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
    """Build and push an image from an archive, and show the log; raises BergError."""
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
    try:
        build, last = build_and_follow(config, body, show)
    finally:
        bucket.delete(name)
    if build["status"] != "SUCCESS":
        why = build.get("failureInfo", {}).get("detail") or build.get("statusDetail")
        why = why or "no reason given"
        raise (Forbidden if "403" in why + last else BergError)(
            f"Cloud Build could not build the image ({build['status']}): {why}\n{last}\n"
            f"All of its log: gs://{bucket.name}/{LOGS}/log-{build['id']}.txt"
        )


def build_and_follow(
    config: Config, body: dict[str, Any], show: Callable[[str], None]
) -> tuple[dict[str, Any], str]:
    """Start a build and wait for its end; return it, and the last lines of its log."""
    place = f"projects/{config.project}/locations/{config.region}"
    base = f"{config.service_url('cloudbuild')}/v1/{place}/builds"
    try:
        # A repeated request builds the same again, which costs minutes and changes nothing.
        begun = api.call(config, "POST", base, body)["metadata"]["build"]
    except (api.Forbidden, api.BadRequest) as error:
        raise refusal(config, error) from None
    url = f"{base}/{begun['id']}"
    try:
        return follow(config, url, f"{LOGS}/log-{begun['id']}.txt", show)
    except BaseException:  # the user pressed Ctrl-C, or it does not end
        show(f"Cancelling the build {begun['id']}")
        try:
            api.call(config, "POST", f"{url}:cancel", {})
        except api.GoogleError:  # it has ended in the meantime
            pass
        raise


def follow(
    config: Config, url: str, log: str, show: Callable[[str], None]
) -> tuple[dict[str, Any], str]:
    """Show the log of a build until that has ended; return the build, and its last lines."""
    bucket, at, rest = Bucket(config), 0, b""
    kept: deque[str] = deque(maxlen=LAST)
    end = time.monotonic() + TIMEOUT + QUEUE + 300
    while True:
        build = api.call(config, "GET", url)
        data = bucket.read_from(log, at, at + PIECE) or b""
        at += len(data)
        over = build["status"] not in UNDER_WAY and len(data) < PIECE
        *lines, rest = (rest + data).split(b"\n")
        if over:
            lines.append(rest)
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            show(text)
            if text:
                kept.append(text)
        if over:
            return build, "\n".join(kept)
        if time.monotonic() > end:
            raise BergError(f"the build does not end. See: {build.get('logUrl', url)}")
        if len(data) < PIECE:
            time.sleep(2)


def missing(config: Config, look: Callable[..., dict[str, Any]]) -> list[Grant]:
    """Return what the account that builds lacks, in the order of making."""
    email = account(config)
    found = iam.missing_account(config, look, email, "Berg's builds of images")
    member = f"serviceAccount:{email}"
    if not iam.is_bound(look(policy), WRITER, member):
        command = bind_command(config, member, WRITER)
        bind = functools.partial(iam.bind, config, policy, WRITER, member)
        found.append(Grant(f"Let it push to the repository {REPOSITORY}", command, bind))
    on_bucket, where = look(iam.bucket_policy), f"gs://{config.bucket}"
    for role, folder in ON_BUCKET:
        condition = None
        if folder:
            expression = iam.is_below(config.bucket, f"{folder}/")
            condition = {"title": "berg-builder", "expression": expression}
        if not iam.is_bound(on_bucket, role, member, condition):
            text = f"Give it {role} on {where}" + (f"/{folder}/" if folder else "")
            found.append(iam.bucket_grant(config, text, role, member, condition))
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
    command = f"gcloud artifacts repositories remove-iam-policy-binding {REPOSITORY}"
    found = []
    for member in [each for row in bindings if row["role"] == WRITER for each in row["members"]]:
        if iam.is_ours(config, email := member.partition(":")[2]):
            text = (
                f"Take {WRITER} on the repository {REPOSITORY} from {email}: "
                "with it a job may replace images that others run"
            )
            take = functools.partial(iam.unbind, config, policy, WRITER, member)
            what = f"{command} {location(config)} --member {member} --role {WRITER}"
            found.append(Grant(text, what, take))
    return found


def refusal(config: Config, error: Any) -> BergError:
    """Return Google's refusal of a build, with the next step."""
    message, email = api.words(error), account(config)
    if why := api.refused_to_all(config, error, "Cloud Build", "cloudbuild"):
        return BergError(why)
    if "actAs" in message or "serviceAccountUser" in message:
        command = iam.act_as_command(config, email)
        return BergError(f"you may not let {email} build. {message} Run: {command}")
    if "logs bucket" in message or "service account" in message:
        commands = "\n  ".join(each.gcloud for each in missing(config, lambda *_: {}))
        return Forbidden(
            f"Cloud Build refused the build: {message}. An administrator should run:\n  {commands}"
        )
    if error.status == 403:
        who = iam.person(config)
        return BergError(
            f"you may not build with Cloud Build ({message}). An administrator should run: gcloud "
            f"projects add-iam-policy-binding {config.project} --member {who} --role {ROLE}"
        )
    return BergError(f"Cloud Build refused the build: {message}")


# --- the project's repository


def registry(config: Config) -> str:
    """Return the URL of the registry of the configured region."""
    return config.endpoint or f"https://{config.region}-docker.pkg.dev"


def host(config: Config) -> str:
    return registry(config).partition("://")[2]


def full_name(config: Config, name: str, tag: str) -> str:
    """Return what an image is called everywhere."""
    # The project of a domain has a colon, which becomes a slash.
    return f"{host(config)}/{config.project.replace(':', '/')}/{REPOSITORY}/{name}:{tag}"


def location(config: Config) -> str:
    return f"--location {config.region} --project {config.project}"


def url(config: Config, path: str) -> str:
    place = f"projects/{config.project}/locations/{config.region}"
    return f"{config.service_url('artifactregistry')}/v1/{place}{path}"


def ensure(config: Config) -> bool:
    """Create the repository if there is none; return whether it was created."""
    try:
        if api.find(config, url(config, f"/repositories/{REPOSITORY}")):
            return False
    except api.Forbidden as error:
        raise repository_refusal(config, error, "see") from None
    body = {"format": "DOCKER", "description": "Images of berg's jobs", "labels": {"berg": "1"}}
    where = url(config, "/repositories")
    try:
        operation = api.call(config, "POST", where, body, repositoryId=REPOSITORY)
    except api.Conflict:  # created by a request whose answer was lost, or by another user
        return False
    except api.Forbidden as error:
        raise repository_refusal(config, error, "make") from None
    path = url(config, f"/operations/{api.last_part(operation['name'])}")

    def ended() -> dict[str, Any] | None:
        seen = api.call(config, "GET", path)
        return seen if seen.get("done") else None

    done = operation if operation.get("done") else api.wait_for(ended, 0.3, REPOSITORY_TIMEOUT)
    if done is None:
        minutes = REPOSITORY_TIMEOUT // 60
        raise BergError(
            f"the repository {REPOSITORY} was not created within {minutes} minutes. Try again"
        )
    if failed := done.get("error"):
        why = failed.get("message", "no reason given")
        raise BergError(f"the repository {REPOSITORY} could not be made: {why}")
    return True


def repository_refusal(config: Config, error: Any, verb: str) -> BergError:
    """Return Google's 403 with the next step."""
    if why := api.refused_to_all(config, error, "Artifact Registry", "artifactregistry"):
        return BergError(why)
    create = f"gcloud artifacts repositories create {REPOSITORY} --repository-format docker"
    return BergError(
        f"you may not {verb} the repository {REPOSITORY} ({api.words(error)}). An administrator "
        f"should run: {create} {location(config)}"
    )


def check_push(config: Config) -> None:
    """Raise BergError unless the user may push images."""
    path = url(config, f"/repositories/{REPOSITORY}:testIamPermissions")
    asked = {"permissions": ["artifactregistry.repositories.uploadArtifacts"]}
    if not api.call(config, "POST", path, asked).get("permissions"):
        raise BergError(
            f"you may not push images to the repository {REPOSITORY} of {config.project}. An "
            f"administrator should run: {bind_command(config, iam.person(config), WRITER)}"
        )


def bind_command(config: Config, member: str, role: str) -> str:
    return (
        f"gcloud artifacts repositories add-iam-policy-binding {REPOSITORY} {location(config)} "
        f"--member {member} --role {role}"
    )


def policy(config: Config, new: dict[str, Any] | None = None) -> dict[str, Any]:
    """Read the repository's policy, or write it."""
    path = url(config, f"/repositories/{REPOSITORY}")
    if new is None:
        return api.call(config, "GET", f"{path}:getIamPolicy")
    return api.call(config, "POST", f"{path}:setIamPolicy", {"policy": new})


def admit_reader(config: Config, email: str, say: Callable[[str], None]) -> None:
    """Let an account of machines or nodes read the images; if the user may not, say who can."""
    member = f"serviceAccount:{email}"
    try:
        iam.bind(config, policy, READER, member)
    except api.GoogleError as error:
        say(f"You may not let pods read the image ({api.words(error)}). An administrator can:")
        say(f"  {bind_command(config, member, READER)}")


def digest_of_tag(config: Config, name: str, tag: str) -> str:
    """Return the digest of the repository's image with a tag; "" for none."""
    path = f"/repositories/{REPOSITORY}/packages/{name}/tags/{tag}"
    return api.last_part(api.find(config, url(config, path)).get("version", ""))


# --- what a tag names in any registry
# Every user with the right to push can move a tag; a digest names one image for ever. So the laptop
# asks the registry once, when a job is submitted, and machines and pods pull by digest. The user's
# Google token goes to Google's registries alone.

HUB, HUB_HOST = "docker.io", "registry-1.docker.io"
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
MOST = 4 << 20  # bytes of an answer


class Unresolved(Exception):
    """Why the digest that a tag names could not be found out."""


@dataclass(frozen=True)
class Pinned:
    """An image as machines and pods pull it."""

    image: str  # with the digest, if that is known
    why_not: str = ""  # why it is not

    @property
    def lines(self) -> list[str]:
        """Return it as a plan shows it."""
        name, _, digest = self.image.partition("@")
        if digest:
            return [f"{name} ({digest[:19]}…)"]
        return [name, f"as its tag is when it is pulled: {self.why_not}"] if self.why_not else []


@dataclass(frozen=True)
class Reference:
    """Where an image is: the host of its registry, its name there and its tag."""

    host: str
    name: str
    tag: str


def is_google(host: str) -> bool:
    """Return whether a host is a registry of Google's, which takes a Google token."""
    return host == "gcr.io" or host.endswith((".gcr.io", ".pkg.dev"))


def pin(config: Config, image: str) -> Pinned:
    """Return an image by the digest that its tag names now; one with a digest as it is."""
    if "@" in image:
        return Pinned(image)
    try:
        return Pinned(f"{image}@{digest(config, parse(image))}")
    except Unresolved as error:
        return Pinned(image, str(error))


def parse(image: str) -> Reference:
    """Return where an image is, as docker reads its name."""
    host, slash, rest = image.partition("/")
    if not slash or not (re.search(r"[.:]", host) or host == "localhost"):
        host, rest = HUB, image
    head, colon, tag = rest.rpartition(":")
    name, tag = (head, tag) if colon else (rest, "latest")
    if host == HUB:
        return Reference(HUB_HOST, name if "/" in name else f"library/{name}", tag)
    return Reference(host, name, tag)


def digest(config: Config, of: Reference) -> str:
    """Return the digest that a tag names; raise Unresolved."""
    is_embedded = bool(config.endpoint)
    if is_embedded and of.host != urlsplit(config.endpoint).netloc:
        raise Unresolved("the embedded cloud has no images of other registries")
    url = f"{'http' if is_embedded else 'https'}://{of.host}/v2/{of.name}/manifests/{of.tag}"
    headers = {"Accept": ", ".join(MANIFESTS)}
    if is_embedded or is_google(of.host):
        headers["Authorization"] = f"Bearer {google_token(config)}"
    status, answer, _ = ask("HEAD", url, headers)
    if status == 401 and "Authorization" not in headers:
        headers["Authorization"] = f"Bearer {public_token(of.host, answer)}"
        status, answer, _ = ask("HEAD", url, headers)
    found: str = answer.get("Docker-Content-Digest", "")
    if status == 200 and not found:
        status, _, body = ask("GET", url, headers)
        found = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if status != 200:
        raise Unresolved(f"{of.host} answers {status}")
    if not re.fullmatch(r"sha256:[0-9a-f]{64}", found):
        raise Unresolved(f"{of.host} names no sha256 digest")
    return found


def google_token(config: Config) -> str:
    from google.auth.exceptions import GoogleAuthError

    try:
        if not config.credentials.valid:
            config.credentials.refresh(api.refresher())
    except GoogleAuthError as error:
        raise Unresolved(f"no token of Google's: {error}") from None
    return str(config.credentials.token)


def public_token(host: str, refusal: Any) -> str:
    """Return the token that a registry gives to anyone, from where its refusal's headers say."""
    kind, _, rest = refusal.get("WWW-Authenticate", "").partition(" ")
    fields = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    realm = fields.get("realm", "")
    if kind.lower() != "bearer" or urlsplit(realm).scheme != "https":
        raise Unresolved(f"{host} takes a password")
    query = {key: fields[key] for key in ("service", "scope") if key in fields}
    status, _, body = ask("GET", api.with_query(realm, query), {})
    found = re.search(rb'"(?:token|access_token)"\s*:\s*"([\w.~+/=-]+)"', body)
    if status != 200 or not found:
        raise Unresolved(f"{host} gives no token to the public ({status})")
    return found[1].decode()


def ask(method: str, url: str, headers: dict[str, str]) -> tuple[int, Any, bytes]:
    """Return status, headers and body of a registry's answer; raise Unresolved if there is none."""
    host, body = urlsplit(url).hostname, b""
    try:
        answer = api.exchange(method, url, (5, 10), {"Accept-Encoding": "identity", **headers})
        if method == "HEAD":
            answer.release_conn()
            return answer.status, answer.headers, body
        for block in api.blocks_of(answer):
            body += block
            if len(body) > MOST:
                raise Unresolved(f"{host} answers too much")
    except (api.NoAnswer, OSError, ValueError) as error:
        why = type(error.__cause__ or error).__name__
        raise Unresolved(f"no answer from {host} ({why})") from None
    return answer.status, answer.headers, body
