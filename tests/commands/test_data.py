"""Data sets: sent to the bucket, listed, brought to machines and back, through the real command
line.
"""

import json
import os
from pathlib import Path

import pytest
from conftest import Berg, library, settle, wait_for


@pytest.fixture
def folder(tmp_path) -> Path:
    """A small data set."""
    folder = tmp_path / "mnist"
    (folder / "train set").mkdir(parents=True)
    (folder / "train set/ü.txt").write_text("grüße")
    (folder / "big.bin").write_bytes(os.urandom(9 << 20))
    (folder / "empty").touch()
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def there(berg: Berg, name: str) -> dict[str, bytes]:
    return {
        path.removeprefix(f"data/{name}/"): data
        for path, data in berg.objects(f"data/{name}/").items()
    }


def sent(berg: Berg, *arguments: str) -> dict:
    pushed = berg("data", "push", "--json", *arguments)
    assert pushed.returncode == 0, pushed.stderr
    return json.loads(pushed.stdout)


def refused(berg: Berg, *arguments: str, says: str) -> None:
    ran = berg(*arguments)
    assert (ran.returncode, ran.stdout) == (1, "") and "Traceback" not in ran.stderr, ran.stderr
    assert says in ran.stderr, ran.stderr


def test_push_sends_only_what_changed_and_pull_brings_it(berg, folder, tmp_path):
    first = sent(berg, str(folder), "mnist")
    assert (first["files"], first["sent"], first["bytes_sent"]) == (3, 3, (9 << 20) + 7)
    assert there(berg, "mnist") == content(folder)
    assert sent(berg, str(folder), "mnist")["sent"] == 0
    (folder / "train set/ü.txt").write_text("gruesse")  # of the same size
    (folder / "empty").unlink()
    again = berg("data", "push", str(folder), "mnist")
    assert "1 file of 2 to send, 7 B" in again.stderr and "The bucket keeps 1 file" in again.stderr
    assert there(berg, "mnist") == {**content(folder), "empty": b""}

    target = tmp_path / "here"
    pulled = berg("data", "pull", "mnist", str(target), "--json")
    assert json.loads(pulled.stdout) == {"folder": str(target), "files": 3, "fetched": 3}
    assert content(target) == there(berg, "mnist")
    assert json.loads(berg("data", "pull", "mnist", str(target), "--json").stdout)["fetched"] == 0

    deleted = berg("data", "push", str(folder), "mnist", "--delete", stdin="n\n")
    assert (
        deleted.returncode == 130
        and "data/mnist/empty" in deleted.stderr
        and "empty" in there(berg, "mnist")
    )
    assert berg("data", "push", str(folder), "mnist", "--delete", "-y").returncode == 0
    assert there(berg, "mnist") == content(folder)


def test_a_pull_brings_no_settings_of_a_repo(berg, tmp_path):
    for name in (".git/config", "train"):
        berg.bucket.write(f"data/set/{name}", b"1")
    pulled = berg("data", "pull", "set", str(tmp_path / "here"))
    assert pulled.returncode == 0 and content(tmp_path / "here") == {"train": b"1"}
    says = "Left out: 1 file, such as data/set/.git/config: programs on this computer would obey"
    assert says in pulled.stderr, pulled.stderr


def test_a_file_and_an_address_and_the_lists(berg, folder):
    assert "There are no data sets yet" in berg("data", "ls").stderr
    sent(berg, str(folder / "big.bin"), "weights")
    sent(berg, str(folder), f"gs://{berg.bucket_name}/data/raw/v1")
    sent(berg, str(folder), f"gs://{berg.bucket_name}/elsewhere/")
    assert "elsewhere/train set/ü.txt" in berg.objects("elsewhere/")
    rows = {
        row["name"]: (row["files"], row["bytes"])
        for row in json.loads(berg("data", "ls", "--json").stdout)
    }
    assert rows == {"weights": (1, 9 << 20), "raw": (3, (9 << 20) + 7)}
    _, *shown = berg("data", "ls").stdout.splitlines()
    assert [line.split()[:4] for line in shown] == [
        ["raw", "3", "9.4", "MB"],
        ["weights", "1", "9.4", "MB"],
    ]
    assert berg("data", "ls", "weights").stdout.split() == ["9,437,184", "big.bin"]
    asked = berg("data", "rm", "raw", stdin="n\n")
    assert asked.returncode == 130 and "3 files, 9.4 MB" in asked.stderr
    assert berg("data", "rm", "raw", "-y").returncode == 0
    assert there(berg, "raw") == {} and there(berg, "weights") != {}


