"""How many round trips of a program follow one another, from the embedded cloud's log of requests."""

import bisect
import math
from collections.abc import Iterable
from typing import Any


def round_trips(log: Iterable[dict[str, Any]]) -> int:
    """Return the most round trips of a laptop's requests of which each began when the one before
    it had ended; handshakes of new connections are among them.
    """
    ends, most = [-math.inf], [0]  # when a chain ends, and the round trips of the best until then
    asked = [each for each in log if each.get("laptop")]
    for each in sorted(asked, key=lambda each: each["ended"]):
        before = most[bisect.bisect_right(ends, each["began"]) - 1]
        ends.append(each["ended"])
        most.append(max(most[-1], before + each["trips"]))
    return most[-1]
