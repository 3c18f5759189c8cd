"""Hostile: what others wrote into the bucket, a repository or a folder harms no laptop.

Records differ between bergs. So a genuine job is copied under other names, with something odd in one
of the fields that it has.
"""

import contextlib
import gzip
import json
import re
import shlex
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import requests

from accept.suite import Missing, Red, all_hold, check, row
from accept.world import UNKNOWN, Done, Laptop, Trial

ODD = {"Cc", "Cf", "Co", "Cn"}  # control characters, and letters that nobody sees
COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
COPIES = 8
MEMORY = 1_000_000  # kB of data that a command may have
RECORDS = (".berg/jobs/", ".berg/machines/")
PLAN = ["run", "-g", "0", "--dry-run", "true"]
Change = Callable[[Any], Any]


def steers(text: str) -> str:
    """The first odd character of a text, with what is before it; "" if there is none."""
    found = (
        f"U+{ord(letter):04X} after {text[max(0, place - 40) : place]!r}"
        for place, letter in enumerate(text)
        if unicodedata.category(letter) in ODD and letter not in "\n\t"
    )
    return next(found, "")


REPOSITORIES = """
git init -q --bare bare
git init -q inner
cd inner
echo one > file
git add -A
git -c user.name=t -c user.email=t@example.com commit -q -m one
echo two > file
echo '* filter=evil' > .gitattributes
"""


class Traps:
    """Programs that nobody may start, places where nobody may write, and a berg of little memory."""

    def __init__(self, t: Trial) -> None:
        self.t, self.mark = t, f"escaped-{t.prefix}"
        self.folder, self.outside = t.repo.with_name("traps"), t.repo.with_name("outside")
        for folder in (self.folder, self.outside):
            folder.mkdir()
        small = self.script("berg", f'ulimit -d {MEMORY}\nexec {t.laptop.berg} "$@"\n')
        self.laptop = Laptop(str(small), t.laptop.home, t.told)
        t.ending.callback(self.wipe)
        t.cloud.settings(write_interval=0)  # what others write is not limited to once a second

    def wipe(self) -> None:
        """No hostile object is left for the rows that come after."""
        for name in self.t.cloud.objects():
            if self.t.prefix in name:
                self.t.cloud.remove(name)
        shutil.rmtree(self.t.folder / "berg_results", ignore_errors=True)

    def script(self, name: str, lines: str) -> Path:
        path = self.folder / f"{name}.sh"
        path.write_text(f"#!/bin/sh\n{lines}")
        path.chmod(0o755)
        return path

    def program(self, name: str) -> Path:
        """A program that notes that it ran, and passes on what it reads."""
        return self.script(name, f"touch '{self.folder / name}'\ncat\n")

    def evil(self, text: str) -> str:
        return text.replace("MARK", self.mark).replace("CANARY", str(self.program("canary")))

    def ran(self) -> list[Path]:
        return [path for path in self.folder.iterdir() if path.suffix != ".sh"]

    def tried(self, *words: str, cwd: Path | None = None) -> Done:
        """Run berg, which may refuse; it says nothing odd, ends soon, and springs no trap."""
        done = self.laptop(*words, cwd=cwd or self.t.repo, timeout=90)
        if done.code == 2 and UNKNOWN.search(done.err):
            raise Missing(done.last)
        odd = steers(done.out) or steers(done.err)
        places = [*self.t.repo.parents, Path("/root"), Path("/tmp")]
        found = [path for place in places for path in place.glob(f"*{self.mark}*")]
        found += [*self.outside.iterdir(), *self.t.repo.rglob(f"*{self.mark}*")]
        told = f"berg {' '.join(words)[:60]!r}"
        all_hold(
            {
                f"{told}: ended by signal {-done.code}": done.code >= 0,
                f"{told}: needs {MEMORY:,} kB of memory": "MemoryError" not in done.err,
                f"{told}: prints {odd}": not odd,
                f"{told}: started {[path.name for path in self.ran()]}": not self.ran(),
                f"{told}: wrote {[str(path) for path in found]}": not found,
            }
        )
        return done

    def fetched(self, job: str, into: Path) -> Done:
        """Fetch; no link leads out of the folder."""
        done = self.tried("fetch", job, str(into))
        links = [path for path in into.rglob("*") if path.is_symlink()]
        out = [path.name for path in links if not path.resolve().is_relative_to(into.resolve())]
        check(not out, f"berg fetch: {out} lead out of the folder")
        return done

    def settings(self, folder: Path) -> None:
        """Let a repository's own settings and hooks name programs."""
        keys = "core.fsmonitor core.sshCommand diff.external filter.evil.clean filter.evil.smudge"
        for key in keys.split():
            self.t.git("config", "--file", str(folder / "config"), key, str(self.program(key)))
        for hook in ("post-checkout", "post-index-change", "pre-commit", "reference-transaction"):
            shutil.copy(self.program(hook), folder / "hooks" / hook)

    def lay(self, folder: Path) -> None:
        """Python's modules, a bare repository, and one with changes that git would look at."""
        folder.mkdir(exist_ok=True)
        for name in ("sitecustomize", "usercustomize", "json", "berg", "click", "google"):
            (folder / f"{name}.py").write_text(f"open({str(self.folder / name)!r}, 'w')\n")
        subprocess.run(["sh", "-ec", REPOSITORIES], cwd=folder, check=True)
        for git in (folder / "bare", folder / "inner/.git"):
            self.settings(git)


