"""A job that is root on its machine, and holds its token, tries what it can.

Each test is a row of the table in docs/security.md, which `make hostile` writes: what was tried, and
what became of it.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import Berg, library, settle, wait_for
from google.auth.transport.requests import AuthorizedSession
from pods import cluster
from traps import Traps

from berg import job, plan, states
from berg.gke import pods
from berg.google import builds, iam, secret
from berg.google.fetch import side_by_side
from berg.google.sending import WRITER
from localcloud.identity.tokens import Tokens
from localcloud.machines import sshd

TABLE = os.environ.get("HOSTILE_TABLE")  # the page to write
REFUSED = "refused: 403"
SEVERAL = 2  # rows with the same result: if there are more, they are a list
BEGIN, END = "<!-- hostile -->\n", "<!-- end of hostile -->"
# how rows begin -> the head of their table
ACTORS = {
    "": "a job with root and its machine's token tries",
    "in a pod, ": "a job in a pod tries",
    "another user of the bucket, ": "another user of the bucket tries",
    "another user of this computer, ": "another user of this computer tries",
    "a state with ": "a job's state with",
    "a description with ": "a job's description with",
    "a sweep's record with ": "a sweep's record with",
    "a record with ": "a record, for `berg rerun` and `--resume`, with",
    "a view with ": "a view of a job's results, for `berg fetch`, with",
    "a job, ": "a job's results, metrics and log try",
    "an agent, ": "an agent with an account of its own (of a purse with `--for`) tries",
}
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
EVIL = "ssh-ed25519 AAAAEVIL evil"
NOT_RUN = "the machine does not run it; FAILED, with the reason"
SECRETS = "/secretmanager/v1/projects/berg-local/secrets"
IMAGE = "projects/debian-cloud/global/images/family/debian-12"
IMAGES = "/v2/berg-local/berg/proj"
OF_BUILDS = "berg-builder@berg-local.iam.gserviceaccount.com"
VICTIM = "berg-worker-victim@berg-local.iam.gserviceaccount.com"  # another person's account

# What other files of tests try: packs in tests/code/, the port of a tunnel in tests/test_notebook.py,
# a person's own ssh configuration in tests/test_ssh.py.
# browsers and TensorBoard in tests/watch/, limits of a repo in tests/test_limits.py,
# lies in states in tests/test_index.py, logs in tests/test_plain.py, samples in tests/commands/.
# Secrets and odd files of a repo are in tests/commands/test_install_plan.py and
# tests/code/test_installation.py.
# The traps of a clone and of an archive are in tests/test_traps.py.
# What a job leaves for the next one on a warm machine is in tests/test_warm.py.
# What tries to spend more than its purse has is in tests/test_purse.py.
# A wheel of another hash is in tests/code/test_packages.py, images in tests/test_supply.py.
# Tags that move and registries are in tests/machine/test_container.py and tests/google/test_registry.py.
ELSEWHERE = [
    (
        "a program that draws on a purse, to create, top up or close one, or to spend by images, "
        "clusters or stopped devboxes",
        "refused; without the variable, and with its owner's credentials, nothing refuses it",
    ),
    (
        "an agent, to write, delete or rewrite the terms of its purse, another purse's ledger, or "
        "the bucket's policy",
        "403; it may rewrite its own ledger, and create machines without Berg",
    ),
    (
        "a job, to cost its purse less by prices or machines in its state",
        "the sums come from the jobs' metadata",
    ),
    (
        "on a machine that is kept warm, to leave processes, files, shared memory, mounts, "
        "passwords in its home, shell files, scheduled commands, firewall rules, kernel settings and "
        "variables for the next job of its user",
        "the next job finds none of them; what root hides better is not covered",
    ),
    (
        "a cloned repo with `berg/`, `git/`, `google/`, `tensorboard/` or `sitecustomize.py`, in "
        "which any command of Berg is started",
        "none of them is imported",
    ),
    (
        "a cloned repo with a bare repo among its files, whose `core.fsmonitor` or hooks name a "
        "program",
        "the program is not started",
    ),
    (
        "an unpacked archive with a repo in it, whose `core.fsmonitor`, hooks, filters or remotes "
        "name a program",
        "the program is not started",
    ),
    (
        "an unpacked archive with a repo in it, whose `core.worktree` or `.git` leads elsewhere",
        "nothing from there is sent as code",
    ),
    (
        "an unpacked archive with a link to a private key, `berg data push`",
        "refused, with the name of the link",
    ),
    (
        "a machine, to get what `Host *` of your `~/.ssh/config` gives: ssh agent, X11, ports, variables",
        "`berg ssh`, `berg sync`: nothing; Berg's entries for ssh: off, except variables, which `berg open --code` names",
    ),
    (
        "another user of this computer, to listen at the port of the tunnel to Jupyter before ssh "
        "does",
        "no browser opens it; the token stays secret",
    ),
    (
        "another user of this computer, to get the secret of `berg page` from a browser that is led "
        "to a port of that user",
        "it gets neither a cookie nor the address",
    ),
    (
        "another user of this computer, to get the cookie of a box's Jupyter in the same way",
        "it gets none where the computer has all of 127.0.0.0/8, as Linux does",
    ),
    (
        "another user of this computer, to take TensorBoard's port before TensorBoard does",
        "TensorBoard chooses its port; at one of `--port` it does not start",
    ),
    (
        "a job, to have TensorBoard open files of this computer by its projector's configuration",
        "Berg writes its own configuration; TensorBoard before 2.21 is not used",
    ),
    (
        "a job, to remove another one from `berg list` by a false state",
        "its entry in the index stays",
    ),
    (
        "a job, to stop a person's budget by prices, machines and times in states",
        "the sums come from the jobs' metadata",
    ),
    (
        "a job, to colour or hide what the terminal shows after its log",
        "the terminal has its own colours after each piece of a log",
    ),
    (
        "a job, to put a formula into `results.csv` for a spreadsheet",
        "the cell begins with an apostrophe",
    ),
    (
        "a job, to make its page endless by its metrics",
        "a page has 100 charts, 300,000 points and 50 columns of metrics at most",
    ),
    (
        "a job, to end `berg top` for all by odd samples",
        "impossible values are skipped",
    ),
    (
        "a cloned repo's `[tool.berg]`, or a colleague's job record, to raise or remove `max_cost`",
        "the lower limit holds, and the plan says which",
    ),
    (
        "a cloned repo's `install-secrets`, to take a variable of this computer to its machine",
        "refused, until `--install-secret` names it",
    ),
    (
        "a cloned repo's pyproject.toml, uv.lock and others in odd forms",
        "named or ignored; no code of theirs runs here",
    ),
    (
        "a pack with `.git`, `..`, a slash in a name, or a submodule that leaves or has an option "
        "as its URL",
        "git refuses it; nothing is checked out",
    ),
    (
        "a package index, to have another file under the name of google-crc32c or uv",
        "its hash differs: not used",
    ),
    (
        "a person who can move tags of binfmt, BuildKit, Cloud Build's docker or nginx, to have Berg run "
        "another image",
        "Berg names them by digest",
    ),
    (
        "a person who can move the tag of `--docker` or of pods, after the submit or before a rerun",
        "machines and pods pull the digest that the plan showed",
    ),
    (
        "a registry called `evilgcr.io` or `us-docker.pkg.dev.evil.com`, or one that names another "
        "host for tokens or redirects, to get a Google token or a password of `~/.netrc`",
        "it gets none; no redirect is followed",
    ),
    (
        "a person who can write a job's record, to have this computer ask a registry of their choice",
        "an image that a record names by its tag is not looked up",
    ),
]
ATTACK = '''
"""Runs as root on a machine or in a pod; notes Google's answer to each request, or Kubernetes'."""
import json, os, ssl, sys, urllib.error, urllib.request

host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
token_of = f"http://{host}/computeMetadata/v1/instance/service-accounts/default/token"
pod = "/var/run/secrets/kubernetes.io/serviceaccount/"
tried = json.load(open("attacks.json"))

def ask(url, method="GET", data=None, headers=None, context=None):
    try:
        made = urllib.request.Request(url, data=data, method=method, headers=headers or {})
        with urllib.request.urlopen(made, timeout=30, context=context) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()

def bearer(token, kind="application/json"):
    return {"Authorization": "Bearer " + token, "Content-Type": kind}

token = json.loads(ask(token_of, headers={"Metadata-Flavor": "Google"})[1])["access_token"]
found = {}
for name, (method, path, body) in tried["google"].items():
    data = None if body is None else body.encode()
    found[name] = ask(tried["base"] + path, method, data, bearer(token))[0]
for name, (method, path, body) in tried.get("kubernetes", {}).items():
    server = "https://{KUBERNETES_SERVICE_HOST}:{KUBERNETES_SERVICE_PORT}".format(**os.environ)
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    headers = bearer(open(pod + "token").read().strip(), kind)
    trust = ssl.create_default_context(cafile=pod + "ca.crt")
    data = None if body is None else body.encode()
    found[name] = ask(server + path, method, data, headers, trust)[0]
port = host.partition(":")[2]
for name, (where, path) in tried.get("metadata", {}).items():
    url = f"http://{where + ':' + port if where else host}/computeMetadata/v1/{path}"
    found[name] = ask(url, headers={"Metadata-Flavor": "Google"})[0]
folder = os.environ["BERG_RESULTS_DIR"]
os.makedirs(folder, exist_ok=True)
with open(folder + "/answers-" + os.environ["BERG_NODE_RANK"] + ".json", "w") as file:
    json.dump(found, file)
'''


@pytest.fixture(scope="module")
def rows():
    """What was tried and what became of it; written into the page at the end."""
    found: list[tuple[str, str]] = []
    yield found
    found += ELSEWHERE
    if not TABLE:
        return
    page = Path(TABLE)
    head, _, rest = page.read_text().partition(BEGIN)
    tables = (table_of(begin, title, found) for begin, title in ACTORS.items())
    page.write_text(head + BEGIN + "\n".join(tables) + END + rest.partition(END)[2])


def table_of(begin: str, title: str, found: list[tuple[str, str]]) -> str:
    """Return the table of rows that begin so, after a list for each result that several rows have;
    "" is the table of all that begin otherwise.
    """
    results: dict[str, list[str]] = {}
    for tried, became in found:
        if next((each for each in ACTORS if each and tried.startswith(each)), "") == begin:
            results.setdefault(became, []).append(tried.removeprefix(begin))
    lists, lines = [], [f"| {title} | result |", "|---|---|"]
    for became in sorted(results, key=lambda each: each != REFUSED):
        if became == REFUSED or len(results[became]) > SEVERAL:
            heading, names = f"{title[0].upper()}{title[1:]}", results[became]
            if all(each.startswith("to ") for each in names):
                heading, names = f"{heading} to", [each.removeprefix("to ") for each in names]
            lists += [f"{heading} (result: {became}):", "", *(f"- {each}" for each in names), ""]
        else:
            lines += [f"| {each} | {became} |" for each in results[became]]
    return "\n".join(lists + (lines if len(lines) > 2 else [])) + "\n"


def submit(berg: Berg, name: str, command: str, *options: str) -> None:
    ran = berg("run", "-g", "0", "-n", name, *options, command)
    assert ran.returncode == 0, ran.stderr


def ended(berg: Berg, name: str, seconds: float = 60) -> dict:
    wait_for(lambda: berg.state(name)["state"] in job.FINAL, seconds, f"the end of {name}")
    return berg.state(name)


def attacks(bucket: str, wheel: str, pack: str) -> dict[str, tuple[str, str, str | None]]:
    """Return what is refused: a name, and method, path and body of the request."""

    def put(name: str) -> tuple[str, str, str]:
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        return "POST", f"/upload/storage/v1/b/{bucket}/o?{query}", "evil"

    def there(name: str) -> str:
        return f"/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}"

    source = urllib.parse.quote("berg_results/attack/x", safe="")
    compose = {"sourceObjects": [{"name": "berg_results/attack/x"}]}
    compute = "/compute/v1/projects/berg-local/zones/us-central1-a/instances"
    project = "/compute/v1/projects/berg-local"
    account = f"/iam/v1/projects/berg-local/serviceAccounts/{VICTIM}"
    return {
        "to replace berg's wheel": put(wheel),
        "to add a package below `.berg/dist/`": put(".berg/dist/evil.whl"),
        "to delete berg's wheel": ("DELETE", there(wheel), None),
        "to change the wheel's custom metadata": (
            "PATCH",
            there(wheel),
            '{"metadata": {"a": "b"}}',
        ),
        "to rewrite an object onto the wheel": (
            "POST",
            f"/storage/v1/b/{bucket}/o/{source}/rewriteTo/b/{bucket}/o/"
            + urllib.parse.quote(wheel, safe=""),
            "{}",
        ),
        "to compose objects onto the wheel": (
            "POST",
            there(wheel) + "/compose",
            json.dumps(compose),
        ),
        "to replace a pack of the code": put(pack),
        "to replace its own job's metadata": put(".berg/jobs/attack_metadata.json"),
        "to replace another job's metadata": put(".berg/jobs/other_metadata.json"),
        "to write a sweep's record": put(".berg/sweeps/lr.json"),
        "to enter a job into the index of jobs": put(".berg/index/living/lie"),
        "to delete an entry of it": ("DELETE", there(".berg/index/living/.complete"), None),
        "to write a data set": put("data/mnist/train.bin"),
        "to widen a purse": put(".berg/purses/agent/purse.json"),
        "to write into a purse's ledger": put(".berg/purses/agent/ledger.json"),
        "to write outside Berg's prefixes": put("berg_resultsx/a"),
        "to change the bucket": ("PATCH", f"/storage/v1/b/{bucket}", '{"labels": {"a": "b"}}'),
        "to read who can use the bucket": ("GET", f"/storage/v1/b/{bucket}/iam", None),
        "to give itself the bucket": (
            "PUT",
            f"/storage/v1/b/{bucket}/iam",
            '{"bindings": [{"role": "roles/storage.admin", "members": ["allUsers"]}]}',
        ),
        "to list the project's secrets": (
            "GET",
            "/secretmanager/v1/projects/berg-local/secrets",
            None,
        ),
        "to change its machine's metadata, and the hashes there": (
            "POST",
            f"{compute}/attack/setMetadata",
            '{"items": []}',
        ),
        "to create a machine": ("POST", compute, '{"name": "evil"}'),
        "to read one other machine's metadata": ("GET", f"{compute}/victim", None),
        "to read another machine's console": ("GET", f"{compute}/victim/serialPort", None),
        "to stop another machine": ("POST", f"{compute}/victim/stop", "{}"),
        "to put its ssh key on another machine": (
            "POST",
            f"{compute}/victim/setMetadata",
            json.dumps({"items": [{"key": "ssh-keys", "value": f"root:{EVIL}"}]}),
        ),
        "to put its ssh key on all machines of the project": (
            "POST",
            f"{project}/setCommonInstanceMetadata",
            json.dumps({"items": [{"key": "ssh-keys", "value": f"root:{EVIL}"}]}),
        ),
        "to open the firewall": ("POST", f"{project}/global/firewalls", '{"name": "evil"}'),
        "to make a template that others' machines come from": (
            "POST",
            f"{project}/global/instanceTemplates",
            '{"name": "evil"}',
        ),
        "to give itself the project": (
            "POST",
            "/cloudresourcemanager/v1/projects/berg-local:setIamPolicy",
            '{"policy": {"bindings": []}}',
        ),
        "to give itself another account": (
            "POST",
            f"{account}:setIamPolicy",
            '{"policy": {"bindings": []}}',
        ),
        "to read another account's secret": (
            "GET",
            f"{SECRETS}/berg-victim/versions/latest:access",
            None,
        ),
        "to delete another account's secret": ("DELETE", f"{SECRETS}/berg-victim", None),
        "to share the secret of a job of its own account": (
            "POST",
            f"{SECRETS}/berg-own:setIamPolicy",
            '{"policy": {"bindings": []}}',
        ),
        "to put another value into such a secret": (
            "POST",
            f"{SECRETS}/berg-own:addVersion",
            '{"payload": {"data": "ZXZpbA=="}}',
        ),
        "to make a cluster": (
            "POST",
            "/container/v1/projects/berg-local/locations/us-central1-a/clusters",
            '{"cluster": {"name": "evil"}}',
        ),
        "to replace an image that others run": ("PUT", f"{IMAGES}/manifests/latest", "{}"),
        "to push a layer of an image": ("POST", f"{IMAGES}/blobs/uploads/", ""),
        "to delete an image": ("DELETE", f"{IMAGES}/manifests/latest", None),
        "to replace what an image is built from": put(".berg/images/proj-1.tar.gz"),
        "to write the log of a build": put(".berg/builds/log-1.txt"),
        "to build as the account that builds images": (
            "POST",
            "/cloudbuild/v1/projects/berg-local/locations/us-central1/builds",
            json.dumps({"serviceAccount": f"projects/berg-local/serviceAccounts/{OF_BUILDS}"}),
        ),
        "to give itself that account": (
            "POST",
            f"/iam/v1/projects/berg-local/serviceAccounts/{OF_BUILDS}:setIamPolicy",
            '{"policy": {"bindings": []}}',
        ),
    }


def shared(bucket: str, log: str) -> dict[str, tuple[str, str, str | None]]:
    """Return what is not refused, as docs/security.md says: what jobs of all accounts share."""

    def put(name: str) -> tuple[str, str, str]:
        query = urllib.parse.urlencode({"uploadType": "media", "name": name})
        return "POST", f"/upload/storage/v1/b/{bucket}/o?{query}", "evil"

    log = urllib.parse.quote(log, safe="")
    metadata = urllib.parse.quote(".berg/jobs/other_metadata.json", safe="")
    instances = "/compute/v1/projects/berg-local/zones/us-central1-a/instances"
    return {
        "to list the bucket, with the states of all jobs": (
            "GET",
            f"/storage/v1/b/{bucket}/o?prefix=.berg/jobs/",
            None,
        ),
        "to read another job's description": ("GET", f"/storage/v1/b/{bucket}/o/{metadata}", None),
        "to read another job's log": ("GET", f"/storage/v1/b/{bucket}/o/{log}", None),
        "to write another job's results": put("berg_results/other/model.pt"),
        "to write another job's state": put(".berg/jobs/other_state.json"),
        "to list machines, with the metadata of each": ("GET", instances, None),
        "to read the secret of a job of its own account": (
            "GET",
            f"{SECRETS}/berg-own/versions/latest:access",
            None,
        ),
        "to delete any machine, tried on one that is not there": (
            "DELETE",
            f"{instances}/nosuch",
            None,
        ),
    }


@pytest.fixture(scope="module")
def victim(cloud, account) -> str:
    """Another person's account with a secret, and a secret of the account of all; the first's."""
    settings = replace(cloud.settings(), service_account=VICTIM)
    iam.create_account(settings)
    settle(cloud)
    secret.store(settings, "victim", {"A": "hush"}, 3600, [VICTIM])
    secret.store(settings, "own", {"A": "known"}, 3600, [account])
    yield VICTIM
    assert secret.fetch(cloud.settings(), "victim") == {"A": "hush"}
    assert secret.fetch(cloud.settings(), "own") == {"A": "known"}
    for name in ("victim", "own"):
        secret.delete(settings, name)


def prepare(
    berg: Berg, google: dict, kubernetes: dict | None = None, metadata: dict | None = None
) -> None:
    """Put what is to be tried into the repo, from where jobs have it."""
    (berg.repo / "attack.py").write_text(ATTACK)
    tried = {"base": berg.cloud.url, "google": google}
    tried |= {"kubernetes": kubernetes or {}, "metadata": metadata or {}}
    (berg.repo / "attacks.json").write_text(json.dumps(tried))


def answers(berg: Berg, name: str, rank: int = 0) -> dict[str, int]:
    path = f"berg_results/{name}/answers-{rank}.json"
    return json.loads(berg.bucket.read(path) or b"{}")


@pytest.mark.slow
def test_what_the_token_may_not(berg, rows, victim, tmp_path):
    berg.allowed += [400, 501]
    settings = berg.cloud.settings(berg.bucket_name)
    builds.ensure(settings)
    builds.prepare(settings, print)
    prepare(berg, {})
    submit(berg, "other", "true")
    ended(berg, "other")
    wheel = next(name for name in berg.objects(".berg/dist/") if name.endswith(".whl"))
    pack = next(iter(berg.objects(".berg/repos/")))
    tried = attacks(berg.bucket_name, wheel, pack)
    log = next(iter(berg.objects(".berg/logs/other/")))
    allowed = shared(berg.bucket_name, log)
    prepare(berg, {**tried, **allowed})
    protected = {**berg.objects(".berg/dist/"), **berg.objects(".berg/repos/")}
    odd = "cd $BERG_RESULTS_DIR; ln -s /etc/hostname link; ln -s / root; mkfifo pipe; cd -"
    submit(berg, "attack", f"touch $BERG_RESULTS_DIR/x; {odd}; sleep 1; python3 attack.py")
    assert ended(berg, "attack")["state"] == "SUCCEEDED", berg.log("attack")
    here = tmp_path / "here"
    assert berg("fetch", "attack", str(here)).returncode == 0
    assert not [path for path in here.rglob("*") if path.is_symlink() or path.is_fifo()]
    assert not (here / "root").exists() or not list((here / "root").iterdir())
    rows.append(("links to `/` and a pipe among its results", "no link and no pipe is fetched"))
    found = answers(berg, "attack")
    rows += [(name, f"refused: {found[name]}") for name in tried]
    rows += [(name, f"it may: {found[name]}") for name in allowed]
    assert {name: found[name] for name in tried} == dict.fromkeys(tried, 403)
    assert {found[name] for name in allowed} <= {200, 404}
    now = berg.objects(".berg/")
    assert {name: now[name] for name in protected} == protected


NAMESPACE, THEIRS = "namespaces/berg-tester", "namespaces/berg-ann"  # of one person, of another
NODES = "berg-worker-hosts@berg-local.iam.gserviceaccount.com"  # what the nodes act as
JOBS, CORE = f"/apis/batch/v1/{NAMESPACE}/jobs", f"/api/v1/{NAMESPACE}"
RIGHTS = f"/apis/rbac.authorization.k8s.io/v1/{NAMESPACE}"


def of_kubernetes(boot: str, pod: str) -> dict[str, tuple[str, str, str | None]]:
    """Return what a pod's own account is refused: method, path and body."""
    suspend = '{"spec": {"suspend": true}}'
    kill = '{"metadata": {"annotations": {"berg-kill/victim": "evil now"}}}'
    evil = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "evil"}}
    evil["spec"] = {"containers": [{"name": "main", "image": "debian:12"}]}
    about = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "evil"}}
    admin = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"}
    binding = {**about, "kind": "RoleBinding", "roleRef": admin, "subjects": []}
    return {
        "to suspend another Job": ("PATCH", f"{JOBS}/victim", suspend),
        "to change its own Job": ("PATCH", f"{JOBS}/podattack", '{"spec": {"parallelism": 9}}'),
        "to delete another Job": ("DELETE", f"{JOBS}/victim", None),
        "to read other Jobs": ("GET", JOBS, None),
        "to create a Job": ("POST", JOBS, "{}"),
        "to make another pod end its job": ("PATCH", f"{CORE}/pods/{pod}", kill),
        "to delete another pod": ("DELETE", f"{CORE}/pods/{pod}", None),
        "to create a pod": ("POST", f"{CORE}/pods", json.dumps(evil)),
        "to run a command in another pod": ("POST", f"{CORE}/pods/{pod}/exec?command=id", None),
        "to read another pod's log": ("GET", f"{CORE}/pods/{pod}/log", None),
        "to read the Secrets of Kubernetes": ("GET", f"{CORE}/secrets", None),
        "to replace boot.py": ("PATCH", f"{CORE}/configmaps/{boot}", '{"data": {}}'),
        "to delete boot.py": ("DELETE", f"{CORE}/configmaps/{boot}", None),
        "to get a token of another account": (
            "POST",
            f"{CORE}/serviceaccounts/default/token",
            "{}",
        ),
        "to give itself the namespace": ("POST", f"{RIGHTS}/rolebindings", json.dumps(binding)),
        "to change what its account may do": ("PATCH", f"{RIGHTS}/roles/berg-pod", "{}"),
        "to let its account act as another": (
            "PATCH",
            f"{CORE}/serviceaccounts/berg-pod",
            '{"metadata": {"annotations": {"iam.gke.io/gcp-service-account": "x@y"}}}',
        ),
        "to read the nodes": ("GET", "/api/v1/nodes", None),
    }


