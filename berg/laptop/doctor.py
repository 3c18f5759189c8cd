"""What `berg doctor` looks at: whether this computer, the person, the project and the machines'
account are ready.

Every check stands alone: it returns findings, and what it raises becomes one. Those that ask Google
stand in readiness.py; they run side by side, and one that has no answer in time is reported as
such.
"""

import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Mapping

from berg import BergError, computer, config
from berg.config import Config
from berg.google import api, http
from berg.google.explain import explain
from berg.laptop.readiness import ASKED, FAILED, OK, WARNING, Finding, check_credentials

PATIENCE = 15  # seconds for all answers
# program: how to ask for its version, what the answer looks like, the oldest that will do, what for
TOOLS = {
    "git": (["git", "--version"], r"version ([\d.]+)", (2, 0), "berg run"),
    "ssh": (["ssh", "-V"], r"OpenSSH_([\d.]+)", (6, 0), "berg ssh and berg sync"),
    "rsync": (["rsync", "--version"], r"^rsync +version v?([\d.]+)", (3, 1), "berg sync"),
}
PACKAGES = {"ssh": "openssh-client"}  # of tools whose package has another name


def examine() -> list[Finding]:
    """Look at everything; findings in the order of the checks."""
    settings, findings = check_settings()
    findings += check_tools() + check_gcloud(settings) + check_abilities(settings)
    findings += ask(settings, {"credentials": check_credentials})
    lacks = (
        "credentials" if findings[-1].status == FAILED else "" if settings.project else "a project"
    )
    if lacks:
        return findings + [
            Finding(name, WARNING, f"not looked at, without {lacks}") for name in ASKED
        ]
    return findings + ask(settings, ASKED)


def ask(settings: Config, checks: Mapping[str, Callable[[Config], list[Finding]]]) -> list[Finding]:
    """The findings of checks that wait for Google, all at once; what raises or takes too long is a
    finding, too.
    """
    late = f"no answer within {PATIENCE} s. Check the network"
    answers = {name: [Finding(name, FAILED, late)] for name in checks}

    def look(name: str) -> None:
        try:
            answers[name] = checks[name](settings)
        except http.Forbidden as error:
            if api.lacks_quota_project(error):
                answers[name] = [Finding(name, FAILED, api.name_quota_project(settings))]
                return
            status = FAILED if name in ("project", "bucket") else WARNING
            answers[name] = [
                Finding(name, status, f"Google does not let you look: {http.words(error)}")
            ]
        except Exception as error:
            known = error.message if isinstance(error, BergError) else explain(error, settings)
            answers[name] = [Finding(name, FAILED, known or f"{type(error).__name__}: {error}")]

    threads = [threading.Thread(target=look, args=[name], daemon=True) for name in checks]
    for thread in threads:
        thread.start()
    end = time.monotonic() + PATIENCE
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    return [finding for name in checks for finding in answers[name]]


# --- this computer


def check_settings() -> tuple[Config, list[Finding]]:
    try:
        settings = config.load()
    except BergError as error:
        return Config(), [Finding("settings", FAILED, error.message)]
    try:
        config.load_ready()
    except BergError as error:
        return settings, [Finding("settings", FAILED, error.message)]
    return settings, [Finding("settings", OK, str(config.path()))]


def check_tools() -> list[Finding]:
    findings = []
    for name, (command, pattern, oldest, purpose) in TOOLS.items():
        mend = computer.install_command(PACKAGES.get(name, name))
        status = FAILED if name == "git" else WARNING
        if not shutil.which(name):
            findings.append(Finding(name, status, f"not installed; {purpose} needs it", mend))
            continue
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        found = re.search(pattern, done.stdout + done.stderr)
        version = found[1] if found else "of an unknown version"
        if found and tuple(int(part) for part in version.strip(".").split(".")[:2]) >= oldest:
            findings.append(Finding(name, OK, version))
        else:
            wanted = ".".join(map(str, oldest))
            findings.append(Finding(name, status, f"{version}; {purpose} needs {wanted}", mend))
    return findings


def check_gcloud(settings: Config) -> list[Finding]:
    """Whether machines without an external address can be logged in to from here."""
    if not settings.no_external_ip or shutil.which("gcloud"):
        return []
    found = "not installed; berg ssh and berg sync need it for machines without external addresses"
    return [Finding("gcloud", WARNING, found, "https://cloud.google.com/sdk/docs/install")]


def check_abilities(settings: Config) -> list[Finding]:
    """What the machines of an embedded cloud cannot do here."""
    if not settings.endpoint or not config.local_folder().is_dir():
        return []
    limits = config.embedded_cloud().status(config.local_folder())["abilities"]
    return [
        Finding(
            "embedded cloud",
            OK,
            " ".join(limits) or "its machines can do all that they can anywhere",
        )
    ]
