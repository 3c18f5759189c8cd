"""Secrets of a job: from the laptop to its command by way of Secret Manager, and nowhere else.

A job with secrets has one secret there, named after it, that holds all of them as a JSON object.
Only the account that the machines act as may read it, and delete it when the job is over; Google
deletes it some time after the job's limit in any case. A job's metadata, state, log and plan hold
the names alone.
"""

import base64
import contextlib
import json
import os
from pathlib import Path
from urllib.parse import urlsplit

from berg import BergError
from berg.config import Config
from berg.google import api
from berg.google.instances import bucket_label
from berg.inventory import Resource

ROLE = "roles/secretmanager.admin"  # on this one secret: to read and to delete it
WEBHOOK = "BERG_NOTIFY"  # among them, but none of the command's variables: the URL of --notify
CLUSTER_KEY = "BERG_CLUSTER_KEY"  # the same: signs what the machines of a job tell each other
SLACK = 30 * 24 * 3600  # seconds after a job's limit in which it may still wait for machines


def read(text: str, option: str = "--secret") -> tuple[str, str]:
    """Name and value for NAME, which is a variable here, or NAME=FILE."""
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
    """The URL of a webhook: as it is, or what a NAME or NAME=FILE holds; no error repeats it."""
    if not text.strip():  # as of a variable that the shell does not know
        raise BergError(
            "--notify has nothing: give a URL, or a variable or NAME=FILE that holds it"
        )
    url = (text if "://" in text else read(text, "--notify")[1]).strip()
    try:
        parts = urlsplit(url)
        is_url = (
            parts.scheme in ("http", "https")
            and bool(parts.hostname)
            and not set(url) & set(" \t\r\n")
        )
    except ValueError:
        is_url = False
    if not is_url:
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


def store(config: Config, job_name: str, values: dict[str, str], lifetime: int) -> None:
    """Keep the secrets of a job for `lifetime` seconds and some, for its machines alone."""
    from google.api_core import exceptions

    target = url(config, job_name)
    account = config.service_account or api.call(config, "GET", "")["defaultServiceAccount"]
    labels = {"berg": "1", "berg-bucket": bucket_label(config), "berg-user": config.user}
    body = {"replication": {"automatic": {}}, "labels": labels, "ttl": f"{lifetime + SLACK}s"}
    with contextlib.suppress(exceptions.Conflict):  # made by a request whose answer was lost
        api.call(config, "POST", target.rpartition("/")[0], body, secretId=secret_id(job_name))
    policy = {"bindings": [{"role": ROLE, "members": [f"serviceAccount:{account}"]}]}
    api.call(config, "POST", f"{target}:setIamPolicy", {"policy": policy})
    data = base64.b64encode(json.dumps(values).encode()).decode()
    api.call(config, "POST", f"{target}:addVersion", {"payload": {"data": data}})


def fetch(config: Config, job_name: str) -> dict[str, str]:
    """The secrets of a job; raises BergError if they are gone."""
    from google.api_core import exceptions

    try:
        answer = api.call(config, "GET", f"{url(config, job_name)}/versions/latest:access")
    except (exceptions.NotFound, exceptions.Forbidden) as error:
        raise BergError(f"the secrets of {job_name} cannot be read: {error.message}") from None
    return json.loads(base64.b64decode(answer["payload"]["data"]))


def find(config: Config) -> list[Resource]:
    """Return the secrets of this bucket's jobs and sweeps; none where nobody may look."""
    from google.api_core import exceptions

    listed = api.pages(
        config,
        url(config, "").rpartition("/")[0],
        filter=f"labels.berg-bucket={bucket_label(config)}",
    )
    try:
        found = [each for page in listed for each in page.get("secrets", [])]
    except exceptions.Forbidden:  # the API is off, or not for this user
        return []
    return [
        Resource(
            "secret",
            api.last_part(each["name"]).removeprefix(secret_id("")),
            "",
            each["createTime"],
            "",
            each["labels"].get("berg-user", ""),
        )
        for each in found
    ]


def delete(config: Config, job_name: str) -> bool:
    """Delete the secrets of a job; False if there are none any more."""
    from google.api_core import exceptions

    with contextlib.suppress(exceptions.NotFound):
        api.call(config, "DELETE", url(config, job_name))
        return True
    return False