# --- genuine records, and copies with something odd


def genuine(t: Trial) -> str:
    """A job that is over, with results; its command fails, so that it can be resumed."""
    made = "mkdir $BERG_RESULTS_DIR/deep; echo x >$BERG_RESULTS_DIR/deep/plainfile"
    return t.ran(f"{made}; ln -s nowhere-at-all $BERG_RESULTS_DIR/thelink; exit 3", ends="FAILED")


def parsed(text: bytes | str) -> Any:
    """What JSON says, None if it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    return None


def keys_of(value: Any) -> Iterator[tuple[str, Any]]:
    """All keys of dictionaries in a value, with what they have."""
    for key, inner in value.items() if isinstance(value, dict) else ():
        yield key, inner
        yield from keys_of(inner)


def poisoned(value: Any, key: str, evil: Any) -> Any:
    """The value with something odd behind each such key; a text goes into a list that was there."""
    if not isinstance(value, dict):
        return value
    new = {name: poisoned(inner, key, evil) for name, inner in value.items()}
    if key in new:
        shapes = {list: [evil], dict: {"A": evil}} if isinstance(evil, str) else {}
        new[key] = shapes.get(type(new[key]), evil)
    return new


def rewritten(data: bytes, about: dict[str, str], change: Change) -> tuple[bytes, dict[str, str]]:
    """An object's bytes and its metadata, when the values in their JSON are changed."""
    if (value := parsed(data)) is not None:
        new = change(value)
        data = new if isinstance(new, bytes) else json.dumps(new).encode()
    told = change({key: parsed(text) or text for key, text in about.items()})
    pairs = told.items() if isinstance(told, dict) else ()
    texts = {key: each if isinstance(each, str) else json.dumps(each) for key, each in pairs}
    return data, {key: text for key, text in texts.items() if len(text) < 5000}


def opened(data: bytes) -> bytes:
    return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data


def closed(text: bytes, like: bytes) -> bytes:
    return gzip.compress(text) if like[:2] == b"\x1f\x8b" else text


class Copies:
    """The objects of a genuine job, to be written again under other names."""

    def __init__(self, t: Trial, job: str) -> None:
        self.t, self.job = t, job
        self.found = {
            name: (t.cloud.read(name) or b"", about.get("metadata") or {})
            for name, about in t.cloud.objects().items()
            if job in name
        }
        self.records = {n: each for n, each in self.found.items() if n.startswith(RECORDS)}
        values = [parsed(data) for data, _ in self.records.values()]
        self.keys = {key: inner for value in values for key, inner in keys_of(value)}

    def write(self, new: str, change: Callable[[str, Any], Any] | None = None) -> None:
        """Write a copy; `change(object name, value)` is what stands for a JSON value then."""
        for name, (data, metadata) in self.found.items():
            text = opened(data).replace(self.job.encode(), json.dumps(new)[1:-1].encode())
            about = {key: told.replace(self.job, new) for key, told in metadata.items()}
            if change and name.startswith(".berg/"):
                text, about = rewritten(text, about, lambda value, n=name: change(n, value))
            self.t.cloud.write(name.replace(self.job, new), closed(text, data), about)


