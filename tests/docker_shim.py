"""What stands for docker on the tests' machines, where no container can be made: it takes the options
that berg gives and no others, has one image and those of the embedded registry that are named by
digest, and runs its commands as plain processes with the
variables that a container would have.

Run as a program. It writes what it was asked for to /root/docker.jsonl.
"""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

SWITCHES = {"--rm", "--init", "--pull=never", "--network=host", "--ipc=host", "--gpus=all"}
SWITCHES |= {"--ulimit=memlock=-1", "--ulimit=nofile=1048576", "--entrypoint=bash", "--privileged"}
ASKED = Path("/root/docker.jsonl")
IMAGE = "localhost/trainer:1"
PINNED = re.compile(r"127\.0\.0\.1:\d+/\S+@sha256:[0-9a-f]{64}")
OF_THE_IMAGE = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/root", "FROM_IMAGE": "yes"}


def main(words: list[str]) -> int:
    with ASKED.open("a") as file:
        file.write(json.dumps(words) + "\n")
    if words[:1] == ["--config"]:
        return pull(words[2:])
    if words[0] == "rm" or words in (["images", "--quiet"], ["ps", "--all", "--quiet"]):
        return 0
    if words[0] == "run":
        return run(words[1:])
    return fail(f"unknown command: docker {words[0]}", 125)


def pull(words: list[str]) -> int:
    if words[:2] != ["pull", "--quiet"]:
        return fail(f"unknown command: docker {words}", 125)
    if words[2] != IMAGE and not PINNED.fullmatch(words[2]):
        return fail(f"Error response from daemon: manifest for {words[2]} not found", 1)
    sys.stdout.write(f"{words[2]}\n")
    return 0


def run(words: list[str]) -> int:
    folder, variables = "/", dict(OF_THE_IMAGE)
    while words and words[0].startswith("--"):
        option, _, value = words.pop(0).partition("=")
        if option == "--env":
            name, equals, given = value.partition("=")
            if equals or name in os.environ:
                variables[name] = given if equals else os.environ[name]
        elif option == "--workdir":
            folder = value
        elif (
            option not in ("--volume", "--name") and f"{option}={value}".rstrip("=") not in SWITCHES
        ):
            return fail(f"unknown flag: {option}", 125)
    if words[0] != IMAGE and not PINNED.fullmatch(words[0]):
        return fail(f"Unable to find image '{words[0]}' locally", 125)
    group = subprocess.Popen(
        ["bash", *words[1:]], env=variables, cwd=folder, start_new_session=True
    )
    # As docker does with what runs there, and tini with all of its group.
    signal.signal(signal.SIGTERM, lambda number, _: os.killpg(group.pid, number))
    code = group.wait()
    return 128 - code if code < 0 else code


def fail(text: str, code: int) -> int:
    sys.stderr.write(f"docker: {text}\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
