"""The images of machines: the host plus a /root. Google's deep-learning images have /root/code; their
python is the host's, with a stub package `torch`, and without venv and ensurepip. With the setting
`prepared` they have /root/berg/venv as well, a link to the python environment of the server, which
saves a machine half of its CPU time. Plain images have an empty /root.
"""

import contextlib
import sys
from pathlib import Path


def make_images(folder: Path) -> None:
    """Make `folder/learning` and `folder/prepared`, unless they are there."""
    (folder / "learning/code").mkdir(parents=True, exist_ok=True)
    (folder / "prepared/code").mkdir(parents=True, exist_ok=True)
    (folder / "prepared/berg").mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (folder / "prepared/berg/venv").symlink_to(sys.prefix)