READERS = [
    ["log"],
    ["rerun", "--dry-run"],
    ["run", "--dry-run", "--resume"],
    ["wait"],
    ["run", "--dry-run", "--json", "--resume"],
]
EVILS: dict[str, list[Any]] = {
    "paths": ["../../../../MARK", "/tmp/MARK", "../../.git/hooks/MARK", "a/../../../../MARK"],
    "options": [
        "--upload-pack=CANARY",
        "-oProxyCommand=CANARY",
        "$(CANARY)",
        "x;CANARY",
        "`CANARY`",
    ],
    "escapes": ["\x1b]0;evil\x07\x9b31m\u202eevil\nforged\r\b", "\x1b[2Jevil"],
    "invisible": ["evil\u200b\u2060", "\U000e0041\ue000evil", "\ufeffevil"],
    "types": [7, -1, 1e308, 10**400, True, None, "", [], {}, [[]], {"a": {"b": []}}, "x" * 10**6],
    "damage": [
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"state": "SUCC',
        b"",
        b"[]",
        b"null",
        b'{"state": NaN, "exit_code": Infinity}',
        b"\xff\xfe\x00{}",
        b'{"exit_code": ' + b"9" * 10_000 + b"}",
    ],
}


@row("hostile", "paths in a record lead to no other file", name="records, paths", kind="paths")
@row("hostile", "words in a record start no program", name="records, options", kind="options")
@row("hostile", "escapes in a record steer no terminal", name="records, escapes", kind="escapes")
@row(
    "hostile", "letters that nobody sees are not shown", name="records, invisible", kind="invisible"
)
@row("hostile", "a field of an odd type or size stops nobody", name="records, types", kind="types")
@row("hostile", "a damaged record stops nobody", name="records, damage", kind="damage")
def records(t: Trial, kind: str) -> None:
    """What a user would type about jobs with odd records; a sound one stays in the list."""
    traps = Traps(t)
    copies = Copies(t, sound := genuine(t))
    texts = [key for key, value in copies.keys.items() if not isinstance(value, int | float)]
    keys = {"types": [*copies.keys], "damage": ["_state.json", "_metadata.json", ".berg/"]}
    jobs = [f"{sound[:-3]}k{number:02}" for number in range(COPIES)]
    for number, job in enumerate(jobs):
        key, evil = t.dice.choice(keys.get(kind, texts)), t.dice.choice(EVILS[kind])
        if isinstance(evil, str):
            evil = traps.evil(evil)
        if kind == "damage":
            copies.write(job, lambda name, value, k=key, e=evil: e if k in name else value)
        else:
            copies.write(job, lambda name, value, k=key, e=evil: poisoned(value, k, e))
        try:
            for words in (["show"], ["fetch"], READERS[number % len(READERS)]):
                traps.tried(*words, job)
        except Red as error:
            raise Red(f"{key}={str(evil)[:40]!r}: {error}") from None
    for words in (["list", "-a"], ["list", "-a", "--json"]):
        said = traps.tried(*words)
        check(said.code == 0, f"berg {' '.join(words)}: exit {said.code}: {said.last}")
        check(sound in said.out, f"berg {' '.join(words)} has lost a sound job")
    for verb in ("kill", "rm"):
        traps.tried(verb, "-y", *jobs)
    check(t.state(sound), "the record of a sound job is gone")


LATER = {"format": 99, "features": {"unheard": {"of": 1}}, "unknown": "field"}


def spoil(t: Trial, job: str, how: str) -> None:
    """Another format, damaged, or missing: all records of a job and its machines."""
    for name, (data, about) in Copies(t, job).records.items():
        if how == "missing":
            t.cloud.remove(name)
        elif how == "damaged":
            t.cloud.write(name, b"{]")
        else:
            t.cloud.write(name, *rewritten(data, about, lambda value: {**value, **LATER}))


NAMED = "list, log, fetch and kill work by name: "


