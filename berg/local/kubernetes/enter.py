"""What a container of an image does last: makes the image its root, and runs its command.

    enter.py ROOT WORKDIR own|shared COMMAND...

With `own` the command is process 1; with `shared` process 1 is one that reaps, as Kubernetes' pause. From the change of
roots on nothing of this host is there, so that what is needed is imported before.
"""

import ctypes
import os
import shutil
import signal
import sys
from pathlib import Path

DETACH = 2  # MNT_DETACH
NOT_FOUND, NOT_STARTED = 127, 128


def main() -> None:
    root, workdir, namespace, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(root)
    if libc.pivot_root(b".", b".") or libc.umount2(b".", DETACH):  # the old root lies on top until then
        raise OSError(ctypes.get_errno(), "the image cannot become the root")
    os.chdir("/")
    Path(workdir).mkdir(parents=True, exist_ok=True)
    os.chdir(workdir)
    program = shutil.which(command[0])
    if program is None:
        print(f'exec: "{command[0]}": executable file not found in $PATH', file=sys.stderr)  # noqa: T201
        sys.exit(NOT_FOUND)
    main_process = os.fork() if namespace == "shared" else 0
    if not main_process:
        try:
            os.execv(program, command)
        except OSError as error:
            print(f"exec {program}: {(error.strerror or '').lower()}", file=sys.stderr)  # noqa: T201
            sys.exit(NOT_STARTED)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # it goes with its pod, and not before
    while True:
        process, status = os.wait()
        if process == main_process:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else 128 - code)


main()
