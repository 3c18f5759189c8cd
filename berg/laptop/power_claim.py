"""The claim of a power verb: one at a time stops, starts, moves or kills a devbox.

It is an object in the bucket, written under a generation precondition, where machines may not
write. The verb renews it as long as it runs. The claim of a computer that died is not renewed, and
is taken over. Times are compared as Cloud Storage has them.
"""

import contextlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator

from berg import BergError, gate, job
from berg.config import Config
from berg.google import api
from berg.google.storage import Bucket, Changed

RENEWED = 15  # seconds between two writes of a claim
AGED = 90  # seconds without a write after which a claim is taken over
PAUSE = 1  # seconds between two looks at a claim that is waited for
Say = Callable[[str], None]


class Claim:
    """The right to change the power of one devbox."""

    def __init__(self, config: Config, name: str, verb: str):
        self.config, self.name = config, name
        self.bucket = Bucket(config)
        self.path = f".berg/jobs/{name}_power.json"
        words = {"verb": verb, "user": config.user, "since": job.now()}
        self.text = json.dumps({**words, "nonce": secrets.token_hex(8)})
        self.generation = 0
        self.is_lost = False
        self.is_over = threading.Event()
        self.writing = threading.Lock()

    def take(self, is_forced: bool, say: Say) -> None:
        """Write the claim once no other verb has one; one that is forced takes it over at once."""
        is_said = False
        while True:
            there = self.bucket.get(self.path)
            age = api.now(self.config) - there.updated.timestamp() if there and there.updated else 0
            if there is None or is_forced or age > AGED:
                with contextlib.suppress(Changed):
                    self.write(there.generation if there else 0)
                    return
            elif not is_said:
                is_said = True
                holder = holder_of(there.metadata or {})
                say(f"Waiting: {self.name} is just being {holder} (Ctrl-C leaves it)")
            time.sleep(PAUSE)

    def write(self, generation: int) -> None:
        """Write the claim in place of what is there at `generation`; raise Changed otherwise."""
        metadata = {"claim": self.text, "renewed": str(time.time())}
        self.generation = self.bucket.write(self.path, self.text, generation, metadata)

    def renew(self) -> None:
        """Write the claim again, or note that another verb took it over."""
        with self.writing:
            try:
                self.write(self.generation)
            except Changed:
                self.is_lost = True

    def keep(self) -> None:
        """Renew the claim until the verb is over; trouble waits for the next time."""
        while not self.is_over.wait(RENEWED):
            with contextlib.suppress(Exception):
                self.renew()

    def check(self) -> None:
        """Raise BergError unless the claim is still this verb's; before what cannot be undone."""
        self.renew()
        self.check_held()

    def check_held(self) -> None:
        """Raise BergError if another verb is known to have taken the claim over."""
        if self.is_lost:
            raise BergError(
                f"another berg stopped, started or killed {self.name} meanwhile. Nothing more is "
                "done here. See it: berg list"
            )

    def release(self) -> None:
        with self.writing, contextlib.suppress(Changed):
            if not self.is_lost:
                self.bucket.delete_at(self.path, self.generation)


def holder_of(metadata: dict[str, str]) -> str:
    """Return what a claim says of its verb, in words."""
    try:
        words = gate.values(metadata.get("claim", "").encode())
        verb, user, since = (gate.clean(str(words[key])) for key in ("verb", "user", "since"))
    except (ValueError, KeyError):
        return "changed by another berg"
    return f"{verb} by {user} since {since}"


@contextlib.contextmanager
def claimed(
    config: Config, name: str, verb: str, say: Say, is_forced: bool = False
) -> Iterator[Claim]:
    """Hold the claim of a devbox's power while a verb runs; `verb` is a participle."""
    claim = Claim(config, name, verb)
    claim.take(is_forced, say)
    renewing = threading.Thread(target=claim.keep, daemon=True)
    renewing.start()
    try:
        yield claim
    finally:
        claim.is_over.set()
        claim.release()
