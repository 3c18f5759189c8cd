# ruff: noqa: F811 (a fixture is imported, and arguments have its name)
"""Images of a repo: really built by podman and pushed to the embedded registry, over berg's real
command line.
"""

import functools
import io
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import threading
import uuid
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import commit, git, settle, wait_for
from containers import Podman, base, needs_podman, slow  # noqa: F401 (fixtures)
from local_gcloud import Gcloud
from local_kube import Kube
from test_install_on_machines import make_lock, make_wheel, uv_program  # noqa: F401 (a fixture)

from berg.config import Config
from berg.gke import clusters
from berg.laptop import images
from localcloud.builds import docker
from localcloud.identity.tokens import Tokens

PROJECT = "berg-local"
REPOSITORY = f"/artifactregistry/v1/projects/{PROJECT}/locations/us-central1/repositories/berg"
BUILDER = f"berg-builder@{PROJECT}.iam.gserviceaccount.com"
BOTH = "linux/amd64,linux/arm64"
SCRATCH = "FROM scratch\nCOPY . /app\n"


@pytest.fixture
def podman(tmp_path):
    return Podman(tmp_path / "podman")


@pytest.fixture
def image(berg, podman):
    """`berg image build` where podman is the only builder."""

    def build(*words, **env):
        return berg("image", "build", *words, **{**podman.variables, **env})

    return build


@pytest.fixture(autouse=True)
def clean(cloud):
    yield
    cloud.session.delete(f"{cloud.url}/iam/v1/projects/{PROJECT}/serviceAccounts/{BUILDER}")
    cloud.session.delete(cloud.url + REPOSITORY)


