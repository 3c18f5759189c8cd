"""What errors of Google's mean, in a sentence for people, with the next step.

Not covered: errors of one request that its caller can say more about.
"""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from berg import credentials
from berg.config import Config
from berg.google import api, http

PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")  # as requests reads them
NO_FEDERATION = "the token of Workload Identity Federation"
Explain = Callable[[BaseException, Config | None], str | None]


def explain(error: BaseException, config: Config | None = None) -> str | None:
    """Return a sentence and the next step for an error of Google's; None for any other error."""
    kinds: tuple[Explain, ...] = (
        explain_credentials,
        explain_network,
        explain_retried,
        explain_missing_bucket,
        explain_forbidden,
        explain_refusal,
    )
    for kind in kinds:
        if words := kind(error, config):
            return words
    return None


def init_command(config: Config | None) -> str:
    return "berg init --local" if config and config.endpoint else "berg init"


def explain_credentials(error: BaseException, config: Config | None) -> str | None:
    from google.auth import exceptions as auth

    if isinstance(error, auth.DefaultCredentialsError):
        file = os.environ.get(credentials.VARIABLE)
        if file and not (config and config.credentials_file) and not Path(file).exists():
            return (
                f"there is no file {file}, which {credentials.VARIABLE} names. Correct that "
                f"variable, or: unset {credentials.VARIABLE}"
            )
        return f"no Google credentials found. {renewal(config)}"
    if isinstance(error, (auth.RefreshError, auth.OAuthError, http.Unauthorized)):
        if source := federation(config):
            return f"{NO_FEDERATION} from {source} is refused: {error}. {renewal(config)}"
        return f"your Google credentials have expired or were revoked. {renewal(config)}"
    return None


def federation(config: Config | None) -> str:
    """Return what gives the tokens of Workload Identity Federation; "" for other credentials."""
    file = (config and config.credentials_file) or os.environ.get(credentials.VARIABLE)
    try:
        row = json.loads(Path(file or "").read_text())
        if row["type"] != "external_account":
            return ""
        source = row.get("credential_source", {})
        where = (
            source.get("url") or source.get("file") or source.get("executable", {}).get("command")
        )
        return f"{where or 'its source'} ({file}), exchanged at {row.get('token_url')},"
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return ""


def renewal(config: Config | None) -> str:
    """Say how to get new credentials."""
    if not config or not config.credentials_file:
        file = os.environ.get(credentials.VARIABLE)
        return f"Renew {file}" if file else "Run: gcloud auth application-default login"
    if config.endpoint:
        return "Restart the embedded cloud: berg local stop && berg local start"
    return f"Renew {config.credentials_file}"


def explain_network(error: BaseException, config: Config | None) -> str | None:
    import requests
    from google.auth import exceptions as auth

    if not isinstance(error, (auth.TransportError, requests.ConnectionError, requests.Timeout)):
        return None
    if config and config.endpoint:
        return (
            f"cannot reach {config.endpoint}. Check the network, or set up an embedded cloud: "
            "berg init --local"
        )
    if name := next((name for name in PROXIES if os.environ.get(name)), ""):
        # without its user and password
        address = re.sub(r"//[^/@]*@", "//", os.environ[name])
        return (
            f"cannot reach Google Cloud through the proxy {address} ({name}). Check the proxy and "
            "the network, and try again"
        )
    if isinstance(error, auth.TransportError) and (source := federation(config)):
        return f"{NO_FEDERATION} from {source} does not come. Check that both answer"
    return "cannot reach Google Cloud. Check the network and try again"


def explain_retried(error: BaseException, config: Config | None) -> str | None:
    if not isinstance(error, http.RetryError):
        return None
    if config and (words := explain(error.cause, config)):
        return words
    return f"{error.cause}; it was retried. Try again later"


def explain_missing_bucket(error: BaseException, config: Config | None) -> str | None:
    if not isinstance(error, http.NotFound):
        return None
    if "specified bucket does not exist" not in str(error):
        return None
    bucket = config.bucket if config else ""
    step = init_command(config)
    return f"bucket {bucket!r} does not exist. Create it, or choose another one: {step}"


def explain_forbidden(error: BaseException, config: Config | None) -> str | None:
    if not isinstance(error, http.Forbidden):
        return None
    if config and api.lacks_quota_project(error):
        return api.name_quota_project(config)
    if api.is_off(error):
        return f"an API is not enabled: {error.message}"
    bucket, project = (config.bucket, config.project) if config else ("", "")
    if "/storage/v1/" not in error.message:  # in the request, which comes first
        return f"you lack a right in the project {project!r}: {http.words(error)}. See: berg doctor"
    return (
        f"access to bucket {bucket!r} is forbidden: it belongs to somebody else, or you lack the "
        f"role roles/storage.objectAdmin on it ({error.message}). "
        f"Choose another one: {init_command(config)}"
    )


def explain_refusal(error: BaseException, config: Config | None) -> str | None:
    """Explain what is left of Google's answers, in its own words."""
    if not isinstance(error, http.GoogleError):
        return None
    if error.status == 507:
        return str(error.message)  # the embedded cloud's full disk, in its own sentence
    cloud = "The embedded cloud" if config and config.endpoint else "Google"
    refused = f"{cloud} refused: {error.message} (HTTP {error.status})"
    return f"{refused} {api.advise(error.message)}".rstrip()
