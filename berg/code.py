"""The working tree as a commit, its way to the bucket, and its checkout on a machine.

The user's index, branches and stash stay as they are: files are added to a copy of the index, and
a commit that no branch has is made from it. On the machine git answers as it does here: HEAD is the
user's, what was changed is changed, tags and history are there. Of the history only the commits are
sent, without their files; git fetches those from origin when it needs them. Submodules that are
checked out go along, each with a commit of its own. Files that a filter stores otherwise (Git LFS,
git-crypt) are sent as they are here. Not covered: commits that a job makes in submodules, sparse
checkouts.
"""

import contextlib
import hashlib
import io
import os
import platform
import re
import shutil
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import google_crc32c

from berg import BergError
from berg.bucket import Bucket, Changed
from berg.config import home

ROOT = Path(os.environ.get("BERG_ROOT", "/root"))
# What the worker imports; machines get the versions that are here.
PACKAGES = ["click", "google-cloud-storage", "GitPython", "google-crc32c", "obstore", "requests"]
SETTINGS = ("remote.origin.url", "user.name", "user.email", "core.abbrev")  # of a job's repository
LARGE = 50_000_000  # bytes of an untracked file that a user hears of
SECRETS = re.compile(r"(^|/)(\.env(\.\w+)?|.*\.pem|id_(rsa|ed25519|ecdsa)|.*credentials.*\.json)$")
WHEEL = "manylinux_2_17_x86_64.manylinux2014_x86_64.whl"  # of uv, for machines
HISTORY = 10_000  # commits that are sent; of a longer history only HEAD
TAGS = 100  # the newest ones of the history, annotated and others
UNREADABLE = re.compile(
    r"unable to read|bad object|corrupt|missing|not a valid object|could not get object info"
)
SUBMODULE = "160000"  # mode of a submodule's commit
# How a file begins that stands for one of Git LFS.
POINTER = b"version https://git-lfs.github.com/spec/"
FILTERED = (":/", ":(top,exclude,attr:!filter)")  # files to which a filter of git's is applied
CONFLICTS = ("DD", "AU", "UD", "UA", "DU", "AA", "UU")  # of git status
SAVED = "berg_commits.bundle"  # in the results: commits that the job made
AUTHOR = {f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in
          (("NAME", "berg"), ("EMAIL", "berg@localhost"))}  # fmt: skip


@dataclass
class Snapshot:
    """A commit that holds the working tree."""

    root: Path
    head: str  # "" in a repository without a commit
    commit: str
    branch: str = ""
    changed: list[str] = field(default_factory=list)
    cwd: str = "."  # where the user stands in it
    history: list[str] = field(default_factory=list)  # commits that are sent
    shallow: list[str] = field(default_factory=list)  # those of them behind which history is cut
    tags: dict[str, str] = field(default_factory=dict)  # of the history: name -> object
    settings: dict[str, str] = field(default_factory=dict)  # origin, and the user's identity
    is_named: bool = False  # the user named the commit: the working tree does not count
    files: list[str] = field(default_factory=list)  # of the commit
    submodules: dict[str, "Snapshot"] = field(default_factory=dict)  # by their paths
    missing: list[str] = field(default_factory=list)  # submodules that are not checked out

    @property
    def repo(self) -> str:
        return self.root.name

    @property
    def object(self) -> str:
        return f".berg/repos/{self.repo}/{self.commit}.pack"

    def within(self, folder: str) -> str:
        """A folder of the commit, by its path from the root."""
        path = os.path.normpath(folder)
        if path != "." and not any(each.startswith(f"{path}/") for each in self.files):
            raise BergError(
                f"--cwd {folder}: the code has no such folder. Give its path from {self.root}"
            )
        return path

    def record(self) -> dict[str, Any]:
        return {
            "commit": self.commit,
            "head": self.head,
            "branch": self.branch,
            "changed": self.changed[:100],
            "object": self.object,
            "shallow": self.shallow,
            "tags": self.tags,
            "settings": self.settings,
            "submodules": {path: each.record() for path, each in self.submodules.items()},
        }

    def __str__(self) -> str:
        on = f" ({self.branch})" if self.branch else ""
        if self.submodules:
            on += f", and {', '.join(self.submodules)}"
        if not self.changed:
            return f"{self.repo} at {self.head[:12]}{on}"
        files = "1 changed file" if len(self.changed) == 1 else f"{len(self.changed)} changed files"
        return f"{self.repo} at {self.head[:12] or 'no commit'}{on}, with {files}"


