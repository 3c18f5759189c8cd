"""Registries of container images: which image a tag names now.

Every user with the right to push can move a tag; a digest names one image for ever. So the laptop
asks the registry once, when a job is submitted, and machines and pods pull by digest. The user's
Google token goes to Google's registries alone.

Not covered: registries that take a password.
"""

import hashlib
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from berg.config import Config

DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
HUB, HUB_HOST = "docker.io", "registry-1.docker.io"
KINDS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
TIMEOUT = (5, 10)  # seconds to connect, and for an answer
MOST = 4 << 20  # bytes of an answer
PARAMETER = re.compile(r'(\w+)="([^"]*)"')
FOR_TOKEN = ("service", "scope")


class Unresolved(Exception):
    """What a tag names could not be found out, and why."""


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
class Place:
    """Where an image is: the host of its registry, its name there and its tag."""

    host: str
    name: str
    tag: str


def is_google(host: str) -> bool:
    """Return whether a host is a registry of Google's, which takes a Google token."""
    return host == "gcr.io" or host.endswith((".gcr.io", ".pkg.dev"))


def pin(config: Config, image: str) -> Pinned:
    """Return an image by the digest of what its tag names now; one with a digest as it is."""
    if "@" in image:
        return Pinned(image)
    try:
        return Pinned(f"{image}@{digest(config, parse(image))}")
    except Unresolved as error:
        return Pinned(image, str(error))


def parse(image: str) -> Place:
    """Return where an image is, as docker understands its name."""
    host, slash, rest = image.partition("/")
    if not slash or not (re.search(r"[.:]", host) or host == "localhost"):
        host, rest = HUB, image
    head, colon, tag = rest.rpartition(":")
    name, tag = (head, tag) if colon else (rest, "latest")
    if host == HUB:
        return Place(HUB_HOST, name if "/" in name else f"library/{name}", tag)
    return Place(host, name, tag)


def digest(config: Config, place: Place) -> str:
    """Return the digest of what a tag names; raise Unresolved."""
    url, headers = request_for(config, place)
    status, answer, _ = ask("HEAD", url, headers)
    if status == 401 and "Authorization" not in headers:
        challenge = answer.get("WWW-Authenticate", "")
        headers["Authorization"] = f"Bearer {public_token(place.host, challenge)}"
        status, answer, _ = ask("HEAD", url, headers)
    found: str = answer.get("Docker-Content-Digest", "")
    if status == 200 and not found:
        status, _, body = ask("GET", url, headers)
        found = f"sha256:{hashlib.sha256(body).hexdigest()}"
    if status != 200:
        raise Unresolved(f"{place.host} answers {status}")
    if not DIGEST.fullmatch(found):
        raise Unresolved(f"{place.host} names no sha256 digest")
    return found


def request_for(config: Config, place: Place) -> tuple[str, dict[str, str]]:
    """Return address and headers of the request for a manifest; raise Unresolved."""
    is_embedded = bool(config.endpoint) and place.host == urlsplit(config.endpoint).netloc
    if config.endpoint and not is_embedded:
        raise Unresolved("the embedded cloud has no images of other registries")
    scheme = "http" if is_embedded else "https"
    headers = {"Accept": ", ".join(KINDS)}
    if is_embedded or is_google(place.host):
        headers["Authorization"] = f"Bearer {google_token(config)}"
    return f"{scheme}://{place.host}/v2/{place.name}/manifests/{place.tag}", headers


def google_token(config: Config) -> str:
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import Request

    try:
        if not config.credentials.valid:
            config.credentials.refresh(Request())
    except GoogleAuthError as error:
        raise Unresolved(f"no token of Google's: {error}") from None
    return str(config.credentials.token)


def public_token(host: str, challenge: str) -> str:
    """Return the token that a registry gives to everybody, from where its challenge says."""
    kind, _, rest = challenge.partition(" ")
    said = dict(PARAMETER.findall(rest))
    realm = said.get("realm", "")
    if kind.lower() != "bearer" or urlsplit(realm).scheme != "https":
        raise Unresolved(f"{host} takes a password")
    query = {key: said[key] for key in FOR_TOKEN if key in said}
    status, _, body = ask("GET", realm, {}, query)
    found = re.search(rb'"(?:token|access_token)"\s*:\s*"([\w.~+/=-]+)"', body)
    if status != 200 or not found:
        raise Unresolved(f"{host} gives no token to the public ({status})")
    return found[1].decode()


def ask(
    method: str, url: str, headers: dict[str, str], query: dict[str, str] | None = None
) -> tuple[int, Any, bytes]:
    """Return status, headers and body of an answer; raise Unresolved if there is none."""
    import requests

    try:
        with requests.request(
            method,
            url,
            params=query,
            headers=headers,
            auth=lambda request: request,  # else requests would take one of ~/.netrc
            timeout=TIMEOUT,
            allow_redirects=False,
            stream=True,
        ) as answer:
            body = answer.raw.read(MOST + 1, decode_content=False)
            if len(body) > MOST:
                raise Unresolved(f"{urlsplit(url).hostname} answers too much")
            return answer.status_code, answer.headers, body
    except (requests.RequestException, OSError, ValueError) as error:
        why = f"no answer from {urlsplit(url).hostname} ({type(error).__name__})"
        raise Unresolved(why) from None
