"""What the processes of forked.py have imported before they begin: all that berg imports anywhere
on a laptop.
"""

import collections.abc
import gc
import importlib
import pkgutil

import forked_call  # noqa: F401 (what each process begins with)

import berg

for name in ("git", "google.auth.transport.requests"):
    importlib.import_module(name)
for module in pkgutil.walk_packages(berg.__path__, "berg."):
    if not module.name.startswith(("berg.__main__", "berg.machine", "berg.worker")):
        importlib.import_module(module.name)
importlib.import_module("berg.google.instances").import_compute()
# These answers are cached; over thousands of message types each takes long.
for kind in (dict, list, str, int, bytes):
    isinstance(kind(), collections.abc.Mapping)
gc.freeze()
