"""Whether a measurement is worse than the one in the page, beyond noise.

Compared are ratios of programs that ran in turn, and counts: seconds differ between computers. A
ratio may be half as much again, since other work on the computer does not hit both sides alike; a
count may be a tenth more. A script that seems worse is measured a second time, and counts as worse
if it is so both times.
"""

import re

VALUE = r"-?[\d,.]+ [A-Za-z ]+"
# what was measured, and behind it the target
ROW = re.compile(rf"\| (\w+) \| (.+) \| ({VALUE}) \| -?[\d,.]+ \|")
# by how much more than before may be noise
NOISE = {"x": 1.5, "requests": 1.1, "round trips": 1.1, "bytes": 1.1}


def measured_in(page: str) -> dict[str, tuple[float, str]]:
    """Return what the page's table of targets says was measured, with its unit, by script and name."""
    found = {}
    for line in page.splitlines():
        row = ROW.match(line)
        if not row:
            continue
        script, name, measured = row.groups()
        number, _, unit = measured.partition(" ")
        found[f"{script}: {name}"] = (float(number.replace(",", "")), unit)
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
