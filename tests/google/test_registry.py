"""Which image a tag names: registries over real HTTP and TLS, and which of them get a token."""

import hashlib
import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from berg.config import Config
from berg.google import builds
from berg.google.builds import Reference

ONE = f"sha256:{'1' * 64}"


@pytest.mark.parametrize(
    ("image", "place"),
    [
        ("python", Reference("registry-1.docker.io", "library/python", "latest")),
        ("python:3.12", Reference("registry-1.docker.io", "library/python", "3.12")),
        ("pytorch/pytorch:2.9", Reference("registry-1.docker.io", "pytorch/pytorch", "2.9")),
        ("docker.io/a/b", Reference("registry-1.docker.io", "a/b", "latest")),
        ("localhost:5000/a/b:1", Reference("localhost:5000", "a/b", "1")),
        ("ghcr.io/a/b/c:v1", Reference("ghcr.io", "a/b/c", "v1")),
        ("us-docker.pkg.dev/p/berg/x:1", Reference("us-docker.pkg.dev", "p/berg/x", "1")),
    ],
)
def test_names_of_images_are_read_as_docker_reads_them(image, place):
    assert builds.parse(image) == place


@pytest.mark.parametrize(
    ("host", "is_google"),
    [
        ("gcr.io", True),
        ("eu.gcr.io", True),
        ("us-docker.pkg.dev", True),
        ("evilgcr.io", False),
        ("gcr.io.evil.com", False),
        ("us-docker.pkg.dev.evil.com", False),
        ("us-docker.pkg.dev:8443", False),
        ("evilpkg.dev", False),
    ],
)
def test_only_googles_registries_take_its_token(host, is_google):
    assert builds.is_google(host) is is_google


class Handler(BaseHTTPRequestHandler):
    """A registry whose images anyone may pull, with a token that it gives to anyone."""

    def do_HEAD(self) -> None:
        self.answer()

    do_GET = do_HEAD

    def answer(self) -> None:
        there = self.server
        host, path = self.headers["Host"], self.path.partition("?")[0]
        there.asked.append((self.command, self.path, self.headers.get("Authorization")))
        if path == "/token":
            return self.send(200, {}, json.dumps({"token": "public"}).encode())
        tag = path.rpartition("/")[2]
        if tag == "elsewhere":
            return self.send(302, {"Location": "https://127.0.0.2/"})
        if self.headers.get("Authorization") != "Bearer public":
            scheme = "http" if tag == "plain" else "https"
            realm = f'Bearer realm="{scheme}://{host}/token",service="x",scope="repository:a:pull"'
            return self.send(401, {"WWW-Authenticate": realm})
        if tag == "unnamed":
            return self.send(200, {}, b"{}")
        if tag == "odd":
            return self.send(200, {"Docker-Content-Digest": "sha256:../../etc"})
        if tag != "1":
            return self.send(404, {})
        return self.send(200, {"Docker-Content-Digest": ONE})

    def send(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def public(tmp_path, monkeypatch):
    """A public registry with TLS; `public.asked` is what it was asked."""
    certificate = tmp_path / "certificate.pem"
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    make += f" -addext subjectAltName=DNS:localhost -keyout {tmp_path}/key.pem -out {certificate}"
    subprocess.run(make.split(), check=True, capture_output=True)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
    (tmp_path / ".netrc").write_text("machine localhost login me password hush\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, tmp_path / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.asked = []
    server.image = f"localhost:{server.server_port}/a"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def test_a_public_registry_gives_its_token_and_gets_none(public):
    pinned = builds.pin(Config(), f"{public.image}:1")
    assert pinned.image == f"{public.image}:1@{ONE}"
    assert pinned.lines == [f"{public.image}:1 (sha256:111111111111…)"]
    query = "/token?service=x&scope=repository%3Aa%3Apull"
    assert public.asked == [
        ("HEAD", "/v2/a/manifests/1", None),
        ("GET", query, None),
        ("HEAD", "/v2/a/manifests/1", "Bearer public"),
    ]
    unnamed = builds.pin(Config(), f"{public.image}:unnamed")
    assert unnamed.image.partition("@")[2] == f"sha256:{hashlib.sha256(b'{}').hexdigest()}"


@pytest.mark.parametrize(
    ("tag", "why"),
    [
        ("nosuch", "answers 404"),
        ("elsewhere", "answers 302"),
        ("plain", "takes a password"),
        ("odd", "names no sha256 digest"),
    ],
)
def test_what_a_registry_does_not_say_is_left_to_the_tag(public, tag, why):
    pinned = builds.pin(Config(), f"{public.image}:{tag}")
    assert pinned.image == f"{public.image}:{tag}"
    assert why in pinned.why_not and pinned.lines[0] == pinned.image


def test_a_registry_that_is_not_there_and_an_image_with_a_digest():
    nowhere = builds.pin(Config(), "localhost:1/a:1")
    assert nowhere.image == "localhost:1/a:1" and "no answer from localhost" in nowhere.why_not
    assert builds.pin(Config(), f"localhost:1/a@{ONE}").image == f"localhost:1/a@{ONE}"
