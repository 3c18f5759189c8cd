"""The machines' account: what `berg init` gives it, that it is enough for every kind of job, and
that it is no more.
"""

import json
import re
import shlex
import time
import uuid
from dataclasses import replace

import pytest
import requests
from conftest import POLICY_3, make_account, settle, wait_for
from local_gcloud import Gcloud

from berg import BergError
from berg.config import Config
from berg.google import api, builds, iam, secret
from localcloud.identity.tokens import Tokens

PROJECT = "berg-local"
EMAIL = f"berg-worker@{PROJECT}.iam.gserviceaccount.com"
MEMBER, ROLE = f"serviceAccount:{EMAIL}", f"projects/{PROJECT}/roles/bergWorker"
RESOURCES = f"/cloudresourcemanager/v1/projects/{PROJECT}"
ACCOUNTS, ROLES = f"/iam/v1/projects/{PROJECT}/serviceAccounts", f"/iam/v1/projects/{PROJECT}/roles"
VERSION_3 = "?optionsRequestedPolicyVersion=3"
OF_OBJECTS = [
    f"projects/{PROJECT}/roles/{name}" for name in ("bergLister", "bergReader", "bergWriter")
]
FLAGS = ("--project", PROJECT, "--region", "us-central1")


@pytest.fixture
def fresh(cloud):
    """A project without berg's account and role."""
    policy = cloud.call("POST", f"{RESOURCES}:getIamPolicy", POLICY_3)
    ours = [f"projects/{PROJECT}/roles/{right.role}" for right in iam.ROLES]
    policy["bindings"] = [each for each in policy["bindings"] if each["role"] not in ours]
    cloud.call("POST", f"{RESOURCES}:setIamPolicy", {"policy": policy})
    for path in (f"{ACCOUNTS}/{EMAIL}", *(f"{ROLES}/{right.role}" for right in iam.ROLES)):
        cloud.session.delete(cloud.url + path)
    cloud.call("POST", "/_berg/roles/forget", {})
    yield
    make_account(cloud)


@pytest.fixture
def init(berg, fresh):
    """`berg init` for Google, which the environment says is the embedded cloud; `init.file` holds
    the credentials.
    """

    def call(*arguments: str, stdin: str | None = None):
        settings = saved(berg) if (berg.home / "berg.json").exists() else {}
        berg.write_config(**{**settings, "endpoint": None})
        where = {"BERG_ENDPOINT": berg.cloud.url, "BERG_CREDENTIALS_FILE": str(call.file)}
        return berg("init", *FLAGS, "--bucket", berg.bucket_name, *arguments, stdin=stdin, **where)

    call.file = saved(berg)["credentials_file"]
    return call


def bind(cloud, base: str, role: str, member: str) -> None:
    policy = cloud.call("POST", f"{base}:getIamPolicy", POLICY_3)
    policy.setdefault("bindings", []).append({"role": role, "members": [member]})
    cloud.call("POST", f"{base}:setIamPolicy", {"policy": policy})


def saved(berg) -> dict:
    return json.loads((berg.home / "berg.json").read_text())


def held(cloud, path: str, verb: str = "POST") -> dict[str, list[str]]:
    """The roles that berg's account has in a policy."""
    policy = cloud.call(verb, path)
    return [each["role"] for each in policy["bindings"] if MEMBER in each["members"]]


def writes(cloud) -> list[str]:
    """Methods that change something, of the requests since the log was cleared."""
    log = cloud.call("GET", "/_berg/requests")["requests"]
    reads = ("getIamPolicy", "testIamPermissions")
    methods = [
        each["method"]
        for each in log
        if each["verb"] != "GET" and not each["method"].endswith(reads)
    ]
    return [method for method in methods if method != "unknown"]


