"""Berg: run machine-learning experiments on Google Cloud machines, keep the results in a bucket."""

import re
import subprocess
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = re.search(r'__version__ = "(.+)"', (here / "berg/__init__.py").read_text()).group(1)
if (here / ".git").exists():  # a wheel says of which commit it is
    git = ["git", "-C", str(here), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True)
    version += f"+g{commit.stdout.strip()}" if commit.stdout else ""

setup(
    name="berg",
    version=version,
    description=__doc__.strip(),
    long_description=(here / "README.md").read_text(),
    long_description_content_type="text/markdown",
    python_requires=">=3.10",
    # An editable installation is then a folder in sys.path: with a finder of its own, `import berg`
    # next to a clone of the repository would find the clone's folder.
    package_dir={"": "."},
    packages=find_packages(include=["berg", "berg.*"]),
    package_data={"berg.clients.page": ["*.html", "*.css", "*.js"]},
    install_requires=[
        "click>=8.1.7",
        "GitPython>=3.1.40",
        "google-auth>=2.48",
        "google-cloud-compute>=1.57",
        "google-cloud-storage>=3.7",
        "google-crc32c>=1.6",  # the first with its C code for every supported python
        "obstore>=0.9",
        "requests>=2.32",
        "tomli>=2; python_version < '3.11'",  # the standard library's tomllib came with 3.11
        "uv>=0.13",  # machines get the same version
    ],
    extras_require={
        "local": ["berg-localcloud"],  # the embedded cloud, whose wheel is beside this one
        "page": ["plotly>=6"],  # the charts of berg page: its script is in its wheel
        "tensorboard": ["tensorboard>=2.21"],  # for berg tensorboard
        "profile": ["tensorboard>=2.21", "xprof>=2.20"],  # the same with the tab Profile
        "test": [
            "plotly>=6",
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.5",
            "tensorboard>=2.21",
        ],
        "lint": ["mypy>=1.11", "ruff>=0.6", "types-requests"],
    },
    entry_points={"console_scripts": ["berg = berg.cli:main"]},
)
