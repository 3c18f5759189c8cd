# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded registry: what docker and podman say to one, beside Debian's registry where that is
installed.
"""

import base64
import contextlib
import hashlib
import json
import shutil
import socket
import subprocess

import pytest
import requests
from containers import Podman, needs_podman
from local_cloud import (  # noqa: F401 (fixtures)
    PROJECT,
    Server,
    http_session,
    make_repository,
    server,
)
from local_machines import until

IMAGE = f"{PROJECT}/images/demo"
OCI = "application/vnd.oci.image."
KINDS = {
    "config": f"{OCI}config.v1+json",
    "layer": f"{OCI}layer.v1.tar",
    "manifest": f"{OCI}manifest.v1+json",
}


INDEX = f"{OCI}index.v1+json"


def digest_of(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def entry(kind: str, data: bytes) -> dict:
    return {"mediaType": KINDS[kind], "digest": digest_of(data), "size": len(data)}


CONFIG = json.dumps(
    {"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": []}}
).encode()
ACCEPT = {"Accept": f"{KINDS['manifest']}, {INDEX}"}
LAYER = bytes(1024)
MANIFEST = json.dumps(
    {
        "schemaVersion": 2,
        "mediaType": KINDS["manifest"],
        "config": entry("config", CONFIG),
        "layers": [entry("layer", LAYER)],
    }
).encode()


@pytest.fixture(params=["ours", "Debian's"])
def registry(request, server, http_session, tmp_path):
    """A session with a registry, and where that is."""
    if request.param == "ours":
        make_repository(server, http_session)
        yield http_session, server.url
        return
    if not shutil.which("docker-registry"):
        pytest.skip("docker-registry is not installed")
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = {"version": 0.1, "http": {"addr": f"127.0.0.1:{port}"}, "log": {"level": "error"}}
    settings["storage"] = {
        "filesystem": {"rootdirectory": str(tmp_path / "data")},
        "delete": {"enabled": True},
    }
    (tmp_path / "config.yml").write_text(json.dumps(settings))  # JSON is YAML
    process = subprocess.Popen(
        ["docker-registry", "serve", tmp_path / "config.yml"], stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(requests.ConnectionError):
            return requests.get(f"{url}/v2/").ok
        return False

    until(answers, "the registry answers")
    yield requests.Session(), url
    process.kill()
    process.wait()


class Image:
    """An image in a registry, as clients of the protocol see it."""

    def __init__(self, registry, name=IMAGE):
        self.session, self.url = registry
        self.base = f"{self.url}/v2/{name}"

    def __call__(self, verb, path, data=b"", kind="application/octet-stream", **params):
        url = (
            path
            if path.startswith("http")
            else f"{self.base}{path}"
            if not path.startswith("/v2")
            else ""
        )
        url = url or self.url + path
        return self.session.request(
            verb, url, data=data, params=params, headers={"Content-Type": kind, **ACCEPT}
        )

    def place(self, answer):
        return requests.compat.urljoin(answer.url, answer.headers["Location"])

    def push_blob(self, data):
        place = self.place(self("POST", "/blobs/uploads/"))
        separator = "&" if "?" in place else "?"
        return self("PUT", f"{place}{separator}digest={digest_of(data)}", data)

    def push(self, tag="v1"):
        for data in (CONFIG, LAYER):
            assert self.push_blob(data).status_code == 201
        return self("PUT", f"/manifests/{tag}", MANIFEST, KINDS["manifest"])


def code(answer):
    return answer.status_code, answer.json()["errors"][0]["code"]


def test_the_life_of_an_image(registry):
    image = Image(registry)
    assert image("GET", "/v2/").status_code == 200
    assert image("HEAD", f"/blobs/{digest_of(LAYER)}").status_code == 404
    assert code(image("GET", f"/blobs/{digest_of(LAYER)}")) == (404, "BLOB_UNKNOWN")
    early = image("PUT", "/manifests/v1", MANIFEST, KINDS["manifest"])
    assert code(early)[0] == 400 and code(early)[1] in ("MANIFEST_BLOB_UNKNOWN", "BLOB_UNKNOWN")
    put = image.push()
    assert put.status_code == 201 and put.headers["Docker-Content-Digest"] == digest_of(MANIFEST)
    for reference in ("v1", digest_of(MANIFEST)):
        got = image("GET", f"/manifests/{reference}")
        assert (got.content, got.headers["Content-Type"]) == (MANIFEST, KINDS["manifest"])
        head = image("HEAD", f"/manifests/{reference}")
        assert head.headers["Docker-Content-Digest"] == digest_of(MANIFEST)
        assert head.headers["Content-Length"] == str(len(MANIFEST))
    blob = image("GET", f"/blobs/{digest_of(LAYER)}")
    assert blob.content == LAYER and blob.headers["Docker-Content-Digest"] == digest_of(LAYER)
    assert image("GET", "/tags/list").json()["tags"] == ["v1"]
    assert code(image("GET", "/manifests/v2")) == (404, "MANIFEST_UNKNOWN")
    rows = [{**entry("manifest", MANIFEST), "platform": {"architecture": "amd64", "os": "linux"}}]
    both = json.dumps({"schemaVersion": 2, "mediaType": INDEX, "manifests": rows}).encode()
    assert image("PUT", "/manifests/both", both, INDEX).status_code == 201
    assert image("GET", "/manifests/both").content == both
    assert code(image("PUT", "/manifests/both", both, KINDS["manifest"])) == (
        400,
        "MANIFEST_INVALID",
    )
    unknown = both.replace(digest_of(MANIFEST).encode(), digest_of(b"").encode())
    early = image("PUT", "/manifests/unknown", unknown, INDEX)
    assert code(early)[0] == 400 and code(early)[1] in ("MANIFEST_UNKNOWN", "MANIFEST_BLOB_UNKNOWN")
    assert image("DELETE", f"/manifests/{digest_of(MANIFEST)}").status_code == 202
    assert code(image("GET", "/manifests/v1")) == (404, "MANIFEST_UNKNOWN")


def test_uploads_in_pieces_and_those_that_are_wrong(registry):
    image = Image(registry)
    begun = image("POST", "/blobs/uploads/")
    assert begun.status_code == 202 and begun.headers["Docker-Upload-UUID"]
    first = image("PATCH", image.place(begun), LAYER[:600])
    assert first.status_code == 202 and first.headers["Range"] == "0-599"
    asked = image("GET", image.place(first))
    assert asked.status_code == 204 and asked.headers["Range"] == "0-599"
    place = image.place(asked)
    last = image(
        "PUT", f"{place}{'&' if '?' in place else '?'}digest={digest_of(LAYER)}", LAYER[600:]
    )
    assert last.status_code == 201
    assert image("GET", f"/blobs/{digest_of(LAYER)}").content == LAYER
    place = image.place(image("POST", "/blobs/uploads/"))
    wrong = image(
        "PUT", f"{place}{'&' if '?' in place else '?'}digest={digest_of(LAYER)}", b"other"
    )
    assert code(wrong) == (400, "DIGEST_INVALID")
    place = image.place(image("POST", "/blobs/uploads/"))
    assert image("DELETE", place).status_code == 204 and code(image("GET", place)) == (
        404,
        "BLOB_UPLOAD_UNKNOWN",
    )
    assert code(image("PUT", "/manifests/v9", b"{]", KINDS["manifest"])) == (
        400,
        "MANIFEST_INVALID",
    )
    other = Image((image.session, image.url), f"{PROJECT}/images/other")
    assert other("HEAD", f"/blobs/{digest_of(LAYER)}").status_code == 404, (
        "a blob is an image's own"
    )
    mounted = other("POST", "/blobs/uploads/", mount=digest_of(LAYER), **{"from": IMAGE})
    assert (
        mounted.status_code == 201 and other("GET", f"/blobs/{digest_of(LAYER)}").content == LAYER
    )
    assert image("GET", "/nothing/here").status_code == 404


def test_who_may_do_what(server, http_session):
    make_repository(server, http_session)
    image = Image((http_session, server.url))
    assert image.push().status_code == 201
    nobody = Image((requests.Session(), server.url))
    refused = nobody("GET", "/manifests/v1")
    assert code(refused) == (401, "UNAUTHORIZED")
    host = server.url.removeprefix("http://")
    told = f'Bearer realm="{server.url}/v2/token",service="{host}",scope="repository:{IMAGE}:pull"'
    assert refused.headers["WWW-Authenticate"] == told
    token = http_session.headers["Authorization"].partition(" ")[2]
    for user, status in (("oauth2accesstoken", 200), ("me", 401)):
        assert requests.get(f"{server.url}/v2/token", auth=(user, token)).status_code == status
    assert (
        requests.get(f"{server.url}/v2/token", auth=("oauth2accesstoken", token + "x")).status_code
        == 401
    )
    missing = Image((http_session, server.url), f"{PROJECT}/nothing/demo")
    assert code(missing("POST", "/blobs/uploads/")) == (404, "NAME_UNKNOWN")
    foreign = Image((http_session, server.url), "not-mine/images/demo")
    assert code(foreign("POST", "/blobs/uploads/")) == (403, "DENIED")

    accounts = f"{server.url}/iam/v1/projects/{PROJECT}/serviceAccounts"
    email = http_session.post(accounts, json={"accountId": "reader-1"}).json()["email"]
    repository = f"projects/{PROJECT}/locations/us-central1/repositories/images"
    base = f"{server.url}/artifactregistry/v1/{repository}"
    held = Image((session_of(server, email), server.url))
    refused = held("GET", "/manifests/v1")
    assert code(refused) == (403, "DENIED")
    assert (
        f'Permission "artifactregistry.repositories.downloadArtifacts" denied on resource "{repository}"'
        in (refused.json()["errors"][0]["message"])
    )
    for role, may_push in (("reader", False), ("writer", True)):
        bindings = [
            {"role": f"roles/artifactregistry.{role}", "members": [f"serviceAccount:{email}"]}
        ]
        answer = http_session.post(f"{base}:setIamPolicy", json={"policy": {"bindings": bindings}})
        assert answer.status_code == 200, answer.text
        assert http_session.get(f"{base}:getIamPolicy").json()["bindings"] == bindings
        asked = {"permissions": ["artifactregistry.repositories.uploadArtifacts"]}
        tested = held.session.post(f"{base}:testIamPermissions", json=asked)
        assert tested.json() == (asked if may_push else {})
        assert held("GET", "/manifests/v1").status_code == 200
        assert held("POST", "/blobs/uploads/").status_code == (202 if may_push else 403)
    bindings[0]["role"] = "roles/storage.admin"
    assert (
        http_session.post(
            f"{base}:setIamPolicy", json={"policy": {"bindings": bindings}}
        ).status_code
        == 400
    )
    services = (
        f"{server.url}/serviceusage/v1/projects/{PROJECT}/services/artifactregistry.googleapis.com"
    )
    http_session.post(f"{services}:disable", json={})
    try:
        assert code(image("GET", "/manifests/v1")) == (403, "DENIED")
    finally:
        http_session.post(f"{services}:enable", json={})


def session_of(server, email):
    from localcloud.identity.tokens import Tokens

    session = requests.Session()
    session.headers["Authorization"] = f"Bearer {Tokens(server.folder).mint(email)}"
    return session


@needs_podman
def test_podman_pushes_and_pulls_also_after_a_restart(server, http_session, tmp_path):
    make_repository(server, http_session)
    podman = Podman(tmp_path / "podman")
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY file /file\n")
    (tmp_path / "file").write_bytes(b"content" * 100_000)
    name = f"{server.url.removeprefix('http://')}/{IMAGE}:podman"
    podman("build", "-t", name, str(tmp_path))
    insecure, token = "--tls-verify=false", http_session.headers["Authorization"].partition(" ")[2]
    assert "unauthorized" in podman.run("push", insecure, name).stderr.lower()
    user = base64.b64encode(f"oauth2accesstoken:{token}".encode()).decode()
    auth = tmp_path / "auth.json"
    auth.write_text(json.dumps({"auths": {server.url.removeprefix("http://"): {"auth": user}}}))
    podman("push", insecure, "--authfile", str(auth), name)
    server.kill()
    server.start()
    podman("rmi", "--all", "--force")
    podman("pull", insecure, "--authfile", str(auth), name)
    mounted = podman("image", "mount", name)
    with open(f"{mounted}/file", "rb") as file:
        assert file.read() == b"content" * 100_000
    podman("image", "umount", name)
