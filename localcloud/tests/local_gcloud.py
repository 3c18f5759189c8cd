"""gcloud, which no one here wrote, as a client of the embedded cloud."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SERVICES = (
    "compute",
    "storage",
    "secretmanager",
    "iam",
    "cloudresourcemanager",
    "serviceusage",
    "container",
    "monitoring",
    "artifactregistry",
)


class Gcloud:
    """Call it with the words of a command; it returns what gcloud prints, and fails when gcloud
    does.
    """

    def __init__(self, url: str, project: str, token: str, folder: Path):
        if not shutil.which("gcloud"):
            pytest.skip("gcloud is not installed")
        (folder / "token").write_text(token)
        self.settings = {
            "CLOUDSDK_CONFIG": str(folder / "config"),
            "CLOUDSDK_CORE_PROJECT": project,
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
            "CLOUDSDK_CORE_DISABLE_USAGE_REPORTING": "1",
            # or gcloud asks the network whether it runs on Google
            "GCE_METADATA_ROOT": "127.0.0.1:9",
            "CLOUDSDK_COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
            "CLOUDSDK_AUTH_ACCESS_TOKEN_FILE": str(folder / "token"),
        }
        for service in SERVICES:
            below = "v1/" if service in ("compute", "storage") else ""
            self.settings[f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{service.upper()}"] = (
                f"{url}/{service}/{below}"
            )

    def run(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess:
        environment = {**os.environ, **self.settings}
        return subprocess.run(
            ["gcloud", *words], capture_output=True, text=True, env=environment, input=stdin
        )

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = self.run(*words, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout
