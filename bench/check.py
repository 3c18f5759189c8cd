"""Whether a measurement is worse than the one in the page, beyond noise.

Compared are ratios of programs that ran in turn, and counts: seconds differ between computers. A
ratio may be half as much again, since other work on the computer does not hit both sides alike; a
count may be a tenth more. A script that seems worse is measured a second time, and counts as worse
if it is so both times.
"""

import re

# what was measured, and behind it the target
LINE = re.compile(r"- (.+): (-?[\d,.]+) ([A-Za-z ]+), limit -?[\d,.]+\.( \*\*Missed\*\*|$)")
HEADING = re.compile(r"## `bench/(\w+)\.py`$|### (.+)")
# by how much more than before may be noise
NOISE = {"x": 1.5, "requests": 1.1, "round trips": 1.1, "bytes": 1.1}


def measured_in(page: str) -> dict[str, tuple[float, str]]:
    """Return what a page's targets say was measured, with its unit, by script, table and name."""
    found = {}
    script = title = ""
    for line in page.splitlines():
        if heading := HEADING.match(line):
            script, title = (heading[1], "") if heading[1] else (script, heading[2])
        elif target := LINE.match(line):
            name, number, unit, _ = target.groups()
            found[f"{script}: {title}: {name}"] = (float(number.replace(",", "")), unit)
    return found


def regressions(
    before: dict[str, tuple[float, str]], now: dict[str, tuple[float, str]]
) -> dict[str, str]:
    """Return what is worse now, by its name, with both figures."""
    worse = {}
    for name, (number, unit) in now.items():
        was, its_unit = before.get(name, (number, unit))
        if unit == its_unit and unit in NOISE and number > was * NOISE[unit]:
            worse[name] = f"{name}: {number:g} {unit}, in the page {was:g} {unit}"
    return worse
