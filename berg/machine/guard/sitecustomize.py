"""Lets a python with PyTorch end after the profile that is being taken of it, not during it: then
it would crash.

Each python of a job with --profile runs this as it starts, and after it the image's own
sitecustomize. It only looks at files of machine/kineto.py, and knows no more of berg.
"""

import atexit
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ.get("KINETO_IPC_SOCKET_DIR", ""))


def guard() -> None:
    """Say that this process is guarded, before it can ask for a profile."""
    try:
        # of one that had this number before
        (FOLDER / f"ends-{os.getpid()}").unlink(missing_ok=True)
        (FOLDER / f"guarded-{os.getpid()}").touch()
    except OSError:
        return
    atexit.register(wait)


def wait() -> None:
    """Wait until no profile is taken of this process, and none can be."""
    taken = FOLDER / f"taken-{os.getpid()}"  # until when that may be
    try:
        (FOLDER / f"ends-{os.getpid()}").touch()
        while time.time() < float(taken.read_text()):
            time.sleep(0.1)
    except (OSError, ValueError):
        pass  # it is not there, or no more


def others() -> None:
    """Import the sitecustomize that this one hides."""
    ours = sys.modules.pop(__name__)
    sys.path[:] = [folder for folder in sys.path if Path(folder) != Path(__file__).parent]
    try:
        import sitecustomize  # noqa: F401
    except ImportError:
        sys.modules[__name__] = ours


guard()
others()