class Registry:
    """What lies in the registry, as any client reads it."""

    def __init__(self, cloud, name: str):
        host, _, path = name.partition("/")
        self.session, (self.image, _, self.tag) = cloud.session, path.partition(":")
        assert cloud.url == f"http://{host}"
        self.base = f"{cloud.url}/v2/{self.image}"

    def manifest(self, reference: str) -> dict:
        answer = self.session.get(f"{self.base}/manifests/{reference}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    def digest(self) -> str:
        answer = self.session.head(f"{self.base}/manifests/{self.tag}")
        return answer.headers["Docker-Content-Digest"]

    def blob(self, digest: str) -> bytes:
        return self.session.get(f"{self.base}/blobs/{digest}").content

    def platforms(self) -> dict[str, dict]:
        """The manifests of a list, by platform."""
        rows = self.manifest(self.tag)["manifests"]
        return {f"{row['platform']['os']}/{row['platform']['architecture']}": row for row in rows}

    def files(self, digest: str) -> dict[str, bytes]:
        """What the layers of an image hold."""
        found = {}
        for layer in self.manifest(digest)["layers"]:
            with tarfile.open(fileobj=io.BytesIO(self.blob(layer["digest"]))) as tar:
                found |= {each.name: tar.extractfile(each).read() for each in tar if each.isfile()}
        return found


def fill(repo: Path, **files: str) -> str:
    for name, text in files.items():
        path = repo / name.replace("__", "/", 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return commit(repo)


def two_bases(podman, folder: Path) -> str:
    """An image that differs between the platforms, as real ones do."""
    for platform in BOTH.split(","):
        context = folder / platform
        context.mkdir(parents=True)
        (context / "arch").write_text(platform)
        (context / "Dockerfile").write_text("FROM scratch\nCOPY arch /arch\n")
        podman("build", "--platform", platform, "--manifest", "localhost/base", str(context))
    return "localhost/base"


@pytest.mark.slow
@needs_podman
def test_an_image_of_the_snapshot_for_two_platforms_is_pushed_and_read_back(
    berg, cloud, image, podman, tmp_path
):
    files = {
        ".gitignore": "secret.txt\n",
        ".dockerignore": "data\n**/*.log\n",
        "data__big.bin": "x",
        "sub__a.log": "y",
    }
    dockerfile = (
        f"FROM {two_bases(podman, tmp_path)}\nARG TARGETARCH\nLABEL arch=$TARGETARCH\nCOPY . /app\n"
    )
    head = fill(berg.repo, Dockerfile=dockerfile, **files)
    (berg.repo / "secret.txt").write_text("hush")
    (berg.repo / "train.py").write_text("print('changed')\n")
    (berg.repo / "new.py").write_text("print('new')\n")
    built = image("--push", "--platform", BOTH)
    assert built.returncode == 0, built.stderr
    name = built.stdout.strip()
    assert f"of commit {head[:12]} and 2 changed files" in built.stderr
    assert (
        re.fullmatch(rf"127\.0\.0\.1:\d+/{PROJECT}/berg/proj:[0-9a-f]{{40}}", name)
        and head not in name
    )
    registry = Registry(cloud, name)
    rows = registry.platforms()
    assert set(rows) == set(BOTH.split(","))
    for platform, row in rows.items():
        config = json.loads(registry.blob(registry.manifest(row["digest"])["config"]["digest"]))
        arch = platform.partition("/")[2]
        assert (config["architecture"], config["config"]["Labels"]["arch"]) == (arch, arch)
        files = registry.files(row["digest"])
        kept = {
            "arch",
            "app/Dockerfile",
            "app/train.py",
            "app/new.py",
            "app/.gitignore",
            "app/.dockerignore",
        }
        assert set(files) == kept and files["arch"] == platform.encode()
        assert files["app/train.py"] == b"print('changed')\n"

    again = image("--push", "--platform", BOTH)
    assert (
        again.returncode == 1
        and f"{name} exists already" in again.stderr
        and "--force" in again.stderr
    )
    forced = image("--push", "--platform", BOTH, "--force")
    assert forced.returncode == 0 and forced.stderr.count("Using cache") >= 6, forced.stderr
    for platform, row in registry.platforms().items():
        assert registry.manifest(row["digest"]) == registry.manifest(rows[platform]["digest"])
    gcloud = Gcloud(cloud.url, PROJECT, cloud.session.credentials.token, tmp_path)
    listed = json.loads(
        gcloud("artifacts", "repositories", "list", "--location=us-central1", "--format=json")
    )
    assert [row["name"].rpartition("/")[2] for row in listed] == ["berg"] and listed[0][
        "labels"
    ] == {"berg": "1"}
    rows = cloud.call("GET", f"{REPOSITORY}/dockerImages")["dockerImages"]
    (both,) = [row for row in rows if row.get("tags")]
    assert both["tags"] == [name.rpartition(":")[2]] and len(both["imageManifests"]) == 2


@pytest.mark.slow
@needs_podman
def test_without_a_push_the_image_is_podmans_and_nothing_is_made(berg, cloud, image, podman):
    """Also where nothing differs between platforms, so that podman's cache takes one's image for
    the other's.
    """
    fill(berg.repo, Dockerfile="FROM scratch\nCOPY train.py /train.py\n")
    built = image("--name", "other", "--platform", BOTH)
    assert built.returncode == 0, built.stderr
    name = built.stdout.strip()
    assert name.endswith(f"/berg/other:{git(berg.repo, 'rev-parse', 'HEAD')}")
    rows = json.loads(podman("manifest", "inspect", name))["manifests"]
    assert sorted(row["platform"]["architecture"] for row in rows) == ["amd64", "arm64"]
    assert cloud.session.get(cloud.url + REPOSITORY).status_code == 404
    one = image("--name", "other")
    assert one.returncode == 0 and "Using cache" in one.stderr
    (row,) = json.loads(podman("manifest", "inspect", name))["manifests"]
    assert row["platform"]["architecture"] == "amd64"


@needs_podman
def test_a_dockerfile_of_ones_own_choice_and_a_submodule(berg, image, podman, tmp_path):
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    fill(inner, **{"lib.py": "1"})
    git(berg.repo, "submodule", "add", str(inner), "lib")
    fill(berg.repo, docker__Dockerfile="nothing\n")
    outside = tmp_path / "Dockerfile.gpu"
    outside.write_text(
        "FROM scratch\nARG PYTHON_VERSION\nLABEL python=$PYTHON_VERSION\nCOPY . /app\n"
    )
    (tmp_path / "Dockerfile.gpu.dockerignore").write_text("docker\n")
    (berg.repo / "sub").mkdir()
    built = berg(
        "image",
        "build",
        "-f",
        str(outside),
        "--python",
        "3.11",
        cwd=berg.repo / "sub",
        **podman.variables,
    )
    assert built.returncode == 0, built.stderr
    name = built.stdout.strip()
    assert podman("image", "inspect", name, "--format", '{{index .Labels "python"}}') == "3.11"
    mounted = Path(podman("image", "mount", name))
    assert sorted(each.name for each in (mounted / "app").iterdir()) == [
        ".dockerignore",
        ".gitmodules",
        "lib",
        "train.py",
    ]
    assert (mounted / "app/lib/lib.py").read_text() == "1"
    podman("image", "umount", name)


@needs_podman
def test_a_build_that_fails_says_why_once(berg, cloud, image):
    fill(berg.repo, Dockerfile="FROM scratch\nCOPY nothing-like-this /app\n")
    built = image("--push")
    assert built.returncode == 1 and built.stdout == ""
    said, _, error = built.stderr.partition("berg: ")
    assert error.startswith("the image could not be built: podman ended with exit code")
    assert "nothing-like-this" in said and "Traceback" not in built.stderr
    assert "nothing-like-this" not in error, "it was said above"
    assert cloud.call("GET", f"{REPOSITORY}/dockerImages") == {}


def test_a_repo_without_anything_to_build_from(berg, podman):
    built = berg("image", "build", **podman.variables)
    assert (
        built.returncode == 1
        and "has no Dockerfile, and what berg would install is nothing (no requirements.txt, "
        in built.stderr
    )
    assert "-f PATH" in built.stderr and "--install none" in built.stderr


def test_no_builder_is_named_with_what_to_install(berg, tmp_path):
    fill(berg.repo, Dockerfile=SCRATCH)
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "git").symlink_to(shutil.which("git"))
    built = berg("image", "build", PATH=str(folder))
    assert built.returncode == 1
    assert "docker is not installed; podman is not installed. Install podman" in built.stderr
    assert "--builder cloud --push" in built.stderr
    named = berg("image", "build", "--builder", "docker", PATH=str(folder))
    assert named.returncode == 1 and "--builder docker: docker is not installed" in named.stderr


@pytest.mark.parametrize(
    "words, told",
    [
        (["--platform", "linux/arm"], "--platform 'linux/arm': give linux/amd64, linux/arm64"),
        (["-f", "no/Dockerfile"], "there is no file no/Dockerfile"),
        (["--name", "Über"], "--name 'Über' cannot be an image's"),
        (["--python", "three"], "--python 'three' is not a Python version"),
    ],
)
def test_wishes_that_no_image_can_fulfil(berg, words, told):
    built = berg("image", "build", *words)
    assert built.returncode == 1 and told in built.stderr


@pytest.mark.slow
@needs_podman
def test_who_may_not_push_is_told_before_anything_is_built(berg, cloud, image):
    fill(berg.repo, Dockerfile=SCRATCH)
    email = cloud.call(
        "POST",
        f"/iam/v1/projects/{PROJECT}/serviceAccounts",
        {"accountId": f"p-{uuid.uuid4().hex[:9]}"},
    )["email"]
    file = berg.home / "person.json"
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(file, email)
    person = {"BERG_CREDENTIALS_FILE": str(file)}
    unseen = image("--push", **person)
    assert unseen.returncode == 1 and "you may not see the repository berg" in unseen.stderr
    assert "gcloud artifacts repositories create berg" in unseen.stderr
    cloud.call("POST", f"{REPOSITORY.rpartition('/')[0]}?repositoryId=berg", {"format": "DOCKER"})
    bind(cloud, email, "reader")
    settle(cloud)
    refused = image("--push", **person)
    assert (
        refused.returncode == 1
        and "you may not push images to the repository berg" in refused.stderr
    )
    assert "--role roles/artifactregistry.writer" in refused.stderr and "STEP" not in refused.stderr
    bind(cloud, email, "writer")
    settle(cloud)
    pushed = image("--push", **person)
    assert pushed.returncode == 0, pushed.stderr


def bind(cloud, email: str, role: str) -> None:
    bindings = [{"role": f"roles/artifactregistry.{role}", "members": [f"serviceAccount:{email}"]}]
    cloud.call("POST", f"{REPOSITORY}:setIamPolicy", {"policy": {"bindings": bindings}})


@pytest.mark.slow
@needs_podman
def test_a_registry_that_fails_and_settings_that_are_broken(berg, cloud, image, podman):
    fill(berg.repo, Dockerfile=SCRATCH)
    folder = Path(podman.variables["XDG_RUNTIME_DIR"], "containers")
    folder.mkdir()
    (folder / "auth.json").write_text("{]")
    broken = image()
    assert broken.returncode == 1 and f"cannot read {folder}/auth.json" in broken.stderr
    (folder / "auth.json").unlink()
    cloud.fault("registry.put_manifest", status=403, times=None)
    failed = image("--push")
    assert (
        failed.returncode == 1
        and "the image could not be pushed: podman ended with exit code 125" in failed.stderr
    )
    assert failed.stdout == ""
    cloud.call("DELETE", "/_berg/faults")
    assert image("--push").returncode == 0


@pytest.mark.slow
@needs_podman
def test_an_api_that_is_off_and_nodes_that_are_let_at_the_image(berg, cloud, image):
    fill(berg.repo, Dockerfile=SCRATCH)
    with cloud.without("artifactregistry"):
        refused = image("--push")
    assert (
        refused.returncode == 1
        and "gcloud services enable artifactregistry.googleapis.com" in refused.stderr
    )
    email = cloud.call(
        "POST",
        f"/iam/v1/projects/{PROJECT}/serviceAccounts",
        {"accountId": f"n-{uuid.uuid4().hex[:9]}"},
    )["email"]
    pushed = image("--push", BERG_SERVICE_ACCOUNT=email)
    assert pushed.returncode == 0, pushed.stderr
    held = cloud.call("GET", f"{REPOSITORY}:getIamPolicy")["bindings"]
    assert held == [
        {"role": "roles/artifactregistry.reader", "members": [f"serviceAccount:{email}"]}
    ]
    assert image("--push", "--force", BERG_SERVICE_ACCOUNT=email).returncode == 0
    assert cloud.call("GET", f"{REPOSITORY}:getIamPolicy")["bindings"] == held
    assert not list(berg.home.parent.rglob("berg-login-*")), "no token stays behind"


def test_the_nodes_of_clusters_that_others_made_read_the_images_too(monkeypatch):
    pools = [{"name": "system", "config": {"serviceAccount": "hers@p"}}, {"name": "t4"}]
    ours = {"name": "a", "resourceLabels": {"berg": "1"}, "nodePools": pools}
    cache = {"name": "cache", "config": {"serviceAccount": "of-the-cache@p"}}
    there = [{**ours, "nodePools": [*pools, cache]}, {"name": "b", "nodePools": pools}]
    monkeypatch.setattr("berg.gke.client.clusters", lambda config: there)
    admitted = []
    monkeypatch.setattr(
        "berg.google.builds.admit_reader", lambda config, email, say: admitted.append(email)
    )
    images.admit_readers(Config(service_account="mine@p"), print)
    assert admitted == ["hers@p", "mine@p"]
    of_nodes = clusters.as_its_nodes(Config(service_account="mine@p"), {"nodePools": pools[:1]})
    assert of_nodes.service_account == "hers@p", "whoever adds a pool"


# --- pods that run them


HERE = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}.get(os.uname().machine, "")


