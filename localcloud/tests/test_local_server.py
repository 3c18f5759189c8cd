# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""What all methods of the embedded cloud share: tokens, errors, faults, the request log."""

import socket
import time

import pytest
import requests
from google.auth.transport.requests import AuthorizedSession
from local_cloud import (  # noqa: F401
    MB,
    PROJECT,
    Bucket,
    Server,
    bucket,
    client,
    http_session,
    raw,
    reason,
    server,
)
from local_machines import session_of


def test_tokens(server, raw):
    url = f"{server.url}/storage/v1/b/{raw.name}"
    for headers in (
        {},
        {"Authorization": "Bearer nonsense"},
        session_of(server.folder, seconds=-1).headers,
    ):
        answer = requests.get(url, headers=headers)
        assert answer.status_code == 401
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert answer.json()["error"]["status"] == "UNAUTHENTICATED"
        assert requests.get(f"{server.url}/_berg/requests", headers=headers).status_code == 401
    path = server.folder / "tokens.json"
    assert path.stat().st_mode & 0o777 == 0o600


def test_credentials_file_refreshes(tmp_path, monkeypatch):
    """google-auth loads the file, refreshes through it, and asks nobody else for anything."""
    asked = []
    resolve = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest: asked.append(host) or resolve(host, *rest)
    )
    server = Server(tmp_path / "cloud", PROJECT)
    try:
        session = AuthorizedSession(server.credentials())
        buckets = f"{server.url}/storage/v1/b?project={PROJECT}"
        assert session.get(buckets).status_code == 200
        before = session.credentials.token
        assert session.post(f"{server.url}/_berg/tokens/expire", json={}).status_code == 200
        assert (
            requests.get(buckets, headers={"Authorization": f"Bearer {before}"}).status_code == 401
        )
        assert session.get(buckets).status_code == 200  # google-auth refreshed on the 401
        assert session.credentials.token != before
        assert (server.folder / "credentials.json").stat().st_mode & 0o777 == 0o600
        wrong = requests.post(
            f"{server.url}/token", auth=("berg-local", "x"), data={"grant_type": "refresh_token"}
        )
        assert (wrong.status_code, wrong.json()["error"]) == (401, "invalid_client")
        time.sleep(0.2)  # a look-up of google-auth's would come from a thread
        assert set(asked) == {"127.0.0.1"}
    finally:
        server.kill()


def test_unknown_routes_parameters_and_fields(raw, http_session):
    base = raw.server.url
    missing = http_session.get(f"{base}/storage/v1/buckets")
    assert (missing.status_code, reason(missing)) == (404, "notFound")
    assert http_session.get(f"{base}/elsewhere").status_code == 404
    absent = http_session.get(f"{raw.base}/notificationConfigs")
    assert (absent.status_code, reason(absent)) == (501, "notImplemented")
    assert "notifications.list" in absent.text
    assert http_session.get(f"{raw.base}/o?prefx=a").status_code == 200  # as TensorStore counts on
    assert http_session.get(f"{raw.base}/o?fields=items(").status_code == 400
    raw.put("x")
    unknown = http_session.patch(raw.url("x"), json={"metdata": {}})
    assert unknown.status_code == 400 and "metdata" in unknown.text
    assert http_session.patch(raw.url("x"), data=b"{").status_code == 400
    for refused in ({"temporaryHold": True}, {"kmsKeyName": "k"}):
        assert http_session.patch(raw.url("x"), json=refused).status_code == 501
    assert http_session.patch(raw.url("x"), json={"storageClass": "COLDISH"}).status_code == 400


def test_scopes_of_tokens(raw):
    """A token for some scopes may do what the discovery document says of them, whoever owns it."""
    scope = "https://www.googleapis.com/auth/"

    def statuses(*scopes):
        session = session_of(raw.server.folder, scopes=[scope + each for each in scopes])
        bucket = Bucket(raw.server, session, raw.name)
        answers = [
            bucket.get("x"),
            bucket.put("x"),
            session.get(raw.server.url + "/secretmanager/v1/projects/p/secrets"),
        ]
        return [answer.status_code for answer in answers], answers[1]

    raw.put("x")
    assert statuses("devstorage.read_only")[0] == [200, 403, 403]
    assert statuses("devstorage.read_write", "logging.write")[0] == [200, 200, 403]
    assert statuses("logging.write")[0] == [403, 403, 403]
    assert statuses()[0] == [403, 403, 403]
    codes, answer = statuses("cloud-platform.read-only")
    assert codes[:2] == [200, 403]
    error = answer.json()["error"]
    assert (error["status"], reason(answer)) == ("PERMISSION_DENIED", "insufficientPermissions")
    assert error["details"][0]["reason"] == "ACCESS_TOKEN_SCOPE_INSUFFICIENT"


def test_faults(raw, http_session):
    faults = f"{raw.server.url}/_berg/faults"

    def add(**spec):
        answer = http_session.post(faults, json=spec)
        assert answer.status_code == 200, answer.text

    raw.put("x", b"x")
    add(method="storage.objects.*", status=503, times=2, match="/o/x")
    statuses = [raw.get(name).status_code for name in ("other", "x", "x", "x")]
    assert statuses == [404, 503, 503, 200]
    (listed,) = http_session.get(faults).json()["faults"]
    assert listed["hits"] == 2
    http_session.delete(faults)
    add(method="storage.objects.get", status=429, times=None, probability=0.5, seed=7)
    statuses = [raw.get("x").status_code for _ in range(40)]
    assert 10 < statuses.count(429) < 30
    http_session.delete(faults)
    add(method="storage.objects.get", delay=0.3)
    start = time.monotonic()
    assert raw.get("x").status_code == 200 and time.monotonic() - start > 0.3
    add(method="storage.objects.insert", reset=True)
    with pytest.raises(requests.ConnectionError):
        raw.put("reset", b"x")
    assert raw.get("reset").status_code == 404
    add(method="storage.objects.insert", reset=True, after_handler=True)
    with pytest.raises(requests.ConnectionError):
        raw.put("lost", b"x")
    assert raw.get("lost").status_code == 200
    for wrong in ({"method": "x"}, {"method": "x", "status": 500, "tims": 3}, {"status": 500}, []):
        assert http_session.post(faults, json=wrong).status_code == 400


def test_request_log(raw, http_session):
    log = f"{raw.server.url}/_berg/requests"
    http_session.delete(log)
    raw.put("x", b"12345")
    raw.get("x")
    raw.get("x")
    answer = http_session.get(log).json()
    assert answer["counts"] == {"storage.objects.insert": 1, "storage.objects.get": 2}
    assert answer["bytes"]["storage.objects.insert"] == 5
    first = answer["requests"][0]
    assert (first["method"], first["status"], first["bytes"]) == ("storage.objects.insert", 200, 5)
