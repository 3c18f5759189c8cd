"""A module that a command lacks, and the file that names its package."""

import json

import pytest
from conftest import commit
from repositories import BUILT, SHAPES, project, write

from berg import job
from berg.job import Installation
from berg.machine import installation

TRACE = (
    "Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'cv2.x'\n"
)


@pytest.mark.parametrize(
    ("text", "others", "words"),
    [
        (
            TRACE,
            {"a.txt": ["opencv-python"]},
            "; the module cv2.x is not installed: it is named by a.txt",
        ),
        (TRACE, {"a.txt": ["opencv"]}, ""),
        ("x" * 20000 + "\n[rank0]: " + TRACE[-47:], {"b": ["a", "cv2"]}, "it is named by b"),
        (TRACE + "x" * 20000, {"b": ["a", "cv2"]}, ""),
        ("fine\n", {"b": ["a", "cv2"]}, ""),
    ],
)
def test_the_last_module_of_the_log_is_looked_up(tmp_path, text, others, words):
    log = tmp_path / "log"
    assert installation.missing_module(log, Installation(others=others)) == ""
    log.write_text(text)
    found = installation.missing_module(log, Installation(others=others))
    assert found.endswith(words) and bool(found) == bool(words)


def test_a_command_that_lacks_a_package_says_which_file_names_it(berg):
    write(berg.repo, SHAPES["requirements-below"])
    ran = berg("run", "-g", "0", "-n", "below", "--wait", "python experiments/train.py")
    assert ran.returncode == 1
    reason = berg.state("below")["reason"]
    assert reason.startswith("the command failed with exit code 1; the module iniconfig is not")
    assert reason.endswith(
        "it is named by experiments/requirements.txt (--install: pip install -r "
        "experiments/requirements.txt)"
    )
    assert reason in " ".join(berg("show", "below").stdout.split())


def test_a_job_records_what_names_packages_that_are_not_installed(berg):
    more = BUILT + '[project.optional-dependencies]\ngpu = ["Flash_Attn>=2"]\nchosen = ["pluggy"]\n'
    more += '[dependency-groups]\ntest = ["pytest", {include-group = "lint"}]\nlint = ["ruff"]\n'
    files = {
        "pyproject.toml": project("mine", '"numpy"', more),
        "requirements-dev.txt": "# for developers\n-r requirements.txt\nblack==1\n",
        "environment.yml": "dependencies:\n  - conda-only=1\n",
        "train.py": '# /// script\n# dependencies = ["own[all]>=1", "other"]\n# ///\n',
    }
    write(berg.repo, files)
    commit(berg.repo)
    arguments = ("-g", "0", "--extra", "chosen", "-n", "job", "python train.py")
    assert berg("run", *arguments).returncode == 0
    data = json.loads(berg.bucket.read(job.metadata_path("job")))
    others = data["installation"]["others"]
    assert others == {
        "train.py itself: run it with `uv run train.py`": ["other", "own"],
        "extra gpu of pyproject.toml (--extra gpu)": ["flash-attn"],
        "group test of pyproject.toml (--group test)": ["pytest"],
        "group lint of pyproject.toml (--group lint)": ["ruff"],
        "requirements-dev.txt (--install-script: pip install -r requirements-dev.txt)": ["black"],
        "environment.yml, which is not read": ["conda-only"],
    }
    berg("kill", "--now", "job")