@pytest.fixture(scope="module")
def cluster(cloud, tmp_path_factory):
    """A cluster of berg's, without GPUs."""
    said: list[str] = []
    wanted = clusters.Wanted(num_gpus=0, machine_type="n1-standard-2", zone="us-central1-a")
    clusters.create(cloud.settings("any"), "images", wanted, said.append)
    yield Kube(cloud, "images", tmp_path_factory.mktemp("kube"))
    clusters.delete(cloud.settings("any"), "images", said.append)


PROJECT_FILES = {
    "pyproject.toml": '[project]\nname = "demo"\nversion = "1"\n[build-system]\nrequires = ["setuptools"]\n'
    '[tool.setuptools]\npackages = ["demo"]\n',
    "requirements.txt": "click\n",
    "demo__colors.py": "GREEN = 'green'\n",
    "demo____init__.py": "",
}


VERSION = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture
def python(podman, base):
    """The image that a Dockerfile of berg's begins with: no program of it is this computer's."""
    podman("import", str(base), f"docker.io/library/python:{VERSION}-slim")


def build(image, *words: str) -> tuple[str, str]:
    """Build for this computer, and push; return the image's name, and what was printed."""
    built = image("--push", "--python", VERSION, "--platform", HERE, *words)
    assert built.returncode == 0, built.stderr
    return built.stdout.strip(), built.stderr


