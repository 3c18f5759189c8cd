"""An image of a devbox has what was installed there; a job from it is a job like any other."""

import json
import re
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import BERG, Cloud, until
from records import machine, put

from berg import google


@pytest.mark.slow
def test_a_job_from_the_image_of_a_devbox_has_its_files_and_is_no_part_of_it(
    cloud: Cloud, project: Path
) -> None:
    assert cloud.run("devbox", "-g", "0", "-n", "maker", cwd=project).code == 0
    until(lambda: cloud.state("maker")["state"] == "RUNNING")
    install = (
        "echo kept > /opt/kept; echo mine > /root/code/proj/new; echo x > berg_results/maker/x; "
        "install -m 755 /dev/stdin /usr/local/bin/sync <<<$'#!/bin/sh\\ntouch /opt/synced'"
    )
    assert cloud.run("ssh", "maker", f"cd /root; {install}").code == 0
    done = cloud.ok("image", "create", "maker", "--json")
    made = json.loads(done.out)
    assert made["family"] == "berg-proj" and made["disk_gb"] == 200
    cloud.call("POST", "/_berg/instances/maker/crash", {})
    check = (
        "ls /opt/synced && cat /opt/kept /root/from-maker/code/proj/new; ls . $BERG_RESULTS_DIR/.."
    )
    words = ["run", "-g", "0", "-n", "user", "--image", "berg-local/berg-proj", "--wait"]
    assert cloud.run(*words, check, cwd=project).code == 0, cloud.log("user")
    log = cloud.log("user")
    assert "kept\nmine\n" in log and "Started on maker" not in log
    assert "\nnew\n" not in log and "\nmaker\n" not in log  # neither its code nor its results
    assert cloud.run("image", "delete", "-y", made["name"]).code == 0
    cloud.run("kill", "-y", "--now", "maker")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["snapshots", "images"])
def test_ctrl_c_names_what_google_goes_on_to_make(cloud: Cloud, project: Path, kind: str) -> None:
    words = ["devbox", "-g", "0", "-n", f"cut-{kind}", "--install", "none"]
    assert cloud.run(*words, cwd=project).code == 0
    cloud.call("POST", "/_berg/settings", {"image_delay": 3})
    words = [*BERG, "image", "create", words[4]]
    with subprocess.Popen(words, env=cloud.env, stderr=subprocess.PIPE, text=True) as laptop:
        until(lambda: [*google.items(cloud.config, f"/global/{kind}")])
        laptop.send_signal(signal.SIGINT)
        said = laptop.communicate(timeout=30)[1]
    cloud.call("POST", "/_berg/settings", {"image_delay": 0})
    (row,) = google.items(cloud.config, f"/global/{kind}")
    assert laptop.returncode == 130 and f"compute {kind} delete {row['name']}" in said, said
    path, over = f"/global/{kind}/{row['name']}", ("READY", "FAILED")  # as its snapshot may be gone
    until(lambda: google.find(cloud.config, path)["status"] in over)
    google.delete(cloud.config, path)
    assert cloud.run("kill", "-y", "--now", f"cut-{kind}").code == 0


def test_images_are_of_a_family_and_deleted_by_name(cloud: Cloud) -> None:
    """Of a devbox that is off, so that nothing is asked of it."""
    made = machine(cloud, "imaged", kind="devbox")
    made.stop(cloud.config)
    put(cloud, "imaged", "STOPPED", job={"cmd": "", "repo": "My_Repo"})
    put(cloud, "no-box")
    for words, says in [
        (["nobody"], "there is no job 'nobody'"),
        (["no-box"], "no-box is no devbox, whose disk could become an image"),
        (["imaged", "--family", "Mine"], "--family 'Mine' is no family"),
    ]:
        cloud.fails("image", "create", *words, says=says)
    done = cloud.run("image", "create", "imaged")
    first = done.out.strip()
    assert re.fullmatch(r"berg-my-repo-\d{8}-\d{6}", first), done
    assert "Run with it:  berg run --image berg-local/berg-my-repo --disk-gb" in done.err
    image = google.find(cloud.config, f"/global/images/{first}")
    assert image["family"] == "berg-my-repo" and image["description"] == "the devbox imaged"
    assert not [*google.items(cloud.config, "/global/snapshots")]
    done = cloud.run("image", "create", "imaged", "--family", "mine", "--default", BERG_USER="bob")
    second = done.out.strip()
    assert second.startswith("mine-") and "newest image of berg-local/mine" in done.err, done
    settings = cloud.home / ".berg/berg.json"
    before = json.loads(settings.read_text())
    assert before["default_image"] == "berg-local/mine"
    rows = json.loads(cloud.run("image", "list", "--json").out)
    assert [(row["name"], row["user"]) for row in rows] == [
        (second, "bob"),
        (first, cloud.config.user),
    ]
    header, *lines = [line.split() for line in cloud.run("image", "list").out.splitlines()]
    assert header == ["NAME", "FAMILY", "GB", "STATUS", "CREATED", "BY", "OF"]
    assert [line[:2] for line in lines] == [[second, "mine"], [first, "berg-my-repo"]]
    cloud.fails("image", "delete", first, second, says=f"Delete {first}, {second} of bob?")
    cloud.fails("image", "delete", "-y", first, "other", says="Berg made no image 'other'")
    assert len(json.loads(cloud.run("image", "list", "--json").out)) == 2
    done = cloud.run("image", "delete", "-y", first, second)
    assert (
        f"Deleted {second}" in done.err
        and "jobs boot berg-local/mine by default, which is gone" in done.err
    )
    assert json.loads(cloud.run("image", "list", "--json").out) == []
    del before["default_image"]
    settings.write_text(json.dumps(before))
    made.delete(cloud.config)
    assert "imaged has no machine any more" in cloud.run("image", "create", "imaged").err
