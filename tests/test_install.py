"""What a plan says of packages and of the command, before a machine starts."""

from pathlib import Path

import pytest
from conftest import Cloud, Done, commit, git, write
from inside import stand_ins

from berg import BergError, install
from berg.install import (
    LOCKS,
    Choice,
    check_local,
    choose,
    is_due,
    is_source,
    left_out,
    option_for,
    without,
)

LOCK = 'version = 1\n[[package]]\nname = "core"\nsource = { editable = "libs/core" }\n'


def plan(cloud: Cloud, project: Path, *words: str) -> Done:
    return cloud.run("run", "-g", "0", "--dry-run", *(words or ("python train.py",)), cwd=project)


def said(cloud: Cloud, project: Path, *words: str) -> str:
    done = plan(cloud, project, *words)
    return done.out + done.err


@pytest.fixture
def submodule(project: Path, tmp_path: Path) -> Path:
    inner = tmp_path / "core"
    commit(inner, {"core.py": "print('inner')\n"})
    git(project, "submodule", "--quiet", "add", str(inner), "libs/core")
    commit(project)
    return project / "libs/core"


def test_files_that_are_not_read_are_named_with_their_option(cloud: Cloud, project: Path) -> None:
    names = ["conda_environment.yaml", "env.yml", "environment-gpu.yml", "envs/a.yml",
             "requirements-gpu.txt", "requirements/dev.txt", "pixi.toml", "Dockerfile"]  # fmt: skip
    for name in ["requirements.txt", *names]:
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).touch()
    text = said(cloud, project)
    assert "Install   requirements.txt" in text
    options = {name: "as conda_environment.yaml" for name in names if name.startswith("env")}
    options |= {"pixi.toml": "Berg does not know its tool", "Dockerfile": "build and push an image"}
    for name in names:
        assert f"{name} ({options.get(name, '--install')}" in text, text
    (project / "requirements.txt").unlink()
    done = plan(cloud, project)
    assert done.code == 1 and "conda" in done.err and "--install none" in done.err
    assert plan(cloud, project, "--install", "none", "python train.py").code == 0


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"requirements.txt": "./libs/core\n"}, "the submodule libs/core is not checked out"),
        ({"requirements.txt": "x @ file:libs/core\n"}, "submodule libs/core"),
        ({"requirements.txt": "-r libs/core/all.txt\n"}, "submodule libs/core"),
        ({"requirements.txt": "-r more/base.txt\n"}, "needs more/base.txt, which is ignored"),
        (
            {"requirements.txt": "-r more/base.txt\n", "more/base.txt": "-e ./libs/core\n"},
            "more/base.txt needs libs/core, and the submodule",
        ),
        ({"setup.py": "setup(name='x')", "environment.yml": "x"}, "environment.yml is not read"),
        (
            {"pyproject.toml": '[build-system]\nrequires = ["torch"]\n'},
            "pip install --no-build-isolation -e .",
        ),
        (
            {
                "pyproject.toml": "[project]\n[build-system]\n[project.optional-dependencies]\na = []\n"
            },
            'without extra a: --install "pip install -e .[a]"',
        ),
    ],
)
def test_what_an_installation_would_lack_is_said(
    cloud: Cloud, project: Path, submodule: Path, files: dict[str, str], says: str
) -> None:
    git(project, "submodule", "--quiet", "deinit", "-f", "libs/core")
    write(project, files)
    assert says in said(cloud, project)


def test_a_package_in_a_submodule_that_is_not_here_is_refused(
    cloud: Cloud, project: Path, submodule: Path
) -> None:
    (project / "uv.lock").write_text(LOCK)
    assert "uv.lock: uv sync" in said(cloud, project)
    git(project, "submodule", "--quiet", "deinit", "-f", "libs/core")
    done = plan(cloud, project)
    assert done.code == 1 and "git submodule update --init libs/core" in done.err
    (project / "uv.lock").write_text(LOCK.replace("libs/core", "../elsewhere"))
    assert "outside of the repository" in said(cloud, project)


EXTRAS = """\
[project]
name = "x"
[project.optional-dependencies] # for machines
cpu = ["torch"]
gpu = [
    "torch==2.9",
]
[dependency-groups]
dev = ["pytest"]
"train" = ["wandb"]
[tool.uv]
package = false
"""


