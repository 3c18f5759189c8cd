"""Delays the end of a python with PyTorch until its profile is taken: it would crash during it.

Each python of a job with --profile runs this when it starts, and then the image's own
sitecustomize. It shares files with machine/profile.py, and uses nothing else of Berg.
"""

import atexit
import os
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ.get("KINETO_IPC_SOCKET_DIR", ""))


def guard() -> None:
    """Mark this process as guarded, before it can ask for a profile."""
    try:
        # of an earlier process with this number
        (FOLDER / f"ends-{os.getpid()}").unlink(missing_ok=True)
        (FOLDER / f"guarded-{os.getpid()}").touch()
    except OSError:
        return
    atexit.register(wait)


def wait() -> None:
    """Wait until no profile is being taken of this process, and none can begin."""
    taken = FOLDER / f"taken-{os.getpid()}"  # has the latest time of its end
    try:
        (FOLDER / f"ends-{os.getpid()}").touch()
        while time.time() < float(taken.read_text()):
            time.sleep(0.1)
    except (OSError, ValueError):
        pass  # there is no profile, or it is done


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
