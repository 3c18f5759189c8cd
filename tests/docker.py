#!/usr/bin/env python3
"""A stand-in for docker, where no container can be made: it takes the options that berg gives and no
others, has one image and what its registry names by digest, and runs commands as plain processes.

It is the program that machines run; `INSTALL` brings it there.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

INSTALL = "cp docker.py /usr/local/bin/docker.new && chmod +x /usr/local/bin/docker.new"
INSTALL += " && mv /usr/local/bin/docker.new /usr/local/bin/docker"
SWITCHES = {"--rm", "--init", "--pull=never", "--network=host", "--ipc=host", "--gpus=all"}
SWITCHES |= {"--ulimit=memlock=-1", "--ulimit=nofile=1048576"}
IMAGE = "localhost/trainer:1"
PINNED = re.compile(r"127\.0\.0\.1:\d+/\S+@sha256:[0-9a-f]{64}")
OF_THE_IMAGE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "FROM_IMAGE": "yes"}


def main(words: list[str]) -> int:
    with Path("/root/docker.jsonl").open("a") as file:
        file.write(json.dumps(words) + "\n")
    if words[:1] == ["--config"]:
        return pull(words[2:])
    if words[0] == "rm":
        return 0
    return run(words[1:]) if words[0] == "run" else fail(f"unknown command: docker {words[0]}", 125)


def pull(words: list[str]) -> int:
    if words[:2] != ["pull", "--quiet"]:
        return fail(f"unknown command: docker {words}", 125)
    if words[2] != IMAGE and not PINNED.fullmatch(words[2]):
        return fail(f"Error response from daemon: manifest for {words[2]} not found", 1)
    print(words[2])
    return 0


def run(words: list[str]) -> int:
    folder, variables, entrypoint = "/", dict(OF_THE_IMAGE), "sh"
    while words and words[0].startswith("--"):
        flag, _, value = words.pop(0).partition("=")
        if flag == "--env":
            name, equals, given = value.partition("=")
            if equals or name in os.environ:
                variables[name] = given if equals else os.environ[name]
        elif flag == "--workdir":
            folder = value
        elif flag == "--entrypoint":
            entrypoint = value
        elif flag not in ("--volume", "--name") and f"{flag}={value}".rstrip("=") not in SWITCHES:
            return fail(f"unknown flag: {flag}", 125)
    if words[0] != IMAGE and not PINNED.fullmatch(words[0]):
        return fail(f"Unable to find image '{words[0]}' locally", 125)
    # A container has nothing of its client's: the daemon starts it.
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    command = [entrypoint, *words[1:]]
    group = subprocess.Popen(command, env=variables, cwd=folder, process_group=0, umask=0o022)
    signal.signal(signal.SIGTERM, lambda *_: None)  # berg tells them itself: they are its children
    code = group.wait()
    return 128 - code if code < 0 else code


def fail(text: str, code: int) -> int:
    print(f"docker: {text}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
