"""Secrets in code that is about to be sent: keys and tokens by what they look like, files by name.

What the bucket was sent, and what its user agreed to, is remembered next to berg's objects of the
repo: only what is new since then is looked at. Not covered: passwords without a form of their own,
binary files, and files above MOST.
"""

import contextlib
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from berg import BergError, plain
from berg.code import snapshot
from berg.code.git import LINK, SUBMODULE, GitError, names, text
from berg.code.git import run as git
from berg.code.snapshot import Snapshot

LOOKED = "looked.json"  # what was looked at of a repo, by bucket
MOST = 5_000_000  # bytes of a file
MANY = 500  # files from which git looks first for those with a hint
AT_ONCE = 32_000_000  # bytes of files that are held in memory, about
SHOWN = 5  # files in a message
END = r"(?![\w+/=-])"  # not in the middle of other text, such as base64
BEFORE = re.compile(rb"(?<!\\)[\w+]\Z")  # nor is what follows this; \n ends a line in JSON
# What it is, hints one of which each such file has, and the form, whose group is the secret itself.
KINDS = (
    (
        "a private key",
        ["PRIVATE KEY"],
        r"-----BEGIN [A-Z ]*PRIVATE KEY(?: BLOCK)?-----.{0,300}?([A-Za-z0-9+/]{60})",
    ),
    ("a token of Hugging Face", ["hf_"], rf"hf_([A-Za-z0-9]{{34}}){END}"),
    (
        "an API key of OpenAI, Anthropic or the like",
        ["sk-"],
        r"sk-[\w-]{0,100}?(?=[A-Za-z]*\d)([A-Za-z0-9]{20,})",
    ),
    (
        "a token of GitHub",
        ["ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"],
        rf"(?:gh[pousr]_|github_pat_)(\w{{82}}|[A-Za-z0-9]{{36}}){END}",
    ),
    ("a token of GitLab", ["glpat-"], rf"glpat-([\w-]{{20,}}){END}"),
    ("a key of Google's APIs", ["AIza"], rf"AIza([\w-]{{35}}){END}"),
    ("an OAuth secret of Google", ["GOCSPX-"], rf"GOCSPX-([\w-]{{28}}){END}"),
    ("an access key of AWS", ["AKIA"], rf"AKIA([A-Z2-7]{{16}}){END}"),
    ("a token of Slack", ["xoxb-", "xoxp-", "xoxa-"], r"xox[bpa]-(\d+-[\w-]{20,})"),
    (
        "an API key of Weights & Biases",
        ["WANDB_API_KEY", "wandb.login"],
        rf"(?:WANDB_API_KEY|wandb\.login)\W[^\n]{{0,20}}?\b([0-9a-f]{{40}}){END}",
    ),
    ("a token of PyPI", ["pypi-AgE"], rf"pypi-AgE([\w-]{{50,}}){END}"),
    ("a token of npm", ["npm_"], rf"npm_([A-Za-z0-9]{{36}}){END}"),
)
FORMS = [(what, hints, re.compile(form.encode(), re.DOTALL)) for what, hints, form in KINDS]
HINTS = [hint for _, hints, _ in KINDS for hint in hints]
PLACEHOLDER = re.compile(
    rb"(?i)example|dummy|fake|your|placeholder|redacted|xxxx|0{6}|123456|abcdef"
)
RULES = hashlib.sha256(repr(KINDS).encode()).hexdigest()[:16]  # what is looked for
LEAST_BITS = 3  # entropy of a secret for each of its characters
# Names of files that mostly hold secrets, whatever these look like.
NAMES = re.compile(
    r"""(^|/)(
    \.env(\.(?!example|sample|template|dist).+)? | \.netrc | \.pypirc | \.npmrc | \.htpasswd
    | kaggle\.json
    | id_(rsa|dsa|ecdsa|ed25519)
    | .*\.(key|p12|pfx|jks|keystore|kdbx)
    | (.*[-_.])?(credentials?|secrets?|service[-_]?account)([-_.].*)?\.(json|ya?ml|toml|txt|ini)
    )$""",
    re.VERBOSE | re.IGNORECASE,
)


