"""gcloud, which no one here wrote, as a client of the embedded cloud."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from localcloud import control, guide


class Gcloud:
    """Call it with the words of a command; it returns what gcloud prints, and fails when gcloud
    does.
    """

    def __init__(self, cloud: Path, folder: Path):
        if not shutil.which("gcloud"):
            pytest.skip("gcloud is not installed")
        token = folder / "token"
        token.write_text(guide.access_token(cloud))
        port = control.status(cloud)["port"]
        self.settings = guide.environment(cloud, port, "berg-local")
        self.settings["CLOUDSDK_AUTH_ACCESS_TOKEN_FILE"] = str(token)

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess:
        environment = {**os.environ, **self.settings}
        return subprocess.run(
            ["gcloud", *words], capture_output=True, text=True, env=environment, input=stdin
        )

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout
