"""Pods of clusters with Workload Identity: each person's in a namespace of their own, with the token
of their own account and none of their node.
"""

import json
import re
from dataclasses import replace

import pytest
from conftest import settle, wait_for
from local_kube import job
from pods import cluster
from test_pods import RIGHTS, somebody

from berg import BergError
from berg.gke import client, clusters, pods
from berg.google import iam
from berg.laptop import doctor
from berg.spec import JobSpec

PLACE = "us-central1-a/own"
NODES = "berg-nodes@berg-local.iam.gserviceaccount.com"
POOL = {"num_gpus": 0, "machine_type": "n1-standard-2", "num_nodes": 1}
WHO = """
import os, urllib.error, urllib.request
accounts = "http://" + os.environ["GCE_METADATA_HOST"] + "/computeMetadata/v1/instance/service-accounts/"
def ask(path):
    made = urllib.request.Request(accounts + path, headers={"Metadata-Flavor": "Google"})
    try:
        return urllib.request.urlopen(made).read().decode()
    except urllib.error.HTTPError as error:
        return error.code
print("acts as", ask("default/email"))
print("of its node", ask("NODES/token"))
""".replace("NODES", NODES)


@pytest.fixture(scope="module")
def kube(cloud, tmp_path_factory):
    """A cluster whose nodes act as an account that may do nothing in the bucket."""
    nodes = {"accountId": "berg-nodes", "serviceAccount": {}}
    cloud.call("POST", "/iam/v1/projects/berg-local/serviceAccounts", nodes)
    settle(cloud)
    with cluster(cloud, "own", tmp_path_factory.mktemp("own"), POOL, account=NODES) as made:
        yield made


@pytest.fixture
def settings(cloud, account):
    return replace(cloud.settings(), service_account=account)


def pods_in(kube, namespace: str) -> list[dict]:
    return kube.get("pods", namespace=namespace)["items"]


def account_in(kube, namespace: str) -> dict:
    return kube.get("serviceaccounts", iam.ACCOUNT, namespace=namespace)


def test_clusters_have_workload_identity_and_pools_the_metadata_server_for_pods(cloud, kube):
    found = client.get_cluster(cloud.settings(), PLACE)
    assert client.workload_pool(found) == "berg-local.svc.id.goog"
    assert [pool["name"] for pool in client.pools(found)] == ["system", "n1-standard-2"]
    assert not client.without_identity(found)
    pods.check_mounts(found, JobSpec(mount=("mnist",)))
    body = client.cluster_body(cloud.settings(), "old", "tester")
    with pytest.raises(BergError, match="have no account of their own"):
        pods.check_mounts({**body, "location": "us-central1-a"}, JobSpec(mount=("mnist",)))
    without = {key: value for key, value in found.items() if key != "addonsConfig"}
    with pytest.raises(BergError, match="--update-addons GcsFuseCsiDriver=ENABLED"):
        pods.check_mounts(without, JobSpec(mount=("mnist",)))
    assert "workloadIdentityConfig" not in body, "no account that pods could act as"
    assert "workloadMetadataConfig" not in body["nodePools"][0]["config"]


@pytest.mark.slow
def test_pods_act_as_the_account_of_their_person_and_get_no_token_of_their_node(
    berg, kube, account
):
    (berg.repo / "who.py").write_text(WHO)
    where = ("run", "--cluster", "own", "-g", "0")
    assert berg(*where, "-n", "who", "--wait", "python3 who.py").returncode == 0, berg.log("who")
    said = berg("log", "who").stdout
    assert f"acts as {account}\n" in said and "of its node 404\n" in said
    home = iam.namespace(berg.bucket.config.user)
    there = account_in(kube, home)["metadata"]["annotations"]
    assert there == {iam.ANNOTATION: account}
    assert not kube.pods(), "none is in the shared namespace"
    assert berg(*where, "-n", "stays", "sleep 1000", BERG_USER="ann").returncode == 0
    wait_for(lambda: berg.state("stays")["state"] == "RUNNING", 60, "another's job")
    (pod,) = pods_in(kube, "berg-ann")
    (row,) = [
        each
        for each in json.loads(berg("list", "--json", BERG_USER="ann").stdout)
        if each["name"] == "stays"
    ]
    assert row["state"] == "RUNNING", row
    entered = berg("ssh", "stays", "--", "echo $BERG_JOB")
    assert entered.stdout.strip() == "stays", entered.stderr
    assert pod["spec"]["nodeName"] in berg("cluster", "status", "own").stdout
    assert berg("kill", "--now", "stays").returncode == 0
    wait_for(lambda: not pods_in(kube, "berg-ann"), 30, "its pod to go")