def run_in(berg, name: str, image: str, command: str, *words: str) -> tuple[str, str]:
    """Run a job in a pod of an image; return its plan, and its log."""
    options = ["--cluster", "images", "-n", name, "-g", "0", "--docker", image, *words]
    ran = berg("run", *options, "--wait", command)
    assert ran.returncode == 0, ran.stderr + berg.log(name)
    return ran.stderr, berg.log(name)


@pytest.mark.slow
@needs_podman
def test_requirements_and_a_package_are_in_an_image_that_pods_run(
    berg, cloud, cluster, image, python
):
    fill(berg.repo, **PROJECT_FILES)
    name, said = build(image)
    assert "Install   requirements.txt and -e .\n" in said
    assert "has no Dockerfile; this one is used" in said
    assert f"FROM python:{VERSION}-slim\nRUN command -v git" in said
    pip = "RUN python -m pip install --no-input --no-compile --progress-bar=off"
    lines = f"COPY pyproject.toml requirements.txt ./\n{pip} -r requirements.txt --no-cache-dir\n"
    assert f"{lines}COPY . .\n{pip} -e . --no-cache-dir\n" in said
    assert "Successfully installed demo" in said
    (berg.repo / "demo/colors.py").write_text("GREEN = 'changed'\n")
    code = "import click, os; from demo.colors import GREEN; print(GREEN, os.path.exists('/usr/bin/apt-get'))"
    plan, log = run_in(berg, "in-image", name, f'python -c "{code}"')
    assert "changed False" in log.splitlines(), "the code is the working tree's, not the image's"
    path = ".berg/jobs/in-image_metadata.json"
    digest = Registry(cloud, name).digest()
    assert json.loads(berg.objects(path)[path])["image"] == f"{name}@{digest}"
    assert f"Image     {name} ({digest[:19]}…)" in plan
    pods = cluster.log(cluster.pods()[0]["metadata"]["name"])
    assert "Installing with apt-get" not in pods, "git is in the image"


