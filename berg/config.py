"""Berg's settings and the cloud they lead to: ~/.berg/berg.json, BERG_* variables, defaults.

Precedence: a flag, then BERG_<KEY>, then the file, then the default. This is the only module that
knows where the APIs are; with `endpoint` null they are Google's.

Google credentials: Application Default Credentials, or a file that the settings name; who is
logged in here.
"""

import contextlib
import functools
import json
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from berg import BergError, gate, plain

if TYPE_CHECKING:
    import logging

VERSION = 1

SIGN_IN = 10  # seconds for an answer of who gives tokens

HELP = {
    "project": "Google Cloud project that pays for the machines",
    "region": "region whose zones are tried, and where the bucket lives",
    "zones": "zones to try, in this order (empty: all of the region that have the GPU)",
    "bucket": "bucket for code, logs and results",
    "gpu_type": "GPUs of machines, where nothing else says them (empty: l4)",
    "gpus": "how many of them (0: as few as Google offers in one machine)",
    "default_image": "image or image family that machines boot",
    "default_image_project": "project that owns the image",
    "service_account": "account that machines act as (empty: the project's default)",
    "default_docker_image": "container image of jobs in a cluster (berg run --cluster)",
    "monitoring": "1: machines tell Cloud Monitoring how busy they are (berg init --monitoring)",
    "max_cost": "dollars that a job may cost at most (0: no limit; berg run --max-cost)",
    "budget": "dollars that your jobs may cost in a day before the next one is refused (0: any)",
    "ask_above": "dollars that a plan may cost at most before berg asks (0: never)",
    "max_stopped_days": "days after which berg reap offers to delete a stopped devbox (0: never)",
    "network": "VPC network; another project's by its path (projects/HOST/global/networks/NAME)",
    "subnetwork": "subnetwork, where the network has custom ones; a name or a path",
    "no_external_ip": "machines and nodes have no external address (true or false)",
    "ssh_user": "user to log in as",
    "ssh_port": "port of ssh on the machines",
    "user": "your name on machines and jobs",
    "endpoint": "base address of the APIs (null: Google)",
    "credentials_file": "credentials to use instead of Application Default Credentials",
}


def home() -> Path:
    return Path(os.environ.get("BERG_HOME") or Path.home() / ".berg")


def make_private(folder: Path) -> None:
    """Make a folder of BERG_HOME that only its owner may enter, or close one that is open."""
    home().mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def close_home() -> None:
    """Let nobody else into BERG_HOME, if it is a folder of berg's: it has the settings."""
    try:
        is_open = path().exists() and home().stat().st_mode & 0o077
        if is_open and not home().samefile(Path.home()):
            home().chmod(0o700)
    except OSError:
        pass  # somebody else's, or on a file system without modes


def path() -> Path:
    return home() / "berg.json"


def local_folder() -> Path:
    """Where the embedded cloud of this user keeps its state."""
    return home() / "local"


def label(text: str) -> str:
    """Text as a label value or a part of a name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")


@dataclass
class Config:
    project: str = ""
    region: str = "us-central1"
    zones: list[str] = field(default_factory=list)
    bucket: str = ""
    gpu_type: str = ""
    gpus: int = 0
    default_image: str = "pytorch-2-9-cu129-ubuntu-2404-nvidia-580"
    default_image_project: str = "deeplearning-platform-release"
    service_account: str = ""
    default_docker_image: str = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
    monitoring: int = 0
    max_cost: int = 0
    budget: int = 0
    ask_above: int = 1000
    max_stopped_days: int = 14
    network: str = "default"
    subnetwork: str = ""
    no_external_ip: bool = False
    ssh_user: str = "root"
    ssh_port: int = 22
    user: str = field(default_factory=lambda: label(login()) or "nobody")
    endpoint: str | None = None
    credentials_file: str | None = None
    _version: int = VERSION
    clock_is_behind = 0.0  # seconds, against Google's; no setting
    is_mine = False  # whether these are the settings of a person's computer; no setting

    def compute_url(self, project: str = "") -> str:
        base = self.endpoint or "https://compute.googleapis.com"
        return f"{base}/compute/v1/projects/{project or self.project}"

    def service_url(self, service: str) -> str:
        """Where one of Google's smaller services is, such as secretmanager; its paths begin with
        its version.
        """
        if self.endpoint:
            return f"{self.endpoint}/{service}"
        return f"https://{service}.googleapis.com"

    @property
    def tunnel_options(self) -> list[str]:
        """Options of gcloud that lead to an Identity-Aware Proxy which is not Google's."""
        if not self.endpoint:
            return []
        port = self.endpoint.rpartition(":")[2]
        return [
            f"--iap-tunnel-url-override=wss://127.0.0.2:{port}/v4",
            "--iap-tunnel-insecure-disable-websocket-cert-check",
        ]

    @functools.cached_property
    def credentials(self) -> Any:
        """Google credentials; raises google.auth.exceptions.DefaultCredentialsError without any."""
        from google.auth.transport.requests import Request

        bypass_proxies()
        self.start_embedded_cloud()
        found = find(self.credentials_file)
        if self.endpoint:
            found = keep_near(found)
        if self.is_mine and self.project and lacks_quota_project(found):
            note = (
                "berg: your Google credentials name no project for quotas. Run: gcloud auth "
                f"application-default set-quota-project {self.project}"
            )
            plain.echo(click.style(note, fg="yellow"), err=True)
        # Without a network, or with credentials that were revoked, this fails at once; calls are
        # retried for minutes.
        try:
            found.refresh(functools.partial(Request(), timeout=SIGN_IN))
        except Exception as error:
            if self.is_mine:  # somebody waits
                raise_for_good(error)
            raise
        return found

    @functools.cached_property
    def listed_lately(self) -> dict[Any, tuple[float, Any]]:
        """Lists of machines that threads of this program share, with when each was asked for."""
        return {}

    def start_embedded_cloud(self) -> None:
        """Start the embedded cloud if the endpoint is this user's and nothing answers there."""
        if not self.endpoint or not local_folder().is_dir():
            return
        import socket
        from urllib.parse import urlsplit

        address = urlsplit(self.endpoint)
        try:
            socket.create_connection((address.hostname or "", address.port or 80), 1).close()
        except OSError:
            plain.echo(f"Starting the embedded cloud at {self.endpoint}", err=True)
            embedded_cloud().start(local_folder(), address.port or 0)


