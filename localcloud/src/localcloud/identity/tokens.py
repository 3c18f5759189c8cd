"""Who may call the embedded cloud: refresh tokens for principals, access tokens that expire.

An access token is the principal and an expiry, signed with a secret of this cloud, so it survives a
restart as Google's do, and nothing has to be remembered but the secret.

Not covered: impersonation, id tokens. What a principal may do says
permissions.py.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LAPTOP = "laptop@berg.local"  # the user whose credentials file `write_credentials` makes
CLIENT_ID = "berg-local"


def write_private(path: Path, data: dict) -> None:
    """Write JSON that only its owner can read, in one step: a reader sees the old file or the new
    one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump(data, file, indent=1)
    temporary.replace(path)


@dataclass(frozen=True)
class Owner:
    """Whose an access token is, and what it may be used for."""

    email: str
    scopes: tuple[str, ...] | None = None  # none: for everything, as a laptop's


class Tokens:
    """The tokens of one cloud, kept in `<folder>/tokens.json` (mode 0600)."""

    def __init__(self, folder: Path):
        self.path = folder / "tokens.json"
        # a function, because port 0 becomes a number only when the server listens
        self.endpoint: Callable[[], str] = lambda: ""
        self.state: dict[str, Any] = {
            "secret": secrets.token_hex(32),
            "epoch": 0,
            "refresh_tokens": {},
        }
        self.state["client_secret"] = secrets.token_hex(16)
        if self.path.exists():
            self._load()
        else:
            write_private(self.path, self.state)

    def _load(self) -> None:
        self.state = json.loads(self.path.read_text())

    def mint(self, email: str, seconds: float = 3600, scopes: list[str] | None = None) -> str:
        """Return a new access token for `email`, good for `seconds` and for some scopes alone if
        any are given.
        """
        claims = [email, time.time() + seconds, self.state["epoch"], secrets.token_hex(4), scopes]
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        return f"ya29.{payload}.{self._sign(payload)}"

    def owner(self, token: str) -> Owner | None:
        """Return the owner of an access token; None if it is unknown, expired or revoked."""
        payload, _, signature = token.removeprefix("ya29.").rpartition(".")
        if not token.isascii() or not hmac.compare_digest(signature, self._sign(payload)):
            return None
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        email, expires, epoch, _, scopes = claims
        if epoch != self.state["epoch"] or time.time() >= expires:
            return None
        return Owner(email, tuple(scopes) if scopes is not None else None)

    def refresh_token(self, email: str) -> str:
        """Return the long-lived refresh token of `email`, making one the first time."""
        self._load()
        tokens = self.state["refresh_tokens"]
        if email not in tokens:
            tokens[email] = "1//" + secrets.token_urlsafe(32)
            write_private(self.path, self.state)
        return tokens[email]

    def exchange(self, refresh_token: str) -> str | None:
        """Return the principal of a refresh token, None if there is none."""
        self._load()  # another process may have written credentials meanwhile
        for email, known in self.state["refresh_tokens"].items():
            if hmac.compare_digest(known.encode(), refresh_token.encode()):
                return email
        return None

    def is_client(self, client_id: str, client_secret: str) -> bool:
        return client_id == CLIENT_ID and hmac.compare_digest(
            client_secret.encode(), self.state["client_secret"].encode()
        )

    def expire_all(self) -> None:
        """Make every access token invalid."""
        self._load()
        self.state["epoch"] += 1
        write_private(self.path, self.state)

    def write_credentials(self, path: Path, email: str = LAPTOP) -> None:
        """Write credentials that `google.auth.load_credentials_from_file` loads (mode 0600).

        Of google-auth's file types only this one lets the file say where tokens come from. Its
        audience is deliberately no workforce pool: for one, google-auth 2.62 asks
        iamcredentials.googleapis.com where the pool may be used, in a thread, from every client of
        a cloud that is meant to stay on loopback.
        """
        endpoint = self.endpoint()
        write_private(
            Path(path),
            {
                "type": "external_account_authorized_user",
                "audience": "berg-local",
                "client_id": CLIENT_ID,
                "client_secret": self.state["client_secret"],
                "refresh_token": self.refresh_token(email),
                "token_url": f"{endpoint}/token",
                "token_info_url": f"{endpoint}/introspect",
            },
        )

    def _sign(self, payload: str) -> str:
        return hmac.new(self.state["secret"].encode(), payload.encode(), hashlib.sha256).hexdigest()
