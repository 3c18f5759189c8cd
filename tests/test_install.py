"""What a plan says of packages and of the command, before a machine starts."""

import subprocess
from pathlib import Path

import pytest
from conftest import Cloud, Done, commit

from berg.install import choose, left_out

LOCK = 'version = 1\n[[package]]\nname = "core"\nsource = { editable = "libs/core" }\n'
GIT = ["git", "-c", "protocol.file.allow=always"]


def plan(cloud: Cloud, project: Path, *words: str) -> Done:
    return cloud.run("run", "-g", "0", "--dry-run", *(words or ("python train.py",)), cwd=project)


def said(cloud: Cloud, project: Path, *words: str) -> str:
    done = plan(cloud, project, *words)
    return done.out + done.err


@pytest.fixture
def submodule(project: Path, tmp_path: Path) -> Path:
    inner = tmp_path / "core"
    inner.mkdir()
    (inner / "core.py").write_text("print('inner')\n")
    commit(inner)
    words = [*GIT, "submodule", "--quiet", "add", str(inner), "libs/core"]
    subprocess.run(words, cwd=project, check=True)
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
    words = ["git", "submodule", "--quiet", "deinit", "-f", "libs/core"]
    subprocess.run(words, cwd=project, check=True)
    for name, text in files.items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    assert says in said(cloud, project)


def test_a_package_in_a_submodule_that_is_not_here_is_refused(
    cloud: Cloud, project: Path, submodule: Path
) -> None:
    (project / "uv.lock").write_text(LOCK)
    assert "uv.lock: uv sync" in said(cloud, project)
    words = ["git", "submodule", "--quiet", "deinit", "-f", "libs/core"]
    subprocess.run(words, cwd=project, check=True)
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
    (project / "uv.lock").write_text("version = 1\n")
    (project / "pyproject.toml").write_text(EXTRAS)
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


@pytest.mark.slow
def test_submodules_are_sent_as_they_are_here(cloud: Cloud, project: Path, submodule: Path) -> None:
    (submodule / "core.py").write_text("print('changed')\n")
    words = ["-n", "inner", "--wait", "python3 libs/core/core.py; git -C libs/core log --format=%s"]
    done = cloud.run("run", "-g", "0", *words, cwd=project)
    assert done.code == 0, done.err
    log = cloud.log("inner")
    assert "changed" in log and "\nfiles\n" in log, log


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
    (project / "requirements.txt").write_text("iniconfig==2.0.0\n")
    (project / "setup.py").write_text(
        "from setuptools import setup\nsetup(name='p', py_modules=['train'])\n"
    )
    line = "pip list | grep iniconfig; uv --version; uv pip list | grep iniconfig; cd /; python -c 'import train'"
    done = cloud.run("run", "-g", "0", "-n", "has-pip", "--wait", line, cwd=project)
    log = cloud.log("has-pip")
    assert done.code == 0 and log.count("iniconfig") >= 3 and "hello from train" in log, log
