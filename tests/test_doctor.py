"""`berg doctor`: each thing that can be wrong has a line of its own, with the command that mends
it.
"""

import json
import re
import uuid

import pytest

from localcloud.identity.tokens import Tokens

PROJECT = "berg-local"
FIREWALLS = f"/compute/v1/projects/{PROJECT}/global/firewalls"


@pytest.fixture
def look(berg):
    """The findings by their check, and the exit code, which goes with them."""

    def call(**env: str) -> dict[str, dict]:
        done = berg("doctor", "--json", **env)
        findings = json.loads(done.stdout)
        assert done.returncode == any(each["status"] == "failed" for each in findings), done.stderr
        assert "Traceback" not in done.stderr
        return {
            f"{each['check']} {each['found'].split()[0]}"
            if each["check"] == "quota"
            else each["check"]: each
            for each in findings
        }

    return call


def status(findings: dict[str, dict]) -> dict[str, str]:
    return {name: each["status"] for name, each in findings.items() if each["status"] != "ok"}


def test_all_is_well_after_init(berg, cloud, look):
    (berg.home / "local").symlink_to(cloud.folder)
    assert berg("init", "--local").returncode == 0
    findings = look()
    assert status(findings) == {}
    assert findings["machines' account"]["found"].startswith(
        f"berg-worker@{PROJECT}.iam.gserviceaccount.com has what"
    )
    assert findings["embedded cloud"]["found"] and findings["image"]["found"].startswith("pytorch-")
    shown = berg("doctor")
    assert shown.returncode == 0 and shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert len(lines) == 33 and all(line.startswith("ok ") for line in lines)


def test_trouble_has_a_command_that_mends_it(berg, cloud, look):
    settings = json.loads((berg.home / "berg.json").read_text())
    berg.write_config(**{**settings, "service_account": ""})  # so it is the default one
    here = {"region": "us-central1"}
    quotas = {
        "NVIDIA_L4_GPUS": (here, 16),
        "PREEMPTIBLE_NVIDIA_L4_GPUS": (here, 16),
        "GPUS_ALL_REGIONS": ({}, 64),
    }
    quotas |= {
        "SSD_TOTAL_GB": (here, 20480),
        "IN_USE_ADDRESSES": (here, 2000),
        "CPUS_ALL_REGIONS": ({}, 2000),
    }
    for metric, (where, _) in quotas.items():
        cloud.call("POST", "/_berg/quotas", {"metric": metric, "limit": 0, **where})
    try:
        with cloud.without("secretmanager"), cloud.without("cloudbilling"):
            findings = look(BERG_DEFAULT_IMAGE="nothing", BERG_SSH_PORT="2200")
    finally:
        for metric, (where, limit) in quotas.items():
            cloud.call("POST", "/_berg/quotas", {"metric": metric, "limit": limit, **where})
    name = berg.bucket_name
    mends = {
        "apis": "gcloud services enable secretmanager.googleapis.com cloudbilling.googleapis.com "
        f"--project {PROJECT}",
        "bucket": "berg init --local",  # it is in US, not in us-central1
        "bucket's privacy": f"gcloud storage buckets update gs://{name} --public-access-prevention",
        "bucket's cost": f"gcloud storage buckets update gs://{name} --clear-soft-delete",
        "machines' account": "berg init --local",
        **{
            f"quota {metric}": f"https://console.cloud.google.com/iam-admin/quotas?project={PROJECT}"
            for metric in quotas
        },
        "firewall": f"gcloud compute firewall-rules create berg-ssh --project {PROJECT} --network default "
        "--allow tcp:2200 --source-ranges YOUR_ADDRESS/32",
    }
    wrong = status(findings)
    assert {check: findings[check]["fix"] for check in wrong if check != "image"} == mends
    assert wrong.pop("image") == "failed" and set(wrong.values()) == {"warning"}
    assert "secretmanager (for --secret), cloudbilling (for prices)" in findings["apis"]["found"]