def of_another_person() -> dict[str, tuple[str, str, str | None]]:
    """Return what a pod is refused in the namespace of another person."""
    jobs, core = f"/apis/batch/v1/{THEIRS}/jobs", f"/api/v1/{THEIRS}"
    return {
        "to list the pods of another person": ("GET", f"{core}/pods", None),
        "to list the pods of all": ("GET", "/api/v1/pods", None),
        "to read another person's Secrets of Kubernetes": ("GET", f"{core}/secrets", None),
        "to delete another person's Job": ("DELETE", f"{jobs}/theirs", None),
        "to create a Job as another person": ("POST", jobs, "{}"),
        "to get a token of another person's account": (
            "POST",
            f"{core}/serviceaccounts/berg-pod/token",
            "{}",
        ),
    }


def of_metadata(node: str, other: str) -> dict[str, tuple[str, str]]:
    """Return what no metadata server says to a pod: its address, "" for the pod's own, and a path."""
    accounts = "instance/service-accounts"
    return {
        "to get its node's token by the name of the node's account": (
            "",
            f"{accounts}/{NODES}/token",
        ),
        "to get it from the node's own metadata server": (node, f"{accounts}/default/token"),
        "to get the token of another person's pod": (other, f"{accounts}/default/token"),
        "to read the attributes of its node": ("", "instance/attributes/startup-script"),
        "to read guest attributes of its node": ("", "instance/guest-attributes/"),
    }