@row("hostile", NAMED + "a later format", name="works by name, later format", how="format")
@row("hostile", NAMED + "damaged records", name="works by name, damaged", how="damaged")
@row("hostile", NAMED + "no records", name="works by name, missing", how="missing")
def by_name(t: Trial, how: str) -> None:
    traps = Traps(t)
    job = t.run("echo hello; echo x >$BERG_RESULTS_DIR/out; sleep 1000")
    t.until(lambda: t.results(job).get("out") and "hello" in t.log(job), "a running job", 90, 1)
    spoil(t, job, how)
    listed = traps.tried("list", "-a", "--json")
    spoil(t, job, how)  # its worker may have written one again
    fetched = traps.fetched(job, into := t.repo.with_name("got"))
    killed = traps.tried("kill", "-y", "--now", job)
    with contextlib.suppress(Red):
        t.gone(45)
    log = traps.tried("log", job)
    all_hold(
        {
            f"list: {listed.last}": job in listed.out,
            f"fetch: {fetched.last}": list(into.rglob("out")),
            f"kill: {killed.last}": not t.machines(job),
            f"log: {log.last}": "hello" in log.out,
        }
    )


@row("hostile", "an object that unpacks to much more does not fill memory or disk")
def bombs(t: Trial) -> None:
    traps = Traps(t)
    copies = Copies(t, sound := genuine(t))
    bomb = gzip.compress(bytes(1_500_000_000), 1)
    for kind in (
        "_state.json",
        "_metadata.json",
        ".berg/machines/",
        ".berg/views/",
        ".berg/moments/",
    ):
        copies.write(job := f"{sound[:-3]}{kind.strip('_.berg/')[:3]}")
        for name in [name for name in t.cloud.objects() if kind in name and job in name]:
            packed = {"contentEncoding": "gzip"} if name.endswith(".json") else {}
            t.cloud.write(name, bomb, **packed)
        for words in (["show", job], ["fetch", job], ["list", "-a"]):
            said = traps.tried(*words)
        check(sound in said.out, "berg list has lost a sound job")
    size = sum(path.lstat().st_size for path in (t.folder / "berg_results").rglob("*"))
    check(size < 50_000_000, f"berg fetch wrote {size:,} bytes")


NAMES = ["../MARK", "../../../../MARK", "/tmp/MARK", "deep/../../../MARK", "..\\MARK", "deep//MARK"]
NAMES += [
    ".git/hooks/MARK",
    "\x1b]0;MARK\x07",
    "MARK\u202e",
    "-oMARK",
    "./MARK",
    "deep/plainfile/MARK",
]


@row(
    "hostile",
    "results are written nowhere else: by their names, or a link in the folder of a fetch",
)
def result_names(t: Trial) -> None:
    traps, job, folder = Traps(t), genuine(t), t.name("folder")
    for name in NAMES:
        for into in (job, folder):
            with contextlib.suppress(requests.HTTPError):  # Google takes no such name
                t.cloud.write(f"berg_results/{into}/{traps.evil(name)}", b"x")
    traps.tried("show", job)
    traps.fetched(job, into := t.repo.with_name("got"))
    check((into / "deep/plainfile").is_file(), "a sound result is not fetched")
    shutil.rmtree(into / "deep")
    (into / "deep").symlink_to(traps.outside)
    traps.tried("fetch", job, str(into))
    traps.fetched(folder, t.repo.with_name("folder"))
    traps.tried("rm", "-y", job)


LINKS = ["OUTSIDE", "../outside", "../../outside", "/etc", "deep/../../outside", "."]


@row("hostile", "lists of results with odd paths and links lead out of no folder")
def moments(t: Trial) -> None:
    """The list of a moment names an object of the odd path, with its generation."""
    traps = Traps(t)
    copies = Copies(t, job := genuine(t))
    folder = f"berg_results/{job}/"
    before = t.cloud.objects(folder)[folder + "deep/plainfile"]["generation"]
    tries = [(name, "nowhere-at-all") for name in NAMES] + [
        ("thelink/MARK", link) for link in LINKS
    ]
    for number, (odd, link) in enumerate(t.dice.sample(tries, COPIES)):
        path = traps.evil(odd)
        with contextlib.suppress(requests.HTTPError):
            t.cloud.write(folder + path, b"x\n")
        about = t.cloud.objects(folder).get(folder + path, {})
        words = {"deep/plainfile": json.dumps(path)[1:-1], before: about.get("generation", before)}
        words["nowhere-at-all"] = link.replace("OUTSIDE", str(traps.outside))
        for name, (data, metadata) in copies.found.items():
            text = opened(data).decode(errors="replace")
            for old, new in words.items():
                text = text.replace(old, new)
            if name.startswith(".berg/") and "/jobs/" not in name:
                t.cloud.write(name, closed(text.encode(), data), metadata)
        for _ in range(2):  # the first may have placed a link
            traps.fetched(job, t.repo.with_name(f"got{number}"))