def test_init_grants_what_machines_need_and_nothing_twice(berg, cloud, init):
    others = cloud.call("POST", f"{RESOURCES}:getIamPolicy")["bindings"]
    asked = init(stdin="\n" * 6)
    assert asked.returncode == 0, asked.stderr
    for line in (
        f"service account [{EMAIL}]",
        f" Create the service account {EMAIL}\n",
        f"\nCreate the custom role bergWorker: {', '.join(iam.MACHINES)}\n",
        f"\nGive the account bergWorker in the project {PROJECT}. Compute Engine cannot limit deletion to berg's own",
        f"\nGive the account bergReader on gs://{berg.bucket_name} below .berg/dist/, .berg/repos/,",
        f"\nGive the account bergWriter on gs://{berg.bucket_name} below berg_results/, .berg/logs/,",
        f"\nGive the account bergLister on gs://{berg.bucket_name}\n",
        "Do this? [Y/n]",
    ):
        assert line in asked.stderr, asked.stderr
    assert asked.stderr.index("Give the account") < asked.stderr.index("Do this?")
    assert saved(berg)["service_account"] == EMAIL
    assert sorted(cloud.call("GET", f"{ROLES}/bergWorker")["includedPermissions"]) == sorted(
        iam.MACHINES
    )
    assert held(cloud, f"{RESOURCES}:getIamPolicy") == [ROLE]
    assert held(cloud, f"/storage/v1/b/{berg.bucket_name}/iam{VERSION_3}", "GET") == OF_OBJECTS
    now = cloud.call("POST", f"{RESOURCES}:getIamPolicy")["bindings"]
    assert [each for each in now if each["role"] != ROLE] == [
        each for each in others if each["role"] != ROLE
    ]

    cloud.call("DELETE", "/_berg/requests")
    again = init("-y")
    assert (
        again.returncode == 0 and f"{EMAIL} has what it needs; nothing was changed" in again.stderr
    )
    assert writes(cloud) == []

    body = {"includedPermissions": ["compute.instances.delete", "compute.zones.get"]}
    cloud.call("PATCH", f"{ROLES}/bergWorker?updateMask=includedPermissions", body)
    cloud.call("DELETE", "/_berg/requests")
    patched = init("-y")
    added = ", ".join(iam.MACHINES[:1] + iam.MACHINES[2:])
    assert (
        f"Add to the custom role bergWorker: {added}\n" in patched.stderr
        and "Give" not in patched.stderr
    )
    together = {*iam.MACHINES, "compute.zones.get"}
    assert set(cloud.call("GET", f"{ROLES}/bergWorker")["includedPermissions"]) == together
    assert writes(cloud) == ["iam.projects.roles.patch"]


def test_grants_survive_others_who_change_the_same_and_lost_answers(berg, cloud, init):
    berg.allowed = [400]
    for method, what in {
        "iam.projects.serviceAccounts.create": {"reset": True, "after_handler": True},
        "iam.projects.roles.create": {"status": 503, "after_handler": True},
        "cloudresourcemanager.projects.setIamPolicy": {"status": 409},
        "storage.buckets.setIamPolicy": {"status": 412},
    }.items():
        cloud.fault(method, **what)
    unknown = f"Service account {EMAIL} does not exist."
    cloud.fault("cloudresourcemanager.projects.setIamPolicy", status=400, message=unknown)
    done = init("-y")
    assert done.returncode == 0, done.stderr
    assert held(cloud, f"{RESOURCES}:getIamPolicy") == [ROLE]
    assert held(cloud, f"/storage/v1/b/{berg.bucket_name}/iam{VERSION_3}", "GET") == OF_OBJECTS
    assert all(fault["hits"] for fault in cloud.call("GET", "/_berg/faults")["faults"])


