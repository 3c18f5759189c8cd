# ruff: noqa: F811 (fixtures are imported, and arguments have their names)
"""The embedded Secret Manager, by plain HTTP."""

import base64
import stat

from local_cloud import PROJECT, http_session, server  # noqa: F401 (fixtures)

PAYLOAD = b"s3cr3t value that nobody may see"


def test_a_payload_lies_in_private_files_alone_and_in_no_log(server, http_session):
    secrets = f"{server.url}/secretmanager/v1/projects/{PROJECT}/secrets"
    made = {"replication": {"automatic": {}}}
    assert http_session.post(f"{secrets}?secretId=hidden", json=made).ok
    encoded = base64.b64encode(PAYLOAD).decode()
    for checksum, is_taken in (({}, True), ({"dataCrc32c": "1"}, False)):
        payload = {"data": encoded, **checksum}
        answer = http_session.post(f"{secrets}/hidden:addVersion", json={"payload": payload})
        assert answer.ok == is_taken
    found = http_session.get(f"{secrets}/hidden/versions/latest:access").json()
    assert base64.b64decode(found["payload"]["data"]) == PAYLOAD
    folder = server.folder
    holders = [
        path for path in folder.rglob("*") if path.is_file() and PAYLOAD in path.read_bytes()
    ]
    assert [path.parent for path in holders] == [folder / "secrets"]
    assert stat.S_IMODE(holders[0].stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "secrets").stat().st_mode) == 0o700
    log = http_session.get(f"{server.url}/_berg/requests").text
    assert "secretmanager.projects.secrets.addVersion" in log
    for text in (log, (folder / "server.log").read_text()):
        assert PAYLOAD.decode() not in text and encoded not in text
    http_session.delete(f"{secrets}/hidden")
    assert not holders[0].exists()
