"""Benchmarks that are worse than in the page are found, and noise is not; the page says where and when
it was measured.
"""

import importlib.util
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
PAGE = (TOP / "docs/benchmarks.md").read_text()


@pytest.fixture(scope="module")
def check():
    spec = importlib.util.spec_from_file_location("check", TOP / "bench/check.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_target_of_the_page_is_read(check):
    found = check.measured_in(PAGE)
    assert len(found) == PAGE.count(", limit ") > 30
    name = "submit: Submit: after an edit: bytes sent"
    number, unit = found[name]
    assert number > 1000 and unit == "bytes", "its comma is no end of it"


def test_twice_as_slow_is_a_regression_and_the_same_is_none(check):
    before = check.measured_in(PAGE)
    assert check.regressions(before, before) == {}
    now = {name: (number * 2, unit) for name, (number, unit) in before.items()}
    worse = check.regressions(before, now)
    counted = [
        name for name, (number, unit) in before.items() if unit in check.NOISE and number > 0
    ]
    assert sorted(worse) == sorted(counted)
    some = next(iter(worse.values()))
    assert "in the page" in some


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        ((0.8, "x"), (1.1, "x"), False),
        ((0.8, "x"), (1.25, "x"), True),
        ((20, "requests"), (21, "requests"), False),
        ((20, "requests"), (23, "requests"), True),
        ((0, "requests"), (1, "requests"), True),
        ((0.8, "s"), (8, "s"), False),
        ((0.8, "x"), (0.3, "x"), False),
    ],
)
def test_noise(check, before, now, is_worse):
    assert bool(check.regressions({"a: b": before}, {"a: b": now})) == is_worse


def test_what_is_new_is_no_regression(check):
    assert check.regressions({}, {"a: b": (9, "x")}) == {}


@pytest.fixture(scope="module")
def run():
    sys.path.insert(0, str(TOP / "bench"))
    try:
        spec = importlib.util.spec_from_file_location("bench_run", TOP / "bench/run.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(TOP / "bench"))
    return module


def test_the_page_says_what_its_sections_say_of_when_and_where(run):
    new = "2026-11-2{} at 0123456789ab, 5 repeats, 4 cores (x86_64, Linux 6.1), other load {}."
    first, second = f"About\n\n{new.format(1, 0.2)}\n", f"About\n\n{new.format(3, 1.5)}\n"
    old = "About\n\n2026-11-25, 3 repeats.\n"
    assert run.told_by([first]) == "Measured 2026-11-21, on 4 cores, other load 0.2."
    assert run.told_by([second, old, first]) == (
        "Measured 2026-11-21 to 2026-11-25, on 4 cores, other load 0.2 to 1.5 "
        "(unknown for 1 older sections)."
    )
    assert run.MEASURED.search(f"2026-11-21 at ab, 1 repeats, {run.circumstances()}.")


def test_the_page_has_a_sentence_of_each_section(run):
    sections = PAGE.split("\n## `bench/")[1:]
    assert sections and all(run.MEASURED.search(section) for section in sections)
