"""HTML that is safe by the way it is made, and what a terminal would show."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from berg.watch import charts
from berg.watch.markup import join, of_terminal, plain, tag, text

EVIL = "<script>alert(1)</script>\"'&"


def test_text_is_escaped_wherever_it_stands_and_html_is_not_escaped_twice():
    made = tag(
        "a",
        EVIL,
        tag("b", EVIL),
        href=EVIL,
        title=None,
        hidden=False,
        open=True,
        data_x=1,
        class_="y",
    )
    escaped = "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;"
    assert made == f'<a href="{escaped}" open data-x="1" class="y">{escaped}<b>{escaped}</b></a>'
    assert (
        text(None, 3, tag("br")) == "3<br></br>"
        and join(", ", ["<", tag("i", 1)]) == "&lt;, <i>1</i>"
    )


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("\x1b[31mred\x1b[0m plain", '<span class="f1">red</span> plain'),
        (
            "\x1b[1;32;44mx\x1b[22;39my\x1b[49mz",
            '<span class="bold f2 b4">x</span><span class="b4">y</span>z',
        ),
        (
            "\x1b[38;5;196ma\x1b[38;2;0;0;160mb\x1b[38;5;3mc",
            '<span class="f1">a</span><span class="f4">b</span><span class="f3">c</span>',
        ),
        ("\x1b[91mbright\x1b[m", '<span class="f9">bright</span>'),
        (" 10%\r 50%\r100%\r", "100%"),
        ("\x1b]0;title\x07a\x1b]8;;http://evil\x1b\\b\x1b[2K\x1b[1Ac\x1b(B", "abc"),
        (
            "\x1b[31m<img src=x onerror=alert(1)>",
            '<span class="f1">&lt;img src=x onerror=alert(1)&gt;</span>',
        ),
        ("a\x00\x08\x9b31mb\x7f\x85", "a\ufffd\ufffd\ufffd31mb\ufffd\ufffd"),
        ("\x1b[" + ";" * 300_000 + "31mx", "x"),  # as terminals do, which count to 32 or less
        (
            "\x1b[38;5mx\x1b[38mx\x1b[999999999999mx\x1b[48;5;300mx\x1b[",
            'xxx<span class="b15">x</span>',
        ),
    ],
)
def test_lines_of_a_terminal(printed, shown):
    assert of_terminal(printed) == shown
    assert plain(printed) == re.sub("<[^>]*>", "", shown).replace("&lt;", "<").replace("&gt;", ">")


def test_a_chart_keeps_its_peaks_and_does_without_what_is_no_number():
    many = [(float(x), 100.0 if x == 77_777 else 0.0) for x in range(100_000)]
    thinned = charts.thin(many)
    assert len(thinned) <= charts.MOST and (77_777.0, 100.0) in thinned
    assert charts.lines("x", {"a": [(1, float("nan")), (2, float("inf"))]}) is None
    chart = charts.lines("<loss>", {"<a>": [(3.0, 0.5)]})
    assert chart and "&lt;loss&gt;" in chart and "<loss>" not in chart and "nan" not in chart


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3e-9, 2e-9), (1e12, 3e12), (0.1, 0.1000001), (5, 5)]
)
def test_ticks_are_few_and_inside(low, high):
    found = charts.ticks(low, high, 4)
    slack = (high - low) * 1e-6
    assert 1 <= len(found) <= 6 and all(low - slack <= value <= high + slack for value in found)


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=6))
@example([(0.0, 1.7e308), (1.0, -1.7e308)])
@example([(0.0, 5e-324)])
@example([(0.0, 5e-324), (5e-324, 0.0)])
def test_lines_of_any_numbers_are_drawn(points):
    chart = charts.lines("x", {"a": points}) or ""
    assert "nan" not in chart and "inf" not in chart
    for x, _ in points:
        charts.scatter(
            *[charts.Axis("x", [charts.number_or_word(x), 0.0])] * 2,
            [("a", 0.0, charts.number_or_word(x))],
        )


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (-3.1, 0.2, ["0.001", "0.01", "0.1", "1"]),
        (-300, 20, ["1e-300", "1e-246", "1e-192", "1e-138", "1e-84", "1e-30"]),
        (-0.1, 0.5, ["1", "2", "3"]),
    ],
)
def test_a_logarithmic_axis_has_round_numbers(low, high, shown):
    assert [charts.label(10**value) for value in charts.decades(low, high)] == shown


def test_a_metric_has_a_logarithmic_axis_if_it_can_and_utilisation_none():
    chart = charts.lines(
        "loss", {"a": [(0, 1e-6), (1, 0.0), (2, -1.0), (3, 1.0)], "b": [(0, -1.0)]}
    )
    assert chart and chart.count("<svg") == 4 and chart.count("<polyline") == 3, (
        "b has no place on it"
    )
    assert re.findall(r'<polyline points="([^"]*)"', chart)[2] == "0.00,961.54 1000.00,36.98"
    for points in ([(0, -1.0), (1, -2.0)], [(0, 5.0), (1, 5.0)]):
        assert "checkbox" not in (charts.lines("x", {"a": points}) or "")
    assert "checkbox" not in (charts.lines("x", {"a": [(0, 1.0), (1, 50.0)]}, True, 100.0) or "")


def test_columns_of_numbers_and_of_words():
    assert [charts.number_or_word(value) for value in ("0.1", "", None, "adam", "nan", True)] == [
        0.1,
        None,
        None,
        "adam",
        None,
        "True",
    ]
    assert [charts.Axis("x", [1.0, 3.0, None]).place(value) for value in (1.0, 2.0, None)] == [
        0,
        0.5,
        None,
    ]
    mixed = charts.Axis("x", ["adam", 2.0])
    assert [mixed.place(value) for value in (2.0, "adam")] == [0.25, 0.75]
    assert charts.parallel([mixed], [("a", ["adam"])]) is None
