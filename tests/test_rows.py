"""Rows of sweeps, and lines of logs, as tables: what is typed or printed, and what becomes of it."""

from pathlib import Path

import pytest

from berg import BergError, rows
from berg.logs import readable


@pytest.mark.parametrize(
    "text, values",
    [
        ("x=1,2", ["1", "2"]),
        ("x=[64,32],[128,16]", ["[64,32]", "[128,16]"]),
        ('x={"a": 1, "b": [2]}, {}', ['{"a": 1, "b": [2]}', "{}"]),
        ("x='a,b',c", ["a,b", "c"]),
        (r'x="say \"hi\"",', None),
        ("x='',a", ["", "a"]),
        ("x=", None),
        ("x=1,2,", None),
        ("x=1,,2", None),
        ("x=[64,32", None),
        ("x=[1]2", None),
        ("x='a", None),
        ("x=1,1", None),
        ("=1,2", None),
    ],
)
def test_a_list_of_values_is_read_or_refused(text: str, values: list[str] | None) -> None:
    if values is None:
        with pytest.raises(BergError, match="--grid"):
            rows.make("train {x}", [text], "")
    else:
        assert [row["x"] for row in rows.make("train {x}", [text], "")] == values


def test_values_are_words_and_other_braces_are_the_shells() -> None:
    cmd = "awk '{print $1}' ${x} {{x}} --x={x} {model.lr}"
    assert rows.placeholders(cmd) == {"x", "model.lr"}
    filled = rows.fill(cmd, {"x": "a b; rm", "model.lr": "0.1"})
    assert filled == "awk '{print $1}' ${x} {x} --x='a b; rm' 0.1"


def test_tasks_have_a_row_in_each_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes('\ufefflr,word\r\n0.1,"a\nb"\r\n'.encode())
    (tmp_path / "b.jsonl").write_text('{"lr": 1e-5, "word": "x"}\n\n{"lr": true, "word": [1]}\n')
    read = [rows.make("{lr} {word}", [], str(tmp_path / name)) for name in ("a.csv", "b.jsonl")]
    assert read[0] == [{"lr": "0.1", "word": "a\nb"}]
    assert read[1] == [{"lr": "1e-05", "word": "x"}, {"lr": "true", "word": "[1]"}]
    (tmp_path / "c.jsonl").write_text('{"lr": 1}\n{oops\n')
    with pytest.raises(BergError, match="line 2"):
        rows.make("{lr}", [], str(tmp_path / "c.jsonl"))
    with pytest.raises(BergError, match="rows 0 and 1 would write to one folder"):
        rows.make("t {x} --out /root/berg_results/same", ["x=1,2"], "")


def test_a_log_keeps_colors_on_request_and_steers_nothing() -> None:
    line = "a\x1b[31mred\x1b[0m\x1b]0;title\x07 \x1b[2J\x1b[5Aup \x9b31m\u202e\u200b\U000e0041\x00b"
    assert readable(line, has_colors=False) == "ared up b"
    assert readable(line, has_colors=True) == "a\x1b[31mred\x1b[0m up b\x1b[0m"
    bar = "10 %\r50 %\r100 %\r"
    assert readable(bar, True, is_terminal=True) == "100 %"
    assert readable(bar, False) == "10 %\n50 %\n100 %"
