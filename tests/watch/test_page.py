"""`berg page`: who is let in, what its pages say, what it writes to disk."""

import json
import re
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest
import requests
from conftest import wait_for

from berg import job
from berg.google import events
from berg.watch import collect, page

EVIL = "<img src=x onerror=alert(1)>"


def over(
    berg, name: str, state: str = "SUCCEEDED", log: str = "", env: dict | None = None, **summary
) -> None:
    """What a job that is over left in the bucket."""
    folder = summary.get("results_dir", name)
    this = job.Job(
        name,
        f"python train.py # {EVIL}",
        folder,
        f"gs://b/{folder}",
        "proj",
        "0" * 40,
        "1" * 40,
        git_dirty=True,
    )
    this.created_at, this.created_by, this.snapshot = (
        job.now(),
        "tester",
        {"commit": "1" * 40, "branch": EVIL},
    )
    this.git_changed_files, this.env, this.secrets = [f"M {EVIL}.py"], env or {}, ["WANDB_TOKEN"]
    told = job.State(
        state, 0, EVIL if state == "FAILED" else "", machine=name, zone="us-central1-a"
    )
    told.finished_at, told.job = job.now(), replace(this.summary(), **summary)
    text = told.to_json()
    berg.bucket.write(job.metadata_path(name), this.to_json())
    berg.bucket.write(job.state_path(name), text, metadata={"state": text})
    if log:
        berg.bucket.write(f"{job.log_prefix(name)}{name}.1.log", log)


class Site:
    """A `berg page` that runs."""

    def __init__(self, berg, *more: str, start=None):
        self.process = (start or berg.start)("page", *more)
        self.root = self.process.stdout.readline().strip()
        self.port = urlsplit(self.root).port
        self.origin = f"http://127.0.0.1:{self.port}"
        self.session = requests.Session()
        self.session.trust_env = False

    def get(self, path: str, **headers: str) -> requests.Response:
        return self.session.get(self.root + path, headers=headers, allow_redirects=False)

    def post(self, path: str, **headers: str) -> requests.Response:
        return self.session.post(self.root + path, headers=headers, allow_redirects=False)

    def end(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=60)


@pytest.fixture
def site(berg):
    served = Site(berg)
    yield served
    served.end()
    assert served.process.returncode == 0


def test_nobody_is_let_in_without_the_token(berg, site):
    over(berg, "one")
    token = urlsplit(site.root).path.strip("/")
    origin = f"{site.origin}/"
    assert len(token) > 40 and site.get("").status_code == 200
    for path in (
        "",
        "/",
        "job/one/",
        "page.css",
        "wrong/",
        f"{token[:-1]}/",
        f"{token}x/job/one/",
        f"?token={token}",
        "%C3%A4/",
        f"job/one/log.txt?token={token}",
    ):
        answer = site.session.get(origin + path, headers={"Cookie": f"token={token}"})
        assert answer.status_code == 403 and token not in answer.text, path
        assert "one has" not in answer.text.replace("job/one", "")
    with socket.create_connection(("127.0.0.1", urlsplit(origin).port)) as connection:
        connection.sendall(f"GET job HTTP/1.1\r\nHost: {urlsplit(origin).netloc}\r\n\r\n".encode())
        assert b" 403 " in connection.recv(100)


def test_no_answer_sets_a_cookie_that_other_ports_would_get(berg, site):
    over(berg, "one")
    for path in ("", "job/one/", "page.css", "job/none/"):
        assert "Set-Cookie" not in site.get(path).headers


def test_another_name_for_this_computer_or_another_site_is_refused(site):
    port = urlsplit(site.root).port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port}.evil.example",
        f"localhost:{port + 1}",
        "",
    ):
        answer = site.get("", Host=host)
        assert answer.status_code == 403 and "known by its own address" in answer.text, host
    assert site.get("", Host=f"localhost:{port}").status_code == 200
    for origin in (
        "http://evil.example",
        "null",
        f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}.evil.example",
    ):
        assert site.get("", Origin=origin).status_code == 403, origin
        assert site.post("job/one/kill", Origin=origin).status_code == 403, origin
    assert site.post("job/one/kill").status_code == 403, "a form of ours says where it is from"
    with socket.create_connection(
        ("127.0.0.1", port)
    ) as connection:  # no Host at all, and two of them
        connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert b" 403 " in connection.recv(100)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(
            f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nHost: evil\r\n\r\n".encode()
        )
        assert b" 403 " in connection.recv(100)
    other = [
        each[4][0]
        for each in socket.getaddrinfo(socket.gethostname(), None)
        if not each[4][0].startswith("127.")
    ]
    for address in other:
        with pytest.raises(OSError):
            socket.create_connection((address, port), 1)