def embedded_cloud() -> Any:
    """Return the module that starts and stops the embedded cloud; raise BergError where that is not
    installed.
    """
    try:
        from localcloud import control
    except ModuleNotFoundError:
        raise BergError(
            "the embedded cloud is not installed. Install it from berg's repository: "
            "pip install /path/to/berg/localcloud"
        ) from None
    return control


def read_file() -> dict[str, Any]:
    """The settings file as it is; {} without one."""
    try:
        values = json.loads(path().read_text())
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise BergError(
            f"cannot read {path()}: {error}. Mend it, or delete it and run: berg init"
        ) from None
    except json.JSONDecodeError as error:
        raise BergError(
            f"{path()} is not valid JSON at line {error.lineno}: {error.msg}. "
            "Mend it, or delete it and run: berg init"
        ) from None
    if not isinstance(values, dict):
        raise BergError(
            f"{path()} must hold one JSON object. Mend it, or delete it and run: berg init"
        )
    return values


def load(**flags: Any) -> Config:
    """Settings from flags (None: not given), the environment, the file and the defaults."""
    close_home()
    values = read_file()
    known = {f.name: f for f in fields(Config)}
    for key in sorted(set(values) - set(known)):
        text = f"berg: unknown key {key!r} in {path()} is ignored"
        plain.echo(click.style(text, fg="yellow"), err=True)
    config = Config()
    for key in known.keys() & values.keys():
        if values[key] is not None:
            check_kind(key, values[key], getattr(config, key))
            setattr(config, key, values[key])
    for key in HELP:
        value = flags.get(key)
        if value in (None, ()):
            value = os.environ.get(f"BERG_{key.upper()}") or None
        if value is not None:
            setattr(config, key, convert(key, value, getattr(config, key)))
    return config


def check_kind(key: str, value: Any, default: Any) -> None:
    """Raise BergError for a value in the file that is of another kind than the default."""
    if default is None or type(value) is type(default):
        return
    kinds = {list: "a list", int: "a whole number", bool: "true or false"}
    kind = kinds.get(type(default), "text")
    raise BergError(f"{path()}: {key!r} must be {kind}, not {json.dumps(value)}. Mend it there")


def convert(key: str, value: Any, like: Any) -> Any:
    """Return a flag's or variable's text as the kind of value that the setting holds."""
    if isinstance(like, list):
        return value.split(",") if isinstance(value, str) else list(value)
    if not isinstance(like, int) or not isinstance(value, str):
        return value
    kind, form = "a whole number", "0|[1-9][0-9]*"
    if key.endswith("_days"):
        kind = "a number of whole days, such as 14 or 14d"
        with contextlib.suppress(BergError):
            value = f"{gate.parse_duration(value, 'd') / gate.UNITS['d']:g}"
    if isinstance(like, bool):
        kind, form = "true or false", "true|false"
    if not re.fullmatch(form, value):
        raise BergError(f"{key} must be {kind}, not {value!r}")
    return json.loads(value)


def load_ready(**flags: Any) -> Config:
    """Settings that are complete enough to work with."""
    config = load(**flags)
    missing = [key for key in ("project", "bucket") if not getattr(config, key)]
    if missing:
        where = (
            f"{path()} has no {' and no '.join(missing)}" if path().exists() else f"no {path()} yet"
        )
        raise BergError(
            f"{where}. Run: berg init (or, to try berg without Google: berg init --local)"
        )
    config.is_mine = True
    return config


def save(values: dict[str, Any]) -> None:
    """Write settings over those in the file, or take out what is None; keys that are not named stay
    as they are.
    """
    from berg import computer

    merged = {**read_file(), **values, "_version": VERSION}
    merged = {key: value for key, value in merged.items() if value is not None}
    computer.write(path(), json.dumps(merged, indent=2) + "\n")


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