@dataclass(frozen=True)
class Leak:
    """A file that looks like a secret."""

    path: str
    what: str  # it looks like
    content: str  # id of git's

    def __str__(self) -> str:
        return f"{plain.name(self.path)} ({self.what})"


def find(taken: Snapshot, bucket_name: str) -> list[Leak]:
    """Return the files of a snapshot that look like secrets, without those that the bucket was sent
    before. What has none is remembered.
    """
    if taken.ran:
        return []
    found = look(taken, remembered(taken.objects, bucket_name))
    if not found:
        remember(taken, bucket_name, ())
    for path, sub in taken.submodules.items():
        found += [replace(each, path=f"{path}/{each.path}") for each in find(sub, bucket_name)]
    return sorted(found, key=lambda each: each.path)


def accept(taken: Snapshot, bucket_name: str, found: Collection[Leak]) -> None:
    """Remember that a snapshot may be sent with what looks like secrets in it."""
    remember(taken, bucket_name, [each.content for each in found])
    for sub in taken.submodules.values():
        accept(sub, bucket_name, found)


def in_files(root: Path, paths: list[str], bucket_name: str) -> list[Leak]:
    """Return which files of a working tree look like secrets, as `find` does."""
    named = [path for path in paths if NAMES.search(path)]
    listing = ["--literal-pathspecs", "ls-files", "-z", "--", *named]
    committed = set(names(git(root, *listing))) if named else set()
    accepted = remembered(snapshot.objects_folder(root), bucket_name)["accepted"]
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            file = root / path
            if file.is_symlink() or file.stat().st_size > MOST:
                continue
            if what := kind_of(path, file.read_bytes(), path in committed):
                content = text(root, "hash-object", "--no-filters", "--", path)
                found += [Leak(path, what, content)] if content not in accepted else []
    return found


def refusal(found: Collection[Leak]) -> BergError:
    """Return the error for files that the user did not agree to send."""
    shown = ", ".join(map(str, [*found][:SHOWN])) + (", …" if len(found) > SHOWN else "")
    return BergError(
        f"{plain.plural(len(found), 'file')} that may be secret would be sent: {shown}. "
        f"To keep a file here, add it to {snapshot.IGNORE_FILE}; if it is committed, git rm "
        "--cached it first, and commit. Give secrets to jobs with --secret. Or send them all: "
        "--send-secrets"
    )


def look(taken: Snapshot, seen: dict[str, list[str]]) -> list[Leak]:
    """Return the files that look like secrets in commits that were not `seen`."""
    paths: dict[str, str] = {}  # by id
    for revision in sorted({taken.commit, taken.oldest} - set(seen["commits"])):
        paths |= new_files(taken, seen["commits"], revision)
    sizes = sizes_of(taken, paths.keys() - set(seen["accepted"])) if paths else {}
    if len(sizes) > MANY:
        sizes = with_hints(taken, paths, sizes)
    untracked = {line[2:] for line in taken.changed if line.startswith("A ")}
    found = []
    for name, content in contents(taken, sizes):
        if what := kind_of(paths[name], content, paths[name] not in untracked):
            found.append(Leak(paths[name], what, name))
    return found


def kind_of(path: str, content: bytes, is_committed: bool) -> str:
    """Return which secret a file looks like; "" for none.

    The name of a file that was committed does not count: its author decided about it.
    """
    if content and not is_committed and NAMES.search(path):
        return "named like a file of secrets"
    if b"\0" in content[:8000]:
        return ""
    for what, hints, form in FORMS:
        if any(hint.encode() in content for hint in hints):
            for match in filter(is_real, form.finditer(content)):
                lines = content.count(b"\n", 0, match.start())
                return f"{what} in line {lines + 1}"
    return ""


def is_real(match: re.Match[bytes]) -> bool:
    """Return whether what has the form of a secret is no placeholder, nor a part of a word."""
    secret = match[1]
    if BEFORE.search(match.string[max(0, match.start() - 2) : match.start()]):
        return False
    shares = [count / len(secret) for count in Counter(secret).values()]
    entropy = -sum(share * math.log2(share) for share in shares)
    return entropy >= LEAST_BITS and not PLACEHOLDER.search(secret)


