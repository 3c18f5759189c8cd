"""Bodies with the answers that a real Kubernetes 1.36.2 gave: the embedded cloud gives the same."""

import json
import re
from pathlib import Path

import pytest

ROWS = json.loads(Path(__file__).with_name("conformance.json").read_text())
UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@pytest.mark.parametrize(("name", "body", "answer"), ROWS, ids=[row[0] for row in ROWS])
def test_a_job_is_answered_as_by_a_real_server(kube, name, body, answer):
    path = "/apis/batch/v1/namespaces/default/jobs"
    found = kube.raw("POST", path, body, fieldValidation="Strict", dryRun="All")
    assert found.status_code == answer[0], found.text
    if answer[0] >= 400:
        assert UID.sub("UID", found.json()["message"]) == UID.sub("UID", answer[1])
