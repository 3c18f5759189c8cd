"""The worker's imports of other packages; where one is missing, the process exits.

Meanwhile no garbage is collected: there is none. (Measured by bench/worker.py.) The worker signs
nothing: it has no key. What google-auth signs with would be cryptography, of 15 MB and compiled
for each processor. And it may be half a minute until the metadata server answers, which google-auth
otherwise takes after three seconds for another computer's.
"""

import gc
import importlib.util
import os
import sys
import types

from berg.machine import boot


class Unused(types.ModuleType):
    """A module of which nothing is called: what it is asked for are classes, which nobody uses."""

    def __getattr__(self, name: str) -> type:
        if not name[0].isupper():
            raise AttributeError(name)
        return type(name, (), {"sign": None, "key_id": None})


gc.disable()
sys.modules["google.auth.crypt"] = Unused("google.auth.crypt")
# google-auth reads it when it is imported; the command is not to see it
PATIENCE = "GCE_METADATA_DETECT_RETRIES"
os.environ[PATIENCE] = "6"
try:
    import click
    import git
    import google.auth.compute_engine
    import google.auth.transport.requests
    import google_crc32c

    if google_crc32c.implementation == "python":  # would take an hour for a gigabyte
        raise ImportError
    if not importlib.util.find_spec("google.cloud.storage"):  # it is for large files, and is slow
        raise ImportError
except ImportError:
    sys.exit(boot.DEPENDENCIES_MISSING)
del os.environ[PATIENCE]
gc.freeze()
gc.enable()

__all__ = ["click", "git", "google"]