@pytest.mark.slow
def test_what_a_pod_may_not(berg, cloud, rows, victim, account, tmp_path):
    """The pod holds the token of its person's account of Google's, and one of Kubernetes'."""
    berg.allowed += [400, 501]
    iam.create_account(replace(cloud.settings(), service_account=NODES))
    settle(cloud)
    pool = {"num_gpus": 0, "machine_type": "n1-standard-2", "num_nodes": 1}
    with cluster(cloud, "hostile", tmp_path, pool, account=NODES) as kube:
        where = ("--cluster", "hostile")
        prepare(berg, {})
        submit(berg, "victim", "sleep 1000", *where)
        wait_for(lambda: berg.state("victim")["state"] == "RUNNING", 90, "the victim")
        wheel = next(name for name in berg.objects(".berg/dist/") if name.endswith(".whl"))
        pack = next(iter(berg.objects(".berg/repos/")))
        google = attacks(berg.bucket_name, wheel, pack)
        ran = berg("run", "-g", "0", "-n", "theirs", *where, "sleep 1000", BERG_USER="ann")
        assert ran.returncode == 0, ran.stderr
        wait_for(lambda: berg.state("theirs")["state"] == "RUNNING", 90, "another person's job")
        (own,) = kube.get("pods", namespace="berg-tester")["items"]
        (other,) = kube.get("pods", namespace="berg-ann")["items"]
        node = cloud.instances()[own["spec"]["nodeName"]]["networkInterfaces"][0]["networkIP"]
        theirs, metadata = own["metadata"]["name"], of_metadata(node, other["status"]["podIP"])
        boot = pods.boot_map()["metadata"]["name"]
        kubernetes = {**of_kubernetes(boot, theirs), **of_another_person()}
        seen = {"to list the pods of its namespace": ("GET", f"{CORE}/pods", None)}
        prepare(berg, google, {**kubernetes, **seen}, metadata)
        before = kube.get("jobs", "victim", namespace="berg-tester")["spec"]
        submit(berg, "podattack", "python3 attack.py", *where)
        assert ended(berg, "podattack", 90)["state"] == "SUCCEEDED", berg.log("podattack")
        found = answers(berg, "podattack")
        rows += [(f"in a pod, {name}", f"refused: {found[name]}") for name in kubernetes]
        rows += [(f"in a pod, {name}", f"refused: {found[name]}") for name in metadata]
        rows += [(f"in a pod, {name}", f"it may: {found[name]}") for name in seen]
        rows.append(("in a pod, what a machine is refused", "refused: 403, each"))
        refused = {**google, **kubernetes}
        assert {name: found[name] for name in refused} == dict.fromkeys(refused, 403)
        assert {found[name] for name in metadata} <= {403, 404}
        assert kube.get("jobs", "victim", namespace="berg-tester")["spec"] == before
        assert berg.state("theirs")["state"] == "RUNNING"
        assert berg("kill", "--now", "theirs", "-y").returncode == 0
        assert berg.state("victim")["state"] == "RUNNING"
        assert berg("kill", "--now", "victim").returncode == 0


