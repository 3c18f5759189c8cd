"""What a terminal may show: no text of anybody's steers it."""

import io
import itertools
import re
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berg import plain, validation
from berg.commands import terminal
from berg.commands.tables import Interleaved
from berg.google import walk
from berg.laptop import jobs
from berg.watch import page

EVIL = "a\x1b]0;title\x07b\x9b31mc\u202ed\x1b[2Je\x1b[31mred\x1b[0m\x08\x00\x7f\ud800\r\u2066"
COLOR = re.compile(r"\x1b\[[0-9;:]*m")
TEXTS = st.text(st.characters() | st.sampled_from("\x1b[]\x07m0;\r\n\x9b\u202e"), max_size=60)


def is_plain(text: str) -> bool:
    return not plain.CONTROLS.search(text)


def test_escape_sequences_go_and_the_rest_is_marked():
    assert plain.printable(EVIL, colors=False).startswith("ab\ufffd31mc\ufffdde".replace("de", "d"))
    assert plain.printable("\x1b[31mred\x1b[0m") == "\x1b[31mred\x1b[0m"
    assert plain.printable("tab\tline\n") == "tab\tline\n"
    assert is_plain(plain.printable(EVIL, colors=False)) and is_plain(plain.clean(EVIL))


@given(TEXTS)
@settings(max_examples=300)
def test_no_text_steers_a_terminal_or_a_page(text):
    assert is_plain(plain.printable(text, colors=False))
    assert is_plain(COLOR.sub("", plain.printable(text)))
    assert is_plain(validation.clean({text: [text]})[plain.clean(text)][0])
    assert is_plain(walk.shorten(text, 200))
    assert is_plain(page.text(text)) and is_plain(page.tag("p", text, title=text))
    assert is_plain(page.of_terminal(text))


@given(TEXTS, st.lists(st.integers(0, 200), max_size=6))
@settings(max_examples=300)
def test_a_log_in_pieces_is_as_plain_as_the_whole(text, cuts):
    data = text.encode(errors="surrogatepass")
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    log = plain.Log(colors=False, redraws=False)
    pieces = [log.read(data[a:b]) for a, b in itertools.pairwise(places)]
    shown = "".join([*pieces, log.read(b"", is_last=True)])
    assert is_plain(shown)


def test_a_sequence_that_is_cut_in_two_is_one():
    log = plain.Log(colors=True, redraws=False)
    pieces = [log.read(piece) for piece in (b"a\x1b[3", b"1mred\x1b", b"[0m\xe2\x82", b"\xac\r")]
    assert "".join([*pieces, log.read(b"\nx")]) == "a\x1b[31mred\x1b[0m\u20ac\nx"


@pytest.mark.parametrize(
    ("color", "shown"),
    [(False, "one | red\none | 10 %\none | 20 %\n"), (True, "one | \x1b[31mred\x1b[0m\n")],
)
def test_a_log_in_a_pipe_has_colours_where_they_are_asked_for(color, shown):
    stream = io.BytesIO()
    output = Interleaved(stream, color)
    output.write("one", b"\x1b[31mred\x1b[0m\r\n10 %\r20 %")
    output.end()
    text = stream.getvalue().decode()
    assert plain.printable(text, colors=False) == "one | red\none | 10 %\none | 20 %\n"
    assert ("\x1b[31mred" in text) == color
    assert shown in text or color


def test_no_odd_name_reaches_the_shells_completion(monkeypatch, tmp_path):
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    (tmp_path / "names").write_text("good live\n$(evil) live\n\x1b[2Jx\n-rf\nlr sweep evil\n`x`\n")
    (tmp_path / "zones").write_text("us-central1-a\n;evil\n")
    assert terminal.complete_names(None, None, "") == ["good", "lr"]
    assert terminal.complete_zones(None, None, "") == ["us-central1-a"]


def test_a_shell_that_completes_meanwhile_reads_all_names_or_those_of_before(monkeypatch, tmp_path):
    monkeypatch.setenv("BERG_HOME", str(tmp_path))
    named = [(f"job-{number}", "") for number in range(2000)]
    jobs.remember(named, set())
    reader, before = jobs.file().open(), jobs.file().read_text()
    jobs.remember(named[:10], set())
    jobs.forget(["job-3"])
    assert reader.read() == before, "who had it open goes on with the whole"
    assert len(jobs.file().read_text().splitlines()) == 9
    assert [path.name for path in tmp_path.iterdir()] == ["names"]


def test_a_long_log_comes_whole_and_a_block_ahead(monkeypatch):
    from berg.laptop import logs

    log, ahead = b"0123456789", threading.Event()

    class Bucket:
        def read_from(self, name, start, end):
            if start == 4:
                ahead.set()
            return log[start:end]

    monkeypatch.setattr(logs, "BLOCK", 4)
    blocks = logs.blocks_of(Bucket(), "log")
    assert next(blocks) == b"0123"
    assert ahead.wait(10), "the next one is asked for while this one is printed"
    assert list(blocks) == [b"4567", b"89"]


def test_the_longest_escape_that_is_cut_off_comes_with_the_next_piece():
    log = plain.Log(colors=False, redraws=False)
    title = "\x1b]0;" + "t" * 490
    assert log.read(b"x" * 5000 + title.encode()) == "x" * 5000
    assert log.read(b"\x07done") == "done"


@pytest.mark.parametrize(("source", "prefix"), [("", ""), ("one", "one | ")])
def test_colours_of_a_log_hold_for_the_log_alone(source, prefix):
    """After each piece the terminal has its own colours again, also where berg is ended then."""
    stream = io.BytesIO()
    output = Interleaved(stream, color=True)
    pieces = [b"\x1b[31mred\n", b"still\n", b"\x1b[1mbold\x1b[0m\n", b"plain\n", b"\x1b[8mhidden\n"]
    expected = ["\x1b[31mred", "\x1b[31mstill", "\x1b[31m\x1b[1mbold", "plain", "\x1b[8mhidden"]
    for piece, text in zip(pieces, expected, strict=True):
        before = stream.tell()
        output.write(source, piece)
        shown = stream.getvalue()[before:].decode()
        unstyled = re.sub("\x1b\\[[0-9]+m", "", prefix + text)
        assert plain.printable(shown, colors=False) == f"{unstyled}\n"
        assert text in shown
        in_force = re.findall("\x1b\\[([0-9]+)m", shown)[-1:]
        assert in_force in ([], ["0"]), shown


def test_a_log_with_endless_colours_takes_no_memory():
    log = plain.Log(colors=True, redraws=False)
    for number in range(1000):
        log.colored(f"\x1b[{number}m")
    assert len(log.style) == plain.STYLES


def test_the_words_of_a_machine_are_one_line():
    text = "x\n\tdone2  SUCCEEDED\u2028\x85y" + " " * 200 + "z"
    assert plain.line(text) == f"x done2 SUCCEEDED{plain.MARK}{plain.MARK}y z"
    assert plain.name("a\nb\x1b[2J") == "a\\nb\\x1b[2J"
