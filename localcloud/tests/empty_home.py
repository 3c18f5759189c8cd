"""An empty home for the tests: no settings for git, ssh, gcloud or berg of whoever runs them."""

import os
import tempfile

PREFIXES = ("BERG_", "BOTO_", "CLOUDSDK_", "GIT_", "GOOGLE_", "SSH_", "XDG_")


def enter() -> tempfile.TemporaryDirectory:
    """Move this process and those it starts there; the home vanishes with what is returned."""
    home = tempfile.TemporaryDirectory(prefix="berg-home-", ignore_cleanup_errors=True)
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        del os.environ[name]
    # Modules that the tests' processes compile again each time take most of their CPU time.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["HOME"] = home.name
    os.environ["GIT_CONFIG_NOSYSTEM"] = "1"
    return home
