"""The page: who gets what from its server, and what a person sees in a real browser."""

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from chromium import MISSING, PROGRAM, Browser
from conftest import BERG, Cloud, commit, until
from records import put, put_row

from berg import gce
from berg.clients.page import data

MARKUP = "<img src=x onerror='document.title=1'>"
PROGRAM_OF_JOBS = r"""
import json, os, sys
lr = float(sys.argv[1])
results = os.environ["BERG_RESULTS_DIR"]
os.makedirs(results + "/plots")
with open(results + "/metrics.jsonl", "w") as file:
    for step in range(5000):
        file.write(json.dumps({"step": step, "loss": lr * 10 / (step + 1), "lr": lr / 2, "<i>": 1}) + "\n")
    file.write("broken\n")
open(results + "/page.html", "w").write("<script>document.title = 1</script>")
svg = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><script>alert(1)</script></svg>'
open(results + "/plots/a b?.svg", "w").write(svg)
open(results + "/weights.bin", "wb").write(bytes(11 << 20))
print("\x1b[32mgreen\x1b[0m <b>bold</b>")
"""


@contextlib.contextmanager
def page(cloud: Cloud, *words: str, env: dict[str, str] | None = None) -> Iterator[SimpleNamespace]:
    """A `berg page` that runs, and a way to ask it."""
    process = subprocess.Popen(
        [*BERG, "page", *words],
        env=env or cloud.env, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout
    address = process.stdout.readline().strip()

    def ask(path: str, method: str = "GET", **headers: str) -> requests.Response:
        return requests.request(method, address + path, headers=headers, timeout=30)

    try:
        yield SimpleNamespace(address=address, ask=ask)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def site(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The page of a sweep that has ended."""
    project = tmp_path_factory.mktemp("page") / "proj"
    commit(project, {"train.py": PROGRAM_OF_JOBS})
    words = ["-n", "pages", "--grid", "lr=0.1,0.01", "--note", MARKUP, "--env", "API_KEY=sesame"]
    cloud.ok("run", "-g", "0", *words, "--wait", "python3 train.py {lr}", cwd=project)
    until(lambda: not gce.machines(cloud.config))
    with page(cloud) as served:
        yield served


def test_only_its_own_page_gets_anything(site: Any) -> None:
    host, token = site.address.split("/")[2:4]
    own = site.ask("")
    assert own.ok and "Set-Cookie" not in own.headers
    assert "script-src 'self'" in own.headers["Content-Security-Policy"]
    assert requests.get(f"http://{host}/", timeout=30).status_code == 403
    assert requests.get(f"http://{host}/{token[:-1]}x/jobs", timeout=30).status_code == 403
    for headers in ({"Host": f"evil.example:{host[-5:]}"}, {"Origin": "http://evil.example"}):
        assert site.ask("jobs", **headers).status_code == 403
    assert site.ask("kill/pages?id=x", "POST").status_code == 403  # no Origin
    assert "another job" in site.ask("kill/pages?id=x", "POST", Origin=f"http://{host}").text
    for path in ("..%2F..%2F.berg%2Fjobs%2Fpages_state.json", "no-such-file", "%00"):
        assert site.ask(f"file/pages/{path}").status_code == 404


def test_files_of_a_job_run_nothing(site: Any) -> None:
    html = site.ask("file/pages%2F0/page.html")
    assert html.headers["Content-Type"].startswith("text/plain") and "<script>" in html.text
    picture = site.ask("file/pages%2F0/plots/a%20b%3F.svg")
    assert picture.headers["Content-Type"] == "image/svg+xml"
    weights = site.ask("file/pages%2F0/weights.bin")
    assert weights.headers["Content-Disposition"] == "attachment"
    assert len(weights.content) == 11 << 20
    for answer in (html, picture, weights):
        assert "; sandbox;" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_the_page_has_what_the_commands_print(cloud: Cloud, site: Any) -> None:
    listed = {row["name"]: row for row in site.ask("jobs").json()}
    printed = {row["name"]: row for row in json.loads(cloud.run("list", "--json").out)}
    assert listed["pages"] == printed["pages"]
    row, shown = site.ask("job/pages%2F1").json(), cloud.run("show", "pages/1", "--json").out
    same = ["state", "exit_code", "results", "metrics", "reason", "times"]
    assert {key: row[key] for key in same} == {key: json.loads(shown)[key] for key in same}
    assert row["command"] == "python3 train.py 0.01" and row["params"] == {"lr": "0.01"}
    assert row["series"]["loss"][0] == [0, 0.1] and len(row["series"]["loss"]) <= 600
    assert "1 line" in row["damaged"] and row["metadata"]["env"] == {"API_KEY": "…"}
    assert "sesame" not in json.dumps(row)
    assert site.ask("sweep/pages").json() == json.loads(cloud.run("sweep", "pages", "--json").out)
    log = site.ask("log/pages%2F1").json()
    assert "\x1b[32mgreen\x1b[0m <b>bold</b>\x1b[0m" in log["lines"]
    assert "green" in site.ask("text/pages%2F1").text
    more = site.ask("log/pages%2F1?from=" + json.dumps(log["read"])).json()
    assert more == {"lines": [], "read": log["read"], "skipped": 0}
    assert "berg list" in site.ask("job/no-such-job").json()["error"]


def test_a_line_that_is_half_written_repeats_nothing_of_an_earlier_log(cloud: Cloud) -> None:
    first, second = (f".berg/logs/twice/m.2026010{number}T000000.log" for number in (1, 2))
    cloud.bucket.write(first, b"one\ntwo\n", 0)
    cloud.bucket.write(second, b"three\nfo", 0)
    before = data.log(cloud.bucket, "twice", None, is_over=False)
    assert before["lines"] == ["one", "two", "three"]
    cloud.bucket.write(second, b"three\nfour\nfi")
    assert data.log(cloud.bucket, "twice", before["read"], is_over=True)["lines"] == ["four", "fi"]


# --- in a browser

needs_browser = pytest.mark.skipif(not PROGRAM, reason=MISSING)
TEXT = "document.querySelector({!r}).textContent"


@needs_browser
def test_a_job_and_a_comparison_as_people_see_them(cloud: Cloud, site: Any, tmp_path: Path) -> None:
    gpu = {"index": 0, "percent": 98}
    samples = [{"time": 60 * minute, "cpu_percent": 7, "gpus": [gpu]} for minute in (1, 2)]
    busy = "".join(json.dumps(sample) + "\n" for sample in samples).encode()
    cloud.bucket.write(".berg/logs/pages/0/m.20260101T000000.usage.jsonl", busy)
    with Browser(tmp_path) as browser:
        browser.size(400, 800)
        browser.open(site.address)
        browser.wait("document.querySelector('.list tbody tr')")
        row = 'document.querySelector("tr[data-job=pages]")'
        assert browser.eval(f"{row}.getBoundingClientRect().height") < 40  # one line
        assert browser.eval("document.documentElement.scrollWidth") <= 400
        assert MARKUP in browser.eval(f"{row}.textContent")
        browser.size(1400, 900)
        browser.click("tr[data-job=pages] a")
        browser.wait(
            "document.title.startsWith('pages') && document.querySelector('#rows tbody tr')"
        )
        for name in ("pages/0", "pages/1"):
            browser.click(f"tr[data-job='{name}'] input")
        columns = browser.eval("[...document.querySelectorAll('#rows th')].map(e => e.textContent)")
        assert columns.count("lr") == 1
        browser.click("#compare")
        browser.wait("document.querySelector('h1')?.textContent === '2 jobs compared'")
        columns = browser.eval("[...document.querySelectorAll('#rows th')].map(e => e.textContent)")
        assert columns == [
            "",
            "Name",
            "State",
            "Exit",
            "lr",
            "step",
            "loss",
            "<i>",
            "Command",
            "Reason",
        ]
        cells = browser.eval(
            "[...document.querySelectorAll('#rows tbody tr')].map(r => r.cells[4].textContent)"
        )
        assert cells == ["0.1", "0.01"]
        if data.library():
            browser.wait(
                "document.querySelectorAll('#rows figure.done, #metrics figure.done').length >= 3"
            )
            titles = "[...document.querySelectorAll('figure.chart')].map(f => f.dataset.title)"
            assert browser.eval(titles) == ["loss by lr", "<i> by lr", "<i>", "loss", "lr"]
        browser.open(f"{site.address}#job/pages%2F0")
        browser.wait("document.querySelector('#more') && document.querySelector('.log p')")
        parts = browser.eval("[...document.querySelectorAll('main > section')].map(e => e.id)")
        assert parts == ["top", "metrics", "log", "results", "busy", "more"]
        assert browser.eval(TEXT.format("#busy tbody")).startswith("GPU9898")
        if data.library():
            browser.eval("document.querySelector('#busy details').open = true")
            browser.eval("document.querySelector('#busy').scrollIntoView()")  # charts wait for that
            browser.wait("document.querySelectorAll('#busy figure.done').length >= 2")
        assert browser.eval(TEXT.format(".command pre")) == "python3 train.py 0.1"
        assert browser.eval(TEXT.format(".log .f2")) == "green"
        assert not browser.eval("document.querySelector('.log b, #metrics i')")
        assert not browser.errors, browser.errors
        assert all(url.startswith((site.address, "data:", "about:")) for url in browser.asked)


@pytest.mark.slow
@needs_browser
def test_a_job_that_runs_is_followed_and_ended_after_a_question(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    cmd = "echo begun; while sleep 1; do date >> $BERG_RESULTS_DIR/log.txt; echo tick; done"
    assert cloud.run("run", "-g", "0", "-n", "followed", cmd, cwd=project).code == 0
    with page(cloud) as site, Browser(tmp_path) as browser:
        browser.open(f"{site.address}#job/followed")
        browser.wait(
            "[...document.querySelectorAll('.log p')].filter(p => p.textContent === 'tick').length > 2"
        )
        browser.eval("window.confirm = text => { window.asked = text; return true }")
        browser.click("#top .danger")
        browser.wait("document.querySelector('#top .KILLED')", 60)
        assert "Its last results are saved" in browser.eval("window.asked")
        assert not browser.errors, browser.errors
    assert cloud.shown("followed")["state"] == "KILLED"


@needs_browser
def test_exported_files_open_from_disk(cloud: Cloud, site: Any, tmp_path: Path) -> None:
    folder = tmp_path / "for-ada"
    done = cloud.run("page", "--export", str(folder), "pages")
    assert done.code == 0 and "weights.bin of pages/0 is not among the files" in done.err
    assert b"sesame" not in (folder / "data.js").read_bytes()
    cloud.fails("page", "--export", str(folder), "pages", says="is not empty")
    with Browser(tmp_path) as browser:
        browser.open(f"file://{folder}/index.html#job/pages%2F0")
        browser.wait("document.querySelector('.log p') && document.querySelector('#more')")
        assert not browser.eval("document.querySelector('.danger')")
        links = "[...document.querySelectorAll('#results a, #log a')].map(a => a.href)"
        for link in browser.eval(links):
            assert Path(requests.utils.unquote(link.removeprefix("file://"))).exists(), link
        assert not browser.errors, browser.errors


def test_the_page_has_ones_own_jobs_and_ends_only_the_one_that_was_seen(cloud: Cloud) -> None:
    read = {".log": b"a\nb", ".LOG": b"1", ".jpg": b"2", ".json": b"{}", ".js": b"4", ".htm": b"5"}
    results = {f"sub/x{suffix}": content for suffix, content in read.items()}
    job = put(cloud, "p-live", "SUBMITTED", ago=100, user="paged", results=results, log=b"half")
    log = b"".join(b"%09d\n" % number for number in range(40_000))
    put(cloud, "p-done", user="paged", log=log, job={"env": {"Auth_x": "sesame", "LR": "1"}})
    put(cloud, "p-other", user="another")
    mine = {**cloud.env, "BERG_USER": "paged"}
    with page(cloud, "-a", env=mine) as site:
        assert {"p-live", "p-done", "p-other"} <= {row["name"] for row in site.ask("jobs").json()}
    with page(cloud, env=mine) as site:
        assert {row["name"] for row in site.ask("jobs").json()} == {"p-live", "p-done"}
        about = site.ask("site").json()
        assert about["user"] == "paged" and about["live"] is True
        assert about["where"] == f"{cloud.config.project} · gs://{cloud.config.bucket}"
        kinds = {suffix: site.ask(f"file/p-live/sub/x{suffix}") for suffix in read}
        types = {suffix: answer.headers["Content-Type"] for suffix, answer in kinds.items()}
        plain, any_ = "text/plain; charset=utf-8", "application/octet-stream"
        assert types == {".log": plain, ".LOG": plain, ".jpg": "image/jpeg", ".json": plain,
                         ".js": any_, ".htm": any_}  # fmt: skip
        assert all(answer.content == read[suffix] for suffix, answer in kinds.items())
        assert "no-store" in kinds[".log"].headers["Cache-Control"]
        for path in ("page.js", "page.css", "charts.js"):
            asset = site.ask(path)
            assert asset.ok and "sandbox" not in asset.headers["Content-Security-Policy"]
        found = site.ask("log/p-done").json()
        assert found["skipped"] == len(log) - (256 << 10) and found["lines"][-1] == "000039999"
        assert site.ask("log/p-live").json()["lines"] == []
        assert site.ask("log/p-live?over=1").json()["lines"] == ["half"]
        assert site.ask("text/p-done").content == log
        one = site.ask("job/p-done").json()
        assert one["metadata"]["env"] == {"Auth_x": "…", "LR": "1"} and one["rows"] == 0
        for wrong in ("log/p-done?from=[]", 'log/p-done?from={"x":-1}', "log/p-done?from={"):
            assert "no place in a log" in site.ask(wrong).json()["error"], wrong
        assert "nothing at this address" in site.ask("jobs/x").json()["error"]
        own = {"Origin": "/".join(site.address.split("/")[:3])}
        assert site.ask("job/p-live", "POST", **own).status_code == 404
        assert site.ask(f"kill/p-live?id={job.id}", "POST", Origin="null").status_code == 403
        assert site.ask("kill/p-live?id=0", "POST", **own).status_code == 404
        assert site.ask("job/p-live").json()["state"] == "SUBMITTED"
        assert site.ask(f"kill/p-live?id={job.id}", "POST", **own).json() == {}
        until(lambda: site.ask("job/p-live").json()["state"] == "KILLED")
        port = site.address.split("/")[2].rpartition(":")[2]
        cloud.fails("page", "--port", port, says=f"port {port} is not available")


def test_files_of_the_page_are_of_the_jobs_that_are_named(cloud: Cloud, tmp_path: Path) -> None:
    results = {"a.svg": b"<svg/>", "b.html": b"<p>", "sub/b.txt": b"2", ".git/config": b"x"}
    put(cloud, "e-one", results=results, log=b"\x1b[1mall\n")
    job = {"cmd": "t {x}", "rows": [{"x": "1"}, {"x": "2"}]}
    sweep = put(cloud, "e-sweep", job=job, results={"0/c": b"3"})
    put_row(cloud, sweep, 0, "SUCCEEDED", results="e-sweep/0")
    assert cloud.run("page", "--export", str(tmp_path / "out")).code == 2
    assert cloud.run("page", "e-one").code == 2
    done = cloud.run("page", "--export", str(tmp_path / "out"), "e-one", "e-sweep", "e-one")
    assert done.code == 0 and done.out == f"{tmp_path}/out/index.html\n", done.err
    assert ".git/config of e-one is not among the files" in done.err
    out = tmp_path / "out"
    files = {str(each.relative_to(out)) for each in out.rglob("*") if each.is_file()}
    assert {name for name in files if name.startswith(("file/", "text/"))} == {
        "file/e-one/a.svg.txt", "file/e-one/b.html.txt", "file/e-one/sub/b.txt", "file/e-sweep/0/c",
        "text/e-one.txt", "text/e-sweep.txt", "text/e-sweep/0.txt", "text/e-sweep/1.txt",
    }  # fmt: skip
    assert (out / "text/e-one.txt").read_bytes() == b"\x1b[1mall\n"
    answers = json.loads((out / "data.js").read_text().removeprefix("window.exported = "))
    assert [row["name"] for row in answers["jobs"]] == ["e-one", "e-sweep"]
    keys = {"site", "jobs", "job/e-one", "log/e-one", "job/e-sweep", "log/e-sweep", "sweep/e-sweep"}
    of_rows = {f"{what}/e-sweep%2F{row}" for what in ("job", "log") for row in (0, 1)}
    assert {*answers} == keys | of_rows
    assert not answers["site"]["live"]
    assert '<script src="data.js"></script>' in (out / "index.html").read_text()
