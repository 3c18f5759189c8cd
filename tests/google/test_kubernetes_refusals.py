"""What berg says of a cluster's refusals: which right is missing and who can give it, or that it is
no matter of rights.
"""

import json

import pytest

from berg.config import Config
from berg.gke import client
from berg.google import api

SERVER = client.Server("us-central1-a/train", "https://192.0.2.1", Config())
HER = 'User "her@example.com"'


def said(code: int, message: str) -> str:
    content = json.dumps({"kind": "Status", "reason": "Forbidden", "message": message})
    return client.refusal(SERVER, code, content.encode()).message


@pytest.mark.parametrize(
    ("message", "words", "role"),
    [
        (
            f'jobs.batch is forbidden: {HER} cannot create resource "jobs" in API group "batch" in '
            'the namespace "default": requires one of ["container.jobs.create"] permission(s).',
            "does not let you create jobs: ",
            "roles/container.developer",
        ),
        (
            f'roles is forbidden: {HER} cannot create resource "roles" in API group '
            '"rbac.authorization.k8s.io" in the namespace "default": requires one of '
            '["container.roles.create"] permission(s).',
            '["container.roles.create"]',
            "roles/container.admin",
        ),
        (
            'roles "x" is forbidden: user "her@example.com" is attempting to grant RBAC permissions '
            "not currently held",
            "does not let you do that: ",
            "roles/container.admin",
        ),
        (
            "Permission 'container.clusters.connect' denied on the cluster",
            "container.clusters.connect",
            "roles/container.developer",
        ),
    ],
)
def test_a_right_that_is_missing_is_named_with_a_role_that_has_it(message, words, role):
    told = said(403, message)
    assert words in told and told.endswith(role) and "roles/owner" in told


def test_what_is_no_matter_of_rights_is_not_said_to_be_one():
    quota = 'pods "x" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1'
    assert said(403, quota) == f"the cluster us-central1-a/train forbids it: {quota}"
    told = said(401, "Unauthorized")
    assert "does not take your token" in told and "application-default login" in told
    assert "roles/" not in told


def test_what_kubernetes_warns_of_is_said_once(monkeypatch):
    heard: list[str] = []
    monkeypatch.setattr(api, "notify", heard.append)
    monkeypatch.setattr(client, "warned", set())
    header = '299 - "unknown field \\"a\\"", 299 - "would violate PodSecurity"'
    client.pass_on_warnings(header)
    client.pass_on_warnings(header)
    assert heard == [
        'Kubernetes warns: unknown field "a"',
        "Kubernetes warns: would violate PodSecurity",
    ]
