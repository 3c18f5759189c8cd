"""What only uses jobs, as a user's own script would: no hook, and the core does not import it."""

import shlex
import sys
from importlib.util import find_spec

COMMANDS: dict[str, tuple[str, str]] = {  # command -> its module, and what it does
    "sweep": ("sweep", "Show a sweep: parameters, states, metrics"),
    "page": ("page", "Jobs, metrics and logs in a browser"),
    "tensorboard": ("tensorboard", "TensorBoard of jobs in the bucket"),
    "top": ("top", "How busy machines are, and were"),
    "dashboard": ("dashboard", "How busy machines are, in Cloud Monitoring"),
    "profile": ("profile", "What a running program spends its time on"),
    "diff": ("diff", "Compare two jobs"),
    "costs": ("costs", "What jobs have cost, and what costs money now"),
    "gpus": ("gpus", "GPU types, quota and prices"),
    "try": ("trial", "Try all of it once, with what each step costs and proves"),
    "reap": ("reap", "Find and delete what was left behind"),
    "image": ("image", "Disk images made of devboxes"),
    "skill": ("skill", "A page that teaches coding agents Berg"),
}


def how_to_install(package: str) -> str:
    """The command, to be pasted, that installs a package where this very berg is installed."""
    python = shlex.quote(sys.executable)
    pip = "pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{python} -m {pip} {shlex.quote(package)}"
