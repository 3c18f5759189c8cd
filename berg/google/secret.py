"""Secrets of a job: from the laptop to its command through Secret Manager, and nowhere else.

A job with secrets has one secret there, named after it, that holds all of them as a JSON object.
Only the account that the machines act as may read it, and delete it when the job is finished;
Google deletes it some time after the job's limit in any case. A job's metadata, state, log and plan
have the names alone.
"""

import base64
import contextlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from berg import BergError
from berg.config import Config
from berg.google import api, iam
from berg.google.instances import bucket_label
from berg.job import Resource

# Given on the secret if the project lacks berg's own role, which allows less.
WIDE_ROLE = "roles/secretmanager.admin"
# Two that are no variables of the command: the URL of --notify, and the key with which the machines
# of a job sign their messages.
WEBHOOK, CLUSTER_KEY = "BERG_NOTIFY", "BERG_CLUSTER_KEY"
SLACK = 30 * 24 * 3600  # seconds after a job's limit, in which it may still wait for machines


def read(text: str, option: str = "--secret") -> tuple[str, str]:
    """Return name and value for NAME, which is a variable here, or NAME=FILE."""
    name, equals, file = text.partition("=")
    if equals:
        try:
            return name, Path(file).expanduser().read_text().removesuffix("\n")
        except (OSError, UnicodeDecodeError) as error:
            why = "it is not text" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise BergError(f"{option} {name}: cannot read {file}: {why}") from None
    if name not in os.environ:
        raise BergError(
            f"{option} {name}: there is no such variable. Export it, or give a file: {option} "
            f"{name}=FILE"
        )
    return name, os.environ[name]


def webhook(text: str) -> str:
    """Return the URL of a webhook: as it is, or from NAME or NAME=FILE; no error repeats it."""
    if not text.strip():  # as of a variable that the shell does not know
        raise BergError(
            "--notify has nothing: give a URL, or a variable or NAME=FILE that holds it"
        )
    url = (text if "://" in text else read(text, "--notify")[1]).strip()
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_url = False
    if not is_url or set(url) & set(" \t\r\n"):
        raise BergError(
            "--notify: this is not the URL of a webhook. Give one, or a variable or NAME=FILE that "
            "holds it"
        )
    return url


def url(config: Config, job_name: str) -> str:
    base = f"{config.service_url('secretmanager')}/v1/projects/{config.project}"
    return f"{base}/secrets/{secret_id(job_name)}"


def secret_id(job_name: str) -> str:
    return f"berg-{job_name}"


def store(
    config: Config, job_name: str, values: dict[str, str], lifetime: int, accounts: Iterable[str]
) -> None:
    """Store the secrets of a job for `lifetime` seconds and SLACK, for these accounts alone; raise
    BergError if that is forbidden.
    """
    target = url(config, job_name)
    labels = {"berg": "1", "berg-bucket": bucket_label(config), "berg-user": config.user}
    body = {"replication": {"automatic": {}}, "labels": labels, "ttl": f"{lifetime + SLACK}s"}
    try:
        api.call(config, "POST", target.rpartition("/")[0], body, secretId=secret_id(job_name))
    except api.Conflict:
        pass  # created by a request whose answer was lost
    except api.Forbidden as error:
        raise BergError(
            "Google does not let you create secrets, which --secret, --install-secret and --notify "
            f"need: {api.words(error)}. Leave them out, or ask the owner of the project "
            f"{config.project} to run this. An administrator can give you {WIDE_ROLE}; with it you "
            "could read all secrets of the project"
        ) from None
    let_read(config, target, accounts)
    data = base64.b64encode(json.dumps(values).encode()).decode()
    api.call(config, "POST", f"{target}:addVersion", {"payload": {"data": data}})


def let_read(config: Config, target: str, accounts: Iterable[str]) -> None:
    """Let accounts read and delete a secret, and do no more if the project has the role."""
    members = [f"serviceAccount:{account_of(config, each)}" for each in accounts]

    def give(role: str) -> None:
        policy = {"bindings": [{"role": role, "members": members}]}
        api.call(config, "POST", f"{target}:setIamPolicy", {"policy": policy})

    try:
        give(iam.role_name(config.project, iam.SECRET))
    except api.BadRequest as error:
        if "does not exist" not in error.message or iam.SECRET.role not in error.message:
            raise
        api.notify(
            "The job may change who reads its secret: the project has no role that lets it only "
            "read and delete that. Make it: berg init"
        )
        give(WIDE_ROLE)


def account_of(config: Config, email: str) -> str:
    """Return an account's address; "" and "default" mean the project's default account."""
    if email not in ("", "default"):
        return email
    return str(api.call(config, "GET", "")["defaultServiceAccount"])


def fetch(config: Config, job_name: str) -> dict[str, str]:
    """Return the secrets of a job; raise BergError if they are gone."""
    try:
        answer = api.call(config, "GET", f"{url(config, job_name)}/versions/latest:access")
    except (api.NotFound, api.Forbidden) as error:
        raise BergError(f"the secrets of {job_name} cannot be read: {error.message}") from None
    return dict(json.loads(base64.b64decode(answer["payload"]["data"])))


def find(config: Config) -> list[Resource]:
    """Return the secrets of this bucket's jobs and sweeps; none if the user may not list them."""
    where = url(config, "").rpartition("/")[0]
    ours = f"labels.berg-bucket={bucket_label(config)}"
    found = []
    with contextlib.suppress(api.Forbidden):  # the API is off, or not for this user
        for each in api.items(config, where, "secrets", filter=ours):
            job_name = api.last_part(each["name"]).removeprefix(secret_id(""))
            user = each["labels"].get("berg-user", "")
            found.append(Resource("secret", job_name, "", each["createTime"], "", user))
    return found


def take_back(config: Config, job_name: str) -> None:
    """Delete the secrets of a job that could not be submitted, unless even that is forbidden."""
    with contextlib.suppress(api.Forbidden):
        delete(config, job_name)


def delete(config: Config, job_name: str) -> bool:
    """Delete the secrets of a job; return False if there are none."""
    try:
        api.call(config, "DELETE", url(config, job_name))
    except api.NotFound:
        return False
    return True
