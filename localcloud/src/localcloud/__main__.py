"""The embedded cloud as a program: `python -m localcloud [FOLDER]`."""

import argparse
import fcntl
import logging
import os
import sys
from pathlib import Path

from localcloud import guide

HELP = """\
Serve Google's Compute Engine, Cloud Storage, Kubernetes Engine, IAM, Secret Manager,
Artifact Registry, Cloud Build and Monitoring on this computer, for tests and for trying.

It listens on loopback only and keeps its state in FOLDER. Ctrl-C ends its machines, then itself;
the next start on the same FOLDER finds buckets, disks and settings again.
"""
EXAMPLES = """\
examples:
  python -m localcloud                        # state in ~/.localcloud, on any free port
  python -m localcloud --port 8080 /tmp/cloud # always at http://127.0.0.1:8080
  python -m localcloud --project my-project   # a project of this name is in it
  python -m localcloud --token                # print an access token, good for an hour
  curl -H "Authorization: Bearer $(python -m localcloud --token)" \\
      http://127.0.0.1:8080/compute/v1/projects/my-project/zones
"""


def main() -> int:
    options = parser().parse_args()
    options.folder = options.folder.expanduser()
    os.umask(0o077)
    if options.token:
        return print_token(options.folder)
    options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock = (options.folder / "server.lock").open("w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return fail(f"An embedded cloud is already running on {options.folder}")
    try:
        from localcloud import process
    except ModuleNotFoundError as error:
        return fail(f"{error.msg}. Install what it needs: pip install '/path/to/localcloud'")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        process.run(options)
    except OSError as error:
        return fail(f"The embedded cloud cannot run: {error}")
    return 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m localcloud",
        description=HELP,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("folder", type=Path, nargs="?", default=Path("~/.localcloud"), help="where its state is")
    add("--port", type=int, default=0, help="port on 127.0.0.1; 0, the default: any that is free")
    add("--project", default=guide.PROJECT, help=f"a project to have ({guide.PROJECT})")
    add("--token", action="store_true", help="print an access token for FOLDER's cloud, and exit")
    add("--quiet", action="store_true", help="do not print how to use it")
    add(
        "--grace",
        type=float,
        help="seconds from the power button to no power, instead of 30 (Spot) or 120",
    )
    add("--end-machines", action="store_true", help="end what a killed server left, and exit")
    return made


def print_token(folder: Path) -> int:
    if not (folder / "tokens.json").exists():
        return fail(f"{folder} has no embedded cloud yet: start it first")
    print(guide.access_token(folder))
    return 0


def fail(message: str) -> int:
    print(message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