VARIABLES: ContextVar[tuple[tuple[str, str], ...]] = ContextVar("VARIABLES", default=())  # of git


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """Run git without hooks; return what it printed, raise BergError with its own words."""
    return feed(None, folder, *arguments, **variables)


def feed(stdin: Any, folder: Path, *arguments: str, **variables: str) -> str:
    """The same, with a file as its input."""
    try:
        import git as program
    except ImportError:
        raise BergError(
            "git is not installed. Install it, for example: apt-get install git"
        ) from None
    try:
        words = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor="]
        # Not of the user's: line ends that `git add` refuses, and code in several packs.
        words += ["-c", "core.safecrlf=false", "-c", "pack.packSizeLimit=0", *arguments]
        run = program.Git(str(folder)).execute
        return str(
            run(words, istream=stdin, env={"LC_ALL": "C", **dict(VARIABLES.get()), **variables})
        )
    except program.GitCommandError as error:
        lines = str(error.stderr).replace("stderr:", "").strip(" '\n").splitlines()
        said = next((line for line in lines if line.startswith("error:")), "")  # the last says less
        text = f"git {arguments[0]}: {said or (lines[-1] if lines else error)}"
        if UNREADABLE.search(text):
            text += (
                f". The repository in {folder} is damaged or incomplete. See what is missing: "
                "git fsck. Get it from the server: git fetch --refetch"
            )
        raise BergError(text) from None


def find_root(folder: Path) -> Path:
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel"))
    except BergError as error:
        if "work tree" in str(error):
            raise BergError(
                f"{folder} is a bare repository, without a working tree. Go to a clone of it"
            ) from None
        if "not a git repository" not in str(error):
            raise
        raise BergError(
            f"{folder} is not in a git repository. Create one: git init && git add -A"
        ) from None


def take(folder: Path, revision: str = "", is_foreign: bool = False) -> Snapshot:
    """The working tree with untracked files, without ignored ones; or the commit that is named.

    A repository in it that is no submodule may be somebody else's, and so all in that.
    """
    with without_filters(folder) if is_foreign else contextlib.nullcontext():
        snapshot = take_one(folder, revision)
        rows = entries(snapshot.root, snapshot.commit)
        has_submodules = SUBMODULE in {mode for _, mode, _ in rows}
        staged = git(snapshot.root, "ls-files", "-z", "--stage", ":/") if has_submodules else ""
    own = {row.partition("\t")[2] for row in staged.split("\0") if row.startswith(SUBMODULE)}
    for path, mode, commit in rows:
        if mode != SUBMODULE:
            snapshot.files.append(path)
            continue
        try:
            if not (snapshot.root / path / ".git").exists():
                raise BergError("it is not checked out")
            is_others = is_foreign or path not in own
            inner = take(snapshot.root / path, commit if revision else "", is_others)
        except BergError:
            snapshot.missing.append(path)
            continue
        snapshot.submodules[path] = inner
        snapshot.files += [f"{path}/{each}" for each in inner.files]
        snapshot.missing += [f"{path}/{each}" for each in inner.missing]
    return snapshot


@contextlib.contextmanager
def without_filters(folder: Path) -> Iterator[None]:
    """While git starts no filter that the settings in a folder name: each is none by a setting of Berg's."""
    named = ""
    with contextlib.suppress(BergError):  # there are none
        named = git(folder, "config", "-z", "--name-only", "--get-regexp", r"^filter\.")
    names = {row.rpartition(".")[0] for row in named.split("\0") if row}
    settings = [(f"{name}.{key}", "") for name in names for key in ("clean", "smudge", "process")]
    settings += [(f"{name}.required", "false") for name in names]
    first = int(os.environ.get("GIT_CONFIG_COUNT") or 0)  # behind those of the user
    variables = {"GIT_CONFIG_COUNT": str(first + len(settings))}
    for number, (key, value) in enumerate(settings, first):
        variables |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    before = VARIABLES.set(tuple(variables.items()))
    try:
        yield
    finally:
        VARIABLES.reset(before)


