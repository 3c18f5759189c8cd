"""Berg's settings, the addresses of the APIs, and Google credentials.

Precedence: a flag, then BERG_<KEY>, then ~/.berg/berg.json, then the default. With `endpoint` null
the APIs are Google's.
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

from berg import BergError, plain, validation

if TYPE_CHECKING:
    import logging

VERSION = 1
SIGN_IN = 10  # seconds for a token
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]
VARIABLE = "GOOGLE_APPLICATION_CREDENTIALS"  # the file of Application Default Credentials
LOG = "google.auth.external_account_authorized_user"
# Hosts that are reached without a proxy.
NEAR = ("localhost", "127.0.0.1", "::1", "metadata.google.internal", "metadata", "169.254.169.254")

HELP = {
    "project": "Google Cloud project that pays for the machines",
    "region": "region whose zones are tried, and location of the bucket",
    "zones": "zones to try, in this order (empty: all of the region that have the GPU)",
    "bucket": "bucket for code, logs and results",
    "gpu_type": "GPU type of machines without -t (empty: l4)",
    "gpus": "number of GPUs of machines without -g (0: as few as Google offers in one machine)",
    "default_image": "image or image family that machines boot, as PROJECT/IMAGE",
    "service_account": "account that machines act as (empty: the project's default)",
    "default_docker_image": "container image of jobs in a cluster (berg run --cluster)",
    "monitoring": "1: machines report usage to Cloud Monitoring (berg init --monitoring)",
    "max_cost": "dollars that a job may cost at most (0: no limit; berg run --max-cost)",
    "budget": "dollars that your jobs may cost in a day, in UTC (0: any)",
    "purse": "purse that jobs draw on (berg run --purse; see berg purse)",
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
    """Create a folder of BERG_HOME for its owner only, or restrict one that is open to others."""
    home().mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.stat().st_mode & 0o077:
        folder.chmod(0o700)


def close_home() -> None:
    """Restrict BERG_HOME to its owner, if it has berg's settings and is not the home folder."""
    try:
        is_open = path().exists() and home().stat().st_mode & 0o077
        if is_open and not home().samefile(Path.home()):
            home().chmod(0o700)
    except OSError:
        pass  # another user's folder, or a file system without modes


def path() -> Path:
    return home() / "berg.json"


def local_folder() -> Path:
    """Return the folder of this user's embedded cloud."""
    return home() / "local"


def label(text: str) -> str:
    """Return text as a label value or a part of a name: lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")


@dataclass
class Config:
    project: str = ""
    region: str = "us-central1"
    zones: list[str] = field(default_factory=list)
    bucket: str = ""
    gpu_type: str = ""
    gpus: int = 0
    default_image: str = "deeplearning-platform-release/pytorch-2-9-cu129-ubuntu-2404-nvidia-580"
    service_account: str = ""
    default_docker_image: str = "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime"
    monitoring: int = 0
    max_cost: int = 0
    budget: int = 0
    purse: str = ""
    ask_above: int = 1000
    max_stopped_days: int = 14
    network: str = "default"
    subnetwork: str = ""
    no_external_ip: bool = False
    ssh_user: str = "root"
    ssh_port: int = 22
    user: str = field(default_factory=lambda: label(login()) or "unknown")
    endpoint: str | None = None
    credentials_file: str | None = None
    _version: int = VERSION
    is_mine = False  # these are the settings of a user's computer; no setting

    def compute_url(self, project: str = "") -> str:
        base = self.endpoint or "https://compute.googleapis.com"
        return f"{base}/compute/v1/projects/{project or self.project}"

    def service_url(self, service: str) -> str:
        """Return the address of a service, such as secretmanager, without the API's version."""
        if self.endpoint:
            return f"{self.endpoint}/{service}"
        return f"https://{service}.googleapis.com"

    @property
    def image(self) -> tuple[str, str]:
        """Name and project of the image or image family that machines boot."""
        project, _, name = self.default_image.rpartition("/")
        return name, project

    def put(self, key: str, value: Any) -> None:
        """Change a setting; an image without a project is in that of the image before."""
        if key == "default_image" and "/" not in value:
            value = f"{self.image[1]}/{value}"
        setattr(self, key, value)

    def refuse_in_purse(self, what: str) -> None:
        """Raise BergError for what no command does that draws on a purse."""
        if self.purse:
            raise BergError(
                f"what draws on a purse ({self.purse}: BERG_PURSE, or the setting purse) cannot "
                f"{what}: do that without it"
            )

    @property
    def tunnel_options(self) -> list[str]:
        """Return the options of gcloud for an Identity-Aware Proxy which is not Google's."""
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
        from google.auth.exceptions import TransportError
        from google.auth.transport.requests import Request

        bypass_proxies()
        self.start_embedded_cloud()
        found = find(self.credentials_file)
        if self.endpoint and hasattr(found, "_set_regional_access_boundary"):
            # With an account's key google-auth asks Google for the regions where the account may
            # be used, unless it knows them (0x0: all).
            until = datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(days=365)
            anywhere = {"encodedLocations": "0x0", "expiry": until}
            found = found._set_regional_access_boundary(anywhere)
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
        except TransportError as error:
            if not self.is_mine:
                raise
            make: Any = TransportError  # it has no types
            raise make(str(error)) from error  # without its cause it is not retried
        return found

    @functools.cached_property
    def listed_lately(self) -> dict[Any, tuple[float, Any]]:
        """Lists of machines that threads of this program share, with the time of each request."""
        return {}

    def start_embedded_cloud(self) -> None:
        """Start this user's embedded cloud if the endpoint does not answer."""
        if not self.endpoint or not local_folder().is_dir():
            return
        from urllib.parse import urlsplit

        from berg import computer

        address = urlsplit(self.endpoint)
        if not computer.listens(address.hostname or "", address.port or 80):
            plain.echo(f"Starting the embedded cloud at {self.endpoint}", err=True)
            embedded_cloud().start(local_folder(), address.port or 0)