def test_every_answer_says_what_its_page_may_do(berg, site):
    over(berg, "one", log="hello\n")
    berg.bucket.write("berg_results/one/page.html", "<script>alert(1)</script>")
    berg.bucket.write("berg_results/one/picture.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>")
    for path in ("", "job/one/", "page.js", "nothing", "job/none/"):
        rules = site.get(path).headers["Content-Security-Policy"]
        assert (
            "default-src 'none'" in rules and "script-src 'self'" in rules and "unsafe" not in rules
        ), path
    html, svg, log = (
        site.get(f"job/one/{path}") for path in ("files/page.html", "files/picture.svg", "log.txt")
    )
    assert (
        html.headers["Content-Type"].startswith("text/plain")
        and svg.headers["Content-Type"] == "image/svg+xml"
    )
    for answer in (html, svg, log):
        assert "sandbox" in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert log.text == "hello\n"
    berg.bucket.write("berg_results/one/weights.bin", b"\0" * 100)
    binary = site.get("job/one/files/weights.bin")
    assert binary.headers["Content-Disposition"] == "attachment" and len(binary.content) == 100


def test_paths_lead_to_nothing_but_results(berg, site):
    over(berg, "one")
    berg.bucket.write("berg_results/other/x.txt", "not yours")
    here = quote(str(berg.home / "berg.json"), safe="")
    for path in (
        "job/one/files/../../other/x.txt",
        "job/one/files/..%2f..%2fother%2fx.txt",
        "job/one/files/%2e%2e/%2e%2e/other/x.txt",
        "job/one/files//x",
        "job/one/files/",
        f"job/one/files/{here}",
        "job/..%2f..%2fone/",
        "job/../../etc/passwd",
        "page.css/../serve.py",
        "serve.py",
        "job/one%00/",
        "job/one/files/a%00b",
        f"job/{quote(EVIL)}/",
        f"sweep/{quote(EVIL)}/",
        "sweep/..%2F/",
        "job/one/log?from=[1]",
        "job/one/log?from=%7B%22x%22:-1%7D",
        "job/one/log?from=x",
        f"job/one/log?from={'[' * 20_000}",
    ):
        request = requests.Request("GET", site.root).prepare()
        request.url = site.root + path  # as it stands: requests would tidy it
        answer = site.session.send(request, timeout=20, allow_redirects=False)
        assert answer.status_code == 404, f"{path}: {answer.status_code} {answer.text}"
        assert (
            "not yours" not in answer.text
            and EVIL not in answer.text
            and "Traceback" not in answer.text
        )


def test_a_log_cannot_be_read_beside_the_jobs_own(berg, site):
    over(berg, "one", log="mine\n")
    over(berg, "two", log="theirs\n")
    read_to = json.dumps({f"{job.log_prefix('two')}two.1.log": 0, job.metadata_path("two"): 0})
    answer = site.get(f"job/one/log?from={quote(read_to)}")
    assert answer.status_code == 200 and "mine" in answer.text and "theirs" not in answer.text


