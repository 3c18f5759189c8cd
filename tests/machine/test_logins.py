"""What machines write for programs and people who log in."""

import os
from types import SimpleNamespace

import pytest

from berg import worker
from berg.machine import logins
from berg.machine.peers import Node


def test_others_cannot_read_the_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(logins, "HOST_FILE", tmp_path / "hostfile")
    monkeypatch.setattr(logins, "CLUSTER_FILE", tmp_path / "cluster.json")
    node = Node("duo-0", 0, "17", "10.0.0.2")
    member = SimpleNamespace(node=node, nodes=[node], host=SimpleNamespace(is_pod=False))
    (tmp_path / "cluster.json").touch()
    (tmp_path / "cluster.json").chmod(0o644)  # as somebody may have left it
    before = os.umask(0)
    try:
        logins.write_cluster_files(member, {"TOKEN": "secret"})
    finally:
        os.umask(before)
    assert "secret" in (tmp_path / "cluster.json").read_text()
    assert (tmp_path / "cluster.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(("kind", "has_secret"), [("job", False), ("devbox", True)])
def test_who_logs_in_has_the_secrets_of_a_devbox_alone(monkeypatch, kind, has_secret):
    told = {}
    monkeypatch.setattr(worker, "environment", lambda attempt: {"WISH": "w", **attempt.secrets})
    monkeypatch.setattr(logins, "introduce", lambda member, values: told.update(values))
    job = SimpleNamespace(kind=kind)
    attempt = SimpleNamespace(job=job, member=None, secrets={"TOKEN": "s3cret"}, is_installed=False)
    worker.introduce(attempt)
    assert "TOKEN" not in told, "an installation finds a secret in a file"
    attempt.is_installed = True
    worker.introduce(attempt)
    assert told.pop("WISH") == "w" and told.pop("PYTHONPATH").endswith("/program")
    assert told == ({"TOKEN": "s3cret"} if has_secret else {})