@pytest.mark.slow
def test_a_job_right_after_init_waits_for_its_rights(berg, cloud, init):
    """Grants take minutes: until then all that the machine asks for is forbidden."""
    cloud.call("POST", "/_berg/settings", {"grant_delay": 600})
    assert init("-y").returncode == 0
    ran = berg("run", "-g", "0", "-n", "early", "echo ran > $BERG_RESULTS_DIR/out")
    assert ran.returncode == 0, ran.stderr

    def refused() -> bool:
        return any(
            each["status"] == 403 for each in cloud.call("GET", "/_berg/requests")["requests"]
        )

    wait_for(refused, 60, "a request without rights")
    cloud.call("POST", "/_berg/settings", {"grant_delay": 0})
    wait_for(lambda: berg.state("early")["state"] == "SUCCEEDED", 60)
    wait_for(lambda: not berg.machines(), what="the end of the machine")
    assert berg.objects("berg_results/early/")["berg_results/early/out"] == b"ran\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "kind"),
    [
        ("compute.instances.insert", ()),
        ("compute.instances.bulkInsert", ("-m", "2")),
        ("compute.regionInstanceGroupManagers.listManagedInstances", ("--spot",)),
    ],
)
def test_an_account_that_compute_engine_does_not_know_yet_is_waited_for(
    berg, cloud, init, method, kind
):
    cloud.call("POST", "/_berg/settings", {"account_delay": 600})
    assert init("-y").returncode == 0
    laptop = berg.start("run", "-g", "0", "-n", "new", *kind, "true")

    def asked() -> int:
        return [each["method"] for each in cloud.call("GET", "/_berg/requests")["requests"]].count(
            method
        )

    wait_for(lambda: asked() > 1 or laptop.poll() is not None, what="another attempt")
    cloud.call("POST", "/_berg/settings", {"account_delay": 0})
    _, said = laptop.communicate()
    assert laptop.returncode == 0, said
    wait_for(lambda: berg.state("new")["state"] == "SUCCEEDED", 60)
    wait_for(lambda: not berg.machines(), what="the end of the machines")


@pytest.mark.slow
def test_an_account_that_kubernetes_engine_does_not_know_yet_is_waited_for(berg, cloud, init):
    cloud.call("POST", "/_berg/settings", {"account_delay": 600})
    assert init("-y").returncode == 0
    berg.allowed.append(400)
    laptop = berg.start("cluster", "create", "young", "-g", "0", "--machine-type", "n1-standard-2")

    def asked() -> int:
        requests = cloud.call("GET", "/_berg/requests")["requests"]
        return [each["method"] for each in requests].count(
            "container.projects.locations.clusters.create"
        )

    wait_for(lambda: asked() > 1 or laptop.poll() is not None, what="another attempt")
    cloud.call("POST", "/_berg/settings", {"account_delay": 0})
    _, said = laptop.communicate()
    deleted = berg("cluster", "delete", "young", "-y")
    assert (laptop.returncode, deleted.returncode) == (0, 0), said


@pytest.mark.slow
def test_rights_that_are_late_for_the_worker_cost_nothing(berg, cloud, init):
    """What counts for one request may not count for the next: boot has read the wheel, then all is
    forbidden.
    """
    began = time.monotonic()
    assert init("-y").returncode == 0
    cloud.fault("storage.objects.get", match=".whl?alt=media", delay=1)
    ran = berg("run", "-g", "0", "-n", "late", "echo ran > $BERG_RESULTS_DIR/out")
    assert ran.returncode == 0, ran.stderr

    def refused() -> bool:
        requests = cloud.call("GET", "/_berg/requests")["requests"]
        return any(
            each["method"].startswith("storage.") and each["status"] == 403 for each in requests
        )

    wait_for(lambda: cloud.call("GET", "/_berg/faults")["faults"][0]["hits"])
    time.sleep(1.05)  # the answer is on its way, and the worker begins to import
    cloud.call("POST", "/_berg/settings", {"grant_delay": time.monotonic() - began + 10})
    wait_for(refused)
    wait_for(lambda: berg.state("late")["state"] in ("SUCCEEDED", "FAILED"), 60)
    assert berg.state("late")["state"] == "SUCCEEDED", berg.state("late")
    assert berg.objects("berg_results/late/")["berg_results/late/out"] == b"ran\n"
    wait_for(lambda: not berg.machines(), what="the end of the machine")