LOCKED = """\
[project]
name = "proj"
version = "1"
requires-python = ">=3.9"
dependencies = ["tinytwo"]
[project.optional-dependencies]
cpu = ["tinyone==1.0"]
gpu = ["tinyone==2.0"]
[build-system]
requires = ["setuptools"]
[tool.setuptools]
packages = ["demo"]
[tool.uv]
find-links = ["{index}"]
conflicts = [[{{extra = "cpu"}}, {{extra = "gpu"}}]]
"""
SHOW = """\
import sys, tinyone, tinytwo, demo
print("tinyone", tinyone.version, demo.__file__, "in", sys.prefix)
"""


@pytest.fixture
def locked(berg, uv_program, tmp_path):
    """Make the repo one with a uv.lock whose packages a server has; return what it was asked for."""
    for name, version in (("tinyone", "1.0"), ("tinyone", "2.0"), ("tinytwo", "1.0")):
        make_wheel(tmp_path / "index", name, version)
    asked: list[str] = []

    class Handler(SimpleHTTPRequestHandler):
        def log_request(self, *_) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(tmp_path / "index"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}"
        (berg.repo / "pyproject.toml").write_text(LOCKED.format(index=index))
        make_lock(uv_program, berg.repo, "--no-index")
        fill(berg.repo, **{"demo____init__.py": "", "show.py": SHOW})
        yield asked
        server.shutdown()