@pytest.mark.slow
def test_what_a_worker_of_a_slice_may_not(berg, rows, victim):
    berg.allowed += [400, 501]
    prepare(berg, {})
    submit(berg, "other", "true")
    ended(berg, "other")
    wheel = next(name for name in berg.objects(".berg/dist/") if name.endswith(".whl"))
    tried = attacks(berg.bucket_name, wheel, next(iter(berg.objects(".berg/repos/"))))
    groups = "/compute/v1/projects/berg-local/zones/us-central1-a/instanceGroupManagers"
    evil = {"name": "evil", "baseInstanceName": "evil", "targetSize": 1}
    evil["versions"] = [{"instanceTemplate": "global/instanceTemplates/slice"}]
    own = {
        "to make another slice": ("POST", groups, json.dumps(evil)),
        "to let its slice grow": ("POST", f"{groups}/slice/resize?size=9", None),
    }
    prepare(berg, {**tried, **own})
    ran = berg("run", "--tpu", "v6e-4x4", "-n", "slice", "--wait", "python3 attack.py")
    assert ran.returncode == 0, ran.stderr + berg.log("slice")
    found = [answers(berg, "slice", rank) for rank in range(berg.state("slice")["job"]["machines"])]
    assert len(found) > 1 and found[0] == found[-1]
    rows += [(f"{name}, on a slice", f"refused: {found[0][name]}") for name in own]
    rows.append(("on each worker of a slice, what a machine is refused", "refused: 403, each"))
    assert found[0] == dict.fromkeys({**tried, **own}, 403)


ANOTHER = """
import json, os, sys, urllib.error, urllib.request

files, requests, word = json.load(sys.stdin)
found = {"files": [], "answers": {}, "seen": False}
for file in files:
    try:
        open(file).close()
        found["files"].append(file)
    except OSError:
        pass
for name, (method, url) in requests.items():
    made = urllib.request.Request(url, method=method, headers={"Metadata-Flavor": "Google"})
    try:
        with urllib.request.urlopen(made, timeout=20) as answer:
            found["answers"][name] = answer.status
    except urllib.error.HTTPError as error:
        found["answers"][name] = error.code
for process in filter(str.isdigit, os.listdir("/proc")):
    for file in ("cmdline", "environ"):
        try:
            found["seen"] |= word.encode() in open(f"/proc/{process}/{file}", "rb").read()
        except OSError:
            pass
json.dump(found, sys.stdout)
"""


@pytest.mark.slow
def test_what_another_user_of_this_computer_may_not(berg, cloud, rows, tmp_path_factory):
    """Another uid, which may go where the folders of berg's home are."""
    if os.geteuid():
        pytest.skip("only root can try what another user of this computer may")
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o755)
        mine = replace(berg, home=Path(place) / "home")
        shutil.copytree(berg.home, mine.home, symlinks=True)
        mine.home.chmod(0o755)  # as an earlier berg left it
        assert mine("list", HOME=place).returncode == 0
        word = f"hush{os.getpid()}"
        (tmp_path_factory.mktemp("secret") / "file").write_text(word)
        secret_file = next(tmp_path_factory.getbasetemp().glob("secret*/file"))
        command = "echo server is $GCE_METADATA_HOST; sleep 1000"
        submit(mine, "busy", command, "--secret", f"KEY={secret_file}")
        said = wait_for(
            lambda: re.search(r"^server is (\S+)$", mine.log("busy"), re.M), 90, "the machine"
        )
        files = [str(path) for path in mine.home.rglob("*") if path.is_file()]
        files = [path for path in files if "/packages/" not in path]
        assert any("/repos/" in path for path in files) and any("berg.json" in p for p in files)
        metadata = f"http://{said[1]}/computeMetadata/v1/instance"
        token = f"{metadata}/service-accounts/default/token"
        tried = {
            "to get a machine's token from its metadata server": ("GET", token),
            "to read a machine's metadata": ("GET", f"{metadata}/attributes/?recursive=true"),
            "to list jobs in the embedded cloud": (
                "GET",
                f"{cloud.url}/storage/v1/b/{berg.bucket_name}/o",
            ),
            "to control the embedded cloud": ("POST", f"{cloud.url}/_berg/settings"),
        }
        ran = subprocess.run(
            ["/usr/bin/python3", "-c", ANOTHER],
            input=json.dumps([files, tried, word]),
            user=65534,
            group=65534,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
        )
        assert ran.returncode == 0, ran.stderr
        found = json.loads(ran.stdout)
        assert mine("kill", "--now", "busy").returncode == 0
    assert found["files"] == []
    assert not found["seen"], "a secret stands in the arguments or the environment of a process"
    assert set(found["answers"].values()) <= {401, 403}, found
    another = "another user of this computer,"
    rows += [(f"{another} {name}", f"refused: {found['answers'][name]}") for name in tried]
    rows.append((f"{another} to read settings, code and names in `$BERG_HOME`", "refused"))
    rows.append((f"{another} to find a secret in what processes show", "not there"))


def test_what_another_user_of_the_bucket_may_not(berg, cloud, rows, victim):
    """Somebody who may write the bucket and make machines, and act as another account alone."""
    berg.allowed += [400, 501]
    accounts = "/iam/v1/projects/berg-local/serviceAccounts"
    email = cloud.call("POST", accounts, {"accountId": f"c-{uuid.uuid4().hex[:12]}"})["email"]
    member, settings = f"serviceAccount:{email}", cloud.settings(berg.bucket_name)
    iam.bind(settings, iam.bucket_policy, "roles/storage.objectUser", member)
    iam.bind(settings, iam.project_policy, "roles/compute.instanceAdmin.v1", member)
    settle(cloud)
    file = berg.home / "colleague.json"
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(file, email)
    session = AuthorizedSession(replace(settings, credentials_file=str(file)).credentials)
    body = {"name": "evil", "machineType": "zones/us-central1-a/machineTypes/e2-medium"}
    body["disks"] = [{"boot": True, "initializeParams": {"sourceImage": IMAGE}}]
    body["networkInterfaces"] = [{"network": "global/networks/default"}]
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    body["serviceAccounts"] = [{"email": VICTIM, "scopes": scopes}]
    instances = "/compute/v1/projects/berg-local/zones/us-central1-a/instances"
    bucket = f"/storage/v1/b/{berg.bucket_name}"
    access = f"{SECRETS}/berg-victim/versions/latest:access"
    tried = {
        "to start a machine as your account": ("POST", instances, body),
        "to read the secret of your job": ("GET", access, None),
        "to delete the secret of your job": ("DELETE", f"{SECRETS}/berg-victim", None),
        "to let others use the bucket": ("PUT", f"{bucket}/iam", {"bindings": []}),
        "to delete the bucket": ("DELETE", bucket, None),
    }
    for name, (method, path, content) in tried.items():
        answer = session.request(method, cloud.url + path, json=content)
        words = answer.json()["error"]["message"]
        denied = answer.status_code == 403 or "does not have access to service account" in words
        assert denied, (name, answer.status_code, words)
        rows.append((f"another user of the bucket, {name}", f"refused: {answer.status_code}"))


@pytest.mark.slow
def test_berg_and_job_that_were_replaced_are_not_run(berg, cloud, rows):
    """Somebody with the bucket's rights changes them between submit and boot."""
    berg.allowed.append(400)
    cloud.call("POST", "/_berg/stockout", {"on": True})
    for name in ("wheel", "changed"):
        submit(berg, name, "echo ran", "--wait-for-capacity")
    path = ".berg/jobs/changed_metadata.json"
    metadata = json.loads(berg.bucket.read(path))
    berg.bucket.write(path, json.dumps({**metadata, "cmd": "echo evil"}))
    cloud.call("POST", "/_berg/stockout", {"on": False})
    state = ended(berg, "changed", 90)
    assert state["state"] == "FAILED" and "is not what was submitted" in state["reason"]
    assert "evil" not in berg.log("changed")
    assert ended(berg, "wheel")["state"] == "SUCCEEDED"
    rows.append(("another user of the bucket, to change a job before its machine boots", NOT_RUN))


@pytest.mark.slow
def test_a_wheel_that_was_replaced_is_not_run_and_the_next_submit_mends_it(berg, cloud, rows):
    berg.allowed.append(400)
    cloud.call("POST", "/_berg/stockout", {"on": True})
    submit(berg, "waits", "echo ran", "--wait-for-capacity")
    wheel = next(name for name in berg.objects(".berg/dist/") if name.endswith(".whl"))
    berg.bucket.write(wheel, b"evil")
    cloud.call("POST", "/_berg/stockout", {"on": False})
    state = ended(berg, "waits", 90)
    assert state["state"] == "FAILED" and "is not what was submitted" in state["reason"]
    wait_for(lambda: "waits" not in berg.machines())
    rows.append(("another user of the bucket, to replace Berg's wheel", NOT_RUN))
    ran = berg("run", "-g", "0", "-n", "after", "true")
    assert (
        f"{wheel} was not the file that berg sent: another user replaced it"
        in ran.stderr + ran.stdout
    )
    assert ended(berg, "after")["state"] == "SUCCEEDED"
    rows.append(
        (
            "another user of the bucket, to replace Berg's wheel, at the next submit",
            "the submit replaces it and reports it",
        )
    )


@pytest.mark.slow
def test_cards_of_strangers_open_no_machine(berg, rows):
    for number in (0, 1):
        name = f"duo-{number}"
        card = {"name": name, "rank": number, "internal_ip": "10.9.9.9", "node_key": EVIL}
        card |= {"instance_id": "1", "host_keys": ["ssh-ed25519 AAAAEVIL"], "introduced": True}
        failed = {"phase": "FAILED", "reason": "evil"}
        path = f".berg/machines/duo/{name}-x.json" if number else ".berg/machines/duo/duo-7.json"
        berg.bucket.write(path, json.dumps(card), metadata=failed)
    reading = "cat ~/.ssh/authorized_keys ~/.ssh/known_hosts ~/berg/cluster.json"
    submit(berg, "duo", f"{reading}; true", "-m", "2")
    state = ended(berg, "duo", 120)
    assert state["state"] == "SUCCEEDED", state
    log = berg.log("duo")
    assert "EVIL" not in log and "10.9.9.9" not in log
    assert "is not signed by a machine of this job" in log
    rows.append(
        ("a false peer record with a key, a host key and FAILED", "ignored and reported in the log")
    )


