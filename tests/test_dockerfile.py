"""The Dockerfile of a repo without one: what was decided, and the code as late as may be."""

import pytest
from repositories import BUILT, SHAPES, project

from berg import BergError
from berg.code import dist, installation
from berg.code.installation import Wanted
from berg.code.snapshot import Files
from berg.laptop import installing

PIP = "RUN python -m pip install --no-input --no-compile --progress-bar=off"
UV_PIP = "RUN uv pip install --python python"
LOCK = """version = 1
[[package]]
name = "mine"
version = "0.1.0"
source = { editable = "." }
[package.metadata]
requires-dist = [{ name = "iniconfig", specifier = "==2.1.0" }]
[[package]]
name = "iniconfig"
version = "2.1.0"
source = { registry = "https://pypi.org/simple" }
"""


def lines(shape: dict[str, str], script: str = "", **wanted) -> list[str]:
    """Return the lines of a Dockerfile that make the image of a repo called repo."""
    files = Files(frozenset(shape), shape.__getitem__)
    given = Wanted(python="3.12", where="build", script=script, **wanted)
    what = installation.decide(files, given)
    text = installing.dockerfile(what, files, "repo", script, "python:3.12-slim")
    first, git, *rest = text.splitlines()
    assert first == "FROM python:3.12-slim" and git.startswith("RUN command -v git")
    return rest


def without_uv(found: list[str]) -> list[str]:
    """Return them without those that bring uv, which has to be there."""
    fetch, setting, *rest = found
    assert (
        all(wheel.sha256 in fetch for wheel in dist.WHEELS.values()) and "--require-hashes" in fetch
    )
    assert setting.startswith("ENV PATH=$PATH:/opt/uv/bin UV_CACHE_DIR=/root/berg_cache/uv")
    return rest


def environment(name: str) -> str:
    folder = f"/root/berg_env/{name}"
    return f"ENV VIRTUAL_ENV={folder} UV_PROJECT_ENVIRONMENT={folder} PATH={folder}/bin:$PATH"


def test_a_lock_is_installed_before_the_code_and_the_repo_after():
    shape = {"pyproject.toml": project("mine", more=BUILT), "uv.lock": LOCK, "train.py": ""}
    assert without_uv(lines(shape)) == [
        environment("repo"),
        "WORKDIR /root/code/repo",
        "COPY pyproject.toml uv.lock ./",
        "RUN uv venv --seed /root/berg_env/repo",
        "RUN uv sync --frozen --no-install-local",
        "COPY . .",
        "RUN ln -sfn /root/berg_env/repo .venv",
        "RUN uv sync --frozen",
    ]


def test_a_lock_in_another_folder_and_a_choice():
    more = f"{BUILT}[project.optional-dependencies]\ngpu = []\n"
    of_root = LOCK.replace("[package.metadata]", '[package.metadata]\nprovides-extras = ["gpu"]')
    shape = {"a/pyproject.toml": project("mine", more=more), "a/uv.lock": of_root}
    assert without_uv(lines(shape, folder="a", extras=("gpu",))) == [
        environment("repo-a"),
        "ENV UV_NO_SYNC=1",
        "WORKDIR /root/code/repo",
        "COPY a/pyproject.toml a/uv.lock a/",
        "WORKDIR /root/code/repo/a",
        "RUN uv venv --seed /root/berg_env/repo-a",
        "WORKDIR /root/code/repo",
        "WORKDIR /root/code/repo/a",
        "RUN uv sync --frozen --extra gpu --no-install-local",
        "WORKDIR /root/code/repo",
        "COPY . .",
        "RUN ln -sfn /root/berg_env/repo-a a/.venv",
        "WORKDIR /root/code/repo/a",
        "RUN uv sync --frozen --extra gpu",
        "WORKDIR /root/code/repo",
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"uv.lock": LOCK.replace("https://pypi.org/simple", "wheels")},
        {"pyproject.toml": project("mine", more='[tool.uv]\nrequired-version = "<0.5"\n')},
    ],
)
def test_a_lock_that_needs_files_of_the_repo_or_another_uv_waits_for_the_code(change):
    shape = {"pyproject.toml": project("mine"), "uv.lock": LOCK, **change}
    found = without_uv(lines(shape))[2:]
    assert found[:2] == ["COPY . .", "RUN uv venv --seed /root/berg_env/repo"]
    assert found[-1].endswith("uv sync --frozen") or found[-1].endswith('"--frozen"]')


