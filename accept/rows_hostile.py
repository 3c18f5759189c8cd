"""Hostile: what others wrote into the bucket, a repository or a folder harms no laptop.

Records differ between bergs. So a genuine job is copied under other names, with something odd in one
of the fields that it has.
"""

import contextlib
import gzip
import json
import shutil
import subprocess
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import requests

from accept.suite import Red, all_hold, check, row
from accept.world import Done, Laptop, Trial

ODD = {"Cc", "Cf", "Co", "Cn"}  # control characters, and letters that nobody sees
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

    def settings(self, folder: Path) -> None:
        """Let a repository's own settings and hooks name programs."""
        keys = "core.fsmonitor core.sshCommand diff.external filter.evil.clean filter.evil.smudge"
        for key in keys.split():
            self.t.git("config", "--file", str(folder / "config"), key, str(self.program(key)))
        for hook in ("post-checkout", "post-index-change", "pre-commit", "reference-transaction"):
            shutil.copy(self.program(hook), folder / "hooks" / hook)

    def lay(self, folder: Path) -> None:
        """Python's modules, a bare repository, and one with changes that git would look at."""
        for name in ("sitecustomize", "usercustomize", "json", "berg", "click", "google"):
            (folder / f"{name}.py").write_text(f"open({str(self.folder / name)!r}, 'w')\n")
        subprocess.run(["sh", "-ec", REPOSITORIES], cwd=folder, check=True)
        for git in (folder / "bare", folder / "inner/.git"):
            self.settings(git)


# --- genuine records, and copies with something odd


def genuine(t: Trial) -> str:
    """A job that is over, with results; its command fails, so that it can be resumed."""
    return t.ran(
        "cd $BERG_RESULTS_DIR; echo x >plainfile; ln -s no-where link; exit 3", ends="FAILED"
    )


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
    "names": [
        "../MARK",
        "/tmp/MARK",
        "deep/../../../MARK",
        "..\\MARK",
        "deep//MARK",
        ".git/hooks/MARK",
        "\x1b]0;MARK\x07",
        "MARK\u202e",
        "-oProxyCommand=CANARY",
        "..",
        "MARK" + "x" * 300,
        "MARK,a=b",
        "$(CANARY)",
        "MARK\tb",
    ],
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
@row("hostile", "a job of an odd name hides no other job", name="records, names", kind="names")
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
        if kind == "names":
            with contextlib.suppress(requests.HTTPError):  # Google takes no such name
                copies.write(f"{evil}{t.prefix}")
            continue
        if kind == "damage":
            copies.write(job, lambda name, value, k=key, e=evil: e if k in name else value)
        else:
            copies.write(job, lambda name, value, k=key, e=evil: poisoned(value, k, e))
        try:
            for words in (["show"], ["fetch"], READERS[number % len(READERS)]):
                traps.tried(*words, job)
        except Red as error:
            raise Red(f"{key}={str(evil)[:40]!r}: {error}") from None
    for words in (["list", "-a"], ["list", "-a", "--json"], ["show", sound], ["fetch", sound]):
        said = traps.tried(*words)
        check(said.code == 0, f"berg {' '.join(words)}: exit {said.code}: {said.last}")
        check(sound in said.out + said.err, f"berg {' '.join(words)} has lost a sound job")
    traps.tried("kill", "-y", f"{t.prefix}-*")
    traps.tried("rm", "-y", *jobs)
    check(t.state(sound), "the record of a sound job is gone")


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


@row("hostile", "what a machine's records say leads ssh nowhere else")
def machine_records(t: Trial) -> None:
    traps, box = Traps(t), t.name("box")
    t.ok("devbox", "-g", "0", "-n", box)
    t.reached(box, "RUNNING")
    first = t.ok("ssh", box, "--", "hostname").out
    copies = Copies(t, box)
    odd = ["-oProxyCommand=CANARY", "10.9.9.9", "x;CANARY", "../MARK", "4444"]
    for key in t.dice.sample([*copies.keys], COPIES):
        evil = traps.evil(t.dice.choice(odd))
        for name, (data, about) in copies.records.items():
            t.cloud.write(name, *rewritten(data, about, lambda v, k=key, e=evil: poisoned(v, k, e)))
        said = traps.tried("ssh", box, "--", "hostname")
        check(said.code or said.out == first, f"{key}={evil!r}: ssh went to {said.out!r}")


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
    t.reached(t.name("job"), "SUCCEEDED")


@row("hostile", "a machine runs only the job that its laptop sent")
def replaced(t: Trial) -> None:
    Traps(t)  # for a bucket that may be written at once, and is wiped
    t.cloud.settings(metadata_delay=4)  # the records change before the machine reads them
    found = Copies(t, job := t.run("echo honest >$BERG_RESULTS_DIR/said; echo honest")).records
    check(any(b"honest" in data for data, _ in found.values()), "no record has the command")
    for name, (data, about) in found.items():
        t.cloud.write(name, data.replace(b"honest", b"wicked"), about)
    t.reached(job, "FAILED")
    said = t.log(job) + str(t.results(job))
    check("wicked" not in said, "the machine ran a command that the laptop had not sent")