@pytest.mark.slow
@needs_podman
def test_what_a_lock_says_is_in_an_image_and_pods_install_nothing(
    berg, cluster, image, python, locked
):
    """Nor does another build of other code; and the choice of extras is that of berg run."""
    (berg.repo / "berg.toml").write_text('extras = ["cpu"]\n')
    name, said = build(image, "--extra", "gpu")
    assert "Install   uv.lock: 2 packages, extra gpu, python" in said
    sync = "RUN uv sync --frozen --extra gpu"
    lines = f"COPY pyproject.toml uv.lock ./\nRUN uv venv --seed /root/berg_env/proj\n{sync}"
    assert f"{lines} --no-install-local\nCOPY . .\n" in said and f"{sync}\n" in said
    assert "/tinyone-2.0-py3-none-any.whl" in locked
    locked.clear()
    command = "python show.py; uv run show.py; echo $VIRTUAL_ENV; head -n 1 /root/berg/bin/mpi"
    plan, log = run_in(berg, "locked", name, command, "--extra", "gpu")
    assert "Install   uv.lock: 2 packages, extra gpu" in plan
    shown = "tinyone 2.0 /root/code/proj/demo/__init__.py in /root/code/proj/.venv\n"
    assert log.count(shown) == 2 and "\n/root/code/proj/.venv\n" in log, log
    assert "Installing: uv venv" not in log and "tinyone==" not in log, log
    assert "#!/usr/bin/python3\n" in log, "berg runs in the environment of the repo"

    (berg.repo / "show.py").write_text(f"{SHOW}print('changed')\n")
    (berg.repo / "berg.toml").unlink()
    (berg.repo / "stale.py").write_text("")
    name, said = build(image, "--extra", "gpu")
    (berg.repo / "stale.py").unlink()
    _, log = run_in(berg, "none", name, "python show.py; ls", "--install", "none")
    assert "in /root/berg_env/proj\nchanged\n" in log, "what the image has is first on PATH"
    assert "stale.py" not in log, "what the image has there is not of the commit"
    assert not [path for path in locked if path.endswith(".whl")], "something was installed again"


@pytest.mark.slow
@needs_podman
def test_a_pod_of_any_image_installs_what_a_lock_says(berg, cluster, image, python, locked):
    (berg.repo / "Dockerfile").write_text(f"FROM python:{VERSION}-slim\n")
    refused = image("--extra", "gpu")
    assert refused.returncode == 1 and "Dockerfile says what is installed" in refused.stderr
    name, said = build(image)
    assert "Install   what Dockerfile says\n" in said
    plan, log = run_in(berg, "any", name, "python show.py", "--extra", "gpu")
    assert "Install   uv.lock: 2 packages, extra gpu" in plan
    assert (
        "Installing: uv venv" in log
        and "tinyone 2.0 " in log
        and " in /root/code/proj/.venv\n" in log
    )


# --- other builders


def docker_of(folder: Path) -> str:
    """A PATH with docker before all else: what stands for it in the embedded cloud's builds, and
    drives podman.
    """
    folder.mkdir()
    program = folder / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {docker.__file__} "$@"\n')
    program.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.slow
@needs_podman
def test_docker_with_buildx_builds_and_pushes_and_keeps_its_own_settings(
    berg, cloud, image, tmp_path
):
    fill(berg.repo, Dockerfile=SCRATCH)
    own = berg.home / ".docker"
    own.mkdir()
    host = cloud.url.removeprefix("http://")
    settings = {"auths": {"other:1": {"auth": "eA=="}}, "credHelpers": {host: "gcloud"}}
    (own / "config.json").write_text(json.dumps(settings))
    path = docker_of(tmp_path / "bin")
    one = image(PATH=path)
    assert one.returncode == 0 and "with docker, of commit" in one.stderr, one.stderr
    both = image("--push", "--platform", BOTH, "--builder", "docker", PATH=path)
    assert both.returncode == 0, both.stderr
    assert set(Registry(cloud, both.stdout.strip()).platforms()) == set(BOTH.split(","))
    assert json.loads((own / "config.json").read_text()) == settings, "no token is left in it"
    assert (own / "buildx/berg").exists(), "docker's builder is the person's own"
    fill(berg.repo, Dockerfile="FROM scratch\nCOPY nothing-like-this /\n")
    failed = image(PATH=path)
    assert failed.returncode == 1 and "docker ended with exit code 125" in failed.stderr