def test_what_a_lock_has_and_uv_leaves_out_is_named_with_its_option(
    cloud: Cloud, project: Path
) -> None:
    write(project, {"uv.lock": "version = 1\n", "pyproject.toml": EXTRAS})
    text = said(cloud, project)
    assert "without extra cpu, extra gpu, group train: --install" in text, text
    assert '--install "uv sync --locked --extra cpu"' in text
    assert "without" not in said(
        cloud, project, "--install", "uv sync --extra gpu", "python train.py"
    )
    chosen = EXTRAS + "default-groups = ['train']\n"
    assert left_out(chosen) == ["extra cpu", "extra gpu", "group dev"]
    assert left_out(EXTRAS + 'default-groups = "all"\n') == ["extra cpu", "extra gpu"]
    assert left_out("") == left_out('[project]\nname = "x"\n') == []


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("python tran.py --data x.py", "tran.py"), ("pythn train.py", "pythn"), ("./go.sh", "./go.sh"),
        ("torchrun --nproc 2 tran.py", "tran.py"), ("echo 'a", "shell"),
        ("A=1 python train.py --out new.py", ""), ("python -m json.tool x.py", ""), ("cd pkg; python sub.py", ""),
        ("cd x && python y.py", "x is not a folder"), ("cd pkg && python ../train.py; true", ""),
        ("cd pkg && python sbu.py", "sbu.py"), ("cd $X && python y.py", ""), ("cd /tmp", ""), ("cd .. && python x.py", ""),
        ("python -m pkg.sub", ""), ("torchrun -m pkg.sbu --x", "pkg.sbu is not a module"), ("python -m pkg", ""),
        ("for i in 1 2; do echo $i; done", ""), ("torchrun train.py", ""),
    ],
)  # fmt: skip
def test_words_that_are_nowhere_are_named(
    cloud: Cloud, project: Path, command: str, word: str
) -> None:
    (project / "pkg").mkdir()
    for name in ("__init__", "__main__", "sub"):
        (project / f"pkg/{name}.py").touch()
    commit(project)
    text = said(cloud, project, command)
    assert ("Careful" in text) == bool(word), text
    assert word in text.partition("Careful")[2]


BUILD = "[build-system]\nrequires = ['setuptools']\n"
PROJECT = "[project]\nname = 'proj'\nversion = '1'\n"


@pytest.mark.parametrize(
    ("cwd", "files", "says"),
    [
        (".", {"requirements.txt": "", "setup.py": ""}, ". pip install -r requirements.txt -e ."),
        (".", {"requirements.txt": "", "pyproject.toml": PROJECT}, ". pip install -r requirements.txt"),
        (".", {"pyproject.toml": "[tool.ruff]\n"}, ". "),
        (".", {"pyproject.toml": PROJECT}, ". uv pip install -r pyproject.toml"),
        (".", {"pyproject.toml": PROJECT, "src/x.py": ""}, ". pip install -e ."),
        (".", {"pyproject.toml": BUILD + PROJECT}, ". pip install -e ."),
        (".", {"pyproject.toml": BUILD + "[tool.uv]\npackage = false\n" + PROJECT},
         ". uv pip install -r pyproject.toml"),
        (".", {"pyproject.toml": BUILD + PROJECT + "[tool.uv.sources]\n"}, ". uv pip install -e ."),
        (".", {"poetry.lock": "", "pyproject.toml": BUILD}, ". uv tool run -q poetry install --no-interaction"),
        ("a/b", {"requirements.txt": "", "a/requirements.txt": ""}, "a pip install -r requirements.txt"),
        ("a", {"uv.lock": "", "a/pyproject.toml": BUILD}, ". uv sync --locked --no-progress"),
    ],
)  # fmt: skip
def test_what_the_files_say(cwd: str, files: dict[str, str], says: str) -> None:
    found = choose(cwd, files.get, lambda path: any(f.startswith(f"{path}/"[2:]) for f in files))
    assert f"{found.folder} {' '.join(found.words)}" == says


