"""Notification: the machine posts to a webhook when the job has ended, once.

Its address is a secret of the job of its own, read at the end alone; who deletes it sends the message.
A machine that vanishes cannot post.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from berg import BergError
from berg.bucket import trouble
from berg.feature import Feature
from berg.features import secrets
from berg.google import RETRIED, GoogleError
from berg.job import results_prefix, row_states
from berg.options import option, set_by

if TYPE_CHECKING:
    from berg.config import Config
    from berg.job import Job
    from berg.run import Plan
    from berg.worker import Ending, Run

KEY = "url"
PAUSES = (1, 3, 0)  # seconds after each try
TIMEOUT = (5, 10)  # seconds to connect, and for an answer


@dataclass
class Notify(Feature):
    notify: str = option(
        "--notify", default="", metavar="URL",
        help="Webhook to call when the job has ended, or NAME[=FILE] that holds its URL.",
    )  # fmt: skip
    url: str = field(default="", compare=False, repr=False)

    def record(self) -> dict[str, Any]:
        return {"notify": "URL" if "://" in self.notify else self.notify.partition("=")[0]}

    def change(self, plan: Plan) -> None:
        if set_by("notify") != "command line":  # no record or repository learns what is here
            raise BergError(f"{plan.job.name} needs its webhook again. Add: --notify {self.notify}")
        self.url = webhook(self.notify)
        if not plan.ended:
            plan.job.options |= self.record()
        plan.rows["Notify"] = "a webhook, at the end"

    def send(self, plan: Plan) -> None:
        secrets.store(plan.config, plan.job, secret_id(plan.job), {KEY: self.url})

    def forget(self, config: Config, job: Job) -> None:
        secrets.delete(config, secret_id(job))

    def ended(self, run: Run, ending: Ending) -> Ending:
        if secrets.is_over(run, ending):
            try:
                url = secrets.access(run.config, secret_id(run.job), ending.seconds / 3)[KEY]
                reason = post(url, *message(run, ending)) if discard(run) else ""
            except trouble() + (KeyError,) as error:
                is_told = (
                    isinstance(error, GoogleError) and error.status == 404
                )  # by another machine
                reason = "" if is_told else f"its address cannot be read: {error}"
            if reason:
                run.say(f"The webhook of --notify was not reached: {reason}")
        return ending


def secret_id(job: Job) -> str:
    return f"{secrets.secret_id(job)}_webhook"  # no job's name has a _


def discard(run: Run) -> bool:
    return secrets.discard(run, secret_id(run.job))


def webhook(text: str) -> str:
    """The URL of a webhook: as it is, or from NAME or NAME=FILE; no error repeats it."""
    url = (text if "://" in text else secrets.read("--notify", text)[1]).strip()
    try:
        is_url = urlsplit(url).scheme in ("http", "https") and bool(urlsplit(url).hostname)
    except ValueError:
        is_url = False
    if not is_url or set(url) & set(" \t\r\n"):
        raise BergError(
            "--notify is no URL of a webhook. Give one, or NAME or NAME=FILE that holds it"
        )
    return url


def message(run: Run, ending: Ending) -> tuple[str, dict[str, Any]]:
    """What is told, in a sentence and as JSON."""
    job = run.job
    if job.rows:
        counts = Counter(state.state for state, _ in row_states(run.bucket, job.name).values())
        rows = ", ".join(f"{count} {state}" for state, count in counts.most_common())
        return f"{job.name} {ending.state}: {rows}", {"sweep": job.name, "jobs": counts}
    about = {
        "job": job.name,
        "state": ending.state,
        "exit_code": ending.exit_code,
        "reason": ending.reason,
        "user": job.user,
        "results": f"gs://{run.config.bucket}/{results_prefix(job.results)}".rstrip("/"),
    }
    return f"{job.name} {ending.state}" + (f": {ending.reason}" if ending.reason else ""), about


def body_for(host: str, text: str, about: dict[str, Any]) -> dict[str, Any]:
    """A message as a service takes it; some refuse fields that they do not know."""
    if host in ("hooks.slack.com", "chat.googleapis.com"):
        return {"text": text}
    if host.endswith(("discord.com", "discordapp.com")):
        return {"content": text[:2000]}
    return {"text": text, **about}


def post(url: str, text: str, about: dict[str, Any]) -> str:
    """Send a message as the service behind the URL takes it; why that failed, without the URL."""
    import requests

    body, reason = body_for(urlsplit(url).hostname or "", text, about), ""
    for pause in PAUSES:
        try:
            answer = requests.post(url, json=body, timeout=TIMEOUT, allow_redirects=False)
            if answer.status_code < 300:
                return ""
            reason = f"it answered {answer.status_code}"
            if answer.status_code not in RETRIED:
                return reason
        except (requests.RequestException, ValueError) as error:
            reason = type(error).__name__
        time.sleep(pause)
    return reason
