"""Appends what comes out of a pipe, the output of a command, to the log at standard output.

The argument is the file descriptor of the pipe. Standard input closes when the command has ended;
this process then exits as soon as the pipe is empty. A copy of it stays while a background process
holds the pipe. It also outlives a worker that dies, so that no program loses its output.
"""

import os
import select
import signal
import sys

CHUNK = 1 << 16  # bytes, the usual capacity of a pipe
MISSING = "\n[berg] %d bytes of output are missing here: the log could not be written\n"


def append(data: bytes) -> int:
    """Append to the log; return how many bytes could not be written, as on a full disk."""
    while data:
        try:
            data = data[os.write(1, data) :]
        except OSError:
            break
    return len(data)


def main(pipe: int) -> None:
    # A shutdown may send SIGTERM to all processes, and the command has its last words then.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sources, timeout, missing = [pipe, 0], None, 0
    while True:
        ready = select.select(sources, [], [], timeout)[0]
        if pipe in ready:
            data = os.read(pipe, CHUNK)
            if not data:
                return
            if missing and not append((MISSING % missing).encode()):
                missing = 0
            missing += append(data)
        elif ready:
            sources, timeout = [pipe], 0  # the command has ended: is the pipe still empty?
        else:
            if os.fork():
                os._exit(0)
            timeout = None


if __name__ == "__main__":
    main(int(sys.argv[1]))