def create(
    berg: Berg, name: str, account: str, zone: str = "us-central1-b", **more: object
) -> None:
    """Create a machine as a colleague may, with the labels of a job of the tester's."""
    labels = {"berg": "1", "berg-job": "box", "berg-user": "tester", "berg-kind": "devbox"}
    labels["berg-bucket"] = berg.bucket_name
    disk = {"initializeParams": {"sourceImage": IMAGE}, "boot": True, "autoDelete": True}
    body = {
        "name": name,
        "labels": labels,
        "machineType": f"zones/{zone}/machineTypes/e2-small",
        "disks": [disk],
        "networkInterfaces": [{"network": "global/networks/default"}],
        "serviceAccounts": [{"email": account, "scopes": [SCOPE]}],
        "metadata": {"items": [{"key": "berg-bucket", "value": berg.bucket_name}]},
    }
    path = f"/compute/v1/projects/berg-local/zones/{zone}/instances"
    berg.cloud.call("POST", path, {**body, **more})
    there = f"{path}/{name}"
    wait_for(lambda: berg.cloud.call("GET", there)["status"] == "RUNNING", 30, name)


SCOPE = "https://www.googleapis.com/auth/cloud-platform"
POSING = {
    "with another name and the job's label": "a-box",
    "with a name as a group gives it, which no group created": "box-ab12",
}


@pytest.mark.slow
@pytest.mark.skipif(bool(sshd.obstacle()), reason="no ssh into machines here")
def test_a_machine_that_poses_as_a_jobs_is_not_entered(berg, rows, account):
    assert berg("devbox", "-g", "0", "-n", "box", "--zone", "us-central1-a").returncode == 0
    for name in POSING.values():
        create(berg, name, account)
    entered = berg("ssh", "box", "--", "hostname")
    assert (entered.returncode, entered.stdout) == (0, "box\n"), entered.stderr
    assert [path.name for path in (berg.home / "ssh").iterdir()] == ["box"]
    listed = {each["name"]: each for each in json.loads(berg("list", "--json").stdout)}
    # In a list of all, a name as a group gives it is enough; nothing is done for that.
    assert {each["name"] for each in listed["box"]["instances"]} <= {"box", "box-ab12"}
    assert listed["a-box"]["state"] is None
    assert berg("kill", "box", "--now", "-y").returncode == 0
    left = berg.machines()
    for what, name in POSING.items():
        assert name in left
        rows.append(
            (
                f"another user of the bucket, to create a machine {what}",
                "no command takes it for the job's: ssh, sync, kill",
            )
        )
    refused = berg("ssh", "box", "--", "hostname")
    assert refused.returncode == 1 and "box has no machine any more" in refused.stderr


@pytest.mark.slow
def test_a_machine_of_another_account_is_not_entered(berg, rows, account):
    """The tester's machines act as an account of the tester's own; a colleague's cannot."""
    own = "berg-worker-tester@berg-local.iam.gserviceaccount.com"
    settings = json.loads((berg.home / "berg.json").read_text())
    iam.create_account(replace(berg.cloud.settings(), service_account=own))
    settle(berg.cloud)
    berg.write_config(**{**settings, "service_account": own})
    record(berg, "box")
    state = json.loads(berg.bucket.read(job.state_path("box")))
    state |= {"state": "RUNNING", "exit_code": None, "started_at": job.now()}
    state["job"]["user"] = "tester"
    berg.bucket.write(job.state_path("box"), text := json.dumps(state), metadata={"state": text})
    create(berg, "box", account)
    refused = berg("ssh", "box", "--", "hostname")
    assert refused.returncode == 1 and "another person may have created it" in refused.stderr
    create(berg, "box", own, zone="us-central1-a")
    listed = [each for each in json.loads(berg("list", "--json").stdout) if each["name"] == "box"]
    assert sorted(each["zone"] for each in listed if each["state"]) == ["us-central1-a"]
    assert sorted(each["zone"] for each in listed if not each["state"]) == ["us-central1-b"]
    rows.append(
        (
            "another user of the bucket, to create a machine of the job's name in another zone",
            "where your machines act as an account of your own: not entered",
        )
    )


RECORDS = {
    "that is no JSON": b"{]",
    "that says it boots": json.dumps({"instance_id": "1", "introduced": False}).encode(),
    "with another port, rank and host key": json.dumps(
        {"host_keys": [" ".join(EVIL.split()[:2])], "ssh_port": 4444, "rank": 3}
    ).encode(),
}


@pytest.mark.slow
@pytest.mark.skipif(bool(sshd.obstacle()), reason="no ssh into machines here")
def test_a_devboxs_record_leads_nowhere_else(berg, rows):
    assert berg("devbox", "-g", "0", "-n", "box").returncode == 0
    path = ".berg/machines/box/box.json"
    wait_for(lambda: path in berg.objects(".berg/machines/"), 60, "what the devbox says of itself")
    assert berg("ssh", "box", "--", "hostname").stdout == "box\n"
    true = json.loads(berg.bucket.read(path))
    for what, record in RECORDS.items():
        if b"host_keys" in record:
            record = json.dumps({**true, **json.loads(record)}).encode()
        berg.bucket.write(path, record)
        (berg.home / "known_hosts").unlink(missing_ok=True)
        ran = berg("ssh", "box", "--", "hostname")
        assert (ran.returncode, ran.stdout) == (0, "box\n"), ran.stderr
        assert "kill" not in ran.stderr and "4444" not in ran.stderr
        rows.append((f"to write a record of a devbox {what}", "`berg ssh` reads none of it"))
    berg("kill", "box", "--now", "-y")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["FAILED", "KILLED", "SUCCEEDED"])
def test_a_state_that_says_that_a_devbox_is_over_leaves_its_disk(berg, rows, state):
    name = f"forged-{state.lower()}"
    assert berg("devbox", "-g", "0", "-n", name).returncode == 0
    wait_for(lambda: berg.state(name)["state"] == "RUNNING", 60, "the box")
    stored = states.read(berg.bucket, name)
    states.replaced(berg.bucket, stored, replace(stored.state, state=state))
    path = berg.machines()[name]["selfLink"].partition("/compute/")[2]
    berg.cloud.call("POST", f"/compute/{path}/reset")
    off = lambda: berg.machines()[name]["status"] == "TERMINATED"
    wait_for(off, 60, "the box is off")
    assert [disk["name"] for disk in berg.disks()] == [name]
    started = berg("start", name)
    assert started.returncode == 0, started.stderr
    if state == "KILLED":
        rows.append(("to write that a devbox was killed", "its machine goes off; its disk stays"))


@pytest.mark.slow
def test_a_sweeps_record_that_was_replaced_is_not_run(berg, rows):
    """A stranger's job in the list, with a hash that fits it: no machine of the sweep takes it."""
    berg.allowed.append(400)
    command = "while ! [ -e /tmp/go ]; do sleep 0.2; done; [ {x} = 1 ] && echo ran"
    submit(berg, "lr", command, "--parallel", "1", "--grid", "x=0,1")
    wait_for(lambda: berg.state("lr-0")["state"] == "RUNNING", 60, "the first job")
    path = job.sweep_path("lr")
    there = json.loads(berg.bucket.read(path))
    evil = {**json.loads(berg.bucket.read(job.metadata_path("lr-1"))), "cmd": "echo evil"}
    berg.bucket.write(job.metadata_path("lr-1"), text := json.dumps(evil))
    hashes = [there["sha256"][0], plan.sha256(text.encode())]
    berg.bucket.write(path, json.dumps({**there, "sha256": hashes}))
    assert berg("kill", "lr/0").returncode == 0
    state = ended(berg, "lr-1", 90)
    assert state["state"] == "FAILED" and "is not what was submitted" in state["reason"], state
    assert "evil" not in berg.log("lr-1")
    rows.append(
        ("another user of the bucket, to replace a sweep's record and a job of it", NOT_RUN)
    )


USUAL = "as usual"
SOUND = {"state": "SUCCEEDED", "job": {"cmd": "true", "results_dir": "done", "kind": "job"}}
DEEP = "[" * 100_000
TOLD = ("reason", "elsewhere", "lost")  # what machines say of a job in their own words
STATES: dict[str, str | dict] = {
    "`../` as results folder": {**SOUND, "job": {"results_dir": "../.ssh"}},
    "an absolute results folder": {**SOUND, "job": {"results_dir": "/etc"}},
    "a NUL in the results folder": {**SOUND, "job": {"results_dir": "a\0b"}},
    "a string of a megabyte": {**SOUND, "reason": "x" * 1_000_000},
    "JSON nested 100,000 times": DEEP,
    "a duplicate key": '{"state": "KILLED", "state": "SUCCEEDED"}',
    "NaN": '{"state": "SUCCEEDED", "ran_seconds": NaN}',
    "an infinite number": '{"state": "SUCCEEDED", "ran_seconds": 1e999}',
    "an integer too large for a float": {**SOUND, "job": {"machines": 10**400}},
    "a list as state": "[]",
    "a text as number": {**SOUND, "attempt": "1; rm -rf ~"},
    "a number as text": {**SOUND, "reason": 7},
    "an unknown state": {**SOUND, "state": "OWNED"},
    "a price of 1e308 USD an hour": {**SOUND, "job": {"rates": {"us-central1": 1e308}}},
    "a sweep that does not match its name": {**SOUND, "job": {"sweep": "evil"}},
    "another job's machine, as a path": {**SOUND, "machine": "../../zones/x/instances/y"},
    "an unknown place": {**SOUND, "job": {"place": "evil"}},
    "a zone with an escape sequence": {**SOUND, "zone": "\x1b]0;evil\x07"},
    "escapes in the reason": {**SOUND, "reason": "\x1b]0;evil\x07\x9b31m\u202eevil"},
    "new lines in the reason and in its folders": {**SOUND, **dict.fromkeys(TOLD, "x\nforged")},
    "spaces that fill a line of the terminal": {
        **SOUND,
        **dict.fromkeys(TOLD, f"x{'  ' * 99}forged"),
    },
    "escapes in the command": {**SOUND, "job": {"cmd": "\x1b[2Jevil", "results_dir": "done"}},
    "escapes in its user": {**SOUND, "job": {"user": "\x1b[2Jevil", "results_dir": "done"}},
    "another job's state, KILLED": {**SOUND, "state": "KILLED", "reason": "killed by evil"},
}
COMMANDS = {
    "list": ("list", "-a"),
    "show": ("show", "done"),
    "log": ("log", "done"),
    "fetch": ("fetch", "done"),
    "rerun": ("rerun", "done", "--dry-run", "--json"),
    "kill": ("kill", "done"),
    "rm": ("rm", "-y", "done"),
}


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


