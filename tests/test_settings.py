"""Settings and options: which forms they have, what comes before what, what setup says of them, and what it makes."""

import getpass
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from conftest import Cloud, Done, write

from berg import BergError, config, google, init, options
from berg.config import Config
from berg.init import Lack


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An own folder of settings, in an environment without any."""
    for name in [name for name in os.environ if name.startswith("BERG_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("BERG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# --- their forms


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("2d", 172800), (" 5m ", 300), (7, 7), (1.5, 1.5)],
)
def test_a_time_has_a_unit(text: Any, seconds: float) -> None:
    assert options.duration(text) == seconds


@pytest.mark.parametrize("text", ["5", "m", "5 m", "5w", "-5m", "1h30m", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="Give one such as 90s, 30m, 2h or 1d"):
        options.duration(text)


@pytest.mark.parametrize(
    ("text", "dollars"), [("", 0.0), ("5", 5.0), ("0.25", 0.25), ("0", 0.0)]
)  # fmt: skip
def test_a_limit_is_a_number_of_dollars(text: str, dollars: float) -> None:
    assert Config(max_cost=text).dollars("max_cost") == dollars
    for wrong in (f"${text}", f"-{text or 1}", "1e3", "many", "5."):
        with pytest.raises(BergError, match="berg config set budget 50"):
            Config(budget=wrong).dollars("budget")


@pytest.mark.parametrize(
    ("login", "name"),
    [("Ada.Lovelace", "ada-lovelace"), ("_root_", "root"), ("x" * 50, "x" * 40), ("__", "unknown")],
)
def test_a_user_has_a_name_that_labels_take(
    monkeypatch: pytest.MonkeyPatch, login: str, name: str
) -> None:
    monkeypatch.setenv("LOGNAME", login)
    assert getpass.getuser() == login and config.user_name() == name


def test_what_is_near_is_reached_without_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for before, after in (("here.com", "here.com,127.0.0.1,localhost"), ("*", "*")):
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NO_PROXY", before)
        config.bypass_proxy()
        assert os.environ["NO_PROXY"].startswith(after)
        assert before == "*" or os.environ["no_proxy"] == os.environ["NO_PROXY"]
        assert before == "*" or "metadata.google.internal" in os.environ["NO_PROXY"]


# --- the file


def test_settings_come_from_the_command_the_environment_and_the_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BergError, match="names no project and bucket. Run: berg init"):
        Config.load()
    Config(project="mine", bucket="of-me", region="", ssh_port="23").save()
    assert home.stat().st_mode & 0o77 == 0
    kept = json.loads((home / "berg.json").read_text())
    assert kept["project"] == "mine" and "region" not in kept and "zones" not in kept
    assert Config.load().region == "us-central1" and Config.load().ssh_port == "23"
    monkeypatch.setenv("BERG_PROJECT", "other")
    monkeypatch.setenv("BERG_SSH_PORT", "")
    assert Config.load().project == "other" and Config.load().ssh_port == "23"
    assert Config.load(project="third", bucket=None).project == "third"
    sources = [config.source(name) for name in ("project", "bucket", "region")]
    assert sources == ["BERG_PROJECT", str(home / "berg.json"), "default"]
    Config(bucket="new", project="not written").save("bucket", "ssh_port")
    kept = json.loads((home / "berg.json").read_text())
    assert (kept["bucket"], kept["project"], kept["ssh_port"]) == ("new", "mine", "22")
    monkeypatch.setenv("BERG_SSH_PORT", "many")
    with pytest.raises(BergError, match="BERG_SSH_PORT: ssh_port cannot be 'many'"):
        Config.read()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot read .*berg.json"),
        ("[]", "must hold one JSON object"),
        ('{"project": "p"}', "names no project and bucket"),
        ('{"project": "p", "bucket": "Upper"}', "berg.json: bucket cannot be 'Upper'"),
        ('{"project": "p", "bucket": "bbb", "gpus": 8}', "'gpus' must be text, not 8"),
    ],
)
def test_a_damaged_file_is_named(home: Path, text: str, says: str) -> None:
    write(home, {"berg.json": text})
    with pytest.raises(BergError, match=says):
        Config.load()


def test_credentials_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name, text in (("none.json", None), ("broken.json", "{")):
        if text:
            (tmp_path / name).write_text(text)
        with pytest.raises(BergError, match=f"credentials in .*{name}.*Run: berg init"):
            _ = Config(credentials_file=str(tmp_path / name)).credentials


# --- options


def command(*flags: str) -> click.Command:
    @click.command()
    @click.option("-g", "--num-gpus", "gpus")
    @click.option("--max-hours")
    @click.option("--env", multiple=True)
    @click.option("--zone", "zones", multiple=True)
    @click.option("-y", "--yes", is_flag=True)
    @click.option("-n", "--name")
    @click.option("--env-file")
    @click.option("--tasks")
    @click.option("--pod-patch")
    @click.option("--resume")
    def run(**_: Any) -> None: ...

    return run


def test_defaults_are_of_the_file_the_repository_and_the_environment(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Config(gpus="1", gpu_type="t4", zones="a-1,a-2").save()
    folder = tmp_path / "repo/inner"
    folder.mkdir(parents=True)
    assert options.defaults(folder, command()) == {
        "gpus": "1", "gpu_type": "t4", "zones": ["a-1", "a-2"]
    }  # fmt: skip
    file = tmp_path / "repo/pyproject.toml"
    file.write_text(
        "[tool.berg]\nnum-gpus = 2\nmax_hours = 3\nzone = ['b']\nenv = ['A=1']\nask-above = 5\n"
    )
    found = options.defaults(folder, command())
    assert found == {"gpus": 2, "gpu_type": "t4", "zones": ["b"], "max_hours": 3, "env": ["A=1"],
                     "ask_above": 5}  # fmt: skip
    monkeypatch.setenv("BERG_GPUS", "4")
    monkeypatch.setenv("BERG_ZONES", "c,d")
    found = options.defaults(folder, command())
    assert (found["gpus"], found["zones"]) == ("4", ["c", "d"])
    (folder / "pyproject.toml").write_text("[project]\n")  # the nearest one counts
    assert "max_hours" not in options.defaults(folder, command())
    (folder / "pyproject.toml").unlink()
    (folder / ".git").mkdir()  # what is above a repository is somebody's
    assert "max_hours" not in options.defaults(folder, command())


FORBIDDEN = ["yes", "y", "name", "n", "env-file", "tasks", "pod_patch", "resume", "what"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        *((f"{key} = 'x'", f"{key} is nothing that a repository can say") for key in FORBIDDEN),
        ("env = 'A=1'", "env needs NAME=VALUE"),
        ("env = ['A=1', 'B']", "env needs NAME=VALUE"),
        ("env = [1]", "env needs NAME=VALUE"),
        ("max-hours = ", "not valid TOML"),
    ],
)
def test_a_repository_answers_nothing_and_takes_nothing_of_this_computer(
    tmp_path: Path, line: str, says: str
) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.berg]\n{line}\n")
    with pytest.raises(BergError, match=says):
        options.repo_defaults(tmp_path, command())


# --- berg config and berg local


def test_settings_are_shown_and_changed_one_by_one(cloud: Cloud, tmp_path: Path) -> None:
    own = {"BERG_HOME": str(tmp_path)}
    settings = json.loads((cloud.home / ".berg/berg.json").read_text())
    (tmp_path / "berg.json").write_text(json.dumps(settings))

    def said(*words: str, **env: str) -> Any:
        done = cloud.ok("config", *words, "--json", **own, **env)
        return json.loads(done.out)

    assert said("path") == {"name": str(tmp_path / "berg.json")}
    assert said("get", "zones") == {"name": "zones", "value": [], "source": "default"}
    made = said("set", "zones", " us-central1-a,us-central1-b ")
    assert made == {
        "name": "zones", "done": "set", "value": ["us-central1-a", "us-central1-b"]
    }  # fmt: skip
    listed = said("list", BERG_REGION="us-east1")
    assert (listed["zones"], listed["region"]) == (made["value"], "us-east1")
    assert [listed["sources"][name] for name in ("zones", "region", "network")] == [
        str(tmp_path / "berg.json"), "BERG_REGION", "default"
    ]  # fmt: skip
    assert said("unset", "zones") == {"name": "zones", "done": "unset", "value": []}
    family = cloud.config.default_image.rpartition("/")[2]
    image = said("set", "default_image", family)  # in the project of the one before
    assert image["value"] == cloud.config.default_image
    done = cloud.run("config", "set", "user", "ada", **own, BERG_USER="eve")
    assert "user is eve (BERG_USER)" in done.err and "comes before the file" in done.err
    done = cloud.run("config", "set", "user", "bea", **own)
    assert "user is bea" in done.err and "comes before" not in done.err
    assert cloud.run("config", "get", "user", **own).out == "bea\n"
    shown = cloud.run("config", "show", **own).out
    assert "your name on jobs" in shown and "KEY" in shown
    cloud.fails("config", "set", "user", " ", **own, says="berg config unset user")
    assert cloud.run("config", "set", "nothing", "x", **own).code == 2


@pytest.mark.parametrize(
    ("key", "good", "bad"),
    [
        ("gpus", ["0", "16"], ["-1", "x", "100"]), ("ssh_port", ["22", "2222"], ["ssh", "123456"]),
        ("user", ["ada-1"], ["Ada", "-a", "a" * 41]), ("no_external_ip", ["true", "false"], ["yes"]),
        ("budget", ["5", "0.5"], ["$5", "-1"]), ("max_cost", ["5"], ["five"]),
        ("ask_above", ["0"], ["none"]), ("gpu_type", ["h100"], ["h1000"]),
        ("endpoint", ["http://x:1", "https://x"], ["ftp://x", "x:1"]),
        ("region", ["us-east1"], ["us-east9", "US-EAST1"]),
        ("zones", ["us-east1-b", "us-east1-b,us-central1-a"], ["us-east1-b,", "us-east1"]),
        ("network", ["default"], ["none", "a/b"]), ("project", ["berg-local"], ["other", "a/b"]),
        ("bucket", ["berg-local-results"], ["nobodys-bucket", "UPPER"]),
    ],
)  # fmt: skip
def test_a_setting_is_checked_before_it_is_written(
    cloud: Cloud, key: str, good: list[str], bad: list[str]
) -> None:
    for value in good:
        init.SETTERS[key](cloud.config, value)
    for value in bad:
        with pytest.raises(BergError):
            init.SETTERS[key](cloud.config, value)


def test_the_embedded_cloud_says_whether_it_runs(cloud: Cloud, tmp_path: Path) -> None:
    def said(*words: str, **env: str) -> tuple[int, str]:
        done = cloud.run("local", *words, **env)
        return done.code, done.out + done.err

    own = {"BERG_HOME": str(tmp_path)}
    assert said("status") == (0, "It runs\n")
    port = cloud.config.endpoint.rpartition(":")[2]
    assert said("start") == (0, f"It runs at http://127.0.0.1:{port}\n")
    about = json.loads(cloud.run("local", "status", "--json").out)
    assert about["running"] is True
    assert said("status", **own) == (0, "It does not run\n")
    assert said("stop", **own) == (0, "It did not run\n")
    code, text = said("reset", **own)
    assert code == 1 and f"Delete {tmp_path}/local with all buckets" in text
    assert json.loads(cloud.run("local", "status", "--json", **own).out)["running"] is False


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_completes(cloud: Cloud, shell: str) -> None:
    assert f"_BERG_COMPLETE={shell}_complete" in cloud.ok("completion", shell).out


# --- what doctor finds, and init makes


def test_doctor_names_what_is_lacking_and_init_repairs_it(cloud: Cloud) -> None:
    assert cloud.run("doctor").code == 0
    role = "/iam/v1/projects/berg-local/roles/bergMachine"
    cloud.call("PATCH", role, {"includedPermissions": ["compute.instances.get"], "stage": "GA"})
    done = cloud.run("doctor", "--json")
    rows = {row["check"]: row for row in json.loads(done.out)}
    assert done.code == 1 and rows["account"]["status"] == "failed"
    assert rows["account"]["fix"] == "berg init" and rows["bucket"]["status"] == "ok"
    assert cloud.run("init", "--local", "-y").code == 0
    assert cloud.run("doctor").code == 0


def test_doctor_without_settings_says_where_to_begin(cloud: Cloud, tmp_path: Path) -> None:
    done = cloud.run("doctor", BERG_HOME=str(tmp_path))
    assert done.code == 1 and "berg init" in done.out and "rights" not in done.out
    (tmp_path / "berg.json").mkdir()
    for place in (tmp_path, Path(__file__)):  # neither is a folder with settings
        cloud.fails("list", says="berg.json", BERG_HOME=str(place))


def test_wrong_settings_are_refused_and_change_nothing(cloud: Cloud) -> None:
    before = (cloud.home / ".berg/berg.json").read_bytes()
    for key, value in {
        "region": "mars-west1", "zones": "us-central1-a,us-central1-zz", "bucket": "no-such-bucket-x",
        "network": "nowhere", "service_account": "nobody@berg-local.iam.gserviceaccount.com",
        "project": "no-such-project", "gpus": "many", "default_image": "none/no-such-image",
    }.items():  # fmt: skip
        cloud.fails("config", "set", key, value, says=value.split(",")[-1].split("/")[-1])
    assert (cloud.home / ".berg/berg.json").read_bytes() == before


def test_a_repository_has_options_of_its_jobs(cloud: Cloud, project: Path) -> None:
    def planned(table: str, *words: str, **env: str) -> Done:
        (project / "pyproject.toml").write_text(f"[tool.berg]\n{table}\n")
        return cloud.run(*(words or ("run", "true")), "--dry-run", cwd=project, **env)

    assert "n1-standard-4" in planned("num-gpus = 0\ncpus = 4").out
    own = "num-gpus = 0\nmax-hours = 2\nresults-dir = 'ours'\nno-external-ip = false"
    done = planned(own)
    assert "2h, then Google deletes" in done.out and "/ours/\n" in done.out, done.out + done.err
    done = planned(own, BERG_NO_EXTERNAL_IP="true")
    assert done.code == 1 and "without an external address" in done.err, done.err
    of_commands = 'docker = "python:3.12"\nmax-silence = "1h"\ngpus = 0\ncpus = 2'
    box = planned(of_commands, "devbox")
    assert box.code == 0 and "python:3.12" not in box.out and "n1-standard-2" in box.out, box.err
    for line, says in {"yes = true": "yes is nothing", "max-hours = 'soon'": "soon"}.items():
        done = planned(line)
        assert done.code and says in done.err, (line, done.err)


def test_settings_are_replaced_and_buckets_made_only_with_a_yes(
    cloud: Cloud, tmp_path: Path
) -> None:
    own = {"BERG_HOME": str(tmp_path)}
    (tmp_path / "berg.json").write_text('{"project": "mine", "service_account": "me@mine"}')
    cloud.fails("init", "--local", **own, says="would replace")
    assert json.loads((tmp_path / "berg.json").read_text())["project"] == "mine"
    assert cloud.run("init", "--local", "-y", **own).code == 0
    assert (tmp_path / ".gitignore").read_text() == "*\n"
    account = json.loads((tmp_path / "berg.json").read_text())["service_account"]
    assert account.startswith("berg-worker@berg-local."), "not that of Google's project"
    assert cloud.run("local", "reset", "-y", **own).code == 0
    (tmp_path / "berg.json").unlink()
    google = {"BERG_ENDPOINT": cloud.config.endpoint}
    google["BERG_CREDENTIALS_FILE"] = cloud.config.credentials_file
    words = [
        "init",
        "--project",
        "berg-local",
        "--region",
        "us-central1",
        "--bucket",
        "made-by-init",
    ]
    cloud.fails(*words, **own, **google, says="answer with -y")
    assert not (tmp_path / "berg.json").exists()
    assert cloud.run(*words, "-y", **own, **google).code == 0
    saved = json.loads((tmp_path / "berg.json").read_text())
    assert saved["bucket"] == "made-by-init" and saved["service_account"].startswith("berg-worker@")
    cloud.call("DELETE", "/storage/v1/b/made-by-init")
    cloud.fails("list", **own, says="made-by-init does not exist. Create it: berg init")
    cloud.call("POST", "/storage/v1/b?project=berg-local", {"name": "made-by-init"})  # by somebody
    (tmp_path / "berg.json").unlink()
    assert cloud.run(*words, "-y", **own, **google).code == 0
    policy = cloud.call("GET", "/storage/v1/b/made-by-init/iam")
    assert saved["service_account"] in json.dumps(policy), "its machines may use it again"
    cloud.call("DELETE", "/storage/v1/b/made-by-init")


def test_an_api_that_is_off_has_the_command_that_helps(cloud: Cloud) -> None:
    api = "/serviceusage/v1/projects/berg-local/services/iam.googleapis.com"
    cloud.call("POST", f"{api}:disable", {})
    try:
        done = cloud.run("doctor", "--json")
    finally:
        cloud.call("POST", f"{api}:enable", {})
    (row,) = [row for row in json.loads(done.out) if row["check"] == "apis"]
    assert done.code == 1 and row["status"] == "failed"
    assert row["fix"].startswith("gcloud services enable iam.googleapis.com")


def test_a_rule_lets_ssh_in_if_it_is_for_its_port_and_all_machines() -> None:
    def opens(port: int = 22, **changes: Any) -> bool:
        allowed = [{"IPProtocol": "tcp", "ports": ["80", "20-30"]}]
        return init.opens({"direction": "INGRESS", "allowed": allowed, **changes}, port)

    assert opens() and opens(80) and opens(20) and opens(30)
    assert not opens(31) and not opens(81) and not opens(19)
    assert not opens(disabled=True) and not opens(direction="EGRESS") and not opens(allowed=[])
    assert not opens(targetTags=["web"])
    assert opens(99, allowed=[{"IPProtocol": "all"}]) and opens(99, allowed=[{"IPProtocol": "6"}])
    assert not opens(allowed=[{"IPProtocol": "udp"}])
    assert init.private({"10.0.0.0/8", "8.8.8.8/32", "0.0.0.0/0"}) == {"10.0.0.0/8"}


@pytest.mark.parametrize(
    ("sources", "inside", "fix"),
    [
        (["0.0.0.0/0"], "", ""), (["8.8.8.8/32"], "", ""), (["10.0.0.0/8"], "", init.ANYWHERE),
        ([init.IAP], "", init.ANYWHERE), ([init.IAP], "true", ""), (["0.0.0.0/0"], "true", ""),
        (["10.0.0.0/8"], "true", init.IAP),
    ],
)  # fmt: skip
def test_the_network_lets_ssh_in(cloud: Cloud, sources: list[str], inside: str, fix: str) -> None:
    allowed = [{"IPProtocol": "tcp", "ports": ["2222"]}]
    rule = {"name": "let-ssh-in", "sourceRanges": sources, "allowed": allowed}
    rule["network"] = "global/networks/default"
    google.do(cloud.config, "POST", "/global/firewalls", rule)
    settings = replace(cloud.config, ssh_port="2222", no_external_ip=inside)
    try:
        if not fix:
            assert init.look_at_network(settings) == "default, and ssh is let in"
        else:
            with pytest.raises(Lack) as caught:
                init.look_at_network(settings)
            assert "firewall-rules create default-allow-ssh" in caught.value.fix
            assert f"--source-ranges {fix} " in caught.value.fix
            assert "--allow tcp:2222" in caught.value.fix and caught.value.status == "warning"
        with pytest.raises(Lack):
            init.look_at_network(replace(settings, ssh_port="2223"))
    finally:
        google.delete(cloud.config, "/global/firewalls/let-ssh-in")


def test_a_condition_gives_no_role() -> None:
    row = {"role": "r", "members": ["me", "you"]}
    assert init.has_role([row], "r", "me") and not init.has_role([row], "r", "them")
    assert not init.has_role([row], "s", "me") and not init.has_role([], "r", "me")
    assert not init.has_role([{**row, "condition": {"title": "x"}}], "r", "me")


def test_a_bucket_that_costs_or_can_be_public_is_named(cloud: Cloud) -> None:
    """As somebody else has made it: the one that init makes is none of that."""
    path, buckets = "/storage/v1/b/made-otherwise", "/storage/v1/b?project=berg-local"
    settings = replace(cloud.config, bucket="made-otherwise")

    def lack() -> Lack:
        with pytest.raises(Lack) as caught:
            init.look_at_bucket(settings)
        return caught.value

    assert (lack().status, lack().fix) == ("failed", "berg init")
    location, soft = "us-east1", {"retentionDurationSeconds": "604800"}
    body = {"name": "made-otherwise", "location": location, "softDeletePolicy": soft}
    cloud.call("POST", buckets, body)
    try:
        assert lack().status == "warning" and "--public-access-prevention" in lack().fix
        safe = {"publicAccessPrevention": "enforced"}
        cloud.call("PATCH", path, {"iamConfiguration": safe})
        assert lack().status == "warning" and "--clear-soft-delete" in lack().fix
        cloud.call("PATCH", path, {"softDeletePolicy": {"retentionDurationSeconds": "0"}})
        assert lack().status == "warning" and lack().fix == "berg config set region us-east1"
        settings = replace(settings, region="us-east1")
        assert init.look_at_bucket(settings) == "gs://made-otherwise in us-east1"
    finally:
        cloud.call("DELETE", path)
    init.create_bucket(settings)
    try:
        assert init.look_at_bucket(settings) == "gs://made-otherwise in us-east1"
        made = cloud.call("GET", path)["iamConfiguration"]
        assert made["uniformBucketLevelAccess"]["enabled"] is True
        init.create_bucket(settings)  # it is there
    finally:
        cloud.call("DELETE", path)


def test_no_gpu_that_is_left_is_a_warning_with_the_page_of_quotas(cloud: Cloud) -> None:
    config = cloud.config
    text = init.look_at_quota(config)
    assert "NVIDIA_L4_GPUS 0 of " in text and "GPUS_ALL_REGIONS" in text
    other = init.look_at_quota(replace(config, gpu_type="a100-80gb"))
    assert "NVIDIA_A100_80GB_GPUS 0 of" in other and "L4" not in other
    before = next(
        row for row in google.find(config, "/regions/us-central1")["quotas"]  # type: ignore[index]
        if row["metric"] == "NVIDIA_L4_GPUS"
    )  # fmt: skip
    quota = {"metric": "NVIDIA_L4_GPUS", "region": "us-central1"}
    cloud.call("POST", "/_berg/quotas", {**quota, "limit": 0})
    try:
        with pytest.raises(Lack, match="no GPU is left in us-central1: NVIDIA_L4") as caught:
            init.look_at_quota(config)
        assert caught.value.status == "warning"
        assert caught.value.fix.endswith("quotas?project=berg-local")
        assert init.look_at_quota(replace(config, region="us-east1"))
        cloud.call("POST", "/_berg/quotas", {**quota, "limit": 1})
        assert "0 of 1 in use" in init.look_at_quota(config)
    finally:
        cloud.call("POST", "/_berg/quotas", {**quota, "limit": before["limit"]})


def test_what_a_user_or_an_account_may_not_do_is_named(
    cloud: Cloud, faults: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = cloud.config
    assert init.look_at_rights(config) == "you may create and delete machines"
    stranger = replace(config, service_account="nobody@berg-local.iam.gserviceaccount.com")
    with pytest.raises(Lack, match="there is no account nobody@") as caught:
        init.look_at_account(stranger)
    assert caught.value.fix == "berg init"
    with pytest.raises(Lack, match="which may do all"):
        init.look_at_account(replace(config, service_account=""))
    accounts = "/iam/v1/projects/berg-local/serviceAccounts"
    email = cloud.call("POST", accounts, {"accountId": "of-a-user"})["email"]
    said = init.look_at_account(replace(config, service_account=email))
    assert email in said and init.BUCKET_ROLE in said and "compute.instances.delete" in said
    own = replace(config, service_account=email)
    init.set_up_account(own)
    assert own.service_account == email  # a user's own one is left as it is
    faults("iam.projects.serviceAccounts.testIamPermissions", status=403, message="No.")
    with pytest.raises(Lack, match="there is no account"):
        init.look_at_account(config)
    assert init.look_at_account(config) == init.own_account(config)
    monkeypatch.setattr(init, "ask", lambda *_: {})
    monkeypatch.setattr("google.cloud.storage.Bucket.test_iam_permissions", lambda *_: [])
    for look, its, says in (
        (
            init.look_at_rights,
            config,
            "you lack compute.instances.create, compute.instances.delete, compute.instances.get, compute.instances.list, "
            "compute.instances.setLabels, compute.instances.setMetadata, compute.instances.setServiceAccount, "
            "compute.instances.start, compute.instances.stop, compute.instances.getGuestAttributes, compute.disks.create, "
            "compute.instanceTemplates.create, compute.instanceGroupManagers.create$",
        ),
        (init.look_at_account, config, "you may not start machines that act as berg-worker@"),
        (
            init.look_at_bucket,
            config,
            "you lack storage.objects.create, storage.objects.delete, storage.objects.get, storage.objects.list, "
            "storage.objects.update on gs",
        ),
        (init.look_at_project, replace(config, project="other"), "there is no project 'other'"),
    ):
        with pytest.raises(Lack, match=says):
            look(its)


def test_doctor_goes_on_after_a_check_that_fails(cloud: Cloud, faults: Any) -> None:
    def found(name: str) -> dict[str, str]:
        done = cloud.run("doctor", "--json")
        rows = {row["check"]: row for row in json.loads(done.out)}
        assert done.code == (rows[name]["status"] == "failed") and len(rows) == 14, rows
        return dict(rows[name])

    faults("compute.regions.get", status=403, message="No.", match="/us-central1", times=None)
    assert found("quota")["status"] == "warning"  # it may not look
    cloud.call("DELETE", "/_berg/faults")
    faults("compute.images.*", status=400, message="Odd.", times=None)
    assert "Odd." in found("image")["found"] and found("image")["status"] == "failed"
    cloud.call("DELETE", "/_berg/faults")
    assert found("image")["status"] == "ok"
    shown = cloud.run("doctor", BERG_ZONES="us-central1-zz")
    assert shown.code == 1 and "failed  region" in shown.out
    assert "berg config set region REGION" in shown.out and "ok      project" in shown.out


def test_a_program_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    lacks = {}
    for check in init.CHECKS[:3]:
        with pytest.raises(Lack) as caught:
            check.look(Config())
        lacks[check.name] = (caught.value.status, caught.value.fix)
    assert lacks == {
        "git": ("failed", "apt-get install git"),
        "ssh": ("warning", "apt-get install openssh-client"),
        "rsync": ("warning", "apt-get install rsync"),
    }


def test_init_needs_names_and_leaves_the_account_of_who_says_no(
    cloud: Cloud, tmp_path: Path
) -> None:
    own = {"BERG_HOME": str(tmp_path), "BERG_ENDPOINT": cloud.config.endpoint}
    own["BERG_CREDENTIALS_FILE"] = cloud.config.credentials_file
    cloud.fails("init", **own, says="Name it: berg init --project PROJECT")
    init.choose(chosen := Config(bucket="", credentials_file="x"), {"project": "mine"}, True)
    assert (chosen.project, chosen.bucket, chosen.region) == ("mine", "mine-berg", "us-central1")
    named = ["init", "--project", "berg-local", "--bucket", cloud.config.bucket]
    wrong = [*named, "--region", "mars-west1", "-y"]
    said = cloud.fails(*wrong, **own, says="no region 'mars-west1'")
    assert "Next: berg config set region REGION" in said
    assert not (tmp_path / "berg.json").exists()
    done = cloud.ok(*named, "-y", **own, BERG_REGION="us-central1")
    assert f"Saved {tmp_path}/berg.json" in done.err
    saved = json.loads((tmp_path / "berg.json").read_text())
    assert saved == {
        "project": "berg-local", "region": "us-central1", "bucket": cloud.config.bucket,
        "service_account": init.own_account(cloud.config), "ask_above": "100",
        "endpoint": own["BERG_ENDPOINT"], "credentials_file": own["BERG_CREDENTIALS_FILE"],
    }  # fmt: skip