@pytest.mark.slow
def test_all_kinds_of_jobs_end_well_as_that_account_and_it_may_do_no_more(berg, cloud, init):
    assert init("-y").returncode == 0
    wishes = ("run", "-g", "0", "-n")
    started = [
        berg(*wishes, "spot", "--spot", "echo up; test $BERG_ATTEMPT = 2 || sleep 100"),
        berg(*wishes, "three", "-m", "3", "--each", "touch $BERG_RESULTS_DIR/$BERG_NODE_RANK"),
        berg(*wishes, "hidden", "--secret", "KEY", 'test "$KEY" = hush', KEY="hush"),
    ]
    assert not any(each.returncode for each in started), started
    wait_for(lambda: "\nup\n" in berg.log("spot"), what="the spot job")
    assert [each["email"] for each in berg.machines()["spot"]["serviceAccounts"]] == [EMAIL]
    cloud.call("POST", "/_berg/instances/spot/preempt", {"grace": 2})
    for name in ("hidden", "three", "spot"):
        assert berg("tail", name).returncode == 0, berg.log(name)
    assert {f"berg_results/three/{rank}" for rank in range(3)} < berg.objects(
        "berg_results/three/"
    ).keys()
    assert berg.state("spot")["attempt"] == 2
    wait_for(lambda: not berg.machines(), what="the end of all machines")
    aggregated = cloud.call(
        "GET", f"/compute/v1/projects/{PROJECT}/aggregated/instanceGroupManagers"
    )["items"]
    assert not [
        group for scope in aggregated.values() for group in scope.get("instanceGroupManagers", [])
    ]
    assert not cloud.call("GET", f"/secretmanager/v1/projects/{PROJECT}/secrets").get("secrets")

    worker = requests.Session()
    worker.headers["Authorization"] = f"Bearer {Tokens(cloud.folder).mint(EMAIL)}"
    other = cloud.call(
        "POST", f"/storage/v1/b?project={PROJECT}", {"name": f"other-{uuid.uuid4().hex[:12]}"}
    )["name"]
    compute = f"/compute/v1/projects/{PROJECT}"
    machine = {"name": "x", "machineType": "zones/us-central1-a/machineTypes/n1-standard-1"}
    for verb, path, body in (
        ("POST", f"{compute}/zones/us-central1-a/instances", machine),
        ("GET", compute, None),
        ("GET", f"{compute}/global/firewalls", None),
        ("GET", f"/storage/v1/b/{other}/o", None),
        ("GET", f"/storage/v1/b/{berg.bucket_name}", None),
        ("GET", f"/storage/v1/b/{berg.bucket_name}/iam", None),
        ("POST", f"{RESOURCES}:getIamPolicy", {}),
        ("GET", f"/secretmanager/v1/projects/{PROJECT}/secrets", None),
    ):
        assert worker.request(verb, cloud.url + path, json=body).status_code == 403, path
    assert worker.get(f"{cloud.url}/storage/v1/b/{berg.bucket_name}/o").status_code == 200

    # Of the objects it writes what jobs write, and reads what they need; no more.
    objects = f"{cloud.url}/storage/v1/b/{berg.bucket_name}/o"
    upload = f"{cloud.url}/upload/storage/v1/b/{berg.bucket_name}/o?uploadType=media&name="
    for name in (
        ".berg/dist/berg-0.1.0-py3-none-any.whl",
        ".berg/repos/proj/pack",
        ".berg/jobs/spot_metadata.json",
        ".berg/sweeps/grid.json",
        "data/mnist/images",
        "berg_results2/x",
        "mine",
    ):
        assert worker.post(upload + name, data=b"x").status_code == 403, name
        path = f"{objects}/{name.replace('/', '%2F')}"
        assert worker.delete(path).status_code == 403, name
        moved = f"{objects}/berg_results%2Fx/rewriteTo/b/{berg.bucket_name}/o"
        assert worker.post(f"{moved}/{name.replace('/', '%2F')}").status_code == 403, name
    for name in ("berg_results/x", ".berg/logs/spot/x.log", ".berg/jobs/any_state.json"):
        assert worker.post(upload + name, data=b"x").status_code == 200, name
    assert worker.get(f"{objects}/mine").status_code == 403
    assert worker.get(f"{objects}/.berg%2Fjobs%2Fspot_metadata.json").status_code == 200


def test_a_bucket_with_access_lists_gets_uniform_access_before_conditions(berg, cloud, init):
    bucket = f"/storage/v1/b/{berg.bucket_name}"
    uniform = {"uniformBucketLevelAccess": {"enabled": False}}
    cloud.call("PATCH", bucket, {"iamConfiguration": uniform})
    done = init("-y")
    assert done.returncode == 0, done.stderr
    assert f"Turn on uniform access on gs://{berg.bucket_name}" in done.stderr
    assert held(cloud, f"{bucket}/iam{VERSION_3}", "GET") == OF_OBJECTS
    assert "nothing was changed" in init("-y").stderr