def test_links_that_lead_out_are_refused_by_name_unless_they_are_wanted(berg, folder, tmp_path):
    (tmp_path / "key").write_text("private")
    (folder / "deep").mkdir()
    (folder / "deep/out").symlink_to(tmp_path / "key")
    (folder / "hop").symlink_to("deep/out")
    refused(berg, "data", "push", str(folder), "odd", says=f"deep/out leads to {tmp_path / 'key'}")
    refused(berg, "data", "push", str(folder), "odd", says=f"{folder} has 2 links to files")
    assert there(berg, "odd") == {}
    assert sent(berg, str(folder), "odd", "--follow-links")["files"] == 5
    assert there(berg, "odd")["hop"] == b"private"
    (tmp_path / "link").symlink_to(folder)
    (folder / "deep/out").unlink(), (folder / "hop").unlink()
    assert sent(berg, str(tmp_path / "link"), "same")["files"] == 3, "the user named this link"


def test_what_cannot_be_sent_is_named(berg, folder, tmp_path):
    (folder / "loop").symlink_to(".")
    (folder / "dead").symlink_to("/no/such/file")
    (folder / "inside").symlink_to("train set/ü.txt")
    (folder / "line\nbreak").write_text("x")
    os.mkfifo(folder / "pipe")
    report = sent(berg, str(folder), "odd")
    assert report["left_out"] == {
        "loop": "a link to a folder",
        "dead": "a link to nothing",
        "line\nbreak": "its name has a line break",
        "pipe": "no regular file",
    }
    assert there(berg, "odd")["inside"] == "grüße".encode()
    (tmp_path / "void").mkdir()
    refused(berg, "data", "push", str(tmp_path / "void"), "odd", says="void has no files to send")
    refused(berg, "data", "push", str(tmp_path / "missing"), "odd", says="missing does not exist")


def test_names_and_places_that_cannot_be(berg, folder):
    for name in ("../up", "a/b", "", "-x", "a" * 64):
        refused(
            berg, "data", "push", str(folder), "--", name, says="cannot be the name of a data set"
        )
    refused(berg, "data", "push", str(folder), "gs://bucket", says="names no folder of a bucket")
    refused(berg, "data", "push", str(folder), "gs://no-such-bucket/x", says="does not exist")
    for command in (("pull", "none", "here"), ("ls", "none"), ("rm", "none", "-y")):
        refused(berg, "data", *command, says="berg data ls")
    sent(berg, str(folder), "mnist")
    for wish, says in (
        ("none", "berg data push FOLDER none"),
        ("mnist:here", "give a whole path, as in mnist:/root/data/mnist"),
        ("mnist:/", "no folder for data"),
        ("mnist:/root/../etc", "no folder for data"),
        ("mnist:/root/berg_results/x", "Give another place"),
        ("mnist:/root/berg", "Give another place"),
        ("../x", "cannot be the name"),
    ):
        refused(berg, "run", "-g", "0", "--data", wish, "true", says=says)
    refused(
        berg,
        "run",
        "-g",
        "0",
        "--data",
        "mnist",
        "--data",
        "mnist",
        "true",
        says="two data sets would go to",
    )
    assert berg.machines() == {} and berg.objects(".berg/jobs/") == {}


def test_a_push_goes_on_where_it_was_and_overwrites_nobody(berg, cloud, folder):
    cloud.fault("storage.objects.insert", status=503, times=2)
    # its answer is lost; the repeat is refused
    cloud.fault("storage.objects.insert", reset=True, after_handler=True)
    sent(berg, str(folder), "mnist")
    assert there(berg, "mnist") == content(folder)
    for number in range(20):
        (folder / f"{number:02}").write_text(str(number))
    cloud.fault("storage.objects.insert", status=403, skip=5)
    failed = berg("data", "push", str(folder), "mnist")
    assert (
        failed.returncode == 1 and "forbidden" in failed.stderr and "Traceback" not in failed.stderr
    )
    assert sent(berg, str(folder), "mnist")["sent"] < 20, (
        "what went up before the error is not sent again"
    )
    assert there(berg, "mnist") == content(folder)


