"""Berg: run machine-learning experiments on Google Cloud accelerators, keep the results in a
bucket.
"""

import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = re.search(r'__version__ = "(.+)"', (here / "berg/__init__.py").read_text())

setup(
    name="berg",
    version=version.group(1),
    description=__doc__.strip(),
    long_description=(here / "README.md").read_text(),
    long_description_content_type="text/markdown",
    python_requires=">=3.10",
    # An editable installation is then a folder in sys.path: with a finder of its own, `import berg`
    # next to a clone of the repository would find the clone's folder.
    package_dir={"": "."},
    packages=find_packages(include=["berg", "berg.*"]),
    package_data={
        "berg.commands": ["skill.md"],
        "berg.gke": ["nginx.conf"],
        "berg.machine": ["guard/sitecustomize.py", "horovod.sh"],
        "berg.watch": ["figures.js", "page.css", "page.js"],
    },
    install_requires=[
        "click>=8.1.7",
        "GitPython>=3.1.40",
        "google-auth>=2.48",
        "google-cloud-compute>=1.57",
        "google-cloud-storage>=3.7",
        "google-crc32c>=1.6",  # the first with its C code for every supported python
        "packaging>=23",  # versions and markers of Python packages
        "requests>=2.32",  # the first whose adapters can share connections
        "tomli>=2; python_version < '3.11'",  # the standard library's tomllib came with 3.11
        "urllib3>=1.26",
        "watchfiles>=0.21",  # inotify, FSEvents and their like, for berg sync
        "websocket-client>=1.8",  # exec in pods; pure Python, imported in 27 ms, and only then
    ],
    extras_require={
        "page": ["plotly>=6"],  # the charts of berg page: its script is in its wheel
        "tensorboard": ["tensorboard>=2.21"],  # for berg tensorboard
        "profile": ["tensorboard>=2.21", "xprof>=2.20"],  # the same with the tab Profile
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.5",
            "hypothesis>=6.100",
            "jax==0.10.2",
            "lightkube>=0.15",
            "matplotlib>=3.7",
            "numpy>=1.24",
            "scikit-learn>=1.3",
            "torch==2.13.0",
            "tensorboard>=2.21",
            "uv==0.13.9",  # the version that machines get
            "wandb>=0.19",
            "webdataset>=1.0",
            "xprof>=2.20",
        ],
        "lint": ["ruff>=0.6", "mypy>=1.11", "radon>=6", "types-requests"],
    },
    entry_points={
        "console_scripts": [
            "berg = berg.cli:main",
            "berg-worker = berg.worker:main",
        ],
    },
)