def test_what_comes_from_the_bucket_is_text(berg, site):
    log = f"\x1b[31m{EVIL}\x1b[0m\n\x1b]0;title\x07{EVIL}\n</div><script>alert(2)</script>\n"
    over(
        berg,
        "one",
        "FAILED",
        log=log,
        env={"A": EVIL, "MY_API_KEY": "hidden-away"},
        results_dir="one",
        user=EVIL,
        gpus=EVIL,
    )
    berg.bucket.write(f"berg_results/one/{EVIL}.png", b"")
    berg.bucket.write(
        f"berg_results/one/{EVIL}/metrics.jsonl",
        json.dumps({EVIL: 1.5}) + "\n" + '{"x": NaN, "y": [1]}\n[[[\n',
    )
    berg.bucket.write(
        f"{job.log_prefix('one')}one.1.usage.jsonl",
        f'{{"time": 1, "cpu_percent": 3, "{EVIL}": 4}}\n{{"time": "x"}}\n',
    )
    over(berg, "grid-0", sweep="grid", params={EVIL: EVIL}, results_dir="grid/0")
    over(berg, "grid-1", sweep="grid", params={EVIL: "1"}, results_dir="/abs")
    berg.bucket.write(
        "berg_results/grid/0/metrics.jsonl", json.dumps({EVIL: 0.5, "list": [EVIL]}) + "\n"
    )
    for name in (EVIL, "../../x", "a\tb", "Ünï"):
        text = job.State("FAILED", job=job.Summary("tester", EVIL, results_dir=EVIL)).to_json()
        berg.bucket.write(job.state_path(name), text, metadata={"state": text})
    for path in (
        "",
        "job/one/",
        "job/one/?find=img",
        f"job/one/?find={quote(EVIL)}",
        "sweep/grid/",
        "job/one/log?from=%7B%7D",
    ):
        answer = site.get(path)
        assert answer.status_code == 200, answer.text
        assert "<img src=x" not in answer.text and "<script>" not in answer.text, path
        assert "onerror" in answer.text, path
        assert "hidden-away" not in answer.text and "\x1b" not in answer.text, path
    shown = site.get("job/one/").text
    assert (
        '<span class="f1">&lt;img' in shown
        and "MY_API_KEY=…" in shown
        and "WANDB_TOKEN=… (a secret)" in shown
    )
    assert "../../x" in site.get("").text and 'href="job/../../x' not in site.get("").text


def test_of_long_lines_a_search_shows_what_is_around(berg, site):
    line = f"begin {'x' * 200_000} needle {'y' * 200_000} end\n"
    over(berg, "one", log=line * 20 + "z" * 300_000 + " needle in what has no end yet")
    shown = site.get("job/one/?find=NEEDLE").text
    assert (
        "21 lines of the log" in shown and shown.count("x needle y") == 20 and len(shown) < 100_000
    )
    assert "z needle in what has no end yet" in shown


def test_numbers_of_any_kind_make_a_page(berg, site):
    numbers = [9e307, -9e307, 5e-324, 0, 1e17]
    over(berg, "grid-0", sweep="grid", params={"lr": "1e308", "deep": "1"}, results_dir="grid/0")
    over(berg, "grid-1", sweep="grid", params={"lr": "-1e308", "deep": "2"}, results_dir="grid/1")
    for job_number in range(2):
        lines = [
            {"step": 10**n, "loss": value * (-1) ** job_number} for n, value in enumerate(numbers)
        ]
        text = (
            "".join(json.dumps(line) + "\n" for line in lines)
            + f'{{"x": {"[" * 5000}\n{{"same": 5e-324}}\n'
        )
        berg.bucket.write(f"berg_results/grid/{job_number}/metrics.jsonl", text)
    for path in ("sweep/grid/", "job/grid-0/"):
        answer = site.get(path)
        assert answer.status_code == 200, answer.text
        assert "loss" in answer.text and "data-figure" in answer.text, path
        assert "nan" not in answer.text.lower() and "Infinity" not in answer.text, path
    assert berg("fetch", "grid").returncode == 0


