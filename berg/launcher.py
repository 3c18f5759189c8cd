"""Starts a module of Berg's own python by its name: `python -I launcher.py MODULE ARGUMENT…`.

`python -m MODULE` would look for it in the caller's folder first. With -I python knows neither that
folder nor the variables of the environment, and finds what is next to Berg all the same.
"""

import runpy
import site
import sys
from pathlib import Path


def main() -> None:
    """Run the module that the first argument names, with the other arguments."""
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    if sys.prefix == sys.base_prefix:
        site.addsitedir(site.getusersitepackages())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