@pytest.mark.slow
def test_a_folder_of_a_bucket_is_a_volume_of_the_pod(berg, kube, account, tmp_path):
    folder = tmp_path / "mnist"
    (folder / "train set").mkdir(parents=True)
    (folder / "train set/a.txt").write_text("grüße\n")
    assert berg("data", "push", str(folder), "mnist").returncode == 0
    script = "cat /root/data/mnist/*/a.txt; touch /root/data/mnist/b || echo refused"
    words = ("run", "--cluster", "own", "-g", "0", "-n", "reads", "--mount", "mnist", script)
    planned = berg(*words, "--dry-run", "--json")
    made = json.loads(planned.stdout)["request"]["spec"]["template"]
    assert "read when needed; half of the disk caches what was read" in planned.stderr
    (volume,) = [each["csi"] for each in made["spec"]["volumes"] if "csi" in each]
    options = volume["volumeAttributes"]["mountOptions"].split(",")
    assert options[:2] == ["only-dir=data/mnist", "implicit-dirs"] and volume["readOnly"]
    assert made["metadata"]["annotations"].items() >= pods.ANNOTATIONS.items()
    done = berg(*words, "--wait")
    assert done.returncode == 0, berg.log("reads") + done.stderr
    said = berg.log("reads")
    assert "grüße\n" in said and "\nrefused\n" in said and "Mounting" not in said


@pytest.mark.parametrize(
    ("annotations", "attributes", "says"),
    [
        ({}, {}, "failed to find the sidecar container in Pod spec"),
        (pods.ANNOTATIONS, {"bucketName": "none-such"}, "bucket none-such doesn't exist"),
        (pods.ANNOTATIONS, {"mountOptions": "implicit_dirs"}, "unknown flag: --implicit_dirs"),
        (pods.ANNOTATIONS, {}, "does not have storage.objects.list access"),
    ],
)
def test_volumes_that_the_driver_cannot_show_are_told(
    kube, cloud, annotations, attributes, says, berg
):
    made = job("shows", "true")
    template = made["spec"]["template"]
    template["metadata"] = {"annotations": annotations}
    source = {"driver": pods.DRIVER, "readOnly": True}
    source["volumeAttributes"] = {"bucketName": berg.bucket_name, **attributes}
    template["spec"]["volumes"] = [{"name": "data", "csi": source}]
    mount = {"name": "data", "mountPath": "/data"}
    template["spec"]["containers"][0]["volumeMounts"] = [mount]
    kube.create(made)
    try:
        wait_for(lambda: says in json.dumps(kube.get("events")), 30, "the driver's words")
    finally:
        path = "/apis/batch/v1/namespaces/default/jobs/shows"
        kube.call("DELETE", path, propagationPolicy="Background")
        wait_for(lambda: not kube.pods(), 30, "the pod to go")


def test_who_may_give_no_rights_in_the_cluster_is_admitted_by_who_may(
    berg, kube, cloud, settings, monkeypatch
):
    said = []
    monkeypatch.setattr("berg.google.api.notify", said.append)
    her = somebody(berg, cloud, *RIGHTS, "roles/container.developer")
    bob = replace(settings, user="bob", credentials_file=her["BERG_CREDENTIALS_FILE"])
    server = client.connect(bob, PLACE)
    with pytest.raises(BergError, match="berg cluster admit own bob"):
        pods.ensure_account(bob, server)
    assert clusters.admit(settings, "own", "bob") == "berg-bob"
    assert pods.ensure_account(bob, server) == "berg-bob"
    (notice,) = said
    assert "add-iam-policy-binding" in notice and "[berg-bob/berg-pod]" in notice
    assert account_in(kube, "berg-bob")["metadata"]["annotations"] == {
        iam.ANNOTATION: settings.service_account
    }
    pods.ensure_account(bob, server)
    assert len(said) == 1, "what was said once is not said with each job"


def test_the_binding_that_is_missing_is_named_and_made_by_init(cloud, kube, settings):
    carol = replace(settings, user="carol_x")
    look = lambda: client.clusters(carol)
    (grant,) = pods.missing_grants(carol, look)
    home = iam.namespace("carol_x")
    assert home.startswith("berg-carol-x-"), "there may be a user carol-x, too"
    assert f"'serviceAccount:berg-local.svc.id.goog[{home}/berg-pod]'" in grant.gcloud
    (found,) = doctor.check_identity(carol)
    assert (found.check, found.fix) == ("pods' account", grant.gcloud)
    grant.make()
    assert not pods.missing_grants(carol, look) and not doctor.check_identity(carol)
    policy = iam.account_policy(carol)
    mine = [each for each in policy["bindings"] if each["role"] == iam.WORKLOAD_ROLE]
    assert iam.pods_member(carol) in mine[0]["members"]
    assert not pods.missing_grants(replace(carol, service_account=""), look)
    none = replace(carol, service_account="nobody@berg-local.iam.gserviceaccount.com")
    assert len(pods.missing_grants(none, look)) == 1, "an account that is yet to be made"