def test_a_job_that_is_over_is_shown_from_the_bucket_alone(berg, site):
    lines = "".join(f"line {n} of many\n" for n in range(40_000))
    over(berg, "one", log=lines)
    berg.bucket.write(
        "berg_results/one/metrics.jsonl",
        "".join(f'{{"step": {n}, "loss": {1 / (n + 1)}}}\n' for n in range(50)),
    )
    berg.bucket.write(
        f"{job.log_prefix('one')}one.1.usage.jsonl",
        "".join(
            f'{{"time": {n}, "cpu_percent": {n}, "gpus": [{{"index": 0, "percent": 9}}]}}\n'
            for n in range(1, 9)
        ),
    )
    shown = site.get("job/one/").text
    assert "line 39999 of many" in shown and "line 100 of many" not in shown, "the end of it"
    assert (
        "GPUs and TPUs" in shown
        and "one gpu0" in shown
        and '<tr><th scope="row">loss</th><td>0.02</td></tr>' in shown
    )
    assert "End it" not in shown and "data-follow" not in shown
    found = site.get("job/one/?find=LINE 77 ").text
    assert ">78</i>line 77 of many<" in found and "1 line of the log" in found
    assert len(site.get("job/one/log.txt").text) == len(lines)
    listed = site.get("").text
    assert 'href="job/one/"' in listed and "SUCCEEDED" in listed


def test_what_differs_between_two_jobs_is_shown(berg, site):
    for name, rate in (("one", "0.1"), ("two", "0.2")):
        over(berg, name, params={"lr": rate}, results_dir=name)
        lines = f'{{"step": 1, "loss": {rate}}}\n'
        berg.bucket.write(f"berg_results/{name}/metrics.jsonl", lines)
    shown = site.get("compare/?job=one&job=two").text
    assert "2 jobs compared" in shown and 'href="../diff/?job=one&amp;job=two"' in shown
    assert "<code>berg diff one two</code>" in shown
    assert site.get("compare/?job=../../x").status_code == 404
    assert site.get("compare/").status_code == 404
    assert site.get("diff/?job=one").status_code == 404
    assert site.get("diff/?job=one&job=nothing").status_code == 404


def test_commands_for_what_one_may_want_next_are_those_that_work(berg, site):
    over(berg, "good")
    over(berg, "bad", state="FAILED")
    assert "<code>berg fetch good</code>" in site.get("job/good/").text
    for name, wanted in (("good", False), ("bad", True)):
        shown = site.get(f"job/{name}/").text
        assert (f"<code>berg run --resume {name}</code>" in shown) == wanted
        assert f"<code>berg kill {name}</code>" not in shown, "it is over"


def test_the_list_asks_for_no_more_than_berg_list_does(berg, cloud, site):
    for number in range(5):
        over(berg, f"job-{number}")

    def counted(look) -> dict[str, int]:
        cloud.call("DELETE", "/_berg/requests")
        look()
        return cloud.call("GET", "/_berg/requests")["counts"]

    def without_tokens(counts: dict[str, int]) -> dict[str, int]:
        return {
            method: count
            for method, count in counts.items()
            if method.startswith(("compute", "storage"))
        }

    berg("list")  # which writes the index of the jobs that are over
    listed = without_tokens(counted(lambda: berg("list")))
    shown = without_tokens(counted(lambda: site.get("")))
    assert shown and all(count <= listed.get(method, 0) for method, count in shown.items())


@pytest.mark.slow
def test_what_machines_and_jobs_cost_is_shown_where_prices_are_known(berg, cloud, site):
    options = ("run", "-g", "8", "-t", "a100", "--spot", "--max-hours", "1")
    assert berg(*options, "-n", "dear", "sleep 60").returncode == 0
    assert berg("devbox", "-g", "2", "-t", "t4", "-n", "box").returncode == 0
    wait_for(
        lambda: berg.state("dear")["state"] == "RUNNING" and berg.state("dear")["ran_seconds"], 60
    )
    disk = 200 * 0.1 / 730
    listed = {each["type"]: each for each in json.loads(berg("gpus", "--json").stdout)}
    hourly = 8 * listed["a100"]["spot_usd_per_hour"] + disk
    shown = site.get("").text.partition('id="machines"')[2]
    cells = sorted(float(each) for each in re.findall(r"<td>\$([0-9.]+)</td>", shown))
    ages = {
        name: job.age_seconds(each["creationTimestamp"]) / 3600
        for name, each in cloud.instances().items()
        if name in ("box", berg.state("dear")["machine"])
    }
    box = ages.pop("box") * (0.35 * 2 + 16 * (0.031611 + 3.75 * 0.004237) + disk)
    (dear,) = (age * hourly for age in ages.values())
    assert cells == pytest.approx([box, dear], abs=0.02) and dear > 0.005
    told = re.search(
        r"<dt>Cost</dt><dd>\$([0-9.]+), at \$([0-9.]+) an hour \(list price",
        site.get("job/dear/").text,
    )
    assert told and float(told[1]) == pytest.approx(
        hourly * berg.state("dear")["ran_seconds"] / 3600, abs=0.02
    )
    assert f"${told[2]} an hour as Spot" in berg(*options, "--dry-run", "--json", "true").stderr