def embedded_cloud() -> Any:
    """Return the module that controls the embedded cloud; raise BergError if it is not
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
    """Return the content of the settings file; {} without one."""
    try:
        values = json.loads(path().read_text())
        problem = "" if isinstance(values, dict) else f"{path()} must hold one JSON object"
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        problem = f"{path()} is not valid JSON at line {error.lineno}: {error.msg}"
    except (OSError, UnicodeDecodeError) as error:
        problem = f"cannot read {path()}: {error}"
    if problem:
        raise BergError(f"{problem}. Fix or delete it, then run: berg init")
    found: dict[str, Any] = values
    return found


def load(**flags: Any) -> Config:
    """Return settings from flags (None: not given), the environment, the file and the defaults."""
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
            config.put(key, values[key])
    for key in HELP:
        value = flags.get(key)
        if value in (None, ()):
            value = os.environ.get(f"BERG_{key.upper()}") or None
        if value is not None:
            config.put(key, convert(key, value, getattr(config, key)))
    return config


def check_kind(key: str, value: Any, default: Any) -> None:
    """Raise BergError for a value in the file of another type than the default."""
    if default is None or type(value) is type(default):
        return
    kinds = {list: "a list", int: "a whole number", bool: "true or false"}
    kind = kinds.get(type(default), "text")
    raise BergError(f"{path()}: {key!r} must be {kind}, not {json.dumps(value)}. Fix it there")


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
            value = f"{validation.parse_duration(value, 'd') / validation.UNITS['d']:g}"
    if isinstance(like, bool):
        kind, form = "true or false", "true|false"
    if not re.fullmatch(form, value):
        raise BergError(f"{key} must be {kind}, not {value!r}")
    return json.loads(value)


def load_ready(**flags: Any) -> Config:
    """Return settings; raise BergError without a project and a bucket."""
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
    """Write settings to the file, and delete those that are None; other keys stay."""
    from berg import computer

    merged = {**read_file(), **values, "_version": VERSION}
    merged = {key: value for key, value in merged.items() if value is not None}
    computer.write(path(), json.dumps(merged, indent=2) + "\n")


def bypass_proxies() -> None:
    """Let this process and its children reach NEAR without the proxy that is set."""
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    hosts = [host for host in old.split(",") if host]
    if old.strip() != "*" and any(name.lower().endswith("_proxy") for name in os.environ):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys([*hosts, *NEAR]))


def find(file: str | None) -> Any:
    """Return credentials for the APIs; raise DefaultCredentialsError without any."""
    return read(Path(file)) if file else application_default()[0]


def application_default() -> tuple[Any, str | None]:
    """Return Application Default Credentials, and the project in them or in gcloud's settings."""
    import google.auth

    if not on_google():
        os.environ.setdefault("NO_GCE_CHECK", "true")  # else it waits seconds for a metadata server
    with without_warning():
        found, project = google.auth.default(scopes=SCOPES)
    return found, project


@contextlib.contextmanager
def without_warning() -> Iterator[None]:
    """Hide google-auth's warning of a missing quota project; see lacks_quota_project."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*without a quota project")
        yield


def lacks_quota_project(found: Any) -> bool:
    """Return whether credentials are a person's, from gcloud, without a quota project."""
    from google.oauth2.credentials import Credentials

    return isinstance(found, Credentials) and not found.quota_project_id


def read(file: Path) -> Any:
    """Return the credentials of a file in any of google-auth's formats.

    Raises BergError without a readable one.
    """
    import logging

    import google.auth
    from google.auth import exceptions

    # It complains that the embedded cloud's credentials have no workforce pool, as they must not.
    logging.getLogger(LOG).addFilter(hides_boundaries)
    load: Any = google.auth.load_credentials_from_dict  # it has no types
    try:
        row = json.loads(file.read_text())
        with without_warning():
            found, _ = load(row, scopes=SCOPES)
        return found
    except OSError as error:
        why = error.strerror or str(error)
    except (ValueError, TypeError, AttributeError, exceptions.GoogleAuthError):
        why = "their format is unknown"
    raise BergError(
        f"cannot read the credentials in {file}: {why}. Run: berg init (or: berg init --local)"
    )


def hides_boundaries(record: "logging.LogRecord") -> bool:
    return "Regional Access Boundary" not in str(record.msg)


def login() -> str:
    """Return the user's name on this computer; "" for a user without one, as in containers."""
    try:
        import getpass

        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def on_google() -> bool:
    """Return whether this computer is a Google machine, by its firmware."""
    if os.environ.get("GCE_METADATA_HOST"):
        return True
    try:
        return Path("/sys/class/dmi/id/product_name").read_text().startswith("Google")
    except OSError:
        return False