@row("hostile", "what a machine's records say leads ssh nowhere else")
def machine_records(t: Trial) -> None:
    traps, box = Traps(t), t.devbox()
    first = t.ok("ssh", box, "--", "hostname").out
    copies = Copies(t, box)
    odd = ["-oProxyCommand=CANARY", "10.9.9.9", "x;CANARY", "../MARK", "4444"]
    for key in t.dice.sample([*copies.keys], COPIES):
        evil = traps.evil(t.dice.choice(odd))
        for name, (data, about) in copies.records.items():
            t.cloud.write(name, *rewritten(data, about, lambda v, k=key, e=evil: poisoned(v, k, e)))
        said = traps.tried("ssh", box, "--", "hostname")
        check(said.code or said.out == first, f"{key}={evil!r}: ssh went to {said.out!r}")


@row("hostile", "jobs with odd names in the bucket steer nothing, and hide no other job")
def job_names(t: Trial) -> None:
    traps = Traps(t)
    copies = Copies(t, sound := genuine(t))
    odd = ["..", "-oProxyCommand=CANARY", "MARK" + "x" * 300, "MARK,a=b", "$(CANARY)", "MARK\tb"]
    for name in [*NAMES, *odd]:
        with contextlib.suppress(requests.HTTPError):
            copies.write(f"{traps.evil(name)}{t.prefix}")
    for words in (["list", "-a"], ["list", "-a", "--json"], ["show", sound], ["fetch", sound]):
        said = traps.tried(*words)
        check(said.code == 0 and sound in said.out + said.err, f"berg {words[0]}: {said.last}")
    traps.tried("kill", "-y", f"{t.prefix}-*")


@row("hostile", "odd names on the command line are refused in a sentence", is_sample=True)
def typed_names(t: Trial) -> None:
    traps = Traps(t)
    for command in ("ssh", "fetch", "log", "show", "kill", "rm", "wait"):
        odd = t.dice.choice(
            ["../../MARK", "-oProxyCommand=CANARY", "x\x1b]0;evil\x07", "a\nforged"]
        )
        said = traps.tried(command, "--", traps.evil(odd))
        check(said.code == 1 and said.err.strip(), f"berg {command} {odd!r}: exit {said.code}")
    for odd in ("../MARK", "-oMARK", "x\x1b[2J"):
        said = traps.tried("run", "-g", "0", "--dry-run", f"--name={traps.evil(odd)}", "true")
        check(said.code in (1, 2), f"a job may be called {odd!r}")


@row("hostile", "fetched results start no program in the folder where they are")
def fetched_traps(t: Trial) -> None:
    traps = Traps(t)
    traps.lay(made := t.repo.with_name("made"))
    shutil.copytree(made / "inner/.git", made / ".git")
    subprocess.run(["tar", "-czf", str(t.repo / "all.tar.gz"), "-C", str(made), "."], check=True)
    t.git("add", "all.tar.gz")
    job = t.ran("tar -xzf all.tar.gz -C $BERG_RESULTS_DIR; true")
    for into in (t.repo.with_name("got"), t.repo / "got"):
        traps.fetched(job, into)
        traps.tried("fetch", job, str(into), cwd=into)
        for folder in (into, into / "inner", into / "bare", t.repo):
            if folder.is_dir():
                traps.tried(*PLAN, cwd=folder)