@pytest.mark.slow
@needs_podman
def test_cloud_build_builds_from_the_bucket_and_its_log_is_seen(berg, cloud, tmp_path):
    fill(
        berg.repo,
        **{
            "Dockerfile": SCRATCH,
            ".gitignore": "secret.txt\n",
            ".dockerignore": "data\n",
            "data__x": "x",
        },
    )
    (berg.repo / "secret.txt").write_text("hush")
    alone = berg("image", "build", "--builder", "cloud")
    assert alone.returncode == 1 and "give --push as well" in alone.stderr
    cloud.fault("registry.put_manifest", status=403)
    # until Cloud Build hears that the account may see the bucket of the log
    berg.allowed.append(400)
    built = berg("image", "build", "--builder", "cloud", "--push")
    assert built.returncode == 0, built.stderr
    assert (
        "The role was granted just now, which takes effect in minutes. Building again"
        in built.stderr
    )
    assert (
        "starting build" in built.stderr
        and "COPY . /app" in built.stderr
        and "DONE" in built.stderr
    )
    registry = Registry(cloud, built.stdout.strip())
    files = registry.files(registry.tag)
    assert set(files) == {"app/Dockerfile", "app/train.py", "app/.gitignore", "app/.dockerignore"}
    left = berg.objects(".berg/")
    assert [
        name for name in left if name.startswith(".berg/builds/log-")
    ] and ".berg/images" not in str(left)
    held = cloud.call("GET", f"{REPOSITORY}:getIamPolicy")["bindings"]
    assert {each["role"].rpartition(".")[2]: each["members"] for each in held} == {
        "writer": [f"serviceAccount:{BUILDER}"],
        "reader": [f"serviceAccount:berg-worker@{PROJECT}.iam.gserviceaccount.com"],
    }
    assert "Create the service account berg-builder@" in built.stderr
    both = berg("image", "build", "--builder", "cloud", "--push", "--platform", BOTH, "--force")
    assert both.returncode == 0, both.stderr
    assert "Give it" not in both.stderr, "what it needs is granted once"
    assert set(registry.platforms()) == set(BOTH.split(","))
    gcloud = Gcloud(cloud.url, PROJECT, cloud.session.credentials.token, tmp_path)
    rows = json.loads(gcloud("builds", "list", "--region=us-central1", "--format=json"))
    assert [(row["status"], row["tags"]) for row in rows[:2]] == [("SUCCESS", ["berg"])] * 2


@pytest.mark.slow
@needs_podman
def test_a_build_in_the_cloud_that_fails_or_is_left(berg, cloud, slow):
    # until Cloud Build hears that the account may see the bucket of the log
    berg.allowed.append(400)
    fill(berg.repo, Dockerfile="FROM scratch\nCOPY nothing-like-this /\n")
    failed = berg("image", "build", "--builder", "cloud", "--push")
    assert failed.returncode == 1 and failed.stdout == ""
    error = failed.stderr.partition("berg: ")[2]
    assert error.startswith("Cloud Build could not build the image (FAILURE): build step 0")
    assert "nothing-like-this" in error and f"gs://{berg.bucket_name}/.berg/builds/log-" in error
    fill(berg.repo, Dockerfile=slow)
    process = berg.start("image", "build", "--builder", "cloud", "--push")
    running = f"/cloudbuild/v1/projects/{PROJECT}/locations/us-central1/builds"
    wait_for(lambda: cloud.call("GET", running)["builds"][0]["status"] == "WORKING")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130 and "Cancelling the build" in said
    assert cloud.call("GET", running)["builds"][0]["status"] == "CANCELLED"
    assert ".berg/images" not in str(list(berg.objects(".berg/")))


def test_who_may_not_build_in_the_cloud_is_told(berg, cloud):
    fill(berg.repo, Dockerfile=SCRATCH)
    cloud.fault("storage.buckets.setIamPolicy", status=403, times=None)
    with cloud.without("cloudbuild"):
        refused = berg("image", "build", "--builder", "cloud", "--push")
    assert (
        refused.returncode == 1
        and "gcloud services enable cloudbuild.googleapis.com" in refused.stderr
    )
    berg.allowed.append(400)
    refused = berg("image", "build", "--builder", "cloud", "--push")
    mend = f"gcloud storage buckets add-iam-policy-binding gs://{berg.bucket_name} --member serviceAccount:berg-builder@"
    assert (
        f"{mend}{PROJECT}.iam.gserviceaccount.com --role roles/storage.legacyBucketReader "
        in refused.stderr
    )
    assert ".berg/images" not in str(list(berg.objects(".berg/")))