def test_secrets_are_for_the_account_that_pods_act_as(settings):
    old = {"config": {"serviceAccount": "nodes@x", "workloadMetadataConfig": {}}, "name": "old"}
    new = {"config": {"serviceAccount": "nodes@x", "workloadMetadataConfig": client.FOR_PODS}}
    pool = {"workloadIdentityConfig": {"workloadPool": "p.svc.id.goog"}, "name": "c"}
    mine = settings.service_account
    only = {**pool, "nodePools": [{**new, "name": "new"}]}
    assert pods.accounts(settings, only) == (mine,)
    assert pods.accounts(settings, {**pool, "nodePools": [old]}) == (mine, "nodes@x")
    assert pods.accounts(settings, {"nodePools": [old]}) == ("nodes@x",)
    with pytest.raises(BergError, match="berg init"):
        pods.accounts(replace(settings, service_account=""), only)


def test_doctor_says_how_older_clusters_and_pools_are_changed(settings):
    old = {"name": "c", "location": "us-central1-a", "nodePools": []}
    found, mend = doctor.without_identity(settings, old)
    assert "no Workload Identity" in found
    assert mend == (
        "gcloud container clusters update c --location us-central1-a --project berg-local "
        "--workload-pool berg-local.svc.id.goog"
    )
    pool = {"workloadIdentityConfig": {"workloadPool": "berg-local.svc.id.goog"}}
    mixed = {**old, **pool, "nodePools": [{"name": "t4", "config": {}}]}
    found, mend = doctor.without_identity(settings, mixed)
    assert found == "pods on t4 of c get the token of their node"
    assert mend.endswith("--workload-metadata GKE_METADATA")


def test_what_things_are_called_in_a_cluster_leads_to_them():
    pod = {"metadata": {"name": "a-x", "namespace": "berg-ann"}}
    shared = {"metadata": {"name": "a-x", "namespace": "default"}}
    assert (client.called(pod), client.called(shared)) == ("berg-ann/a-x", "a-x")
    assert client.path_to("pods", "berg-ann/a-x") == "/api/v1/namespaces/berg-ann/pods/a-x"
    assert client.path_to("jobs", "a") == "/apis/batch/v1/namespaces/default/jobs/a"
    long = iam.namespace("x" * 80)
    assert len(long) == 63 and iam.namespace("ann-b") == "berg-ann-b"


def test_no_two_people_have_the_same_namespace():
    """Else the pods of both would act as the account of whoever submitted last."""
    users = ["a", "a_", "a-", "a_b", "a-b", "x" * 58, "x" * 59, "x" * 60, "x" * 59 + "y"]
    found = {user: iam.namespace(user) for user in users}
    assert len(set(found.values())) == len(users), found
    assert all(re.fullmatch("berg-[-a-z0-9]{0,57}[a-z0-9]", name) for name in found.values()), found


@pytest.mark.slow
def test_pods_of_a_job_find_each_other_and_their_secret(berg, kube, tmp_path):
    """Their account lists the pods of their namespace; the secret is the account's."""
    (tmp_path / "secret").write_text("hush")
    words = ("-m", "2", "--each", "-n", "two", "--secret", f"KEY={tmp_path / 'secret'}", "--wait")
    command = "echo $BERG_NODE_RANK of $BERG_NUM_NODES: $KEY | rev; sleep 2"
    ran = berg("run", "--cluster", "own", "-g", "0", *words, command)
    assert ran.returncode == 0, ran.stderr + berg.log("two")
    said = berg.log("two")
    assert said.count("hsuh :2 fo ") == 2
    home = iam.namespace(berg.bucket.config.user)
    (made,) = [
        each
        for each in kube.get("jobs", namespace=home)["items"]
        if each["metadata"]["name"] == "two"
    ]
    assert made["status"]["succeeded"] >= 1
    printed = json.loads(
        berg("run", "--cluster", "own", "-g", "0", "-n", "x", "--dry-run", "--json", "true").stdout
    )["request"]
    assert printed["metadata"]["namespace"] == home


@pytest.mark.slow
def test_an_older_cluster_goes_on_and_is_changed_as_doctor_says(berg, cloud, settings, tmp_path):
    with cluster(cloud, "older", tmp_path, POOL) as old:
        mine = lambda: [each for each in doctor.check_identity(settings) if "older" in each.fix]
        assert "no Workload Identity" in mine()[0].found
        where = ("run", "--cluster", "older", "-g", "0", "--wait")
        assert berg(*where, "-n", "before", "true").returncode == 0
        assert old.get("jobs")["items"], "its Job is in the shared namespace"
        base = "projects/berg-local/locations/us-central1-a/clusters/older"
        pool = {"desiredWorkloadIdentityConfig": {"workloadPool": iam.pool(settings)}}
        old.done(old.google("PUT", base, {"update": pool}))
        assert "get the token of their node" in mine()[0].found
        for name in ("system", "n1-standard-2"):
            body = {"workloadMetadataConfig": client.FOR_PODS}
            old.done(old.google("PUT", f"{base}/nodePools/{name}", body))
        assert berg(*where, "-n", "after", "true").returncode == 0, berg.log("after")
        there = old.get("jobs", namespace=iam.namespace(berg.bucket.config.user))["items"]
        assert [each["metadata"]["name"] for each in there] == ["after"]
        assert not mine()
        names = {each["name"] for each in json.loads(berg("list", "--json").stdout)}
        assert names >= {"before", "after"}
