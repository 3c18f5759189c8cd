"""Secrets: from this computer to the command or the installation, through Secret Manager.

A job has one secret there, which holds all values as a JSON object; where a machine has them mounted
it needs none. Only the machines' account may read and delete it. It is deleted when the job has ended,
and by Google some time after the job's limit in any case. A record has the names alone: who resumes or
reruns the job gives the values again, so that no record chooses a file or a variable of this computer.
"""

from __future__ import annotations

import base64
import json
import os
import re
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berg import BergError, gce, google
from berg.boot import BERG
from berg.bucket import trouble
from berg.feature import Feature
from berg.google import GoogleError
from berg.job import FINAL
from berg.options import option, set_by

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job
    from berg.run import Plan
    from berg.worker import Ending, Run

Values = dict[str, str]
RESERVED = ("BERG_", "PET_", "MASTER_")  # begin the names of Berg's own variables
MOST = 64 << 10  # bytes of a secret, says Google
SLACK = 30 * 24 * 3600  # seconds after a job's limit, in which it may still wait for machines
GRANTED = 600  # seconds until a right that was given counts everywhere: some minutes at Google
ROLE = "bergSecret"  # in the project; given on one secret
RIGHTS = ["secretmanager.versions.access", "secretmanager.secrets.delete"]
MOUNTED = Path("/etc/berg/secrets/values")  # the JSON object, on what has it without Secret Manager
NETRC, NETRC_FILE = "NETRC", BERG / "netrc"  # a variable that names a file; this one


@dataclass
class Secrets(Feature):
    secret: list[str] = option(
        "--secret", default=[], multiple=True, metavar="NAME[=FILE]",
        help="A variable that only CMD can read.",
    )  # fmt: skip
    install_secret: list[str] = option(
        "--install-secret", default=[], multiple=True, metavar="NAME[=FILE]",
        help="A variable that only the installation can read.",
    )  # fmt: skip
    values: Values = field(default_factory=dict, compare=False, repr=False)
    is_mounted: bool = field(default=False, compare=False)

    def record(self) -> dict[str, Any]:
        return {"secret": names(self.secret), "install_secret": names(self.install_secret)}

    def change(self, plan: Plan) -> None:
        for key, texts in (("secret", self.secret), ("install_secret", self.install_secret)):
            flag = f"--{key.replace('_', '-')}"
            if texts and set_by(key) != "command line":
                again = " ".join(f"{flag} {name}" for name in names(texts))
                raise BergError(
                    f"a job's secrets are in no record, and are needed again. Add: {again}"
                )
            for text in texts:
                name, value = read(flag, text)
                if name in plan.job.env or self.values.setdefault(name, value) != value:
                    other = "--env" if name in plan.job.env else "--secret"
                    raise BergError(
                        f"{name} has two values. Leave out {flag} {name}, or {other} {name}"
                    )
            if texts and not plan.ended:
                plan.job.options[key] = names(texts)
        if len(json.dumps(self.values)) > MOST:
            raise BergError(f"the secrets of a job have at most {MOST} bytes. Leave some out")
        plan.rows["Secrets"] = ", ".join(self.values)

    def send(self, plan: Plan) -> None:
        if not self.is_mounted:
            store(plan.config, plan.job, secret_id(plan.job), self.values)

    def forget(self, config: Config, job: Job) -> None:
        delete(config, secret_id(job))

    def prepare(self, run: Run) -> None:
        if MOUNTED.exists():
            self.values = json.loads(MOUNTED.read_text())
        self.values = self.values or fetch(run, secret_id(run.job))
        run.install_variables |= {name: self.values[name] for name in self.install_secret}
        if NETRC in run.install_variables:
            NETRC_FILE.touch(0o600)
            NETRC_FILE.write_text(run.install_variables[NETRC])
            run.install_variables[NETRC] = str(NETRC_FILE)

    def around(self, run: Run) -> AbstractContextManager[None]:
        NETRC_FILE.unlink(missing_ok=True)
        run.variables |= {name: self.values[name] for name in self.secret}
        return nullcontext()

    def ended(self, run: Run, ending: Ending) -> Ending:
        if is_over(run, ending):
            discard(run, secret_id(run.job))
        return ending


def names(texts: list[str]) -> list[str]:
    return sorted({text.partition("=")[0] for text in texts})


def read(flag: str, text: str) -> tuple[str, str]:
    """Name and value of NAME, which is a variable here, or of NAME=FILE."""
    name, equals, file = text.partition("=")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) or name.startswith(RESERVED):
        raise BergError(
            f"{flag} {name!r} cannot be the name of a variable of yours: letters, digits and _, "
            f"and not {', '.join(RESERVED)} first"
        )
    try:
        value = Path(file).expanduser().read_text().removesuffix("\n") if equals else None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BergError(f"{flag} {name}: cannot read {file}: {reason}") from None
    value = os.environ.get(name) if value is None else value
    if value is None:
        raise BergError(
            f"there is no variable {name}. Export it, or give a file: {flag} {name}=FILE"
        )
    if "\0" in value:
        raise BergError(f"{flag} {name} has a NUL byte, which no variable can hold")
    return name, value


