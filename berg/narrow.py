"""google-cloud-compute, as far as machines need it.

The package describes all of Compute Engine: its own __init__ imports the clients of a hundred services,
and one module makes 2,000 classes of messages, which takes a second of CPU. `berg run` sends requests of a
few of them. So the package's __init__ is not executed, and of the messages only those are made that the
requests below lead to. All other names are one empty class: the client's annotations need them to exist.
"""

import builtins
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

PACKAGE = "google.cloud.compute_v1"
NEEDED = ("InsertInstanceRequest", "BulkInsertInstanceRequest", "Operation")


class Left:
    """A message that nothing here sends."""


def load() -> tuple[Any, Any]:
    """The modules of the client of instances, and of types; for a process that imports no more of the package."""
    if PACKAGE in sys.modules:
        return load_whole()
    try:
        empty(PACKAGE)
        types: Any = empty(f"{PACKAGE}.types")
        fill(empty(f"{PACKAGE}.types.compute"))
        types.__spec__.loader.exec_module(types)
        return importlib.import_module(f"{PACKAGE}.services.instances"), types
    except (AssertionError, AttributeError, ImportError, KeyError):
        # A version of the package that is made otherwise.
        for name in [name for name in sys.modules if name.startswith(PACKAGE)]:
            del sys.modules[name]
        return load_whole()


def load_whole() -> tuple[Any, Any]:
    """The same of the whole package."""
    package: Any = importlib.import_module(PACKAGE)
    return package.services.instances, package


def empty(name: str) -> ModuleType:
    """A module that is there for import statements, and not executed."""
    spec = importlib.util.find_spec(name)
    assert spec
    sys.modules[name] = importlib.util.module_from_spec(spec)
    return sys.modules[name]


def fill(module: ModuleType) -> None:
    """Execute the module of messages with a `class` statement that makes those that are needed."""
    loader: Any = module.__spec__ and module.__spec__.loader
    code = loader.get_code(module.__name__)
    bodies = {each.co_name: each for each in code.co_consts if isinstance(each, CodeType)}
    needed, coming = set[str](), [*NEEDED]
    while coming:
        name = coming.pop()
        if name not in needed:
            needed.add(name)
            coming += {*texts(bodies[name])} & bodies.keys()

    def build(body: Any, name: str, *bases: Any, **options: Any) -> Any:
        is_needed = body.__qualname__.partition(".")[0] in needed  # X, and Y that is in it: X.Y
        return builtins.__build_class__(body, name, *bases, **options) if is_needed else Left

    # The last message that is made looks whether all names of the module are there.
    vars(module).update(dict.fromkeys(bodies.keys() - needed, Left))
    vars(module)["__builtins__"] = {**vars(builtins), "__build_class__": build}
    exec(code, vars(module))


def texts(body: CodeType) -> Iterator[str]:
    """The strings of a class: other messages are named by them, as X or X.Y."""
    for each in body.co_consts:
        if isinstance(each, str):
            yield each.partition(".")[0]
        elif isinstance(each, CodeType):
            yield from texts(each)
