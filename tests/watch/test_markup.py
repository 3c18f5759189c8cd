"""HTML that is safe by the way it is made, and what a terminal would show."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from berg.watch import collect, page
from berg.watch.page import of_terminal, tag, text

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
    assert text(None, 3, tag("br"), "<", tag("i", 1)) == "3<br></br>&lt;<i>1</i>"


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


def test_a_chart_keeps_its_peaks_and_leaves_out_what_is_no_number():
    many = [(float(x), 100.0 if x == 77_777 else 0.0) for x in range(100_000)]
    thinned = collect.thin(many)
    assert len(thinned) <= collect.MOST_POINTS and (77_777.0, 100.0) in thinned
    assert page.draw("x", {"a": [(1, float("nan")), (2, math.inf)]}) is None
    chart = page.draw("<loss>", {"<a>": [(3.0, 0.5)]})
    assert chart and "&lt;loss&gt;" in chart and "<loss>" not in chart and "nan" not in chart


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=6))
@example([(0.0, 1.7e308), (1.0, -1.7e308)])
@example([(0.0, 5e-324), (5e-324, 0.0)])
def test_any_numbers_are_json_in_a_figure(points):
    chart = page.draw("x", {"a": points}) or ""
    assert "nan" not in chart.lower() and "Infinity" not in chart
    columns = [page.Column("x", [x, 0.0]) for x, _ in points]
    for column in columns:
        page.scatter(["a", "b"], column, column)
    page.parallel(["a", "b"], columns)


def test_columns_of_numbers_and_of_words():
    values = page.Column("x", ["0.1", "", None, "nan", True, "adam"])
    assert values.values == [0.1, None, None, None, "True", "adam"]
    assert values.words == ["0.1", "True", "adam"] and values.differs
    assert page.Column("x", ["1", 3.0, None]).words == []
    assert page.parallel(["a"], [values]) is None


def test_without_plotly_a_figure_is_its_table_after_a_note(monkeypatch):
    lines = {"a": [(0, 1.0), (1, 0.5)]}
    column = page.Column("x", [1.0, 2.0])
    drawn = page.draw("loss", lines), page.scatter(["a", "b"], column, column)
    assert page.with_note(drawn) == list(drawn) and all("data-figure" in each for each in drawn)
    monkeypatch.setattr(page, "find_library", lambda: None)
    drawn = page.draw("loss", lines), page.scatter(["a", "b"], column, column)
    note, chart = page.with_note(drawn)
    assert "pip install" in note and "berg[page]" in note
    assert "<td>0.5</td>" in chart and "data-figure" not in chart and drawn[1] is None
    assert page.with_note([]) == []
