import json
import os
import subprocess
import sys

import pytest

from berg import BergError, config


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    for key in config.HELP:
        monkeypatch.delenv(f"BERG_{key.upper()}", raising=False)
    return tmp_path


def test_flag_before_variable_before_file_before_default(home, monkeypatch):
    assert config.load().region == "us-central1"
    config.save({"region": "from-file", "zones": ["z1"]})
    assert config.load().region == "from-file"
    monkeypatch.setenv("BERG_REGION", "from-variable")
    monkeypatch.setenv("BERG_ZONES", "a,b")
    monkeypatch.setenv("BERG_SSH_PORT", "2222")
    loaded = config.load()
    assert (loaded.region, loaded.zones, loaded.ssh_port) == ("from-variable", ["a", "b"], 2222)
    assert config.load(region="from-flag", zones=("c",)).region == "from-flag"
    assert config.load(zones=("c",)).zones == ["c"]
    assert config.load(region=None, zones=()).region == "from-variable"


def test_a_user_without_a_name_is_unknown():
    """A container's, such as that of `docker run -u 54321`."""
    if os.geteuid():
        pytest.skip("only root may become another user")
    code = "import getpass, os, pwd; from berg.config import Config; os.setuid(54321); print(Config().user)"
    clean = {"PATH": os.environ["PATH"], "HOME": "/"}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True)
    assert done.stdout == "unknown\n", done.stderr


def test_unknown_keys_warn_and_stay(home, capsys):
    config.path().write_text('{"project": "p", "colour": "red"}')
    assert config.load().project == "p"
    assert "'colour'" in capsys.readouterr().err
    config.save({"project": "q"})
    assert json.loads(config.path().read_text()) == {"project": "q", "colour": "red", "_version": 1}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{\n "project": "p",\n oops\n}', "line 3"),
        ("[]", "one JSON object"),
        ('{"zones": "a"}', "'zones' must be a list"),
        ('{"ssh_port": "22"}', "'ssh_port' must be a whole number"),
        ('{"project": 7}', "'project' must be text"),
    ],
)
def test_a_broken_file_is_named_with_the_place(home, content, words):
    config.path().write_text(content)
    with pytest.raises(BergError) as error:
        config.load()
    assert words in error.value.message
    assert ". Fix " in error.value.message


def test_null_means_the_default(home):
    config.path().write_text('{"endpoint": null, "region": null, "project": "p"}')
    assert config.load().endpoint is None
    assert config.load().region == "us-central1"


def test_a_variable_of_the_wrong_kind_is_named(home, monkeypatch):
    monkeypatch.setenv("BERG_SSH_PORT", "ssh")
    with pytest.raises(BergError, match="ssh_port"):
        config.load()


def test_work_needs_a_project_and_a_bucket(home):
    with pytest.raises(BergError, match=r"no .*berg.json yet.*berg init"):
        config.load_ready()
    config.save({"project": "p"})
    with pytest.raises(BergError, match="has no bucket"):
        config.load_ready()
    config.save({"bucket": "b"})
    assert config.load_ready().bucket == "b"


def test_endpoints(home):
    assert (
        config.Config(project="p").compute_url()
        == "https://compute.googleapis.com/compute/v1/projects/p"
    )
    local = config.Config(project="p", endpoint="http://127.0.0.1:1")
    assert local.compute_url("q") == "http://127.0.0.1:1/compute/v1/projects/q"


@pytest.mark.parametrize(
    ("text", "label"), [("Jo Doe", "jo-doe"), ("ünï", "n"), ("x" * 99, "x" * 40), ("--", "")]
)
def test_labels(text, label):
    assert config.label(text) == label


def test_an_image_without_a_project_is_in_that_of_the_image_before(home, monkeypatch):
    google = "deeplearning-platform-release"
    assert config.Config().image[1] == google
    assert config.load(default_image="family").image == ("family", google)
    config.save({"default_image": "mine/golden"})
    assert config.load().image == ("golden", "mine")
    assert config.load(default_image="other").image == ("other", "mine")
    monkeypatch.setenv("BERG_DEFAULT_IMAGE", "theirs/other")
    assert config.load().default_image == "theirs/other"