def test_accounts_of_machines_that_may_push_images_are_named_and_narrowed(berg, cloud, init):
    assert init("-y").returncode == 0
    config, ann = cloud.settings(berg.bucket_name), EMAIL.replace("worker", "worker-ann")
    builds.ensure(config)
    iam.create_account(config, ann)
    others = "user:laptop@berg.local"
    for member in (MEMBER, f"serviceAccount:{ann}", others):
        iam.bind(config, builds.policy, builds.WRITER, member)
    settings = {**saved(berg), "endpoint": cloud.url, "credentials_file": init.file}
    berg.write_config(**settings)
    looked = berg("doctor").stdout
    for email in (EMAIL, ann):
        assert f"Take {builds.WRITER} on the repository berg from {email}" in looked
    narrowed = init("-y")
    assert narrowed.returncode == 0, narrowed.stderr
    (binding,) = builds.policy(config)["bindings"]
    assert others in binding["members"], "what others have there stays"
    assert not {MEMBER, f"serviceAccount:{ann}"} & {*binding["members"]}
    assert "nothing was changed" in init("-y").stderr


@pytest.mark.slow
def test_init_waits_for_an_api_that_was_just_enabled(berg, cloud, init):
    cloud.call("POST", "/_berg/settings", {"enable_delay": 5})
    with cloud.without("iam"):
        pass
    result = init("-y")
    assert result.returncode == 0, result.stderr
    assert "An API was just enabled" in result.stderr and "lack the right" not in result.stderr
    assert saved(berg)["service_account"] == EMAIL


@pytest.mark.slow
def test_without_the_right_an_administrator_gets_the_commands(berg, cloud, init, tmp_path):
    """Somebody who may use Compute Engine, buckets and secrets, but change no policy."""
    email = cloud.call("POST", ACCOUNTS, {"accountId": f"p-{uuid.uuid4().hex[:12]}"})["email"]
    me, init.file = f"serviceAccount:{email}", berg.home / "person.json"
    for role in (
        "roles/compute.instanceAdmin.v1",
        "roles/storage.admin",
        "roles/secretmanager.admin",
    ):
        bind(cloud, RESOURCES, role, me)
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(init.file, email)
    settle(cloud)
    refused = init(stdin="\nn\n")
    assert refused.returncode == 1 and "--service-account ACCOUNT" in refused.stderr
    unasked = init("-y")
    assert unasked.returncode == 1, unasked.stderr
    assert "berg init --service-account" in unasked.stderr and "-compute@" in unasked.stderr
    result = init(stdin="\ny\n" + "\n" * 12)
    assert "Careful: the project's default account usually is Editor" in " ".join(
        result.stderr.split()
    )
    assert result.returncode == 0, result.stderr
    assert (
        f"You lack the right to set up {EMAIL}: Permission 'iam.serviceAccounts.get' denied"
        in result.stderr
    )
    default = saved(berg)["service_account"]
    assert default.endswith("-compute@developer.gserviceaccount.com")
    assert f"The machines act as the project's default account {default}" in result.stderr
    assert f"you lack iam.serviceAccounts.actAs on {default}" in " ".join(result.stderr.split())

    # What an administrator then does with these words and gcloud is enough for the person and for
    # the machines.
    gcloud = Gcloud(cloud.url, PROJECT, cloud.session.credentials.token, tmp_path)
    commands = re.findall(r"^  gcloud (.*)$", result.stderr, re.M)
    first = next(at for at, command in enumerate(commands) if "serviceAccountUser" in command)
    for command in commands[: first + 1]:
        gcloud(*shlex.split(command.replace("user:YOUR_ADDRESS", me)))
    (then,) = re.findall(r"^  berg init (--service-account \S+)$", result.stderr, re.M)
    settle(cloud)
    again = init("-y", *then.split())
    assert again.returncode == 0, again.stderr
    assert f"{EMAIL} is used unchanged: you do not have permission to see its roles" in again.stderr
    assert saved(berg)["service_account"] == EMAIL
    ran = berg("run", "-g", "0", "--wait", "--secret", "KEY", "true", KEY="hush")
    assert ran.returncode == 0, ran.stderr