@pytest.mark.slow
def test_a_log_is_followed_and_a_job_ended_after_a_question(berg, site):
    command = "echo -n half; sleep 3; echo ' whole'; for n in $(seq 1000); do echo tick $n; sleep 0.5; done"
    assert berg("run", "-g", "0", "-n", "lives", command).returncode == 0
    wait_for(lambda: '<div class="rest"><p>half</p>' in site.get("job/lives/").text, 60)
    assert "data-follow" in site.get("job/lives/").text
    first = site.get("job/lives/log?from=%7B%7D")
    read_to = first.headers["Berg-From"]
    wait_for(lambda: "tick 2<" in site.get(f"job/lives/log?from={quote(read_to)}").text, 30)
    more = site.get(f"job/lives/log?from={quote(read_to)}")
    assert "half whole" in more.text, "a line that had no end comes whole"
    assert more.headers["Berg-Over"] == "" and "Checked out" not in more.text, (
        "what was shown does not come again"
    )
    listed = site.get("").text
    assert 'id="machines"' in listed and "us-central1-" in listed and "RUNNING" in listed
    question = site.get("job/lives/kill")
    assert "End lives?" in question.text and 'method="post"' in question.text
    assert berg.state("lives")["state"] == "RUNNING", "a look ends nothing"
    asked = site.post("job/lives/kill", Origin=site.origin)
    assert asked.status_code == 303 and "Ending lives" in site.get("job/lives/").text
    wait_for(lambda: berg.state("lives")["state"] == "KILLED", 60)
    wait_for(lambda: "Ended: KILLED" in site.get("job/lives/").text, 30)
    assert berg.machines() == {}
    ended = site.get(f"job/lives/log?from={quote(read_to)}")
    assert ended.headers["Berg-Over"] == "over"


def test_a_cluster_shows_whose_line_it_is(berg, site):
    over(berg, "pair", machines=2)
    for rank in (0, 1):
        berg.bucket.write(f"{job.log_prefix('pair')}pair-{rank}.1.log", f"from {rank}\n")
    assert "<b>pair-1 | </b>from 1" in site.get("job/pair/").text


@pytest.mark.slow
def test_many_at_once_get_their_answers_and_memory_is_held(berg, site):
    over(berg, "one", log="x\n" * 1000)
    answers: list[int] = []
    threads = [
        threading.Thread(target=lambda: answers.append(site.get("job/one/").status_code))
        for _ in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200] * 12

    def resident() -> int:
        return int(
            re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{site.process.pid}/status").read_text())[1]
        )

    before = resident()
    for _ in range(60):
        assert site.get("job/one/").ok
    assert resident() - before < 20_000, "kB more"


def test_trouble_with_the_cloud_is_a_sentence_and_passes(berg, cloud, site):
    over(berg, "one")
    cloud.fault("storage.objects.list", status=403, times=1)
    answer = site.get("")
    assert (
        answer.status_code == 502
        and "That did not work" in answer.text
        and "Traceback" not in answer.text
    )
    assert site.get("").status_code == 200


def test_of_a_large_event_file_the_page_says_that_it_shows_the_beginning(
    berg, tmp_path, monkeypatch
):
    over(berg, "long")
    events.write(tmp_path / "tfevents", {"loss": [(step, 1.0, 1000.0) for step in range(200)]})
    berg.bucket.write("berg_results/long/tfevents", (tmp_path / "tfevents").read_bytes())
    settings = berg.cloud.settings(berg.bucket_name)
    whole = "".join(map(str, page.metric_charts(collect.about(settings, berg.bucket, "long"))))
    assert "berg tensorboard" not in whole and "loss" in whole
    monkeypatch.setattr(collect, "LARGEST", 1000)
    collect.numbers.cache_clear()
    cut = "".join(map(str, page.metric_charts(collect.about(settings, berg.bucket, "long"))))
    assert "Of tfevents only the first" in cut and "berg tensorboard long" in cut and "loss" in cut
    collect.numbers.cache_clear()


