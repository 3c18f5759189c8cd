"""Google credentials: Application Default Credentials, or a file that the settings name; who is
logged in here.
"""

import contextlib
import json
import os
import warnings
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from berg import BergError

if TYPE_CHECKING:
    import logging

SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"  # the file of Application Default Credentials
LOG = "google.auth.external_account_authorized_user"
NEAR = ("localhost", "127.0.0.1", "::1", "metadata.google.internal", "metadata", "169.254.169.254")


def bypass_proxies() -> None:
    """Let all that asks over HTTP from here, children included, reach what is near without the
    proxy that is set.
    """
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host for host in old.split(",") if host]
    if old.strip() != "*" and any(name.lower().endswith("_proxy") for name in os.environ):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*hosts, *NEAR]))


def find(file: str | None) -> Any:
    """Return credentials for the APIs; raise DefaultCredentialsError without any."""
    return read(Path(file)) if file else application_default()[0]


def keep_near(found: Any) -> Any:
    """Return credentials that ask nobody but an endpoint of our own: with an account's key
    google-auth asks Google from where the account may be used, unless it is told (0x0: anywhere).
    """
    if not hasattr(found, "_set_regional_access_boundary"):
        return found
    until = datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(days=365)
    anywhere = {"encodedLocations": "0x0", "expiry": until}
    return found._set_regional_access_boundary(anywhere)


def application_default() -> tuple[Any, str | None]:
    """Return Application Default Credentials, and the project that they or gcloud are set to."""
    import google.auth

    if not on_google():
        os.environ.setdefault("NO_GCE_CHECK", "true")  # else it waits seconds for a metadata server
    with without_warning():
        found, project = google.auth.default(scopes=SCOPES)
    return found, project


@contextlib.contextmanager
def without_warning() -> Iterator[None]:
    """Leave out google-auth's warning of a missing quota project: see lacks_quota_project."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*without a quota project")
        yield


def lacks_quota_project(found: Any) -> bool:
    """Return whether credentials are a person's, by gcloud, that name no project for quotas."""
    from google.oauth2.credentials import Credentials

    return isinstance(found, Credentials) and not found.quota_project_id


def read(file: Path) -> Any:
    """Return the credentials of a file in any of google-auth's formats.

    Raises BergError without a readable one.
    """
    import logging

    import google.auth
    from google.auth import exceptions

    logging.getLogger(LOG).addFilter(is_of_use)
    load: Any = google.auth.load_credentials_from_dict  # it has no types
    try:
        row = json.loads(file.read_text())
        with without_warning():
            found, _ = load(row, scopes=SCOPES)
        return found
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, TypeError, AttributeError, exceptions.GoogleAuthError):
        why = "they are in no format of Google's"
    raise BergError(
        f"cannot read the credentials in {file}: {why}. Run: berg init (or: berg init --local)"
    )


def is_of_use(record: "logging.LogRecord") -> bool:
    """Return whether a line of google-auth's log says anything: of the embedded cloud's credentials
    it complains that they are of no workforce pool, which they must not be.
    """
    return "Regional Access Boundary" not in str(record.msg)


def raise_for_good(error: Exception) -> None:
    """Raise an error of the network's without what broke, so that nothing tries again; pass over
    others.
    """
    from google.auth.exceptions import TransportError

    if isinstance(error, TransportError):
        make: Any = TransportError  # it has no types
        raise make(str(error)) from error


def login() -> str:
    """Who is logged in on this computer; "" for a user without a name, as containers have them."""
    try:
        import getpass

        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def on_google() -> bool:
    """Whether this computer is a Google machine (asked of its firmware, not of the network)."""
    if os.environ.get("GCE_METADATA_HOST"):
        return True
    try:
        return Path("/sys/class/dmi/id/product_name").read_text().startswith("Google")
    except OSError:
        return False
