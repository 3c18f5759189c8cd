"""What the processes of forked.py have imported before they begin: all that berg imports anywhere
on a laptop.
"""

import collections.abc
import gc
import importlib
import pkgutil

import google.auth.transport.requests
import google.cloud.storage

import berg
from berg.google import instances

assert google.auth.transport.requests and google.cloud.storage
for module in pkgutil.walk_packages(berg.__path__, "berg."):
    if not module.name.startswith(("berg.__main__", "berg.machine", "berg.worker")):
        importlib.import_module(module.name)
instances.import_compute()
# these answers are cached; over thousands of message types each takes long
for kind in (
    dict,
    list,
    str,
    int,
    bytes,
):
    isinstance(kind(), collections.abc.Mapping)
gc.freeze()
