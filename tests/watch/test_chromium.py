"""The page in a real browser: opened, clicked, its log followed, its charts seen, from disk too."""

import json
import os
import subprocess

import chromium
import pytest
from conftest import wait_for
from test_page import Site, over

pytestmark = pytest.mark.skipif(not chromium.PROGRAM, reason=chromium.MISSING)
DRAWN = "document.querySelectorAll('.plotted .main-svg .xaxislayer-above').length"
SHOWN = "getComputedStyle(document.querySelector(%r)).%s"


@pytest.fixture
def browser(tmp_path):
    folder = tmp_path / "chromium"
    folder.mkdir()
    with chromium.Browser(folder) as opened:
        yield opened
    assert opened.errors == []
    assert {
        each.split("/")[2].partition(":")[0] for each in opened.asked if each.startswith("http")
    } <= {"127.0.0.1"}


@pytest.fixture
def site(berg):
    served = Site(berg)
    yield served
    served.end()


@pytest.fixture
def site_without_library(berg, tmp_path, monkeypatch):
    """A page as it is where the library of charts is not installed: what says so comes first."""
    about = tmp_path / "hidden/plotly-0.dist-info/METADATA"
    about.parent.mkdir(parents=True)
    about.write_text("Metadata-Version: 2.1\nName: plotly\nVersion: 0\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "hidden"))
    served = Site(berg, start=berg.start_python)  # a forked one has its path already
    yield served
    served.end()


def full(berg) -> None:
    """Jobs as they are when they are over: with metrics, samples, pictures, a sweep."""
    over(
        berg,
        "one",
        log="".join(f"\x1b[32mline {n}\x1b[0m <b>\n" for n in range(500)),
        env={"LR": "0.1"},
    )
    lines = "".join(
        json.dumps({"step": n, "loss": 1 / (n + 1), "accuracy": n / 100}) + "\n" for n in range(100)
    )
    berg.bucket.write("berg_results/one/metrics.jsonl", lines)
    picture = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'
    berg.bucket.write("berg_results/one/figures/a b?.svg", picture)
    for number, rate in enumerate(("0.1", "0.01", "1")):
        over(
            berg,
            f"grid-{number}",
            sweep="grid",
            params={"lr": rate, "opt": "adam"},
            results_dir=f"grid/{number}",
        )
        berg.bucket.write(
            f"berg_results/grid/{number}/metrics.jsonl", f'{{"loss": {3 - number}}}\n'
        )
    berg.bucket.write(".berg/sweeps/grid.json", json.dumps({"jobs": []}))


def test_opened_and_clicked_through(berg, site, browser):
    full(berg)
    browser.open(site.root)
    assert browser.eval(
        "[...document.querySelectorAll('#list tbody a')].map(a => a.textContent).sort()"
    ) == [
        "grid",
        "one",
    ]
    browser.click("#list tbody a[href='job/one/']")
    browser.wait(f"document.title.startsWith('one') && {DRAWN} >= 1")
    assert browser.eval("document.querySelectorAll('.log p').length") == 500
    assert browser.eval("document.querySelector('.log b')") is None, (
        "what the log has of HTML is text"
    )
    log = "document.querySelector('.log')"
    assert browser.eval(f"{log}.scrollTop + {log}.clientHeight >= {log}.scrollHeight - 2"), (
        "its end is seen"
    )
    assert browser.eval(SHOWN % (".log .f2", "color")) == "rgb(26, 127, 55)"
    picture = "document.querySelector('.picture img')"
    browser.eval(f"{picture}.scrollIntoView()")
    browser.wait(f"{picture}.complete && {picture}.naturalWidth === 9")
    browser.click("header .home")
    browser.wait("document.title.startsWith('Jobs') && document.readyState === 'complete'")
    # What lives is not put anew under somebody's click, which would come to nothing.
    browser.click("#list tbody a[href='sweep/grid/']", meanwhile="before.clear(); renew()")
    browser.wait("document.title.startsWith('grid')")
    order = "[...document.querySelectorAll('#list tbody tr')].map(row => row.dataset.job).join()"
    assert browser.eval(order) == "grid-0,grid-1,grid-2"
    browser.click("#list th:nth-child(7) button")
    assert browser.eval(order) == "grid-1,grid-0,grid-2", "numbers sort as numbers"
    browser.click("#list th:nth-child(7) button")
    assert browser.eval(order) == "grid-2,grid-0,grid-1"
    browser.wait(f"{DRAWN} >= 2")
    browser.hover("#list tbody tr:first-child td")
    browser.wait("document.querySelector('figure.parallel').dataset.lit === 'grid-2'")
    assert browser.eval("document.querySelectorAll('figure.scatter .point').length") == 3
    browser.hover("figure.scatter .point")
    browser.wait("document.querySelector('#list tr.lit')")
    told = browser.eval("document.querySelector('figure.scatter .hoverlayer').textContent")
    assert "grid-" in told and "loss" in told and "lr" in told
    browser.eval("filter.value = 'grid-1'; filter.oninput()")
    browser.wait("document.querySelectorAll('figure.scatter .point').length === 1")


@pytest.mark.slow
def test_charts_show_values_zoom_smooth_and_turn_logarithmic(berg, site, browser):
    full(berg)
    over(berg, "dot")
    berg.bucket.write("berg_results/dot/metrics.jsonl", '{"step": 7, "loss": 2}\n')
    browser.open(f"{site.root}job/one/")
    browser.wait(f"{DRAWN} >= 2")
    loss = "document.querySelector('figure[data-name=loss]')"
    browser.hover("figure[data-name=loss] .nsewdrag")
    browser.wait(f"{loss}.querySelector('.hoverlayer text')")
    told = browser.eval(f"{loss}.querySelector('.hoverlayer').textContent")
    assert any(each in told for each in ("490.02", "500.0196")), told
    middle = browser.middle("figure[data-name=loss] .nsewdrag")
    for kind, by in (("mousePressed", 0), ("mouseMoved", 60), ("mouseReleased", 60)):
        at = {"x": middle["x"] + by, "y": middle["y"]}
        browser.call(
            "Input.dispatchMouseEvent", type=kind, button="left", buttons=1, clickCount=1, **at
        )
    browser.wait(f"{loss}.matches('.zoomed')")
    axis = f"{loss}.querySelector('.plotted')._fullLayout.xaxis.range"
    low, high = browser.eval(axis)
    assert 40 < low < high < 80, "a part of the hundred steps"
    browser.click("figure[data-name=loss] label")
    assert browser.eval(f"{loss}.querySelector('.plotted')._fullLayout.yaxis.type") == "log"
    browser.eval(
        "(s => { s.value = 0.9; s.oninput() })(document.querySelector('.smoothing input'))"
    )
    drawn = f"{loss}.querySelector('.plotted').data"
    assert browser.eval(f"{drawn}.map(line => line.y.at(-1) > 0.011)") == [False, True]
    browser.open(f"{site.root}job/dot/")
    browser.wait(f"{DRAWN} === 1 && document.querySelector('.plotted .point')")


@pytest.mark.slow
def test_jobs_that_are_ticked_are_compared(berg, site, browser):
    full(berg)
    browser.open(site.root)
    for name in ("one", "grid"):
        browser.click(f"input[value={name}]")
    browser.eval("before.clear(); renew()")
    ticked = (
        "[...document.querySelectorAll('#list input:checked')].map(box => box.value).sort().join()"
    )
    assert browser.eval(ticked) == "grid,one", "ticks stay while the list comes anew"
    browser.click("#compare button")
    browser.wait(f"document.title.startsWith('Compared') && {DRAWN} >= 2")
    lines = "document.querySelector('figure[data-name=loss] .plotted').data"
    assert browser.eval(f"{lines}.map(line => line.name).sort()") == [
        "grid-0",
        "grid-1",
        "grid-2",
        "one",
    ]
    browser.hover("figure[data-name=loss] .nsewdrag")
    browser.wait("document.querySelector('figure[data-name=loss] .hoverlayer text')")
    browser.open(f"{site.root}compare/?job=grid-0&job=grid-1")
    browser.click("main p a")
    browser.wait("document.title.startsWith('What differs') || document.title.startsWith('That')")


@pytest.mark.slow
def test_what_jobs_wrote_is_no_markup_in_charts(berg, site, browser):
    name = "<img src=x onerror=alert(1)><b>bold"
    over(berg, "evil")
    berg.bucket.write("berg_results/evil/metrics.jsonl", json.dumps({"step": 1, name: 2}) + "\n")
    for folder in ("<b>one", "<a href=javascript:alert(1)>two"):
        lines = "".join(json.dumps({"step": n, name: n}) + "\n" for n in range(3))
        berg.bucket.write(f"berg_results/evil/{folder}/metrics.jsonl", lines)
    browser.open(f"{site.root}job/evil/")
    browser.wait(f"{DRAWN} >= 1")
    browser.hover("figure.lines .nsewdrag")
    browser.wait("document.querySelector('.hoverlayer text')")
    figure = "document.querySelector('figure.lines')"
    assert browser.eval(f"{figure}.querySelectorAll('img, b, a').length") == 0
    assert "<b>one" in browser.eval(f"{figure}.textContent")


@pytest.mark.slow
def test_without_the_library_the_page_says_how_to_install_it(berg, site_without_library, browser):
    full(berg)
    site = site_without_library
    for path in ("job/one/", "sweep/grid/", "compare/?job=grid-0&job=grid-1"):
        browser.open(site.root + path)
        note = browser.eval("document.querySelector('section .note').innerText")
        assert "pip install '/path/to/berg[page]'" in note
    browser.open(f"{site.root}job/one/")
    shown = browser.eval("document.querySelector('figure[data-name=loss]').innerText")
    assert "0.01" in shown, "its last value"
    assert browser.eval("document.querySelectorAll('.plotted').length") == 0


@pytest.mark.slow
def test_a_living_log_is_followed_without_jumping_and_the_job_ended(berg, site, browser):
    command = "seq 300; for n in $(seq 1000); do echo tick-$n; sleep 0.3; done"
    assert berg("run", "-g", "0", "-n", "lives", command).returncode == 0
    wait_for(lambda: "tick-1\n" in berg.log("lives"), 60)
    browser.open(f"{site.root}job/lives/")
    log = "document.querySelector('.log')"
    shown = f"Number({log}.innerText.trim().split('tick-').pop())"
    first = browser.eval(shown)
    browser.wait(f"{shown} > {first} + 5")
    assert browser.eval(f"{log}.scrollTop + {log}.clientHeight >= {log}.scrollHeight - 2"), (
        "who reads the end sees it"
    )
    browser.eval(f"{log}.scrollTop = 100")
    second = browser.eval(shown)
    browser.wait(f"{shown} > {second} + 5")
    assert browser.eval(f"{log}.scrollTop") == 100, "who reads above is left alone"
    numbers = browser.eval(
        f"[...{log}.querySelectorAll('p')].map(p => p.textContent).filter(t => t.startsWith('tick-'))"
    )
    assert numbers == [f"tick-{n}" for n in range(1, len(numbers) + 1)], (
        "nothing twice, nothing left out"
    )
    browser.eval("document.getElementById('find').focus()")
    for letter in "tick-3":
        browser.key(letter)
    assert browser.eval(
        f"[...{log}.querySelectorAll('p:not([hidden])')].every(p => p.textContent.includes('tick-3'))"
    )
    browser.click("h1 .danger")
    browser.wait("document.title.startsWith('End lives?')")
    browser.click("button.danger")
    browser.wait("document.title.startsWith('lives') && document.querySelector('.note')")
    wait_for(lambda: berg.state("lives")["state"] == "KILLED", 60)
    browser.wait("document.querySelector('.state').textContent.startsWith('KILLED')", 40)


LISTEN = """
import http.server, json, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(json.dumps([self.path, *self.headers.values()]), flush=True)
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<title>evil</title>")

server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
def test_a_port_of_another_user_gets_nothing_of_the_page(berg, site, browser):
    """Whether a link leads there, a picture is loaded from there or the page itself asks."""
    full(berg)
    command = ["/usr/bin/python3", "-c", LISTEN]
    as_other = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **as_other) as other:
        port = int(other.stdout.readline())
        browser.open(f"{site.root}job/one/")
        browser.eval(f"location.href = 'http://127.0.0.1:{port}/link'")
        browser.wait("document.title === 'evil'")
        browser.eval("document.body.append(Object.assign(new Image(), {src: '/picture'}))")
        heard = [other.stdout.readline(), other.stdout.readline()]
        other.terminate()
    assert "/link" in heard[0] and "Mozilla" in heard[0], heard
    token = site.root.rstrip("/").rpartition("/")[2]
    assert not [line for line in heard if token in line or str(site.port) in line], heard


@pytest.mark.slow
def test_on_a_phone_in_the_dark_and_by_keys(berg, site, browser):
    full(berg)
    browser.open(site.root)
    browser.size(390, 800)
    dark = [{"name": "prefers-color-scheme", "value": "dark"}]
    browser.call("Emulation.setEmulatedMedia", features=dark)
    assert browser.eval(SHOWN % ("body", "backgroundColor")) == "rgb(20, 22, 26)"
    for path in ("", "job/one/", "sweep/grid/"):
        browser.open(site.root + path)
        assert browser.eval("document.documentElement.scrollWidth") <= 390, (
            f"{path} is wider than the phone"
        )
    browser.open(site.root)
    browser.key("/")
    assert browser.eval("document.activeElement.id") == "filter"
    for letter in "gri":
        browser.key(letter)
    assert (
        browser.eval("[...document.querySelectorAll('#list tbody tr:not([hidden])')].length") == 1
    )
    browser.key("Escape")
    browser.key("j")
    assert browser.eval("document.activeElement.textContent") == "grid"


@pytest.mark.slow
@pytest.mark.parametrize("served", ["site", "site_without_library"])
def test_it_can_be_read_without_javascript(berg, browser, request, served):
    full(berg)
    site = request.getfixturevalue(served)
    browser.open(site.root)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    for path, words in (("", "grid"), ("job/one/", "line 499"), ("sweep/grid/", "0.01")):
        browser.open(site.root + path)
        assert words in browser.eval("document.body.innerText")
    browser.open(f"{site.root}job/one/")
    shown = browser.eval("document.querySelector('figure[data-name=loss]').innerText")
    assert "0.01" in shown, "its last value"


@pytest.mark.slow
def test_exported_files_open_from_disk(berg, browser, tmp_path):
    full(berg)
    folder = tmp_path / "out"
    assert berg("page", "--export", str(folder), "one", "grid").returncode == 0
    browser.open((folder / "index.html").as_uri())
    browser.click("#list tbody a[href='job/one/index.html']")
    browser.wait(f"document.title.startsWith('one') && {DRAWN} >= 1")
    browser.click("figure[data-name=loss] label")
    loss = "document.querySelector('figure[data-name=loss] .plotted')"
    browser.wait(f"{loss}._fullLayout.yaxis.type === 'log'")
    browser.eval("document.querySelector('.picture img').scrollIntoView()")
    browser.wait("document.querySelector('.picture img').naturalWidth === 9")
    browser.click("header .home")
    browser.wait("document.title.startsWith('Jobs')")
    assert not [each for each in browser.asked if each.startswith("http")]
