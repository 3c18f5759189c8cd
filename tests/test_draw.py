"""Values of a sweep that are drawn: evenly spread or at random, the same for the same seed."""

import itertools
import json
import random

import pytest

from berg import BergError, states
from berg.laptop import sweep

PARAMS = ("lr=log:1e-5..1e-1", "bs=32|64|128", "layers=int:2..5", "dropout=0..0.5")


@pytest.mark.parametrize("dimension", range(10))
def test_every_parameter_s_range_is_covered_evenly(dimension):
    points = itertools.islice(sweep.sobol(10, random.Random(dimension)), 64)
    assert sorted(int(64 * point[dimension]) for point in points) == list(range(64))


def test_two_parameters_fill_the_square():
    points = itertools.islice(sweep.sobol(2, random.Random(5)), 64)
    cells = sorted((int(8 * x), int(8 * y)) for x, y in points)
    assert cells == list(itertools.product(range(8), range(8)))


@pytest.mark.parametrize("sampler", [sweep.RANDOM, sweep.SOBOL])
def test_the_same_seed_draws_the_same(sampler):
    rows = sweep.rows(PARAMS, 50, sampler, 7)
    assert rows == sweep.rows(PARAMS, 50, sampler, 7) != sweep.rows(PARAMS, 50, sampler, 8)
    assert rows[:20] == sweep.rows(PARAMS, 20, sampler, 7), "more samples begin with the same"
    assert {row["bs"] for row in rows} == {"32", "64", "128"}
    assert {row["layers"] for row in rows} == {"2", "3", "4", "5"}
    rates = sorted(float(row["lr"]) for row in rows)
    assert 1e-5 <= rates[0] < 1e-4 and 1e-2 < rates[-1] < 1e-1
    assert 15 < sum(rate < 1e-3 for rate in rates) < 35, "evenly in the logarithm"
    assert all(0 <= float(row["dropout"]) < 0.5 for row in rows)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("lr", "give NAME="),
        ("1r=0..1", "give NAME="),
        ("lr=1..0", "below the second"),
        ("lr=log:0..1", "numbers above 0"),
        ("n=int:1..2.5", "whole numbers"),
    ],
)
def test_what_nothing_can_be_drawn_from_is_named(text, says):
    with pytest.raises(BergError, match=says):
        sweep.rows((text,), 2, sweep.SOBOL, 1)


def test_too_much_and_twice_is_refused():
    with pytest.raises(BergError, match="twice"):
        sweep.rows(("a=0..1", "a=1|2"), 2, sweep.RANDOM, 1)
    many = tuple(f"p{number}=0..1" for number in range(11))
    with pytest.raises(BergError, match="10 parameters at most"):
        sweep.rows(many, 2, sweep.SOBOL, 1)
    assert len(sweep.rows(many, 2, sweep.RANDOM, 1)) == 2


@pytest.mark.slow
def test_what_was_drawn_is_recorded_with_its_seed(berg):
    drawn = ("--samples", "2", "--param", "lr=log:1e-5..1e-1", "--param", "bs=32|64", "--seed", "3")
    options = ("-g", "0", "-n", "drawn", "--parallel", "1", *drawn)
    ran = berg("run", *options, "--wait", "echo {lr} {bs}")
    assert ran.returncode == 0, ran.stderr
    how = "--samples 2 --sampler sobol --seed 3 --param lr=log:1e-5..1e-1 --param 'bs=32|64'"
    assert f"Drawn with {how}" in ran.stderr
    assert states.read_sweep(berg.bucket, "drawn").drawn == how
    rows = json.loads(berg("show", "drawn", "--json").stdout)
    expected = sweep.rows(("lr=log:1e-5..1e-1", "bs=32|64"), 2, sweep.SOBOL, 3)
    assert [each["params"] for each in rows] == expected


@pytest.mark.parametrize(
    "options",
    [
        ("--samples", "2"),
        ("--param", "x=1|2"),
        ("--samples", "2", "--param", "x=1|2", "--grid", "x=1,2"),
        ("--samples", "2", "--param", "x=1|2", "--resume", "old"),
    ],
)
def test_options_that_do_not_go_together(berg, options):
    command = () if "--resume" in options else ("echo {x}",)
    refused = berg("run", *options, *command)
    assert refused.returncode == 2, refused.stderr