def is_over(run: Run, ending: Ending) -> bool:
    """Whether the whole job ends with this: no row of it, and not to begin the next attempt."""
    from berg import machines

    is_last = machines.goes_last(run) or bool(run.job.rows)  # any may be the last of a sweep
    return is_last and ending.state in FINAL and "/" not in run.job.name


# --- Secret Manager


def secret_id(job: Job) -> str:
    return f"berg-{job.name.partition('/')[0]}-{job.id}"  # not that of another job of the name


def url(config: Config, name: str = "") -> str:
    base = (
        f"{config.endpoint}/secretmanager"
        if config.endpoint
        else "https://secretmanager.googleapis.com"
    )
    return f"{base}/v1/projects/{config.project}/secrets" + (f"/{name}" if name else "")


def call(config: Config, method: str, url: str, body: Any = None, **query: Any) -> dict[str, Any]:
    return google.call(config, method, url, body, requestId=None, **query)


def store(config: Config, job: Job, name: str, values: Values) -> None:
    """Make a secret for the machines of a job, over that of an earlier attempt."""
    labels = {"berg": "1", "berg-bucket": gce.bucket_label(config), "berg-user": config.user}
    body = {"replication": {"automatic": {}}, "labels": labels}
    body["ttl"] = f"{job.max_seconds + SLACK}s"
    try:
        delete(config, name)
        try:
            call(config, "POST", url(config), body, secretId=name)
        except GoogleError as error:
            if error.status != 409:  # an earlier try, whose answer was lost, made it
                raise
        give(config, name)
        data = base64.b64encode(json.dumps(values).encode()).decode()
        call(config, "POST", f"{url(config, name)}:addVersion", {"payload": {"data": data}})
    except GoogleError as error:
        if error.status != 403:
            raise
        raise BergError(
            f"Google does not let you keep secrets: {error.message.rstrip('.')}. Ask an owner of "
            f"{config.project} for roles/secretmanager.admin, or leave the secrets out"
        ) from None


def give(config: Config, name: str) -> None:
    """Let the machines' account read and delete a secret, and do nothing else with it."""
    account = config.service_account
    if account in ("", "default"):
        base = config.endpoint or "https://compute.googleapis.com"
        project = call(config, "GET", f"{base}/compute/v1/projects/{config.project}")
        account = project["defaultServiceAccount"]
    role = f"projects/{config.project}/roles/{ROLE}"
    policy = {"bindings": [{"role": role, "members": [f"serviceAccount:{account}"]}]}
    try:
        call(config, "POST", f"{url(config, name)}:setIamPolicy", {"policy": policy})
    except GoogleError as error:
        if error.status != 400 or ROLE not in error.message:
            raise
        make_role(config)
        call(config, "POST", f"{url(config, name)}:setIamPolicy", {"policy": policy})


def make_role(config: Config) -> None:
    """Make the role in the project, once for all jobs."""
    iam = f"{config.endpoint}/iam" if config.endpoint else "https://iam.googleapis.com"
    role = {"title": "Berg's machines, secrets", "includedPermissions": RIGHTS, "stage": "GA"}
    body = {"roleId": ROLE, "role": role}
    try:
        call(config, "POST", f"{iam}/v1/projects/{config.project}/roles", body)
    except GoogleError as error:
        if error.status == 403:
            raise BergError(
                f"{config.project} has no role {ROLE} yet. Ask an owner to make it: gcloud iam "
                f"roles create {ROLE} --project {config.project} --permissions {','.join(RIGHTS)}"
            ) from None
        if error.status != 409:
            raise


def fetch(run: Run, name: str) -> Values:
    """The values of a secret, before the command; what the job waits for may end it."""
    try:
        return access(run.config, name, GRANTED, run.look)
    except GoogleError as error:
        raise BergError(f"the job's secrets cannot be read: {error.message}") from None


def access(
    config: Config, name: str, seconds: float, look: Callable[[], None] = lambda: None
) -> Values:
    """The values of a secret; the right to read it is new, and may not count for so many seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            found = call(config, "GET", f"{url(config, name)}/versions/latest:access")
            return dict(json.loads(base64.b64decode(found["payload"]["data"])))
        except GoogleError as error:
            if error.status != 403 or time.monotonic() > end:
                raise
        look()
        time.sleep(2)


def discard(run: Run, name: str) -> bool:
    """Delete a secret at the end of its job; whether this machine did. No trouble ends the worker."""
    try:
        return delete(run.config, name)
    except trouble() as error:
        run.say(f"The job's secrets stay until Google deletes them: {error}")
        return False


def delete(config: Config, name: str) -> bool:
    """Delete a secret; whether there was one that this account may delete."""
    try:
        call(config, "DELETE", url(config, name))
        return True
    except GoogleError as error:
        if error.status not in (403, 404):
            raise
        return False