def new_files(taken: Snapshot, base: list[str], revision: str) -> dict[str, str]:
    """Return the paths of a commit's files by their ids, of those that the first of the commits
    `base` does not have, if that is still here.
    """
    env = snapshot.objects_of(taken)
    if base:
        difference = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--diff-filter=d"]
        with contextlib.suppress(GitError):
            found = names(git(taken.root, *difference, base[0], revision, env=env))
            about = [line.split(" ") for line in found[::2]]
            return {
                each[3]: path
                for each, path in zip(about, found[1::2], strict=True)
                if each[1] not in (LINK, SUBMODULE)
            }
    entries = snapshot.entries(taken.root, revision, env).items()
    return {content: path for path, (mode, content) in entries if mode not in (LINK, SUBMODULE)}


def sizes_of(taken: Snapshot, ids: Iterable[str]) -> dict[str, int]:
    """Return the sizes of objects in bytes."""
    command = ["cat-file", "--batch-check=%(objectname) %(objectsize)"]
    asked, env = "".join(f"{each}\n" for each in ids).encode(), snapshot.objects_of(taken)
    lines = git(taken.root, *command, env=env, stdin=asked).decode().splitlines()
    found = (line.split(" ") for line in lines)
    return {name: int(size) if size.isdigit() else MOST + 1 for name, size in found}


def with_hints(taken: Snapshot, paths: dict[str, str], sizes: dict[str, int]) -> dict[str, int]:
    """Return the ids and sizes of those files that have a hint, or such a name; git looks."""
    large = [paths[each] for each, size in sizes.items() if size > MOST]
    words = [word for hint in HINTS for word in ("-e", hint)]
    search = ["grep", "--text", "--files-with-matches", "-z", "--fixed-strings", *words]
    where = ["--", ".", *(f":(exclude,top,literal){path}" for path in large)]
    found = set(filter(NAMES.search, paths.values()))
    for revision in {taken.commit, taken.oldest}:
        try:
            listed = git(taken.root, *search, revision, *where, env=snapshot.objects_of(taken))
            found |= {each.partition(":")[2] for each in names(listed)}
        except GitError as error:
            if "exit code(1)" not in str(error):  # which says that there are none
                raise
    return {each: size for each, size in sizes.items() if paths[each] in found}


def contents(taken: Snapshot, sizes: dict[str, int]) -> Iterator[tuple[str, bytes]]:
    """Yield the ids and contents of objects of known sizes, without those above MOST."""
    waiting: list[str] = []
    size = 0
    for each in [*(each for each in sizes if sizes[each] <= MOST), ""]:
        if waiting and (size > AT_ONCE or not each):
            asked = "".join(f"{one}\n" for one in waiting).encode()
            read = git(
                taken.root, "cat-file", "--batch", env=snapshot.objects_of(taken), stdin=asked
            )
            at = 0
            for one in waiting:
                at = read.index(b"\n", at) + 1
                yield one, read[at : at + sizes[one]]
                at += sizes[one] + 1
            waiting, size = [], 0
        waiting.append(each)
        size += sizes.get(each, 0)


def read_looked(objects: Path) -> dict[str, Any]:
    """Return what was looked at of a repo, by bucket; {} if it was by other rules."""
    try:
        written = json.loads((objects.parent / LOOKED).read_text())
        return dict(written["buckets"]) if written["rules"] == RULES else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def remembered(objects: Path, bucket_name: str) -> dict[str, list[str]]:
    """Return what a bucket may be sent of a repo: the last `commits`, and the ids of files that
    look like secrets and were `accepted`.
    """
    nothing: dict[str, list[str]] = {"commits": [], "accepted": []}
    return {**nothing, **read_looked(objects).get(bucket_name, {})}


def remember(taken: Snapshot, bucket_name: str, accepted: Iterable[str]) -> None:
    """Write that a bucket may be sent a snapshot, and files that look like secrets."""
    before = remembered(taken.objects, bucket_name)["accepted"]
    commits = list(dict.fromkeys((taken.commit, taken.oldest)))
    about = {"commits": commits, "accepted": sorted({*before, *accepted})}
    buckets = {**read_looked(taken.objects), bucket_name: about}
    (taken.objects.parent / LOOKED).write_text(json.dumps({"rules": RULES, "buckets": buckets}))