# what berg remembers of earlier commands
NOTES = ("names", "zones", "prices-", "buckets.json", "wheels/")
KNOWN = tuple(
    f"home/{name}" for name in ("berg_results/done/", "berg_results/lr", "repos/", *NOTES)
)


def check_new(new: set[str]) -> None:
    """Only results were written, below the job's own folder, and berg's own notes."""
    odd = [path for path in new if not path.startswith(KNOWN)]
    assert not odd, odd


@pytest.mark.slow
@pytest.mark.parametrize("what", STATES)
def test_states_that_are_odd(berg, what, rows):
    """They are damaged, or harmless; no command crashes, or writes where it should not."""
    berg.allowed += [400, 404]
    state = STATES[what]
    text = state if isinstance(state, str) else json.dumps(state)
    metadata = {"state": text} if len(text) < 8000 else {}
    berg.bucket.write(job.state_path("done"), text, metadata=metadata)
    berg.bucket.write("berg_results/done/model.pt", b"weights")
    berg.bucket.write("berg_results/.ssh/authorized_keys", EVIL.encode())
    outside = berg.repo.parent
    before, became = files(outside), {}
    for name, arguments in COMMANDS.items():
        ran = berg(*arguments)
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said, f"{name}: {said}"
        assert not STEERING.search(said), f"{name}: {said!r}"
        assert not re.search("^ *forged|  forged", said, re.M), f"{name}: {said!r}"
        assert ran.returncode in (0, 1, 2), f"{name}: {ran}"
        became[name] = outcome(ran)
    check_new(files(outside) - before)
    names = berg.home / "names"
    assert not (names.exists() and STEERING.search(names.read_text()))
    assert not list(outside.rglob("authorized_keys"))
    rows.append((f"a state with {what}", cell(became)))


