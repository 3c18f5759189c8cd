# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Pods whose images are in the embedded registry: they have the files of these, and nothing of this
host.
"""

import base64
import json

import local_kube
import pytest
from cloud_fixtures import settle, wait_for
from containers import Podman, base, needs_podman  # noqa: F401 (a fixture)

PLACE = "/artifactregistry/v1/projects/berg-local/locations/us-central1/repositories"
DOCKERFILE = """\
FROM localhost/base
COPY file /dir/old
COPY file /gone
RUN rm -r /dir /gone && mkdir /dir && touch /dir/new
ENV GREETING=hello WHO=image
WORKDIR /work
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["ls /dir /gone; echo $GREETING $WHO in $PWD on $(cat /etc/hostname); ls /usr/bin/apt-get /old"]
"""


@pytest.fixture(scope="module")
def image(cloud, base, tmp_path_factory):
    """An image with layers that hide what is below, in the registry."""
    folder = tmp_path_factory.mktemp("image")
    made = cloud.call("POST", f"{PLACE}?repositoryId=pods", {"format": "DOCKER"})
    assert cloud.call("GET", f"/artifactregistry/v1/{made['name']}")["done"]
    podman = Podman(folder / "podman")
    podman("import", str(base), "localhost/base")
    (folder / "context").mkdir()
    (folder / "context/file").write_text("file")
    (folder / "context/Dockerfile").write_text(DOCKERFILE)
    host = cloud.url.removeprefix("http://")
    name = f"{host}/berg-local/pods/demo:v1"
    podman("build", "--tag", name, str(folder / "context"))
    pair = base64.b64encode(
        f"oauth2accesstoken:{cloud.session.credentials.token}".encode()
    ).decode()
    (folder / "auth.json").write_text(json.dumps({"auths": {host: {"auth": pair}}}))
    push = ["push", "--tls-verify=false", "--authfile", str(folder / "auth.json")]
    podman(*push, name)
    (folder / "context/Dockerfile").write_text("FROM scratch\nCOPY file /file\n")
    podman(
        "build",
        "--platform",
        "linux/s390x",
        "--manifest",
        f"{name}-mainframe",
        str(folder / "context"),
    )
    podman("manifest", *push, "--all", f"{name}-mainframe", f"docker://{name}-mainframe")
    yield name
    cloud.call("DELETE", f"{PLACE}/pods")


def ran(kube, name: str, image: str, container=None, **spec) -> tuple[str, str]:
    """How a job of an image ended, and what it printed."""
    body = local_kube.job(name, "", container={"image": image, **(container or {})}, **spec)
    pod = body["spec"]["template"]["spec"]
    if not (container or {}).get("command"):
        del pod["containers"][0]["command"]
    kube.create(body)
    ended = kube.ended(name)
    return ended["type"], kube.log(kube.pods(name)[0]["metadata"]["name"])


@pytest.mark.slow
@needs_podman
def test_a_container_is_what_its_image_says(kube, image):
    ended, log = ran(kube, "image-own", image)
    lines = log.splitlines()
    assert {
        "ls: cannot access '/gone': No such file or directory",
        "new",
        "hello image in /work on image-own-0",
    } <= set(lines)
    assert (
        "old" not in lines
        and "ls: cannot access '/usr/bin/apt-get': No such file or directory" in lines
    )
    assert "ls: cannot access '/old': No such file or directory" in lines and ended == "Failed", log
    by_google = image.replace(image.partition("/")[0], "us-central1-docker.pkg.dev")
    env = [{"name": "WHO", "value": "pod"}]
    assert ran(kube, "image-args", by_google, {"args": ["echo $GREETING $WHO"], "env": env}) == (
        "Complete",
        "hello pod\n",
    )
    command = {
        "command": ["python3", "-c", "import os; print(os.getcwd(), os.getpid())"],
        "workingDir": "/new/dir",
    }
    assert ran(kube, "image-command", image, command) == ("Complete", "/new/dir 1\n")
    status = {"command": ["sed", "-n", "s/CapEff:.//p", "/proc/self/status"]}
    assert ran(kube, "image-usual", image, status) == ("Complete", "00000000a80425fb\n"), (
        "as containerd's"
    )
    context = {"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}
    assert ran(kube, "image-few", image, {**status, "securityContext": context}) == (
        "Complete",
        "0000000000000001\n",
    )
    missing = ran(kube, "image-missing", image, {"command": ["no-such-program"]})
    assert missing == ("Failed", ""), "it never began"
    (row,) = kube.pods("image-missing")[0]["status"]["containerStatuses"]
    assert row["state"]["terminated"]["reason"] == "StartError"
    why = 'exec: "no-such-program": executable file not found in $PATH'
    assert why in row["state"]["terminated"]["message"]


@pytest.mark.slow
@needs_podman
def test_a_container_begins_with_its_image_each_time_and_ends_as_others_do(kube, image):
    script = "if [ -e /kept/mark ]; then test -e /mark && echo old; exit 0; fi; touch /kept/mark /mark; exit 1"
    again = {
        "command": ["sh", "-c", script],
        "volumeMounts": [{"name": "kept", "mountPath": "/kept"}],
    }
    pod = {"restartPolicy": "OnFailure", "volumes": [{"name": "kept", "emptyDir": {}}]}
    assert ran(kube, "image-again", image, again, pod=pod) == ("Complete", "")
    script = "import os, sys; print(os.getppid()); os.fork() or os._exit(0); sys.exit(7)"
    shared = {"command": ["python3", "-c", script]}
    assert ran(kube, "image-shared", image, shared, pod={"shareProcessNamespace": True}) == (
        "Failed",
        "1\n",
    )
    state = kube.pods("image-shared")[0]["status"]["containerStatuses"][0]["state"]["terminated"]
    assert state["exitCode"] == 7
    kube.create(local_kube.job("image-stays", "sleep 60", container={"image": image}))
    pod = kube.pod("image-stays")["metadata"]["name"]
    assert (
        kube.kubectl("exec", pod, "--", "sh", "-c", "ls /dir; echo $WHO; exit 0") == "new\nimage\n"
    )
    kube.call(
        "DELETE",
        "/apis/batch/v1/namespaces/default/jobs/image-stays",
        propagationPolicy="Background",
    )
    wait_for(lambda: not kube.pods("image-stays"))


@pytest.mark.slow
@needs_podman
@pytest.mark.parametrize(
    "name, told",
    [
        ("v2", "demo:v2: not found"),
        ("v1-mainframe", "no match for platform in manifest: not found"),
    ],
)
def test_an_image_that_is_not_there_or_not_for_this_processor(kube, image, name, told):
    job = f"image-{name}"
    kube.create(local_kube.job(job, "true", container={"image": image.replace("v1", name)}))
    pulled = lambda: [
        m for reason, m in kube.events(kube.pods(job)[0]["metadata"]["name"]) if reason == "Failed"
    ]
    assert told in wait_for(pulled)[0]
    kube.call(
        "DELETE", f"/apis/batch/v1/namespaces/default/jobs/{job}", propagationPolicy="Background"
    )


@pytest.mark.slow
@needs_podman
def test_nodes_need_the_right_to_read_images(cloud, image, tmp_path):
    email = cloud.call(
        "POST", "/iam/v1/projects/berg-local/serviceAccounts", {"accountId": "no-images"}
    )["email"]
    settle(cloud)
    nodes = {
        **local_kube.SYSTEM,
        "name": "held",
        "config": {**local_kube.SYSTEM["config"], "serviceAccount": email},
    }
    kube = local_kube.make_cluster(cloud, "held", tmp_path, nodes)
    try:
        selector = {"nodeSelector": {"cloud.google.com/gke-nodepool": "held"}}
        kube.create(local_kube.job("denied", "true", container={"image": image}, pod=selector))
        events = lambda: (
            kube.events(kube.pods("denied")[0]["metadata"]["name"]) if kube.pods("denied") else []
        )
        refused = wait_for(lambda: [message for reason, message in events() if reason == "Failed"])[
            0
        ]
        assert (
            "failed to authorize: failed to fetch oauth token" in refused
            and "403 Forbidden" in refused
        )
        member = {"role": "roles/artifactregistry.reader", "members": [f"serviceAccount:{email}"]}
        cloud.call("POST", f"{PLACE}/pods:setIamPolicy", {"policy": {"bindings": [member]}})
        assert kube.ended("denied")["type"] == "Complete"
    finally:
        local_kube.delete_cluster(kube)
