"""Settings: a flag, then BERG_<KEY>, then ~/.berg/berg.json, then the default; and credentials.

With `endpoint` set, the APIs are those of an embedded cloud.
"""

import functools
import getpass
import json
import os
import re
import socket
import urllib.parse
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from berg import BergError

FORMS = {"bucket": r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", "ssh_port": r"\d{1,5}"}
NEAR = ("127.0.0.1", "localhost", "metadata.google.internal", "169.254.169.254")
SCOPES = ["https://www.googleapis.com/auth/cloud-platform"]


def setting(default: Any, text: str) -> Any:
    """A setting with its description, for `berg config`."""
    return field(default=default, metadata={"help": text})


def home() -> Path:
    return Path(os.environ.get("BERG_HOME") or Path.home() / ".berg")


def path() -> Path:
    return home() / "berg.json"


def bypass_proxy() -> None:
    """Let this process and its children reach what is near without the proxy that may be set."""
    old = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if old.strip() != "*":
        hosts = dict.fromkeys([*filter(None, old.split(",")), *NEAR])
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(hosts)


def user_name() -> str:
    """The user's name on this computer as a label's value."""
    try:
        return re.sub(r"[^a-z0-9]+", "-", getpass.getuser().lower()).strip("-")[:40] or "unknown"
    except (KeyError, OSError):
        return "unknown"


@dataclass
class Config:
    project: str = setting("", "Google Cloud project that pays for the machines")
    region: str = setting("us-central1", "region whose zones are tried, and of a new bucket")
    zones: str = setting("", "zones to try, with commas between them (empty: all of the region)")
    bucket: str = setting("", "bucket for code, logs and results")
    gpu_type: str = setting("", "type of GPUs, unless a job names another one")
    gpus: str = setting("", "GPUs of each machine, unless a job says so")
    default_image: str = setting(
        "deeplearning-platform-release/pytorch-2-9-cu129-ubuntu-2404-nvidia-580",
        "image or image family that machines boot, as PROJECT/IMAGE",
    )
    default_docker_image: str = setting(
        "pytorch/pytorch:2.9.1-cuda12.8-cudnn9-runtime", "container image of jobs in pods"
    )
    service_account: str = setting("", "account that machines act as (empty: the project's own)")
    network: str = setting("default", "VPC network of the machines")
    ssh_port: str = setting("22", "port of the machines' ssh servers")
    user: str = field(default_factory=user_name, metadata={"help": "your name on jobs"})
    no_external_ip: str = setting("", "machines have no external address (true or empty)")
    max_cost: str = setting("", "dollars that a job may cost at most (empty: any)")
    ask_above: str = setting("100", "dollars that a plan may cost before berg asks (0: any)")
    budget: str = setting("", "dollars a day that your jobs may cost (empty: any)")
    endpoint: str = setting("", "base address of the APIs (empty: Google)")
    credentials_file: str = setting("", "credentials (empty: Application Default Credentials)")

    @classmethod
    def load(cls, **flags: Any) -> "Config":
        """The settings of this computer; raises BergError without a project and a bucket."""
        config = cls.read(**flags)
        if not (config.project and config.bucket):
            raise BergError(
                f"{path()} names no project and bucket. Run: berg init "
                "(or, to try berg without Google: berg init --local)"
            )
        config.check_near()
        return config

    def check_near(self) -> None:
        """Raise BergError at once if the cloud is one of this computer, and does not run."""
        where = urllib.parse.urlsplit(self.endpoint)
        try:
            if where.hostname and where.port:
                socket.create_connection((where.hostname, where.port), timeout=5).close()
        except ConnectionRefusedError:
            raise BergError(
                f"the embedded cloud at {self.endpoint} does not run. Start it: berg local start"
            ) from None
        except OSError:  # what asks it says so
            return

    @classmethod
    def read(cls, **flags: Any) -> "Config":
        """The settings, complete or not; None in `flags` means not given."""
        bypass_proxy()
        values = read_file()
        for name in [each.name for each in fields(cls)]:
            for value in (os.environ.get(f"BERG_{name.upper()}"), flags.get(name)):
                if value:
                    values[name] = value
        known = {each.name: values[each.name] for each in fields(cls) if values.get(each.name)}
        for name, value in known.items():
            if not isinstance(value, str):
                raise BergError(f"{path()}: {name!r} must be text, not {value!r}. Correct it there")
            if not re.fullmatch(FORMS.get(name, r"[\s\S]*"), value):
                where = f"--{name}" if flags.get(name) else source(name)
                raise BergError(f"{where}: {name} cannot be {value!r}. Correct it there")
        return cls(**known)

    def dollars(self, name: str) -> float:
        """A setting that is a number of dollars; 0 without it."""
        if os.environ.get(variable := f"BERG_{name.upper()}"):
            return dollars(variable, getattr(self, name))
        return dollars(name, getattr(self, name), f": berg config set {name} 50")

    def save(self, *names: str) -> None:
        """Write these settings to the file, or all; what is empty is taken out of it."""
        values = read_file()
        for name in names or [each.name for each in fields(self)]:
            values[name] = getattr(self, name)
        home().mkdir(parents=True, exist_ok=True, mode=0o700)
        ignored = home() / ".gitignore"
        if not ignored.exists():
            ignored.write_text("*\n")  # keys are no code, also where HOME is a repository
        new = path().with_suffix(".new")
        new.write_text(
            json.dumps({key: text for key, text in values.items() if text}, indent=2) + "\n"
        )
        new.replace(path())

    @functools.cached_property
    def credentials(self) -> Any:
        """Google credentials; raises google.auth's DefaultCredentialsError without any."""
        import logging
        import warnings

        import google.auth

        # An API that needs a quota project says so itself: google.sentence.
        warnings.filterwarnings("ignore", message=".*without a quota project")
        if not self.credentials_file:
            return google.auth.default(scopes=SCOPES)[0]
        warnings.filterwarnings("ignore", message="The load_credentials_from_dict")
        # It complains that the embedded cloud's credentials have no workforce pool.
        logger = logging.getLogger("google.auth.external_account_authorized_user")
        logger.addFilter(lambda record: "Regional Access Boundary" not in str(record.msg))
        try:
            row = json.loads(Path(self.credentials_file).read_text())
            load: Any = google.auth.load_credentials_from_dict
            return load(row, scopes=SCOPES)[0]
        except (OSError, ValueError) as error:
            raise BergError(
                f"cannot read the credentials in {self.credentials_file}: {error}. Run: berg init"
            ) from None


def source(name: str) -> str:
    """What gives a setting its value: its variable, the file, or nothing but the default."""
    variable = f"BERG_{name.upper()}"
    if os.environ.get(variable):
        return variable
    return str(path()) if read_file().get(name) else "default"


def dollars(name: str, text: str, fix: str = ", such as 50") -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", text or "0"):
        raise BergError(f"{name} is {text!r}, not dollars. Give a number{fix}")
    return float(text or 0)


def read_file() -> dict[str, Any]:
    """The content of the settings file; empty without one."""
    try:
        values = json.loads(path().read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise BergError(
            f"cannot read {path()}: {error}. Correct or delete it, then: berg init"
        ) from None
    if not isinstance(values, dict):
        raise BergError(
            f"{path()} must hold one JSON object. Correct or delete it, then: berg init"
        )
    return values
