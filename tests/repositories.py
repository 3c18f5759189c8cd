"""Small repositories in the shapes that people use, with the locks that uv makes of them offline.

The index is a folder of wheels that are made here: iniconfig 2.0.0 and 2.1.0, pluggy 1.5.0.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from berg.code.snapshot import Files

UV = Path(sys.executable).with_name("uv")
PACKAGES = {"iniconfig": ("2.0.0", "2.1.0"), "pluggy": ("1.5.0",)}
PRINT = """import sys
from importlib.metadata import version
import iniconfig
print("iniconfig", version("iniconfig"), sys.prefix)
"""
STUB = {
    "torch-stub/pyproject.toml": """
[project]
name = "torch"
version = "0.0.1"
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
""",
    "torch-stub/src/torch/__init__.py": "",
}


def project(name: str, dependencies: str = '"iniconfig==2.1.0"', more: str = "") -> str:
    return f"""
[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.10"
dependencies = [{dependencies}]
{more}"""


BUILT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
"""
EXCLUSIVE = """
[project.optional-dependencies]
{first} = ["torch", "iniconfig==2.0.0"]
{second} = ["torch", "iniconfig==2.1.0"]
[tool.uv]
conflicts = [[{{ extra = "{first}" }}, {{ extra = "{second}" }}]]
[tool.uv.sources]
torch = {{ path = "torch-stub" }}
"""
POETRY = """
[tool.poetry]
package-mode = false
[tool.poetry.dependencies]
python = ">=3.10"
iniconfig = "2.1.0"
[tool.poetry.group.dev.dependencies]
pluggy = "*"
[build-system]
requires = ["poetry-core"]
build-backend = "poetry.core.masonry.api"
"""
FLAT = {"train.py": PRINT, "prepare.py": ""}
SHAPES: dict[str, dict[str, str]] = {
    "conda-environment": {
        "environment.yml": "dependencies:\n  - python=3.12\n  - pip:\n    - iniconfig\n",
        "train.py": PRINT,
    },
    "extras-in-conflict": {
        "pyproject.toml": project(
            "extras-in-conflict", '"pluggy"', EXCLUSIVE.format(first="cpu", second="gpu")
        ),
        "train.py": PRINT,
        **STUB,
    },
    "flat-two-modules": {"pyproject.toml": project("flat-two-modules"), **FLAT},
    "groups-only": {
        "pyproject.toml": '[dependency-groups]\ndev = ["pluggy"]\ntrain = ["iniconfig==2.1.0"]\n',
        "train.py": PRINT,
    },
    "package-false": {
        "pyproject.toml": project("package-false", more=BUILT + "[tool.uv]\npackage = false\n"),
        **FLAT,
    },
    "poetry-no-package": {"pyproject.toml": POETRY, "poetry.lock": "", "train.py": PRINT},
    "python-too-new": {
        "pyproject.toml": project("new", more=BUILT).replace(">=3.10", ">=3.99"),
        "train.py": "",
    },
    "requirements-below": {
        "experiments/requirements.txt": "iniconfig==2.1.0\n",
        "experiments/train.py": PRINT,
    },
    "script-metadata": {
        "train.py": '# /// script\n# dependencies = ["iniconfig==2.1.0"]\n# ///\n' + PRINT
    },
    "src-no-build-system": {
        "pyproject.toml": project("mymodel"),
        "src/mymodel/__init__.py": "",
    },
    "workspace-name-on-pypi": {
        "pyproject.toml": project(
            "workspace-name-on-pypi",
            '"iniconfig"',
            '[tool.uv.workspace]\nmembers = ["packages/*"]\n'
            "[tool.uv.sources]\niniconfig = { workspace = true }\n",
        ),
        "packages/iniconfig/pyproject.toml": project("iniconfig", "", BUILT).replace(
            "0.1.0", "0.0.1"
        ),
        "packages/iniconfig/src/iniconfig/__init__.py": "VERSION = 'ours'\n",
        "train.py": PRINT,
    },
}


def make_index(folder: Path) -> Path:
    """Write the wheels into a folder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, versions in PACKAGES.items():
        for version in versions:
            about = f"{name}-{version}.dist-info"
            files = {
                f"{name}/__init__.py": f"VERSION = {version!r}\n",
                f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
            }
            files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in files)
            with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
                for path, text in files.items():
                    wheel.writestr(path, text)
    return folder


def write(folder: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def lock(folder: Path, index: Path, *options: str) -> None:
    """Make the uv.lock of a repo, without a network."""
    command = [str(UV), "lock", "--offline", "--no-index", "--find-links", str(index), *options]
    python = ["--python", sys.executable]
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "UV_NO_CONFIG": "1"}
    subprocess.run(
        [*command, *python], cwd=folder, env=environment, check=True, capture_output=True
    )
    shutil.rmtree(folder / ".cache", ignore_errors=True)


def files_of(folder: Path) -> Files:
    """Return the files of a folder as those of a commit."""
    paths = frozenset(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    )
    return Files(paths, lambda path: (folder / path).read_text())