def test_an_install_script_comes_before_what_it_prepares():
    shape = {"pyproject.toml": project("mine"), "uv.lock": LOCK, "setup.sh": ""}
    assert without_uv(lines(shape, "setup.sh"))[2:] == [
        "COPY . .",
        "RUN uv venv --seed /root/berg_env/repo",
        "RUN ln -sfn /root/berg_env/repo .venv",
        "RUN bash -e setup.sh",
        "RUN uv sync --frozen --inexact",
    ]


@pytest.mark.parametrize(
    ("shape", "names", "first", "rest"),
    [
        ({"requirements.txt": "a\n"}, "requirements.txt", [f"{PIP} -r requirements.txt"], []),
        (
            {"pyproject.toml": project("mine", more=BUILT), "requirements.txt": "a\n"},
            "pyproject.toml requirements.txt",
            [f"{PIP} -r requirements.txt", f"{UV_PIP} -r pyproject.toml"],
            [f"{PIP} -e ."],
        ),
        (
            SHAPES["src-no-build-system"],
            "pyproject.toml",
            [f"{UV_PIP} -r pyproject.toml"],
            [f"{PIP} --no-deps -e . || echo The packages that it depends on are installed"],
        ),
        ({"requirements.txt": "-r more.txt\n"}, "", [], [f"{PIP} -r requirements.txt"]),
        ({"setup.py": ""}, "", [], [f"{PIP} -e ."]),
        (
            {"pyproject.toml": BUILT + '[project]\nname = "mine"\ndynamic = ["dependencies"]\n'},
            "",
            [],
            [f"{PIP} -e ."],
        ),
    ],
)
def test_what_goes_into_the_images_python(shape, names, first, rest):
    found = lines(shape)
    found = without_uv(found) if "uv" in " ".join(first) else found
    before = [f"COPY {names} ./", *first] * bool(first)
    wanted = ["WORKDIR /root/code/repo", *before, "COPY . .", *rest]
    assert [line.replace(" --no-cache-dir", "") for line in found] == wanted
    assert all("--no-cache-dir" in line for line in found if line.startswith(PIP))


def test_poetrys_and_other_locks_need_no_code():
    pylock = {"pyproject.toml": project("other"), "pylock.toml": ""}
    assert without_uv(lines(pylock))[2:] == [
        "COPY pyproject.toml pylock.toml ./",
        "RUN uv venv --seed /root/berg_env/repo",
        "RUN uv pip sync pylock.toml",
        "COPY . .",
        "RUN ln -sfn /root/berg_env/repo .venv",
    ]
    local = {**pylock, "pylock.toml": '[[packages]]\nname = "a"\ndirectory = { path = "a" }\n'}
    assert without_uv(lines(local))[-1] == "RUN uv pip sync pylock.toml"
    pipfile = '{"_meta": {}, "default": {"a": {"version": "==1", "markers": "os_name == \'nt\'"}}}'
    found = without_uv(lines({"Pipfile.lock": pipfile}))
    assert found.index("COPY . .") == len(found) - 2
    assert """RUN ["uv", "pip", "install", "--no-deps", "a==1 ; os_name == 'nt'"]""" in found


def test_a_command_runs_by_bash_alone_and_as_it_is():
    command = 'pip install "a>1" && echo $HOME\nuv --version'
    found = without_uv(lines({}, install=command))
    quoted = '"pip install \\"a>1\\" && echo $HOME\\nuv --version"'
    assert found == [
        "WORKDIR /root/code/repo",
        "COPY . .",
        f'RUN ["bash", "-o", "pipefail", "-c", {quoted}]',
    ]
    assert lines({}, install="none") == ["WORKDIR /root/code/repo", "COPY . ."]


def test_a_path_that_a_dockerfile_would_read_is_refused():
    with pytest.raises(BergError) as raised:
        lines({"a $b/requirements.txt": ""}, folder="a $b")
    assert "'a $b' cannot be in a generated Dockerfile" in raised.value.message