@pytest.mark.slow
def test_a_command_has_pip_and_uv_and_the_packages(cloud: Cloud, project: Path) -> None:
    write(
        project,
        {
            "requirements.txt": "iniconfig==2.0.0\n",
            "setup.py": "from setuptools import setup\nsetup(name='p', py_modules=['train'])\n",
        },
    )
    line = "pip list | grep iniconfig; uv --version; uv pip list | grep iniconfig; cd /; python -c 'import train'"
    done = cloud.run("run", "-g", "0", "-n", "has-pip", "--wait", line, cwd=project)
    log = cloud.log("has-pip")
    assert done.code == 0 and log.count("iniconfig") >= 3 and "hello from train" in log, log


LOCKED = Choice(".", ["uv", *LOCKS["uv.lock"]], ["uv.lock"])
PIP = Choice(".", ["pip", "install", "-r", "requirements.txt"], ["requirements.txt"])
PACKAGE = Choice("a", ["uv", "pip", "install", "-e", "."], ["a/pyproject.toml"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--install", "none"], "nothing (--install none)"),
        (["--install", "make deps"], "make deps"),
        (["--docker", "python:3.12"], "nothing: the image has the packages"),
        ([], "nothing: no file says what"),
    ],
)
def test_a_plan_says_what_is_installed(
    cloud: Cloud, project: Path, words: list[str], says: str
) -> None:
    text = said(cloud, project, *words, "true")
    (line,) = [line for line in text.splitlines() if line.startswith("Install ")]
    assert line.partition(" ")[2].strip().startswith(says)


def test_a_plan_names_a_few_of_many_files_and_what_is_not_sent(
    cloud: Cloud, project: Path, submodule: Path
) -> None:
    for number in range(11):
        (project / f"requirements-{number:02}.txt").touch()
    git(project, "submodule", "--quiet", "deinit", "-f", "libs/core")
    text = said(cloud, project, "cat libs/core/core.py && python libs/core/core.py")
    assert "requirements-07.txt (" in text and "requirements-08.txt" not in text, text
    assert "and 3 more" in text and "libs/core: submodules; git submodule update --init" in text
    text = said(cloud, project, "python libs/core/core.py")
    assert "libs/core/core.py is not there, and the submodule libs/core is not checked" in text


def test_of_extras_the_one_that_fits_the_machine_is_offered() -> None:
    assert '--install "uv sync --locked --extra gpu"' in without(LOCKED, EXTRAS, True)
    assert '--install "uv sync --locked --extra cpu"' in without(LOCKED, EXTRAS, False)
    for name in ("cuda", "cu128", "gpu"):
        text = EXTRAS.replace("gpu =", f"{name} =")
        assert f"--extra {name}" in without(LOCKED, text, True), name
    assert without(PACKAGE, EXTRAS, True) == (
        'without extra cpu, extra gpu: --install "uv pip install -e .[gpu]"'
    )
    assert without(PIP, EXTRAS, True) == without(LOCKED, "[project]\n", True) == ""
    many = "[project.optional-dependencies]\n" + "".join(f"x{n} = []\n" for n in range(7))
    assert without(LOCKED, many, True).startswith("without extra x0, ")
    assert "extra x4 and 2 more: " in without(LOCKED, many, True)


@pytest.mark.parametrize(
    ("path", "choice", "says"),
    [
        ("requirements-dev.txt", PIP, "pip install -r requirements.txt -r requirements-dev.txt"),
        ("requirements-dev.txt", PACKAGE, "uv pip install -e . -r requirements-dev.txt"),
        ("requirements/all.in", LOCKED, '"pip install -r requirements/all.in"'),
        ("environment.yml", PIP, "micromamba create -y -p /root/env -f environment.yml"),
        ("a/env.yaml", PIP, "-f a/env.yaml"), ("a/Dockerfile", PIP, "then: --docker IMAGE"),
        ("pyproject.toml", PIP, "pip install -r requirements.txt -e ."),
        ("pixi.toml", PIP, "Berg does not know its tool"),
    ],
)  # fmt: skip
def test_the_option_that_uses_a_file(path: str, choice: Choice, says: str) -> None:
    assert says in option_for(path, choice)


def test_files_of_packages_are_known_by_their_names_and_places() -> None:
    yes = ["uv.lock", "setup.py", "a/uv.lock", "a/requirements.txt", "dev-requirements.in",
           "a/environment.yml", "conda-lock.yml", "a/pylock.toml", "gpu.Dockerfile", "pdm.lock",
           "Dockerfile.gpu"]  # fmt: skip
    no = ["a/setup.py", "a/pyproject.toml", "a/b/requirements.txt", "docs/conf.py", "train.yml",
          "notes.txt", "a/b/Dockerfile"]  # fmt: skip
    assert [path for path in yes + no if is_source(path)] == yes