def test_a_new_project_has_room_for_one_default_machine_and_berg_says_for_what_not(
    berg, cloud, look
):
    """The quotas of a project that was made in 2026."""
    here = {"region": "us-central1"}
    quotas = {
        "GPUS_ALL_REGIONS": ({}, 1, 64),
        "CPUS_ALL_REGIONS": ({}, 32, 2000),
        "SSD_TOTAL_GB": (here, 500, 20480),
    }
    quotas |= {
        "IN_USE_ADDRESSES": (here, 8, 2000),
        "NVIDIA_L4_GPUS": (here, 1, 16),
        "INSTANCES": (here, 24, 2000),
    }
    for metric, (where, limit, _) in quotas.items():
        cloud.call("POST", "/_berg/quotas", {"metric": metric, "limit": limit, **where})
    try:
        findings = look()
        one = berg("run", "--dry-run", "--json", "true")
        three = berg("run", "-m", "3", "-g", "1", "--dry-run", "--json", "true")
        sweep = berg("run", "--grid", "n=1,2,3", "--dry-run", "--json", "echo {n}")
        long = berg("run", "-m", "3", "--max-hours", "169", "--dry-run", "--json", "true")
    finally:
        for metric, (where, _, limit) in quotas.items():
            cloud.call("POST", "/_berg/quotas", {"metric": metric, "limit": limit, **where})
    assert not [check for check in status(findings) if check.startswith("quota")]
    assert one.returncode == three.returncode == 0 and "Quota" not in one.stderr, one.stderr
    for words in (
        # a cluster of other tests may be there
        r"Quota     SSD_TOTAL_GB: \d+ of 500 in use; this needs 600",
        r"CPUS_ALL_REGIONS: \d of 32 in use; this needs 36",
        r"GPUS_ALL_REGIONS: 0 of 1 in use; this needs 3",
    ):
        assert re.search(words, three.stderr), three.stderr
    assert "GPUS_ALL_REGIONS: 0 of 1 in use; this needs 3" in sweep.stderr, sweep.stderr
    assert "NVIDIA_L4_GPUS" not in three.stderr, "there is room among the preemptible ones"
    assert " NVIDIA_L4_GPUS: 0 of 1 in use; this needs 3" in long.stderr, "but for a week only"


def test_credentials_without_a_quota_project(berg, cloud, look):
    words = "has not been used in project 764086051850 before or it is disabled. Enable it by visiting …"
    for api in ("iam", "serviceusage", "cloudbilling"):
        cloud.fault(f"{api}.*", status=403, message=f"The API {api} {words}", times=None)
    mend = f"Run: gcloud auth application-default set-quota-project {PROJECT}"
    findings = look()
    for check in ("apis", "machines' account"):
        assert findings[check]["status"] == "failed" and mend in findings[check]["found"], findings[
            check
        ]
    prices = berg("gpus")
    assert prices.returncode == 0 and mend in prices.stderr + prices.stdout


def test_a_project_without_the_network(berg, look):
    berg.allowed = [400]
    finding = look(BERG_NETWORK="elsewhere")["network"]
    assert (finding["status"], finding["found"][:50]) == (
        "failed",
        "there is no network 'elsewhere' in berg-local. Mak",
    )
    assert finding["fix"] == f"gcloud compute networks create elsewhere --project {PROJECT}"
    for options in ([], ["--spot"]):
        done = berg("run", "-g", "0", *options, "true", BERG_NETWORK="elsewhere")
        assert done.returncode == 1 and "berg config set network NAME" in done.stderr, done.stderr
        assert "Try other zones" not in done.stderr


def test_apis_without_which_nothing_works(berg, cloud, look):
    with cloud.without("storage"):
        findings = look()
    assert findings["apis"]["status"] == findings["bucket"]["status"] == "failed"
    assert "Cloud Storage API has not been used in project" in findings["bucket"]["found"]
    assert findings["project"]["status"] == "ok"


def test_without_clusters_their_api_may_be_off(berg, cloud, look):
    with cloud.without("container"):
        findings = look()
    assert findings["clusters"]["status"] == "ok" and "is off" in findings["clusters"]["found"]
    assert (
        findings["clusters"]["fix"]
        == f"gcloud services enable container.googleapis.com --project {PROJECT}"
    )
    assert "rights: clusters" not in findings