DESCRIPTIONS: dict[str, str | dict] = {
    "another job's name": {"job_name": "other"},
    "`../` as results folder": {"results_dir": "../.ssh"},
    "`../` as the repo's name": {"repo_name": "../../.ssh"},
    "`../` as folder to run in": {"spec": {"num_gpus": 0, "cwd": "../../.."}},
    "`../` in a pack's name": {"snapshot": {"commit": "c0ffee", "packs": ["../../evil"]}},
    "a commit that is an option of git's": {"git_snapshot": "--upload-pack=evil"},
    "an install script outside the repo": {
        "spec": {"num_gpus": 0, "install_script": "../../evil.sh"}
    },
    "a text as number": {"num_machines": "1; rm -rf ~"},
    "a number below zero": {"num_machines": -1},
    "NaN": '{"job_name": "done", "max_run_seconds": NaN}',
    "a duplicate key": '{"job_name": "done", "job_name": "other"}',
    "JSON nested 100,000 times": DEEP,
    "a list": "[]",
    "escapes in the command": {"cmd": "\x1b[2Jevil"},
    "escapes in a variable": {"env": {"A": "\x1b]0;evil\x07"}},
    "an image as a path": {"image": "../../../evil", "place": "evil"},
}
READERS = {
    "show": ("show", "done"),
    "rerun": ("rerun", "done", "--dry-run", "--json"),
    "resume": ("run", "--resume", "done", "--dry-run", "--json"),
    "fetch": ("fetch", "done"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", DESCRIPTIONS)
def test_descriptions_that_are_odd(berg, what, rows):
    """A job's own are checked by its machines; what laptops do with them is tried here."""
    berg.allowed += [400, 404]
    record(berg, "done")
    odd = DESCRIPTIONS[what]
    if isinstance(odd, dict):
        there = json.loads(berg.bucket.read(job.metadata_path("done")))
        odd = json.dumps({**there, **odd})
    berg.bucket.write(job.metadata_path("done"), odd)
    outside = berg.repo.parent
    before, became = files(outside), {}
    for name, arguments in READERS.items():
        ran = berg(*arguments)
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said and not STEERING.search(said), f"{name}: {said!r}"
        became[name] = outcome(ran)
    check_new(files(outside) - before)
    rows.append((f"a description with {what}", cell(became)))


def outcome(ran) -> str:
    if "damaged" in ran.stdout + ran.stderr:
        return "damaged"
    return "refused" if ran.returncode else USUAL


def cell(became: dict[str, str]) -> str:
    """Return which commands show a record as damaged or refuse; the others work as usual."""
    words = []
    for kind in ("damaged", "refused"):
        names = [name for name, outcome in became.items() if outcome == kind]
        words += [f"{kind}: {', '.join(names)}"] if names else []
    return "; ".join(words) or USUAL


SWEEPS: dict[str, str | dict] = {
    "`../` as a job": {"jobs": ["../evil"]},
    "a job of another sweep": {"jobs": ["done"]},
    "escapes as a job": {"jobs": ["\x1b]0;evil\x07"]},
    "a text as its jobs": {"jobs": "lr-0"},
    "an unknown place": {"jobs": ["lr-0"], "place": "evil"},
    "NaN": '{"jobs": [], "claim": NaN}',
    "a duplicate key": '{"jobs": [], "jobs": ["lr-0"]}',
    "JSON nested 100,000 times": DEEP,
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SWEEPS)
def test_records_of_sweeps_that_are_odd(berg, what, rows):
    berg.allowed += [400, 404]
    text = record(berg, "lr-0", sweep="lr", params={"x": "1"})
    odd = SWEEPS[what]
    if isinstance(odd, dict):
        odd = json.dumps({"sha256": [plan.sha256(text)], "machines": {}, **odd})
    berg.bucket.write(job.sweep_path("lr"), odd)
    outside = berg.repo.parent
    before, became = files(outside), {}
    for name, arguments in (
        ("list", ("list", "-v")),
        ("show", ("show", "lr")),
        ("fetch", ("fetch", "lr")),
        ("resume", ("run", "--resume", "lr", "--dry-run", "--json")),
        ("kill", ("kill", "lr")),
    ):
        ran = berg(*arguments)
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said and not STEERING.search(said), f"{name}: {said!r}"
        became[name] = outcome(ran)
    check_new(files(outside) - before)
    rows.append((f"a sweep's record with {what}", cell(became)))


NAMES = {
    "`..` in a result's name": "berg_results/done/../../../evil",
    "an absolute path behind the results": "berg_results/done//etc/evil",
    "an escape in a result's name": "berg_results/done/\x1b]0;evil\x07",
    "a backslash in a result's name": "berg_results/done/..\\evil",
    "an odd log's name": ".berg/logs/done/../evil\x1b[2J.log",
    "a job's name with `..`": ".berg/jobs/../evil_state.json",
    "a job's name with an escape": ".berg/jobs/\x1b]0;evil\x07_state.json",
}


@pytest.mark.slow
@pytest.mark.parametrize("what", NAMES)
def test_names_that_are_odd(berg, what, rows):
    berg.allowed += [400, 404]
    text = json.dumps(SOUND)
    berg.bucket.write(job.state_path("done"), text, metadata={"state": text})
    berg.bucket.write(NAMES[what], text, metadata={"state": text})
    outside = berg.repo.parent
    before = files(outside)
    became = {}
    for name in ("list", "show", "log", "fetch"):
        ran = berg(*COMMANDS[name])
        said = ran.stdout + ran.stderr
        assert "Traceback" not in said and not STEERING.search(said), f"{name}: {said!r}"
        assert not re.search("^ *forged", said, re.M), f"{name}: {said!r}"
        became[name] = "refused" if ran.returncode else USUAL
    check_new(files(outside) - before)
    names = berg.home / "names"
    assert not (names.exists() and STEERING.search(names.read_text()))
    rows.append((what, cell(became)))


SECRET = "X=~/.ssh/id_rsa"
EVIL_SETTINGS = {"project": "evil", "bucket": "evil", "endpoint": "http://evil", "region": "evil"}
EVIL_SETTINGS |= {"service_account": "evil@evil", "credentials_file": "/evil", "user": "evil"}
EVIL_SETTINGS |= {"network": "evil", "subnetwork": "evil", "ssh_user": "evil"}


def record(berg: Berg, name: str, **changes: object) -> bytes:
    """A job that failed, as its record lies in the bucket; without a machine that ran it."""
    spec = {"num_gpus": 0, **EVIL_SETTINGS, **changes.pop("spec", {})}
    this = job.Job(name, "exit 3", name, f"gs://b/{name}", "proj", "c0ffee", "c0ffee")
    this.snapshot = {"commit": "c0ffee", "packs": [], "submodules": {}}
    this.max_run_seconds = 3600
    for key, value in changes.items():
        setattr(this, key, value)
    state = job.State("FAILED", exit_code=3, job=this.summary()).to_json()
    berg.bucket.write(job.state_path(name), state, metadata={"state": state})
    text = json.dumps({**json.loads(this.to_json()), "spec": spec}).encode()
    berg.bucket.write(job.metadata_path(name), text)
    return text


def test_what_a_record_says_of_secrets_and_settings_is_not_believed_by_resume(berg, rows):
    key = berg.home / ".ssh/id_rsa"
    record(berg, "sly", spec={"secrets": [SECRET], "notify": SECRET}, secrets=["X"], notify=True)
    refused = berg("run", "--resume", "sly", HOME=str(berg.home))
    assert "sly had secrets. Give them again: --secret X" in refused.stderr
    record(berg, "sly", spec={"secrets": [SECRET], "notify": SECRET}, notify=True)
    shown = berg("run", "--resume", "sly", "--dry-run", "--json", HOME=str(berg.home))
    assert shown.returncode == 0, shown.stderr
    assert "No webhook is called at its end" in shown.stderr and "evil" not in shown.stdout
    assert not key.exists(), "nothing looked for it"
    rows.append(
        (
            "a record that names a file of the laptop as secret, `--resume`",
            "not used; the command asks for it",
        )
    )
    rows.append(("a record that names a project, an endpoint, an account", "ignored"))


HOST = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/"}}]}}


PATCHES: dict[str, dict] = {
    "the node's disk": HOST,
    "another account": {"spec": {"serviceAccountName": "admin"}},
    "an invalid one": {"spec": 3},
}


@pytest.mark.parametrize("what", PATCHES)
def test_a_patch_for_pods_in_a_record_is_given_anew_or_not_at_all(berg, rows, what):
    """It would be a part of a request, sent with the rights of who lets the job run again."""
    patch = PATCHES[what]
    record(berg, "sly", spec={"pod_patch": patch, "cluster": "train"}, place="gke")
    text = record(berg, "lr-0", sweep="lr", params={"x": "1"}, spec={"pod_patch": patch})
    sweep = {"jobs": ["lr-0"], "sha256": [plan.sha256(text)]}
    berg.bucket.write(job.sweep_path("lr"), json.dumps(sweep))
    for words in (("rerun", "sly"), ("run", "--resume", "sly"), ("run", "--resume", "lr")):
        refused = berg(*words, "--dry-run", "--json")
        assert refused.returncode == 1, refused.stdout
        assert "had a patch for its pods. Give it again: --pod-patch FILE" in (refused.stderr)
    rows.append((f"a record with a patch for pods: {what}", "not used; the command asks for it"))


@pytest.mark.parametrize(
    "spec",
    [{"zones": ["../../evil"]}, {"image": "a/../b/c"}, {"num_gpus": "0"}, {"zones": [[1]]}],
)
def test_a_record_whose_options_are_none_is_damaged(berg, spec):
    record(berg, "odd", spec=spec)
    for command in (("run", "--resume", "odd"), ("rerun", "odd")):
        refused = berg(*command, "--dry-run", "--json")
        assert refused.returncode == 1 and "odd_metadata.json is damaged" in refused.stderr


ELSEWHERE_BY_OPTION = {
    "`../` as a region": {"regions": ["../../evil"]},
    "an unknown region": {"regions": ["evil"]},
    "`../` in a reservation's name": {"reservation": "projects/../evil/reservations/x"},
    "an invalid container image": {"docker": "x;evil"},
    "`../` as a data set": {"data": ["../evil:/mnt/x"]},
    "a mount over `/etc`": {"mount": ["gs://evil/x:/etc"]},
    "a mount over `/etc`, by `..`": {"mount": ["gs://evil/x:/mnt/../etc"]},
    "a mount of an invalid bucket": {"mount": ["gs://evil/x:/mnt/x"]},
    "`../` as a cluster": {"cluster": "../../evil"},
    "`../` as the folder of its results": {"results_parent": "../../evil"},
    "one of Berg's variables": {"env": ["BERG_JOB=evil"]},
    "no machine at all": {"num_machines": 0},
}


@pytest.mark.slow
@pytest.mark.parametrize("what", ELSEWHERE_BY_OPTION)
def test_options_of_a_record_that_lead_elsewhere_are_refused(berg, rows, what):
    berg.allowed += [400, 404]
    record(berg, "odd", spec=ELSEWHERE_BY_OPTION[what])
    refused = berg("rerun", "odd", "--dry-run", "--json")
    assert refused.returncode == 1 and not refused.stdout, refused.stdout
    assert "Traceback" not in refused.stderr and not STEERING.search(refused.stderr)
    resumed = berg("run", "--resume", "odd", "--dry-run", "--json")
    assert "Traceback" not in resumed.stderr and not STEERING.search(resumed.stderr)
    if not resumed.returncode:  # where its results go, it says elsewhere, too
        assert "berg_results/odd" in resumed.stderr and "../" not in resumed.stderr
    rows.append((f"a record with {what}", cell({"rerun": "refused", "resume": outcome(resumed)})))


def test_what_differs_from_the_first_run_is_said(berg):
    record(berg, "old", machine_type="n1-standard-96", image="projects/evil/global/images/evil")
    shown = berg("run", "--resume", "old", "--dry-run", "--json")
    assert "machine type: n1-standard-96 before, now n1-standard-8" in shown.stderr
    assert "image: projects/evil/global/images/evil before, now projects/" in shown.stderr
    assert "evil" not in shown.stdout


def test_a_sweeps_record_that_was_replaced_makes_no_request(berg, rows):
    texts = [record(berg, f"lr-{n}", sweep="lr", params={"x": str(n)}) for n in (0, 1)]
    hashes = [plan.sha256(text) for text in texts]
    machines = {"us-central1-a": {"serviceAccounts": [{"email": "evil"}], "labels": {"evil": "1"}}}
    evil = {"jobs": ["lr-0", "lr-1"], "sha256": hashes, "place": "gce", "machines": machines}
    berg.bucket.write(job.sweep_path("lr"), json.dumps(evil))
    shown = berg("run", "--resume", "lr", "--dry-run", "--json")
    assert shown.returncode == 0 and "evil" not in shown.stdout, shown.stderr
    assert json.loads(shown.stdout)["request"]["instanceProperties"]["scheduling"]["maxRunDuration"]
    record(berg, "lr-0", sweep="lr", cmd="echo evil")
    refused = berg("run", "--resume", "lr", "--dry-run", "--json")
    assert refused.returncode == 1 and "lr-0_metadata.json is not what was sub" in refused.stderr
    rows.append(("another user of the bucket, to put a request into a sweep's record", "ignored"))
    rows.append(("another user of the bucket, to change a job of a sweep, `--resume`", "refused"))


BOMBS = {
    "a result": "berg_results/done/bomb",
    "metrics": "berg_results/done/metrics.jsonl",
    "a log": ".berg/logs/done/done.20260101.log",
    "a record of how busy a machine was": ".berg/logs/done/done.20260101.usage.jsonl",
    "a record of its software": f".berg/logs/done/done.20260101{job.SOFTWARE}",
    "a job's description": job.metadata_path("done"),
}


@pytest.mark.slow
def test_what_decompresses_to_gigabytes_stays_as_small_as_it_is(berg, rows, tmp_path):
    """Google decompresses it for clients that do not accept gzip."""
    bomb = gzip.compress(bytes(500 << 20))
    record(berg, "done")
    for name in BOMBS.values():
        blob = library(berg.bucket.config).blob(name)
        blob.content_encoding = "gzip"
        blob.upload_from_string(bomb)
    for words in (
        ("fetch", "done", "here"),
        ("log", "done"),
        ("show", "done"),
        ("top", "done", "--once"),
    ):
        with (tmp_path / "said").open("w+b") as said:
            command = [sys.executable, "-m", "berg", *words]
            environment = berg.environment()
            process = subprocess.Popen(command, cwd=berg.repo, env=environment, stdout=said)
            _, _, used = os.wait4(process.pid, 0)
            said.seek(0)
            assert said.seek(0, os.SEEK_END) < 4 * len(bomb) and used.ru_maxrss < 400_000, words
    assert (berg.repo / "here/bomb").read_bytes() == bomb
    rows += [
        (f"{what} with `contentEncoding: gzip` that expands to gigabytes", "read as stored")
        for what in BOMBS
    ]


# --- programs of the laptop, and files that others wrote


@pytest.mark.parametrize("by", ["the job itself", "another job's token"])
def test_fetch_brings_no_repo_and_starts_git_in_nothing_that_it_brought(berg, rows, tmp_path, by):
    traps = Traps(tmp_path / "notes")
    traps.lay_repo(tmp_path / "made")
    record(berg, "victim", results_dir="run7/a", created_by="tester")
    top = "run7/" if by == "the job itself" else ""
    for number, path in enumerate(sorted((tmp_path / "made").rglob("*"))):
        if path.is_file():
            name = f"berg_results/{top}{path.relative_to(tmp_path / 'made')}"
            berg.bucket.write(name, path.read_bytes(), metadata={WRITER: "victim/x"})
            folder = name.rpartition("/")[0].removeprefix("berg_results").strip("/")
            where = f".berg/folders/victim/{number}"
            berg.bucket.write(where, b"", metadata={"folder": folder})
    berg.bucket.write("berg_results/run7/a/loss", b"0.1", metadata={WRITER: "victim/x"})
    berg.bucket.write("berg_results/run7/a/.GIT/config", b"evil", metadata={WRITER: "victim/x"})
    fetched = berg("fetch", "victim", HOME=str(berg.home))
    here = berg.home / "berg_results"
    assert fetched.returncode == 0 and (here / "run7/a/loss").exists(), fetched.stderr
    assert traps.sprung() == [] and not list(here.rglob(".[gG][iI][tT]")), fetched.stderr
    assert re.search(r"Left out: \d+ files, such as .* what is below .git, .hg or", fetched.stderr)
    rows.append(
        (
            f"{by}, to bring a `.git` with `core.fsmonitor` above results, `berg fetch`",
            "left out and reported; git does not start there",
        )
    )


def test_fetch_brings_nothing_to_the_top_and_nothing_of_another_user(berg, rows):
    for name, user in (("victim", "tester"), ("theirs", "ann"), ("mine", "tester")):
        record(berg, name, created_by=user)
        berg.bucket.write(f"berg_results/{name}/loss", b"0.1", metadata={WRITER: f"{name}/x"})
    for number, folder in enumerate(("", "theirs/deep", "mine/deep", "free")):
        where = f".berg/folders/victim/{number}"
        berg.bucket.write(where, b"", metadata={"folder": folder})
        name = f"berg_results/{folder}/planted".replace("//", "/")
        berg.bucket.write(name, b"x", metadata={WRITER: "victim/x"})
    fetched = berg("fetch", "victim", HOME=str(berg.home))
    here = berg.home / "berg_results"
    assert fetched.returncode == 0, fetched.stderr
    found = {str(path.relative_to(here)) for path in here.rglob("*") if path.is_file()}
    assert found == {"victim/loss", "mine/deep/planted", "free/planted"}
    where = f"gs://{berg.bucket_name}/berg_results"
    assert f"Left out: 1 file in {where}, which is above all results" in fetched.stderr
    assert f"Left out: 1 file in {where}/theirs/deep, which is another user's" in fetched.stderr
    rows.append(
        (
            "another job's token, to claim files at the top of the results for a job",
            "left out and reported",
        )
    )
    rows.append(
        ("another job's token, to claim files in another user's results", "left out and reported")
    )


BELOW = {"path": "done/x/authorized_keys", "size": 4, "data": "ZXZpbA=="}
VIEWS: dict[str, list[dict]] = {
    "`..` in a path": [{"path": "done/../../../evil"}],
    "an absolute path": [{"path": "/etc/evil"}],
    "a link to an absolute path": [{"path": "done/x", "link": "/etc"}],
    "a link out of the results": [{"path": "done/x", "link": "../../.ssh"}],
    "a link to another job's results": [{"path": "done/x", "link": "../other"}],
    "a link to a repo's settings": [{"path": "done/x", "link": ".git/config"}],
    "a link and a file below it": [{"path": "done/x", "link": "y"}, BELOW],
    "a link, and an object below it": [{"path": "done/y", "link": "x"}],
    "a file in a repo's settings": [{"path": "done/.git/config", "data": "ZXZpbA==", "size": 4}],
    "a size of 2^62 bytes": [{"path": "done/loss", "size": 1 << 62}],
    "a size below zero": [{"path": "done/loss", "size": -1}],
    "a time in the year 2262": [{"path": "done/loss", "mtime_ns": (1 << 63) - 1}],
    "a number of 100 digits": [{"path": "done/loss", "size": 10**100}],
    "the setuid bit": [{"path": "done/loss", "mode": 0o4755}],
    "one of Berg's objects": [{"path": "done/x", "object": ".berg/jobs/other_metadata.json"}],
    "an object that another job stages": [{"path": "done/x", "object": ".berg/tmp/other/d/1"}],
    "content that is not what its checksum says": [
        {**BELOW, "crc32c": "AAAAAA==", "data": "YmFkLg=="}
    ],
}


@pytest.mark.parametrize("what", VIEWS)
def test_a_view_leads_nowhere_else(berg, rows, what):
    """The person's own folder has a link, as an earlier fetch may have made it."""
    record(berg, "done")
    written = {WRITER: "done/d0"}
    for path in ("loss", "y/authorized_keys"):
        berg.bucket.put(f"berg_results/done/{path}", b"evil", None, written)
    berg.bucket.put(".berg/tmp/other/d/1", b"theirs", None, {WRITER: "other/d"})
    theirs = berg.bucket.get(".berg/tmp/other/d/1")
    rest = {"size": theirs.size, "crc32c": theirs.crc32c} if "stages" in what else {}
    known = {"at_ns": 1, "full": True, "final": True}
    lines = [known, *({**rest, "changed_ns": 1, **row} for row in VIEWS[what])]
    content = gzip.compress("\n".join(map(json.dumps, lines)).encode())
    berg.bucket.write(".berg/views/done/d0/00000001", content)
    (berg.home / ".ssh").mkdir()
    here, outside = berg.home / "berg_results/done", berg.repo.parent
    here.mkdir(parents=True)
    before = files(outside)
    ran = berg("fetch", "done", HOME=str(berg.home))
    said = ran.stdout + ran.stderr
    assert "Traceback" not in said and not STEERING.search(said), said
    check_new(files(outside) - before)
    links = [path for path in here.rglob("*") if path.is_symlink()]
    assert all(path.resolve().is_relative_to(here.resolve()) for path in links), links
    found = [path for path in here.rglob("*") if path.is_file() and not path.is_symlink()]
    assert all(path.read_bytes() == b"evil" and not path.stat().st_mode & 0o7111 for path in found)
    outcomes = {
        "damaged": "damaged, and named",
        "Left out": "left out, and named",
        "was not fetched": "not fetched, with the reason",
    }
    became = [shown for part, shown in outcomes.items() if part in said]
    rows.append((f"a view with {what}", became[0] if became else "that is not fetched"))


def test_a_state_whose_results_folder_is_a_repo_s_is_damaged(berg, rows):
    record(berg, "sly", results_dir=".git/hooks")
    berg.bucket.write("berg_results/.git/hooks/pre-commit", b"evil")
    refused = berg("fetch", "sly", HOME=str(berg.home))
    assert refused.returncode == 1 and "damaged" in refused.stderr, refused.stderr
    assert not (berg.home / "berg_results").exists()
    rows.append(("a state with `.git/hooks` as results folder, `berg fetch`", "damaged"))


BUILDER = """#!/bin/sh
case "$1 $2" in
"build --platform") for last; do :; done; git -C "$last" status >/dev/null 2>&1; cp -a "$last" "$KEPT"; cp "$(dirname "$last")/Dockerfile" "$KEPT-file" ;;
"manifest inspect") echo '{"manifests": [{"platform": {"os": "linux", "architecture": "amd64"}}]}' ;;
esac
"""


@pytest.fixture
def build(berg, tmp_path):
    """Builds an image of the repo with a builder that keeps the context."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/podman").write_text(BUILDER)
    (tmp_path / "bin/podman").chmod(0o755)
    (berg.repo / "Dockerfile").write_text("FROM scratch\nCOPY . .\n")
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"

    def run(*options: str):
        kept = {"PATH": path, "KEPT": str(tmp_path / "context")}
        return berg("image", "build", "--builder", "podman", *options, **kept), tmp_path / "context"

    return run


@pytest.mark.parametrize("name", [".dockerignore", ".containerignore"])
def test_an_image_writes_through_no_link_of_a_clone(berg, rows, build, tmp_path, name):
    (tmp_path / "hook").write_text("mine")
    (berg.repo / name).symlink_to(tmp_path / "hook")
    (berg.repo / "Dockerfile.dockerignore").write_text("evil")
    refused, context = build()
    assert (tmp_path / "hook").read_text() == "mine" and not context.exists()
    assert f"{name} is a link to {tmp_path / 'hook'}, which is not among" in refused.stderr
    rows.append(
        (
            f"a cloned repo whose `{name}` is a link to a file of the laptop, `berg image build`",
            "nothing is written there",
        )
    )


@pytest.mark.parametrize("name", ["Dockerfile", "Dockerfile.dockerignore", ".dockerignore"])
def test_an_image_has_no_file_that_a_link_of_a_clone_leads_to(berg, rows, build, tmp_path, name):
    (tmp_path / "key").write_text("private")
    (berg.repo / ".gitignore").write_text(".env\n")
    (berg.repo / ".env").write_text("private")
    for target in (tmp_path / "key", ".env"):
        (berg.repo / name).unlink(missing_ok=True)
        (berg.repo / name).symlink_to(target)
        refused, context = build()
        assert refused.returncode == 1 and "which is not among the files that" in refused.stderr
        assert not context.exists() and "private" not in refused.stderr
    rows.append(
        (
            f"a cloned repo whose `{name}` is a link to a private key, `berg image build`",
            "refused; it is not read",
        )
    )


def test_an_image_is_made_of_links_that_stay_in_the_repo(berg, build):
    (berg.repo / "docker").mkdir()
    (berg.repo / "docker/gpu").write_text("FROM gpu\n")
    (berg.repo / "Dockerfile").unlink()
    (berg.repo / "Dockerfile").symlink_to("docker/gpu")
    (berg.repo / "Dockerfile.dockerignore").symlink_to("docker/ignored")
    (berg.repo / "docker/ignored").write_text("*.log\n")
    (berg.repo / "etc").symlink_to("/etc")
    built, context = build()
    assert built.returncode == 0, built.stderr
    assert context.with_name("context-file").read_text() == "FROM gpu\n"
    links = {name: str((context / name).readlink()) for name in ("Dockerfile", "etc")}
    assert links == {"Dockerfile": "docker/gpu", "etc": "/etc"}
    assert (context / ".dockerignore").read_text() == "*.log\n"


@pytest.mark.slow
def test_records_of_folders_have_a_limit(berg, cloud, rows):
    """Any job may write records in the name of another one."""
    record(berg, "done")
    number = 1500

    def write(at: int) -> None:
        berg.bucket.write(f"{job.folders_prefix('done')}{at}", b"", metadata={"folder": f"x/{at}"})

    list(side_by_side(write, range(number)))
    berg.bucket.write("berg_results/done/model.pt", b"weights")
    cloud.call("DELETE", "/_berg/requests")
    done = berg("fetch", "done", "here")
    assert done.returncode == 0, done.stderr
    assert "done claims to have written to more than 1,000 folders" in done.stderr
    counts = cloud.call("GET", "/_berg/requests")["counts"]
    assert 1000 < counts["storage.objects.list"] < 1100
    rows.append(
        (
            "thousands of records of folders in another job's name, `berg fetch`",
            "1,000 are looked at",
        )
    )


def test_a_builder_s_git_runs_nothing_that_the_context_names(berg, rows, build, tmp_path):
    """docker asks git about the context. The repo's root looks like a bare repo here."""
    traps = Traps(tmp_path / "notes")
    (tmp_path / "bare").mkdir()
    traps.lay_bare(tmp_path / "bare")
    (tmp_path / "bare/config").write_text(
        (tmp_path / "bare/config").read_text().replace(str(tmp_path / "bare"), ".")
    )
    for folder in ("refs/heads", "objects/info"):
        (tmp_path / "bare" / folder / "kept").write_text("")
    shutil.copytree(tmp_path / "bare", berg.repo, dirs_exist_ok=True)
    built, context = build()
    assert built.returncode == 0 and (context / "HEAD").is_file(), built.stderr
    assert traps.sprung() == []
    subprocess.run(["git", "status"], cwd=context, check=True, capture_output=True)
    assert traps.sprung() == ["fsmonitor-bare-bare"], "git itself starts it"
    rows.append(
        (
            "a cloned repo that looks like a bare repo with `core.fsmonitor`, `berg image build`",
            "git, which builders start, does not start the program",
        )
    )