def test_export_writes_files_that_need_no_server(berg, tmp_path):
    over(berg, "one", log="\x1b[32mgreen\x1b[0m\n")
    berg.bucket.write("berg_results/one/plot.png", b"png")
    berg.bucket.write("berg_results/one/big.bin", b"\0" * (11 << 20))
    berg.bucket.write("berg_results/one/../../../outside.txt", b"no")
    over(berg, "grid-0", sweep="grid", params={"lr": "0.1"}, results_dir="grid/0")
    over(berg, "grid-1", sweep="grid", params={"lr": "0.2"}, results_dir="grid/1")
    berg.bucket.write(job.sweep_path("grid"), json.dumps({"jobs": ["grid-0", "grid-1"]}))
    for number in (0, 1):
        berg.bucket.write(
            f"berg_results/grid/{number}/metrics.jsonl", f'{{"loss": 0.{number + 1}}}\n'
        )
    over(berg, "unasked")
    folder = tmp_path / "out"
    ran = berg("page", "--export", str(folder), "one", "grid")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.strip() == str(folder / "index.html")
    assert "big.bin is not among the files: it is larger than 10 MiB" in ran.stderr
    assert "outside.txt is not among the files" in ran.stderr and not list(
        tmp_path.rglob("outside.txt")
    )
    assert (folder / "job/one/files/plot.png").read_bytes() == b"png"
    assert "green" in (folder / "job/one/log.txt").read_text()
    first = (folder / "index.html").read_text()
    assert (
        'href="job/one/index.html"' in first
        and "unasked" not in first
        and "data-every" not in first
    )
    assert berg("page", "--export", str(tmp_path / "part"), "grid-0").returncode == 0
    assert 'href="job/grid-0/index.html"' in (tmp_path / "part/index.html").read_text()
    for shown in [*folder.rglob("*.html"), *(tmp_path / "part").rglob("*.html")]:
        for target in re.findall(r'(?:href|src)="([^":]+)"', shown.read_text()):
            assert (shown.parent / target).exists() or "big.bin" in target or "outside" in target, (
                f"{shown}: {target}"
            )
    assert "loss by lr" in (folder / "sweep/grid/index.html").read_text()
    again = berg("page", "--export", str(folder), "one")
    assert again.returncode == 1 and "is not empty" in again.stderr
    missing = berg("page", "--export", str(tmp_path / "x"), "nope")
    assert (
        missing.returncode == 1
        and "there is no job or machine 'nope'" in missing.stderr
        and not (tmp_path / "x").exists()
    )


def test_wrong_usage(berg):
    assert berg("page", "one").returncode == 2 and berg("page", "--export", "x").returncode == 2
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ran = berg("page", "--port", str(taken.getsockname()[1]))
    assert ran.returncode == 1 and "is not available" in ran.stderr


def test_a_page_has_a_limit_whatever_a_job_wrote(berg, site):
    """As a terminal has: 1.4 MB of metrics were 49 MB of charts."""
    over(berg, "one")
    many = {f"metric{number:06}": number / 7 for number in range(40_000)}
    long = {"x" * 100_000: 1, "loss": 2}
    lines = "".join(json.dumps(each) + "\n" for each in (many, long, {"loss": 3}))
    berg.bucket.write("berg_results/one/metrics.jsonl", lines)
    shown = site.get("job/one/")
    assert shown.status_code == 200 and len(shown.content) < 3 << 20
    assert "more lines did not fit on this page" in shown.text and "x" * 1000 not in shown.text
    over(berg, "wide-0", sweep="wide", params={"a": "1"}, results_dir="wide/0")
    last = json.dumps({f"m{number}": number for number in range(1000)})
    berg.bucket.write("berg_results/wide/0/metrics.jsonl", last)
    wide = site.get("sweep/wide/")
    assert wide.status_code == 200 and wide.text.count("<th") < 200
