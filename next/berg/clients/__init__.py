"""What only uses jobs, as a user's own script would: no hook, and the core does not import it."""

import shlex
import sys
from importlib.util import find_spec

COMMANDS: dict[str, str] = {  # command -> its module
    "costs": "costs",
    "dashboard": "dashboard",
    "diff": "diff",
    "gpus": "gpus",
    "image": "image",
    "page": "page",
    "profile": "profile",
    "reap": "reap",
    "skill": "skill",
    "sweep": "sweep",
    "tensorboard": "tensorboard",
    "top": "top",
}


def how_to_install(package: str) -> str:
    """The command, to be pasted, that installs a package where this very berg is installed."""
    python = shlex.quote(sys.executable)
    pip = "pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{python} -m {pip} {shlex.quote(package)}"