def test_people_whose_names_begin_alike_have_accounts_of_their_own():
    names = ("maria-magdalena-de-la-cruz", "maria-magdalena-de-la-torre", "ana_b")
    accounts = [iam.account_of_user(Config(project="p", user=name)) for name in names]
    assert len(set(accounts)) == 3 and accounts[2].startswith("berg-worker-ana-b@")
    assert all(len(each.partition("@")[0]) <= 30 for each in accounts), "as IAM wants it"
    assert all(iam.is_ours(Config(project="p"), each) for each in accounts)


def test_who_joins_a_bucket_gets_an_account_whose_secrets_no_other_reads(berg, cloud, init):
    first = init("-y")
    assert first.returncode == 0 and saved(berg)["service_account"] == EMAIL
    values = saved(berg)
    berg.write_config(**{**values, "service_account": None, "user": "ana_b"})
    joined = init("-y")
    assert joined.returncode == 0, joined.stderr
    hers = f"berg-worker-ana-b@{PROJECT}.iam.gserviceaccount.com"
    assert saved(berg)["service_account"] == hers
    assert "what it needs; nothing was changed" in init("-y").stderr
    settings = replace(cloud.settings(berg.bucket_name), service_account=hers)
    settle(cloud)
    secret.store(settings, "hers", {"A": "hush"}, 60, [hers])
    secret.store(settings, "shared", {"A": "known"}, 60, [EMAIL])
    policy = cloud.call(
        "GET", "/secretmanager/v1/projects/berg-local/secrets/berg-hers:getIamPolicy"
    )
    assert [each["role"] for each in policy["bindings"]] == [f"projects/{PROJECT}/roles/bergSecret"]
    settle(cloud)
    she, others = as_account(berg, cloud, hers), as_account(berg, cloud, EMAIL)
    assert secret.fetch(she, "hers") == {"A": "hush"}
    assert secret.fetch(others, "shared") == {"A": "known"}
    for who, name in ((others, "hers"), (she, "shared")):
        with pytest.raises(BergError, match="cannot be read"):
            secret.fetch(who, name)
        with pytest.raises(api.Forbidden):
            secret.delete(who, name)
    with pytest.raises(api.Forbidden):  # its own secret it may not hand on
        secret.let_read(she, secret.url(she, "hers"), [EMAIL])
    assert secret.delete(she, "hers") and secret.delete(others, "shared")


def as_account(berg, cloud, email: str):
    """Settings of a machine that acts as an account."""
    file = berg.home / f"{email.partition('@')[0]}.json"
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(file, email)
    return replace(cloud.settings(berg.bucket_name), credentials_file=str(file))


def test_a_project_without_the_role_for_secrets_goes_on_with_the_wide_one(
    berg, cloud, fresh, monkeypatch
):
    said = []
    monkeypatch.setattr("berg.google.api.notify", said.append)
    make_account(cloud)
    cloud.session.delete(f"{cloud.url}{ROLES}/{iam.SECRET.role}")
    settings = cloud.settings(berg.bucket_name)
    berg.allowed.append(400)
    secret.store(settings, "older", {"A": "hush"}, 60, [EMAIL])
    policy = cloud.call(
        "GET", "/secretmanager/v1/projects/berg-local/secrets/berg-older:getIamPolicy"
    )
    assert [each["role"] for each in policy["bindings"]] == [secret.WIDE_ROLE]
    assert "Make it: berg init" in said[0]
    assert secret.delete(settings, "older")
    cloud.call("POST", "/_berg/roles/forget", {})


def test_who_may_make_no_account_joins_with_the_shared_one(berg, cloud, init):
    make_account(cloud)
    email = cloud.call("POST", ACCOUNTS, {"accountId": f"p-{uuid.uuid4().hex[:12]}"})["email"]
    init.file = berg.home / "person.json"
    for role in ("roles/compute.instanceAdmin.v1", "roles/storage.admin"):
        bind(cloud, RESOURCES, role, f"serviceAccount:{email}")
    bind(cloud, f"{ACCOUNTS}/{EMAIL}", "roles/iam.serviceAccountUser", f"serviceAccount:{email}")
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(init.file, email)
    settle(cloud)
    berg.write_config(**{**saved(berg), "service_account": None})
    joined = init("-y")
    assert joined.returncode == 0, joined.stderr
    assert "gcloud iam service-accounts create berg-worker-tester" in joined.stderr
    assert f"For now the machines act as {EMAIL}" in joined.stderr
    assert saved(berg)["service_account"] == EMAIL