@pytest.mark.parametrize(
    ("path", "choice", "used", "due"),
    [
        ("requirements.txt", PIP, ["requirements.txt"], False),
        ("pyproject.toml", PIP, ["requirements.txt"], True),
        ("pyproject.toml", LOCKED, ["uv.lock"], False),
        ("requirements-dev.txt", LOCKED, ["uv.lock"], False),
        ("environment.yml", LOCKED, ["uv.lock"], True),
        ("b/requirements.txt", PACKAGE, ["a/pyproject.toml"], False),
        ("a/requirements.txt", PACKAGE, ["a/pyproject.toml"], True),
        ("environment.yml", PACKAGE, ["a/pyproject.toml"], True),
        ("b/requirements.txt", Choice(), [], True),
    ],
)
def test_a_file_is_named_unless_it_says_the_same(
    path: str, choice: Choice, used: list[str], due: bool
) -> None:
    assert is_due(path, choice, used) is due


@pytest.mark.parametrize(
    ("choice", "files", "says"),
    [
        (PIP, {"requirements.txt": "-e ./libs\nx @ file:libs\n-c limits.txt\n", "libs/x.py": "",
               "limits.txt": "-e ../not-read-by-pip-here\n"}, "needs ../not-read-by-pip-here"),
        (PIP, {"requirements.txt": "-e ./libs[gpu] # mine\n"}, "needs libs, which is ignored"),
        (PIP, {"requirements.txt": "--editable=./libs\n"}, "needs libs, "),
        (PIP, {"requirements.txt": "../other\n"}, "needs ../other, which is outside"),
        (PIP, {"requirements.txt": "-r more.txt\n"}, "needs more.txt, which is ignored"),
        (PIP, {"requirements.txt": "x @ file:///opt/x\nnumpy\n# -r none.txt\n-e .\n"}, ""),
        (PIP, {"requirements.txt": "-r a/b.txt\n", "a/b.txt": "-r c.txt\n", "a/c.txt": ""}, ""),
        (PIP, {"requirements.txt": "-r a/b.txt\n", "a/b.txt": "-r c.txt\n"}, "a/b.txt needs a/c.txt"),
        (LOCKED, {"uv.lock": 'source = { directory = "libs" }\n'}, "uv.lock needs libs, "),
        (LOCKED, {"uv.lock": 'source = { virtual = "." }\n'}, ""),
        (LOCKED, {"uv.lock": 'source = { path = "x.whl" }\n', "x.whl": ""}, ""),
    ],
)  # fmt: skip
def test_what_an_installation_needs_of_the_repository_is_there(
    choice: Choice, files: dict[str, str], says: str
) -> None:
    if says:
        with pytest.raises(BergError) as caught:
            check_local(choice, files.get, {*files}, [])
        assert says in str(caught.value)
    else:
        assert {*check_local(choice, files.get, {*files}, [])} <= {*files}


def test_a_program_that_a_package_brings_is_no_mistake(cloud: Cloud, project: Path) -> None:
    assert "a package must bring it" in said(cloud, project, "zenml run")
    assert "Careful" not in said(cloud, project, "--install", "pip install zenml", "zenml run")
    (project / "requirements.txt").write_text("zenml\n")
    assert "Careful" not in said(cloud, project, "zenml run")
    assert "Did you mean python3" in said(cloud, project, "pyton3 train.py")


def test_a_command_finds_the_nearest_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {"berg.install.ROOT": tmp_path, "berg.install.VENV": tmp_path / "env"}
    stand_ins(monkeypatch, own)
    monkeypatch.setenv("PATH", "/usr/bin")
    place = tmp_path / "code/proj/sub"
    (tmp_path / ".venv/bin").mkdir(parents=True)  # of no repository
    assert install.variables(place) == {"PATH": f"/usr/bin:{install.BIN}"}
    for folder in (tmp_path / "env", tmp_path / "code/proj/.venv", place / ".venv"):
        (folder / "bin").mkdir(parents=True)
        path = f"{folder}/bin:/usr/bin:{install.BIN}"
        assert install.variables(place) == {"VIRTUAL_ENV": str(folder), "PATH": path}
