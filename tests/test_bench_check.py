"""Benchmarks that are worse than in the page are found, and noise is not."""

import importlib.util
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
    rows = [line for line in PAGE.splitlines() if line.endswith(("| met |", "| **missed** |"))]
    found = check.measured_in(PAGE)
    assert len(found) == len(rows) > 30
    name = "submit: Submit: again, after an edit of one file: bytes sent"
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