def test_accounts_of_ones_own_are_taken_as_they_are(berg, cloud, init):
    mine = cloud.call("POST", ACCOUNTS, {"accountId": f"m-{uuid.uuid4().hex[:12]}"})["email"]
    taken = init("-y", "--service-account", mine)
    assert taken.returncode == 0, taken.stderr
    assert f"It needs {iam.NEEDS}." in taken.stderr and f"{mine} is used unchanged" in taken.stderr
    assert saved(berg)["service_account"] == mine
    assert cloud.session.get(f"{cloud.url}{ACCOUNTS}/{EMAIL}").status_code == 404
    unknown = init("-y", "--service-account", f"nobody@{PROJECT}.iam.gserviceaccount.com")
    assert unknown.returncode == 1 and "there is no service account 'nobody@" in unknown.stderr
    assert saved(berg)["service_account"] == mine


def test_the_embedded_cloud_gets_its_account_too(berg, cloud, fresh):
    (berg.home / "local").symlink_to(cloud.folder)
    (berg.home / "berg.json").unlink()
    result = berg("init", "--local")
    assert result.returncode == 0, result.stderr
    assert f"Create the service account {EMAIL}" in result.stderr
    assert saved(berg)["service_account"] == EMAIL
    assert "nothing was changed" in berg("init", "--local").stderr


def test_the_plan_and_doctor_warn_of_the_default_account(berg, cloud):
    values = saved(berg)
    (default,) = [
        each["email"]
        for each in cloud.call("GET", ACCOUNTS)["accounts"]
        if each["email"].endswith("-compute@developer.gserviceaccount.com")
    ]
    for account in ("", default):
        berg.write_config(**{**values, "service_account": account})
        shown = berg("run", "-g", "0", "--dry-run", "--json", "true").stderr
        assert "Account" in shown and "berg keeps nothing from it" in " ".join(shown.split())
        looked = json.loads(berg("doctor", "--json").stdout)
        (found,) = [each for each in looked if each["check"] == "machines' account"]
        assert found["status"] == "warning" and "may change what any machine" in found["found"]
    berg.write_config(**values)
    assert "keeps nothing from it" not in " ".join(
        berg("run", "-g", "0", "--dry-run", "--json", "true").stderr.split()
    )


def test_the_key_of_a_cluster_stands_in_no_metadata_where_the_account_is_ones_own(berg):
    def requested() -> str:
        ran = berg("run", "-g", "0", "-m", "2", "--dry-run", "--json", "true")
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    assert "berg-cluster-key" in requested(), "of the shared account, which needs no Secret Manager"
    own = f"berg-worker-ana@{PROJECT}.iam.gserviceaccount.com"
    berg.write_config(**{**saved(berg), "service_account": own})
    assert "berg-cluster-key" not in requested()


@pytest.mark.slow
def test_machines_of_an_account_of_ones_own_know_each_other_by_secret_manager(berg, cloud):
    own = f"berg-worker-ana@{PROJECT}.iam.gserviceaccount.com"
    settings = replace(cloud.settings(berg.bucket_name), service_account=own)
    for grant in iam.missing(settings)[0]:
        grant.make()
    settle(cloud)
    berg.write_config(**{**saved(berg), "service_account": own})
    ran = berg("run", "-g", "0", "-m", "2", "-n", "duo", "--each", "--wait", "echo $BERG_HOSTS")
    assert ran.returncode == 0, ran.stderr + berg.log("duo")
    assert "duo-0,duo-1" in berg.log("duo")
    listed = cloud.call("GET", f"/secretmanager/v1/projects/{PROJECT}/secrets").get("secrets", [])
    assert not [each for each in listed if each["name"].endswith("/berg-duo")], (
        "it went with the job"
    )
