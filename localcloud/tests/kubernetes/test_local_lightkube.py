"""lightkube, a Python client that no one here wrote."""

import base64

import pytest
from local_kube import job

lightkube = pytest.importorskip("lightkube")


@pytest.fixture
def client(kube):
    cluster = {
        "server": kube.server,
        "certificate-authority-data": base64.b64encode(kube.ca.read_bytes()).decode(),
    }
    settings = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
        "clusters": [{"name": "here", "cluster": cluster}],
        "users": [{"name": "me", "user": {"token": kube.token}}],
    }
    return lightkube.Client(
        lightkube.KubeConfig.from_dict(settings), field_manager="tests", trust_env=False
    )


def test_a_job_from_its_making_to_its_log(client, kube):
    from lightkube.resources.batch_v1 import Job
    from lightkube.resources.core_v1 import Pod
    from lightkube.types import CascadeType

    made = client.create(Job.from_dict(job("light", "echo by lightkube")), namespace="default")
    assert made.metadata.name == "light" and made.spec.podReplacementPolicy == "TerminatingOrFailed"
    ended = client.wait(Job, "light", for_conditions=["Complete"], namespace="default")
    assert ended.status.succeeded == 1
    (pod,) = client.list(Pod, namespace="default", labels={"job-name": "light"})
    assert list(client.log(pod.metadata.name, namespace="default")) == ["by lightkube\n"]
    client.delete(Job, "light", namespace="default", cascade=CascadeType.BACKGROUND)


def test_changes_and_refusals(client):
    from lightkube import ApiError
    from lightkube.models.core_v1 import ConfigMap as Model
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import ConfigMap

    meta = ObjectMeta(name="lit", namespace="default")
    client.create(ConfigMap(metadata=meta, data={"a": "1"}))
    client.apply(ConfigMap(metadata=meta, data={"b": "2"}))
    client.patch(ConfigMap, "lit", {"data": {"c": "3"}}, namespace="default")
    found = client.get(ConfigMap, "lit", namespace="default")
    assert isinstance(found, Model) and found.data == {"a": "1", "b": "2", "c": "3"}
    client.delete(ConfigMap, "lit", namespace="default")
    with pytest.raises(ApiError, match='configmaps "lit" not found') as refused:
        client.get(ConfigMap, "lit", namespace="default")
    assert refused.value.status.code == 404