def entries(folder: Path, commit: str) -> list[tuple[str, str, str]]:
    """Path, mode and object of all that a commit has."""
    rows = git(folder, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
    parts = [row.partition("\t") for row in rows if row]
    return [(path, about.split()[0], about.split()[2]) for about, _, path in parts]


def take_one(folder: Path, revision: str) -> Snapshot:
    """A repository without its submodules."""
    root = find_root(folder)
    cwd = os.path.relpath(folder.resolve(), root.resolve())
    branch = git(root, "branch", "--show-current")
    if revision:
        commit = ""
        for name in (revision, f"origin/{revision}"):
            with contextlib.suppress(BergError):
                commit = commit or git(root, "rev-parse", "--verify", f"{name}^{{commit}}")
        if not commit:
            raise BergError(
                f"{root} has no commit, tag or branch {revision!r}. If it is new: git fetch"
            )
        is_branch = git(root, "branch", "--list", "--format=%(refname:short)", revision) == revision
        branch = revision if is_branch else ""
        snapshot = Snapshot(root, commit, commit, branch, [], cwd, is_named=True)
        return with_history(snapshot)
    try:
        head = git(root, "rev-parse", "--verify", "HEAD")
    except BergError:
        head = ""
    said = git(root, "status", "--porcelain", "-z", "--untracked-files=all", "--no-renames")
    status = [line for line in said.split("\0") if line]
    if conflicts := [line[3:] for line in status if line[:2] in CONFLICTS]:
        raise BergError(f"{', '.join(conflicts[:3])}: merge conflicts. Resolve them: git status")
    changed = [f"{line[:2].strip()[:1]} {line[3:]}" for line in status]
    own = environments([line[2:] for line in changed if line[0] == "?"])
    changed = [line for line in changed if not line[2:].startswith(own)]
    clean = Snapshot(root, head, head, branch, [], cwd)
    if head and not changed and not git(root, "ls-files", *FILTERED):
        return with_history(clean)
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(git(root, "rev-parse", "--git-path", "index"))
        copy = Path(scratch, "index")
        if (root / index).exists():
            shutil.copy(root / index, copy)  # its times spare git reading unchanged files
        left_out = [f":(top,exclude,literal){each}" for each in own]
        git(root, "add", "--all", ":/", *left_out, GIT_INDEX_FILE=str(copy))
        unfilter(root, str(copy))
        tree = git(root, "write-tree", GIT_INDEX_FILE=str(copy))
    if head and not changed and tree == git(root, "rev-parse", "HEAD^{tree}"):
        return with_history(clean)
    if not (head or changed):
        raise BergError(f"{root} has no commit, and no file that could be sent. Add one: git add")
    parent = ["-p", head] if head else []
    commit = git(root, "commit-tree", tree, *parent, "-m", "berg: the working tree", **AUTHOR)
    return with_history(Snapshot(root, head, commit, branch, changed, cwd))


def unfilter(root: Path, index: str) -> None:
    """Put files into an index as they are here, where a filter such as Git LFS stores something else."""
    rows = git(root, "ls-files", "-z", "--stage", *FILTERED, GIT_INDEX_FILE=index).split("\0")
    modes = {
        path: about.split()[0] for about, _, path in (row.partition("\t") for row in rows if row)
    }
    paths = [path for path, mode in modes.items() if mode.startswith("100") and "\n" not in path]
    if not paths:
        return
    with tempfile.TemporaryFile() as names, tempfile.TemporaryFile() as changes:
        names.write(os.fsencode("\n".join(paths)))
        names.seek(0)
        found = feed(names, root, "hash-object", "-w", "--no-filters", "--stdin-paths").split()
        lines = [f"{modes[path]} {id}\t{path}\0" for path, id in zip(paths, found, strict=True)]
        changes.write(os.fsencode("".join(lines)))
        changes.seek(0)
        feed(changes, root, "update-index", "-z", "--index-info", GIT_INDEX_FILE=index)


def environments(paths: Iterable[str]) -> tuple[str, ...]:
    """Folders of virtual environments, which are of no use on another computer."""
    mark = "pyvenv.cfg"
    return tuple(path.removesuffix(mark) for path in paths if path.endswith(f"/{mark}"))


def with_history(snapshot: Snapshot) -> Snapshot:
    """Add the commits and tags that are sent, and git's settings."""
    root = snapshot.root
    snapshot.settings = settings(root)
    if snapshot.head:  # abbreviated ids, in versions too, are as long as here
        snapshot.settings["core.abbrev"] = str(len(git(root, "rev-parse", "--short", "HEAD")))
    snapshot.history = git(root, "rev-list", f"-{HISTORY + 1}", snapshot.commit).split()
    cut = Path(root, git(root, "rev-parse", "--git-path", "shallow"))
    snapshot.shallow = cut.read_text().split() if cut.exists() else []
    if len(snapshot.history) > HISTORY:
        snapshot.history = [*dict.fromkeys([snapshot.commit, snapshot.head])]
        snapshot.shallow = [snapshot.head]
    snapshot.shallow = sorted({*snapshot.shallow} & {*snapshot.history})
    if snapshot.head:
        columns = "--format=%(objecttype)%00%(refname:strip=2)%00%(objectname)%00%(*objectname)"
        sent = {*snapshot.history}
        which, count = [f"--merged={snapshot.head}", "--sort=-creatordate"], Counter[str]()
        for line in git(root, "for-each-ref", *which, columns, "refs/tags").splitlines():
            kind, name, tag, commit = line.split("\0")
            count[kind] += 1
            if count[kind] <= TAGS and (commit or tag) in sent:
                snapshot.tags[name] = tag
    return snapshot


def settings(folder: Path) -> dict[str, str]:
    """The settings of git that a job's repository gets, without the password of a URL."""
    names, said = "|".join(map(re.escape, SETTINGS)), ""
    with contextlib.suppress(BergError):  # there are none
        said = git(folder, "config", "-z", "--get-regexp", f"^({names})$")
    rows = [row.partition("\n") for row in said.split("\0")]  # of several, the last one counts
    return {key: re.sub(r"(?<=://)[^/@]*@", "", text) for key, _, text in rows if text}


def warnings(snapshot: Snapshot) -> list[str]:
    """What a user should know before this code is sent."""
    found = []
    for path in snapshot.files:
        if SECRETS.search(path):
            found.append(f"{path} looks like a secret, and would be sent. Ignore it: .gitignore")
    for line in snapshot.changed:
        file = snapshot.root / line[2:]
        if line[0] == "?" and file.is_file() and file.stat().st_size > LARGE:
            found.append(f"{line[2:]} is untracked, and {file.stat().st_size / 1e6:.0f} MB")
    return found


def pointers(snapshot: Snapshot) -> str:
    """What is said of files of Git LFS whose content is not here; "" without any."""
    found = []
    for path in filter(None, git(snapshot.root, "ls-files", "-z", *FILTERED).split("\0")):
        with contextlib.suppress(OSError), open(snapshot.root / path, "rb") as file:
            if file.read(len(POINTER)) == POINTER:
                found.append(path)
    named = ", ".join(found[:3]) + f" and {len(found) - 3} more" * (len(found) > 3)
    return f"{named}: Git LFS has the content, which is not here: git lfs pull" if found else ""


def send(snapshot: Snapshot, bucket: Bucket) -> None:
    """Send the commit and HEAD with their files, and the commits before, unless the bucket has them."""
    for inner in snapshot.submodules.values():
        send(inner, bucket)
    if bucket.get(snapshot.object):
        return
    root = snapshot.root
    trees = [f"{commit}^{{tree}}" for commit in (snapshot.commit, snapshot.head) if commit]
    objects = [*snapshot.history, *snapshot.tags.values()]
    with tempfile.TemporaryDirectory() as scratch:
        listing = Path(scratch, "objects")
        files = git(root, "rev-list", "--objects", *trees)
        listing.write_text(
            "\n".join([*dict.fromkeys(objects), files, ""]), errors="surrogateescape"
        )
        with listing.open("rb") as names:
            made = feed(names, root, "pack-objects", "-q", f"{scratch}/code")
        file = Path(scratch, f"code-{made}.pack")
        # Another laptop may have sent the same commit.
        with file.open("rb") as content, contextlib.suppress(Changed):
            bucket.put(snapshot.object, content, file.stat().st_size, 0)


def check_out(folder: Path, bucket: Bucket, record: dict[str, Any]) -> None:
    """Make a folder the working tree that was submitted."""
    commit, head = str(record["commit"]), str(record["head"])
    for each in (commit, head or commit, *record["shallow"], *record["tags"].values()):
        if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", each):
            raise BergError(f"{each!r} is no commit")
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", f"--object-format=sha{1 if len(commit) == 40 else 256}")
    unpack(folder, bucket, str(record["object"]))
    (folder / ".git/shallow").unlink(missing_ok=True)
    if record["shallow"]:
        (folder / ".git/shallow").write_text("".join(f"{each}\n" for each in record["shallow"]))
    branch = str(record["branch"])
    on = ["-B", branch] if branch and is_ref(folder, f"refs/heads/{branch}") else ["--detach"]
    git(folder, "checkout", "-q", "--force", *on, commit)
    if head:
        git(folder, "reset", "-q", head)  # what was changed is changed here, too
    identity = {"user.name": "berg", "user.email": "berg@localhost"}
    for key, text in (identity | record.get("settings", {})).items():
        if key in SETTINGS:
            git(folder, "config", key, text)
    if "remote.origin.url" in record.get("settings", {}):
        git(folder, "config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
        git(folder, "config", "remote.origin.promisor", "true")
    for tag, target in record["tags"].items():
        if is_ref(folder, f"refs/tags/{tag}"):
            git(folder, "update-ref", f"refs/tags/{tag}", target)
    places = {path for path, mode, _ in entries(folder, commit) if mode == SUBMODULE}
    for path in places & record.get("submodules", {}).keys():
        check_out(folder / path, bucket, record["submodules"][path])


def unpack(folder: Path, bucket: Bucket, name: str, **variables: str) -> None:
    """Add the code of a job to a repository. It is a pack of a partial clone: git knows that the files
    of earlier commits are elsewhere.
    """
    with tempfile.TemporaryFile() as pack:
        pack.write(bucket.read(name))
        pack.seek(0)
        feed(pack, folder, "index-pack", "--stdin", "--promisor", **variables)


def is_ref(folder: Path, name: str) -> bool:
    """Whether git takes a name for a branch or tag."""
    with contextlib.suppress(BergError):
        git(folder, "check-ref-format", name)
        return True
    return False


def save_commits(folder: Path, sent: str, target: Path) -> str:
    """Bundle the commits that a job made, as a file of its results; say how many those are, and on
    which branches; "" for none.
    """
    new = git(folder, "rev-list", "--all", "HEAD", f"^{sent}").split()
    if not new:
        return ""
    git(folder, "bundle", "create", "-q", str(target), "--branches", "HEAD", f"^{sent}")
    columns = ["--format=%(refname:short)", "--contains", new[-1]]
    on = git(folder, "for-each-ref", *columns, "refs/heads").split()
    return f"{len(new)} new commits" + f" on {', '.join(on)}" * bool(on)


# --- what machines need of Berg


def package() -> bytes:
    """Berg itself, as machines unpack it: the running code."""
    folder, made = Path(__file__).parent, io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), path.read_bytes())
    return made.getvalue()