def test_rights_that_the_person_lacks(berg, cloud, look):
    """Somebody with an account and no role."""
    email = cloud.call(
        "POST",
        f"/iam/v1/projects/{PROJECT}/serviceAccounts",
        {"accountId": f"p-{uuid.uuid4().hex[:9]}"},
    )["email"]
    file = berg.home / "person.json"
    Tokens(cloud.folder, lambda: cloud.url).write_credentials(file, email)
    findings = look(BERG_CREDENTIALS_FILE=str(file), BERG_SERVICE_ACCOUNT=email)
    assert findings["rights: machines"]["fix"].endswith("--role roles/compute.instanceAdmin.v1")
    assert (
        findings["rights: secrets"]["status"] == findings["rights: slices"]["status"] == "warning"
    )
    assert "compute.resourcePolicies.create" in findings["rights: slices"]["found"]
    assert "compute.disks.createSnapshot" in findings["rights: devboxes"]["found"]
    assert findings["rights: account"]["fix"].endswith("--role roles/iam.serviceAccountUser")
    for check in ("project", "bucket", "rights: machines", "rights: account"):
        assert findings[check]["status"] == "failed", check
    for check in ("apis", "machines' account", "quota you", "firewall"):
        assert findings[check]["status"] == "warning", check
        assert "POST http" not in findings[check]["found"]


def test_firewalls(cloud, look):
    everything, ssh = [{"IPProtocol": "all"}], [{"IPProtocol": "tcp", "ports": ["20-30"]}]
    usual = cloud.call("GET", f"{FIREWALLS}/default-allow-ssh")
    cases = [
        (
            {"denied": everything, "sourceRanges": ["0.0.0.0/0"], "priority": 10},
            "warning",
            "no rule allows tcp:22",
        ),
        (
            {"allowed": ssh, "sourceRanges": ["0.0.0.0/0"], "targetTags": ["web"]},
            "warning",
            "no rule allows tcp:22",
        ),
        ({"allowed": ssh, "sourceRanges": ["35.235.240.0/20"]}, "warning", "(IAP)"),
        (
            {"allowed": everything, "sourceRanges": ["8.8.8.0/24"]},
            "ok",
            "8.8.8.0/24; this computer should be",
        ),
        ({"allowed": everything, "sourceRanges": ["::/0"]}, "warning", "no rule allows tcp:22"),
        (
            {"allowed": everything, "sourceRanges": ["::/0"]},
            "warning",
            "no rule allows IAP",
            "true",
        ),
    ]
    try:
        for rule, expected, words, *inside in cases:
            if "allowed" in rule:
                cloud.session.delete(f"{cloud.url}{FIREWALLS}/default-allow-ssh")
            cloud.call(
                "POST",
                FIREWALLS,
                {"name": "berg-test", "network": "global/networks/default", **rule},
            )
            finding = look(BERG_NO_EXTERNAL_IP=inside[0] if inside else "false")["firewall"]
            cloud.call("DELETE", f"{FIREWALLS}/berg-test")
            assert finding["status"] == expected and words in finding["found"], finding
    finally:
        fields = ("name", "description", "priority", "allowed", "sourceRanges")
        rule = {
            **{key: usual[key] for key in fields if key in usual},
            "network": "global/networks/default",
        }
        cloud.call("POST", FIREWALLS, rule)


@pytest.mark.parametrize(
    ("content", "words"), [("{oops", "is not valid JSON at line 1"), ("{}", "Run: berg init")]
)
def test_without_settings_and_credentials_it_says_so(berg, look, content, words):
    (berg.home / "berg.json").write_text(content)
    findings = look()
    assert words in findings["settings"]["found"]
    assert findings["credentials"]["found"].startswith(
        "no Google credentials found. Run: gcloud auth"
    )
    unseen = {findings[name]["found"] for name in ("project", "bucket", "firewall")}
    assert unseen == {"not checked, without credentials"} and findings["git"]["status"] == "ok"


def test_without_a_network_and_without_tools(berg, look, tmp_path):
    settings = json.loads((berg.home / "berg.json").read_text())
    credentials = json.loads((berg.cloud.folder / "credentials.json").read_text())
    (berg.home / "dead.json").write_text(
        json.dumps({**credentials, "token_url": "http://127.0.0.1:9/token"})
    )
    dead = {"endpoint": "http://127.0.0.1:9", "credentials_file": str(berg.home / "dead.json")}
    berg.write_config(**{**settings, **dead})
    findings = look(PATH=str(tmp_path))
    assert "cannot reach http://127.0.0.1:9" in findings["credentials"]["found"]
    assert {name: findings[name]["status"] for name in ("git", "ssh", "rsync")} == {
        "git": "failed",
        "ssh": "warning",
        "rsync": "warning",
    }
    assert findings["rsync"]["fix"] == "sudo apt-get install rsync"