@row("hostile", "a repository from an archive starts no program when berg is used in it")
def repository_traps(t: Trial) -> None:
    traps = Traps(t)
    traps.lay(t.repo)
    traps.settings(t.repo / ".git")
    for path in traps.ran():
        path.unlink()
    for folder in (t.repo, t.repo / "bare", t.repo / "inner"):
        for words in (
            ["list"],
            ["doctor"],
            ["fetch", t.name("none")],
            *[PLAN] * (folder.name != "inner"),
        ):
            traps.tried(*words, cwd=folder)
    said = traps.tried("run", "-g", "0", "-n", t.name("job"), "true")
    check(said.code == 0, f"berg run: {said.last}")
    t.ended(t.name("job"), "SUCCEEDED")


@row("hostile", "a machine runs only the job and the Berg that its laptop sent")
def replaced(t: Trial) -> None:
    Traps(t)
    t.cloud.settings(delay=15)
    with ThreadPoolExecutor(1) as pool:  # a submit waits for its machine

        def submitted(command: str, name: str) -> Future[str]:
            running = pool.submit(t.run, command, name=name)
            t.until(lambda: t.cloud.read(f".berg/jobs/{t.name(name)}_state.json"), "a state")
            return running

        submit = submitted("echo honest >$BERG_RESULTS_DIR/said; echo honest", "job")
        found = Copies(t, t.name("job")).records
        check(any(b"honest" in data for data, _ in found.values()), "no record has the command")
        for name, (data, about) in found.items():
            t.cloud.write(name, data.replace(b"honest", b"wicked"), about)
        t.ended(job := submit.result(), "FAILED")
        submit = submitted("echo honest", "second")
        for name in t.cloud.objects(".berg/dist/"):
            t.ending.callback(t.cloud.write, name, t.cloud.read(name) or b"")
            t.cloud.write(name, b"evil")
        t.until_log(second := submit.result(), "is not what was submitted")
        t.gone()
    check("Running" not in t.log(second), "the machine ran a Berg that the laptop had not sent")
    said = t.log(job) + str(t.results(job))
    check("wicked" not in said, "the machine ran a command that the laptop had not sent")
    t.cloud.settings(delay=0)
    t.ran("echo honest", name="third")


@row("hostile", "a plan shows the options that come from a record")
def plan_of_record(t: Trial) -> None:
    options = ["--spot", "--max-hours", "3", "--env", "COLOUR=teal", "--install", "echo put-it-in"]
    job = t.ran("exit 3", *options, ends="FAILED")
    for words in (["rerun", job, "--dry-run"], ["run", "--resume", job, "--dry-run"]):
        done = t.ok(*words)
        shown = ("spot", r"\b3(\.0)? ?h", "COLOUR", "put-it-in", "exit 3")
        missing = [word for word in shown if not re.search(word, done.out + done.err, re.I)]
        check(not missing, f"berg {words[0]}: the plan lacks {missing}")


STEERING = r"""printf 'begin\n\033[31mred\033[0m \033]0;title\007 \033[2J\033[5A up \b\b over\n'
printf 'csi \302\23331m rtl \342\200\256 \000 nul\nend\n'"""
HIDDEN = r"""printf 'begin zero \342\200\213 tag \363\240\201\201 end\n'
echo x >"$BERG_RESULTS_DIR/$(printf 'file \342\200\213 x')" """


@row("hostile", "what a job prints steers no terminal, and words stay", name="log", script=STEERING)
@row("hostile", "letters that nobody sees are not shown", name="log, invisible", script=HIDDEN)
def printed(t: Trial, script: str) -> None:
    t.files({"odd.sh": script})
    traps, job = Traps(t), t.ran("bash odd.sh")
    for command in ("log", "tail", "show"):
        said = traps.tried(command, job).out
        check("begin" in said and "end" in said, f"berg {command}: lacks words")
    traps.tried("fetch", job)


@row("hostile", "a log on a terminal has colours, and controls nothing else")
def log_on_terminal(t: Trial) -> None:
    t.files({"odd.sh": STEERING})
    words = shlex.join([t.laptop.berg, "log", t.ran("bash odd.sh")])
    said = subprocess.run(
        ["script", "-qec", words, "/dev/null"],
        env=t.laptop.environment(TERM="xterm-256color"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        timeout=60,
    )
    text = COLOUR.sub("", said.stdout.decode(errors="replace").replace("\r\n", "\n"))
    check("begin" in text and "end" in text, f"it printed {text[-200:]!r}")
    check(not (odd := steers(text)), f"it prints {odd}")