def test_data_is_on_the_machine_before_the_command(berg, folder):
    sent(berg, str(folder), "mnist")
    sent(berg, str(folder / "big.bin"), "weights")
    command = "cd /root/data/mnist && sha256sum big.bin 'train set/ü.txt' && ls ~/code/proj/w && echo $BERG_DATA_DIR"
    options = ("-n", "job", "--data", "mnist", "--data", "weights:/root/code/proj/w", "--wait")
    ran = berg("run", "-g", "0", *options, command)
    assert ran.returncode == 0, (ran.stderr, berg.log("job"))
    assert "mnist: 3 files, 9.4 MB, to /root/data/mnist" in ran.stderr
    assert "weights: 1 file, 9.4 MB, to /root/code/proj/w" in ran.stderr
    log = berg.log("job")
    assert "Downloaded 3 of 3 files of data mnist" in log and "changed since" not in log
    assert "\nbig.bin\n/root/data\n" in log
    described = json.loads(berg.bucket.read(".berg/jobs/job_metadata.json"))["data"]
    assert [(each["name"], each["files"]) for each in described] == [("mnist", 3), ("weights", 1)]
    (folder / "more").write_text("x")
    sent(berg, str(folder), "mnist")
    again = berg("rerun", "job", "-n", "again", "--wait")
    assert again.returncode == 0 and "mnist: 4 files" in again.stderr


@pytest.mark.slow
def test_data_that_is_gone_or_does_not_fit_fails_with_a_reason(berg, cloud, folder):
    sent(berg, str(folder), "mnist")
    cloud.call("POST", "/_berg/settings", {"delay": 2})
    assert berg("run", "-g", "0", "-n", "late", "--data", "mnist", "true").returncode == 0
    assert berg("data", "rm", "mnist", "-y").returncode == 0
    wait_for(lambda: berg.state("late")["state"] == "FAILED", 150, "the end of the job")
    assert "data mnist is not in gs://" in berg.state("late")["reason"]
    sent(berg, str(folder), "mnist")
    cloud.call("POST", "/_berg/settings", {"delay": 0})
    blocked = berg("run", "-g", "0", "-n", "blocked", "--data", "mnist:/proc/x", "--wait", "true")
    assert (
        blocked.returncode == 1 and "data mnist cannot be downloaded to /proc/x" in blocked.stderr
    )


def test_the_disk_must_hold_the_data(berg):
    """An object of 60 GB would take long to send; what is looked at is the list, so its answer is
    enough.
    """
    from berg import BergError
    from berg.laptop import launch

    wish = {"name": "big", "path": "/root/data/big", "files": 1, "bytes": 60 << 30}
    settings = berg.cloud.settings(berg.bucket_name)
    image = "projects/deeplearning-platform-release/global/images/pytorch-2-9-cu129-ubuntu-2404-nvidia-580-v20251010"
    launch.check_room(settings, [wish], image, 200)
    with pytest.raises(
        BergError, match=r"a disk of 100 GB cannot hold the image and 60 GB of data: --disk-gb 120"
    ):
        launch.check_room(settings, [wish], image, 100)


@pytest.mark.slow
def test_data_of_another_bucket_and_the_right_that_is_missing(berg, cloud, folder, account):
    other = f"{berg.bucket_name}-other"
    settings = cloud.settings(other)
    made = library(settings)
    made.iam_configuration.uniform_bucket_level_access_enabled = True
    made.create()
    address = f"gs://{other}/sets/mnist"
    sent(berg, str(folder), address)
    let = f"gcloud storage buckets add-iam-policy-binding gs://{other} --member=serviceAccount:"
    let += f"{account} --role=roles/storage.objectViewer"
    ran = berg("run", "-g", "0", "-n", "early", "--data", address, "--wait", "true")
    assert ran.returncode == 1
    assert (
        f"The machines may be refused gs://{other}. An administrator of the bucket can allow it: {let}"
        in one(ran.stderr)
    )
    reason = berg.state("early")["reason"]
    assert f"data {address}: " in reason and "storage.objects.get" in reason and let in reason

    policy = made.get_iam_policy()
    policy["roles/storage.objectViewer"] = ["allUsers"]
    made.set_iam_policy(policy)
    settle(cloud)
    command = "cat '/root/sets/train set/ü.txt'; echo; ls ~/data/mnist"
    options = ["--data", f"{address}:/root/sets", "--data", f"{address}/"]
    ran = berg("run", "-g", "0", "-n", "late", *options, "--wait", command)
    assert ran.returncode == 0, ran.stderr + berg.log("late")
    assert "may be refused" not in ran.stderr
    assert f"{address}: 3 files, 9.4 MB, to /root/sets" in one(ran.stderr)
    assert "grüße" in berg.log("late") and "\nbig.bin\n" in berg.log("late")

    for wish, says in (
        ("gs://no-such-bucket/x", "there is no bucket 'no-such-bucket'"),
        (f"gs://{other}", "names no folder of a bucket"),
        (f"{address}:here", f"give a whole path, as in {address}:/root/data/mnist"),
        (f"gs://{other}/none", f"there is nothing in gs://{other}/none/"),
    ):
        refused(berg, "run", "-g", "0", "--data", wish, "true", says=says)


def one(text: str) -> str:
    """A text in one line, however a plan breaks it."""
    return " ".join(text.split())