def uv() -> bytes:
    """The program uv, with which machines install: this computer's, or downloaded where that is no
    program for Linux.
    """
    from uv import find_uv_bin

    number = version("uv")
    file = home() / f"uv-{number}-linux"
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        file = Path(find_uv_bin())
    elif not file.exists():
        import requests

        kind = {"Accept": "application/vnd.pypi.simple.v1+json"}
        answer = requests.get("https://pypi.org/simple/uv/", headers=kind, timeout=60)
        answer.raise_for_status()
        wanted = f"uv-{number}-py3-none-{WHEEL}"
        row = next(row for row in answer.json()["files"] if row["filename"] == wanted)
        wheel = requests.get(row["url"], timeout=60).content
        if hashlib.sha256(wheel).hexdigest() != row["hashes"]["sha256"]:
            raise BergError(f"{row['url']} is not what PyPI says. Try again")
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            inner = next(each for each in archive.namelist() if each.endswith("/scripts/uv"))
            part = file.with_suffix(".part")
            part.write_bytes(archive.read(inner))
            part.replace(file)
    return file.read_bytes()


def provide(bucket: Bucket) -> dict[str, str]:
    """Send what the bucket lacks of this; return what the metadata of a machine say of it."""
    facts = {"berg-packages": " ".join(f"{name}=={version(name)}" for name in PACKAGES)}
    for key, begin, ending, content in [
        ("berg-dist", "berg", ".zip", package()),
        ("berg-uv", f"uv-{version('uv')}", "", uv()),
    ]:
        digest = hashlib.sha256(content).hexdigest()
        name = f".berg/dist/{begin}-{digest[:12]}{ending}"
        there = bucket.get(name)
        if not there or there.crc != google_crc32c.value(content):  # somebody has replaced it
            generation = there.generation if there else 0
            with contextlib.suppress(Changed):
                bucket.put(name, io.BytesIO(content), len(content), generation)
        facts |= {key: name, f"{key}-sha256": digest}
    return facts
