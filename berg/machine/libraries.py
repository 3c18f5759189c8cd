"""The worker's imports of other packages, in a quarter less time; where one is missing, the process exits.

That quarter is for grpc, which google-api-core does without and the worker has no use for, and for collections of
garbage that find none. (Measured by bench/worker.py.)
"""

import gc
import sys

from berg.machine import boot

gc.disable()
sys.modules["grpc"] = None  # type: ignore[assignment]
try:
    import click
    import git
    import google.auth
    import google.cloud.storage
except ImportError:
    sys.exit(boot.DEPENDENCIES_MISSING)
del sys.modules["grpc"]
gc.freeze()
gc.enable()

__all__ = ["click", "git", "google"]
