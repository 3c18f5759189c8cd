"""Word that a job is over, or a sweep, to a webhook (--notify): Slack, Discord, or whatever takes
JSON.

Its URL is a secret, and lies with those of the job. It is told once, in bounded time, and what goes
wrong there is a line in the log. Not covered: jobs whose machine ends without a word (LOST), which
nobody is there to tell of.
"""

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from berg import BergError
from berg.config import Config
from berg.google import secret
from berg.google.http import is_retried
from berg.job import State
from berg.machine import logins
from berg.machine.attempt import Attempt
from berg.machine.outcome import Ending

TIMEOUT = (5, 10)  # seconds to connect, and for the answer
PATIENCE, HURRIED = 30, 2  # seconds for all tries; where Google takes the machine
PAUSES = 1, 3, 0  # seconds after each try


def read_secrets(attempt: Attempt) -> None:
    """Read the secrets of a job: its command's, its installation's, the URL of its webhook, and
    the key of its machines.
    """
    this = attempt.job
    if not this.has_secret:
        return
    try:
        values = secret.fetch(attempt.bucket.config, attempt.sweep or attempt.name)
    except BergError as error:
        if this.kind == "devbox" and this.secrets and not attempt.begins_here:
            attempt.say(f"{error.message}. Going on with those that are on this disk")
            attempt.secrets = logins.secrets_here(this.secrets)
            return
        if this.secrets or this.sealed or (this.install_secrets and not attempt.is_installed):
            raise
        if this.notify:
            attempt.say(
                "Nobody will be told of the job's end (--notify): the webhook's URL went with the "
                "attempt before"
            )
        return
    attempt.member.key = values.get(secret.CLUSTER_KEY, attempt.member.key)
    attempt.webhook = values.get(secret.WEBHOOK, "")
    attempt.take_secrets(values)


def of_job(attempt: Attempt, ending: Ending) -> None:
    """Notify the webhook that the job is over; that of a sweep hears of it as a whole."""
    if not (attempt.webhook and attempt.leads) or attempt.sweep:
        return
    about = {
        "job": attempt.name,
        "state": ending.state,
        "exit_code": ending.exit_code,
        "reason": ending.reason,
        "user": attempt.job.created_by,
        "results": attempt.job.gcs_results_dir,
    }
    text = f"{attempt.name} {ending.state}"
    if ending.exit_code is not None:
        text += f" with exit code {ending.exit_code}"
    if ending.reason:
        text += f": {ending.reason}"
    patience = PATIENCE
    if attempt.machine_goes:
        patience = HURRIED
    if why := send(attempt.webhook, text, about, patience):
        attempt.say(f"The webhook of --notify was not told: {why}")


def of_machine(attempt: Attempt, text: str) -> None:
    """Notify the webhook that a machine of a job that is over stays."""
    if attempt.webhook and attempt.leads:
        about = {"job": attempt.name, "user": attempt.job.created_by}
        if why := send(attempt.webhook, text, about, PATIENCE):
            attempt.say(f"The webhook of --notify was not told: {why}")


def of_sweep(
    config: Config, name: str, states: dict[str, State], say: Callable[[str], None]
) -> None:
    """Delete the secrets of a sweep that is over; the machine that did so notifies its webhook."""
    values: dict[str, str] = {}
    with contextlib.suppress(Exception):  # another machine was faster
        values = secret.fetch(config, name)
    if not secret.delete(config, name) or secret.WEBHOOK not in values:
        return
    counts = Counter(state.state for state in states.values())
    text = (
        f"{name} is over: {', '.join(f'{count} {state}' for state, count in counts.most_common())}"
    )
    if why := send(values[secret.WEBHOOK], text, {"sweep": name, "jobs": dict(counts)}, PATIENCE):
        say(f"The webhook of --notify was not told: {why}")


def body(url: str, text: str, about: dict[str, Any]) -> dict[str, Any]:
    """What the service behind a URL takes."""
    host = urlsplit(url).hostname or ""
    if host == "hooks.slack.com" or host == "chat.googleapis.com":
        return {"text": text}
    if host.endswith(("discord.com", "discordapp.com")):
        return {"content": text[:2000]}
    return {"text": text, **about}


def send(url: str, text: str, about: dict[str, Any], seconds: float) -> str:
    """Post it; returns why that did not work, without the URL, or "" if it did."""
    why: list[str] = []
    sending = threading.Thread(target=post, args=(url, body(url, text, about), why), daemon=True)
    sending.start()
    sending.join(seconds)  # looking up a name has no time limit of its own
    return f"it did not answer within {seconds} s" if sending.is_alive() else "".join(why[-1:])


def post(url: str, content: dict[str, Any], why: list[str]) -> None:
    import requests

    for pause in PAUSES:
        try:
            answer = requests.post(url, json=content, timeout=TIMEOUT, allow_redirects=False)
        except (requests.RequestException, ValueError) as error:  # whose text has the URL
            why.append(type(error).__name__)
        else:
            if answer.ok and not answer.is_redirect:
                why.clear()
                return
            why.append(f"it answered {answer.status_code}")
            if not is_retried(answer.status_code):
                return
        time.sleep(pause)
