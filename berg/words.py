"""Jobs, times and sizes in words, the same in the terminal and on the page."""

from collections.abc import Mapping

from berg import job


def counts(states: Mapping[str, int]) -> str:
    """Return how many jobs are in which state, as in `2 RUNNING, 1 FAILED`."""
    order = (*job.ACTIVE, job.STOPPED, *job.FINAL)
    return ", ".join(f"{states[state]} {state}" for state in order if states.get(state))


def age(timestamp: str) -> str:
    """Return how long ago that was; "?" for what is no time."""
    try:
        return duration(max(0, job.age_seconds(timestamp)) if timestamp else 0)
    except (ValueError, TypeError):
        return "?"


def duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def also(state: job.State) -> str:
    return f"It wrote to other folders, too: {state.elsewhere}" if state.elsewhere else ""


def idle(state: job.State) -> str:
    """Return which machines of a job have accelerators that do nothing, and for how long; "" if
    none.
    """
    if state.final or not state.idle:
        return ""
    what = "TPUs" if state.job.gpus and " x " not in state.job.gpus else "GPUs"
    if state.job.machines == 1:
        return f"its {what} are idle for {age(min(state.idle.values()))}"
    return f"{what} are idle: " + ", ".join(
        f"{name} for {age(since)}" for name, since in state.idle.items()
    )


def attempt(state: job.State) -> str:
    """Return which attempt a job is in, and how many of its machines it waits for; "" if it is the
    first one and nobody is missing.
    """
    if state.final or state.job.kind != "job":
        return ""
    is_between = state.state == "SUBMITTED" and state.started_at != ""
    number = state.attempt + is_between
    if state.awaited:
        since = f"{state.awaited} of {state.job.machines} machines since {age(state.awaited_since)}"
        return f"attempt {number}; waits for {since}"
    return f"attempt {number}" * (number > 1)


def dollars(amount: float | None) -> str:
    """Return USD as people write them; "?" for what is unknown."""
    return "?" if amount is None else f"${amount:,.2f}"


def plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def size(count: float) -> str:
    """Return bytes in the unit that people would say."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"
