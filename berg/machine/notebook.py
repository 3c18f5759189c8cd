"""Finds the Jupyter server of this machine, or starts one, and prints how to reach it as JSON.

The laptop sends this file to the python of a machine, through ssh (`berg open`): standard library
only, python 3.8. The server listens only on this machine, behind a token that is in no command line
and in no log. It keeps running without the laptop, and does not count as use of the machine. Not
covered: servers with a password, or on a socket.
"""

from __future__ import annotations  # for python 3.8

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

TIMEOUT = 60  # seconds for a server to start
CODE = Path("/root/code")
LOG = Path.home() / ".berg-jupyter.log"
PEOPLE = re.compile("SSH_|TMUX|STY|NOHUP")  # variables of processes that people started
# Programs, the newest first, and the path of their first page.
PAGES = {"jupyter-lab": "lab", "jupyter-notebook": "tree", "jupyter-server": ""}


def servers() -> list[dict[str, Any]]:
    """Return the servers of this user that have a token, as Jupyter lists them."""
    command = ["jupyter", "server", "list", "--json"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in listed.stdout.splitlines() if line.startswith(b"{")]
    return [row for row in rows if row.get("token") and row.get("port")]


def begin(program: str) -> None:
    """Start a server that outlives this login."""
    environment = {key: value for key, value in os.environ.items() if not PEOPLE.match(key)}
    environment["JUPYTER_TOKEN"] = secrets.token_hex(24)
    folder = CODE if os.access(str(CODE), os.W_OK) else Path.home()
    options = ["--no-browser", "--ip=127.0.0.1", "--allow-root"]
    with LOG.open("ab") as log:
        LOG.chmod(0o600)
        subprocess.Popen(
            [program, *options],
            cwd=str(folder),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def main() -> None:
    programs = [name for name in PAGES if shutil.which(name)]
    if not programs:
        sys.exit("there is no Jupyter")
    venv = os.environ.get("VIRTUAL_ENV")
    if venv and not (shutil.which(programs[0]) or "").startswith(venv + "/"):
        sys.exit(f"there is no Jupyter in {venv}")
    found = servers()
    if not found:
        begin(programs[0])
    end = time.monotonic() + TIMEOUT
    while not found:
        if time.monotonic() > end:
            sys.exit(f"Jupyter did not start within {TIMEOUT} s; see {LOG} there")
        time.sleep(0.2)
        found = servers()
    path = found[0].get("base_url", "/") + PAGES[programs[0]]
    answer = {"port": found[0]["port"], "token": found[0]["token"], "path": path}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
