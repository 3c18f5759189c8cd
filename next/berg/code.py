"""The working tree as a commit, its way to the bucket, and its checkout on a machine.

The user's index, branches and stash stay as they are: files are added to a copy of the index, and
a commit that no branch has is made from it. History is cut behind HEAD, so a machine gets two
commits at most. Submodules that are checked out go along, each with a commit of its own. Not
covered: commits that a job makes in them, LFS, sparse checkouts.
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
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from berg import BergError
from berg.bucket import Bucket, Changed

ROOT = Path(os.environ.get("BERG_ROOT", "/root"))
# What the worker imports; machines get the versions that are here.
PACKAGES = ["click", "google-cloud-storage", "GitPython", "google-crc32c", "obstore", "requests"]
SETTINGS = ("remote.origin.url", "user.name", "user.email")  # that a job's repository has too
LARGE = 50_000_000  # bytes of an untracked file that a user hears of
SECRETS = re.compile(r"(^|/)(\.env(\.\w+)?|.*\.pem|id_(rsa|ed25519|ecdsa)|.*credentials.*\.json)$")
SUBMODULE = "160000"  # mode of a submodule's commit
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
    tags: list[str] = field(default_factory=list)  # of head
    settings: dict[str, str] = field(
        default_factory=dict
    )  # of git: origin, and the user's identity
    is_named: bool = False  # the user named the commit: the working tree does not count
    files: list[str] = field(default_factory=list)  # of the commit
    submodules: dict[str, "Snapshot"] = field(default_factory=dict)  # by their paths
    missing: list[str] = field(default_factory=list)  # submodules that are not checked out

    @property
    def repo(self) -> str:
        return self.root.name

    @property
    def object(self) -> str:
        return f".berg/repos/{self.repo}/{self.commit}.bundle"

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
            "tags": self.tags[:20],
            "settings": self.settings,
            "submodules": {path: each.record() for path, each in self.submodules.items()},
        }

    def __str__(self) -> str:
        on = f" ({self.branch})" if self.branch else ""
        if self.submodules:
            on += f", and {', '.join(self.submodules)}"
        if not self.changed:
            return f"{self.repo} at {self.head[:12]}{on}"
        return f"{self.repo} at {self.head[:12] or 'no commit'}{on}, with {len(self.changed)} changed files"


def git(folder: Path, *arguments: str, **variables: str) -> str:
    """Run git without hooks; return what it printed, raise BergError with its own words."""
    try:
        import git as program
    except ImportError:
        raise BergError(
            "git is not installed. Install it, for example: apt-get install git"
        ) from None
    try:
        words = ["git", "-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=", *arguments]
        return str(program.Git(str(folder)).execute(words, env={"LC_ALL": "C", **variables}))
    except program.GitCommandError as error:
        lines = str(error.stderr).replace("stderr:", "").strip(" '\n").splitlines()
        raise BergError(f"git {arguments[0]}: {lines[-1] if lines else error}") from None


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
            f"{folder} is in no git repository. Make one: git init && git add -A"
        ) from None


def take(folder: Path, revision: str = "") -> Snapshot:
    """The working tree with untracked files, without ignored ones; or the commit that is named."""
    snapshot = take_one(folder, revision)
    for path, mode, commit in entries(snapshot.root, snapshot.commit):
        if mode != SUBMODULE:
            snapshot.files.append(path)
            continue
        try:
            if not (snapshot.root / path / ".git").exists():
                raise BergError("it is not checked out")
            inner = take(snapshot.root / path, commit if revision else "")
        except BergError:
            snapshot.missing.append(path)
            continue
        snapshot.submodules[path] = inner
        snapshot.files += [f"{path}/{each}" for each in inner.files]
        snapshot.missing += [f"{path}/{each}" for each in inner.missing]
    return snapshot


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
    settings = {key: text for key in SETTINGS if (text := setting(root, key))}
    if revision:
        try:
            commit = git(root, "rev-parse", "--verify", f"{revision}^{{commit}}")
        except BergError:
            raise BergError(
                f"{root} has no commit, tag or branch {revision!r}. If it is new: git fetch"
            ) from None
        is_branch = git(root, "branch", "--list", "--format=%(refname:short)", revision) == revision
        tags = git(root, "tag", "--points-at", commit).splitlines()
        branch = revision if is_branch else ""
        return Snapshot(root, commit, commit, branch, [], cwd, tags, settings, is_named=True)
    try:
        head = git(root, "rev-parse", "--verify", "HEAD")
    except BergError:
        head = ""
    tags = git(root, "tag", "--points-at", head).splitlines() if head else []
    status = git(root, "status", "--porcelain", "--untracked-files=all", "--no-renames")
    changed = [f"{line[:2].strip()[:1]} {line[3:]}" for line in status.splitlines()]
    if head and not changed:
        return Snapshot(root, head, head, branch, [], cwd, tags, settings)
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(git(root, "rev-parse", "--git-path", "index"))
        copy = Path(scratch, "index")
        if (root / index).exists():
            shutil.copy(root / index, copy)  # its times spare git reading unchanged files
        git(root, "add", "--all", ":/", GIT_INDEX_FILE=str(copy))
        tree = git(root, "write-tree", GIT_INDEX_FILE=str(copy))
    if not (head or changed):
        raise BergError(f"{root} has no commit, and no file that could be sent. Add one: git add")
    parent = ["-p", head] if head else []
    commit = git(root, "commit-tree", tree, *parent, "-m", "berg: the working tree", **AUTHOR)
    return Snapshot(root, head, commit, branch, changed, cwd, tags, settings)


def setting(folder: Path, key: str) -> str:
    """A setting of git's, without a password that a URL may have."""
    with contextlib.suppress(BergError):
        return re.sub(r"(?<=://)[^/@]*@", "", git(folder, "config", "--get", key))
    return ""


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


def send(snapshot: Snapshot, bucket: Bucket) -> None:
    """Send the commit, its parent and their files as one bundle, unless the bucket has it."""
    for inner in snapshot.submodules.values():
        send(inner, bucket)
    if bucket.get(snapshot.object):
        return
    objects = Path(
        snapshot.root, git(snapshot.root, "rev-parse", "--git-path", "objects")
    ).resolve()
    with tempfile.TemporaryDirectory() as scratch:
        # A repository that borrows the user's objects, cut behind HEAD: a bundle of it has no history.
        folder, file = Path(scratch, "repo"), Path(scratch, "code.bundle")
        folder.mkdir()
        git(folder, "init", "-q", "--bare")
        (folder / "objects/info/alternates").write_text(f"{objects}\n")
        (folder / "shallow").write_text(f"{snapshot.head or snapshot.commit}\n")
        ref = f"refs/berg/{snapshot.commit}"
        git(folder, "update-ref", ref, snapshot.commit)
        git(folder, "bundle", "create", "-q", str(file), ref)
        # Another laptop may have sent the same commit.
        with file.open("rb") as content, contextlib.suppress(Changed):
            bucket.put(snapshot.object, content, file.stat().st_size, 0)


def check_out(bucket: Bucket, repo: str, record: dict[str, Any]) -> Path:
    """Make /root/code/<repo> the commit that was submitted; return the folder."""
    check_out_to(ROOT / "code" / repo, bucket, record)
    return ROOT / "code" / repo


def check_out_to(folder: Path, bucket: Bucket, record: dict[str, Any]) -> None:
    commit = str(record["commit"])
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise BergError(f"{commit!r} is no commit")
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "code.bundle")
        file.write_bytes(bucket.read(str(record["object"])))
        head = str(record["head"] or commit)
        (folder / ".git/shallow").write_text(f"{head}\n")
        git(folder, "-c", "fetch.fsckObjects=true", "fetch", "-q", str(file), f"refs/berg/{commit}")
    branch = str(record["branch"])
    on = ["-B", branch] if branch and is_ref(folder, f"refs/heads/{branch}") else ["--detach"]
    git(folder, "checkout", "-q", "--force", *on, commit)
    identity = {"user.name": "berg", "user.email": "berg@localhost"}
    for key, text in (identity | record.get("settings", {})).items():
        if key in SETTINGS:
            git(folder, "config", key, text)
    for tag in record.get("tags", []):
        if is_ref(folder, f"refs/tags/{tag}"):
            git(folder, "update-ref", f"refs/tags/{tag}", head)
    places = {path for path, mode, _ in entries(folder, commit) if mode == SUBMODULE}
    for path in places & record.get("submodules", {}).keys():
        check_out_to(folder / path, bucket, record["submodules"][path])


def is_ref(folder: Path, name: str) -> bool:
    """Whether git takes a name for a branch or tag."""
    with contextlib.suppress(BergError):
        git(folder, "check-ref-format", name)
        return True
    return False


def save_commits(folder: Path, sent: str, target: Path) -> int:
    """Bundle the commits that a job made, as a file of its results; return how many those are.

    To have them: git fetch FILE '*:*' in the repository that the job was submitted from.
    """
    new = git(folder, "rev-list", "--all", "HEAD", f"^{sent}").split()
    if new:
        git(folder, "bundle", "create", "-q", str(target), "--branches", "HEAD", f"^{sent}")
    return len(new)


# --- what machines need of Berg


def package() -> tuple[str, bytes]:
    """Berg itself, as machines unpack it: the running code. Name of the object, and its bytes."""
    folder, made = Path(__file__).parent, io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*.py")):
            name = path.relative_to(folder.parent).as_posix()
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), path.read_bytes())
    content = made.getvalue()
    return f".berg/dist/berg-{hashlib.sha256(content).hexdigest()[:12]}.zip", content


def uv() -> tuple[str, Path]:
    """The program uv, with which machines install. Name of the object, and its file here."""
    from uv import find_uv_bin

    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise BergError("machines need uv for Linux, and this computer has another one. Use Linux")
    return f".berg/dist/uv-{version('uv')}", Path(find_uv_bin())


def provide(bucket: Bucket) -> dict[str, str]:
    """Send what the bucket lacks of this; return what the metadata of a machine say of it."""
    name, content = package()
    uv_name, program = uv()
    with contextlib.suppress(Changed), program.open("rb") as file:
        if not bucket.get(name):
            bucket.write(name, content, 0)
        if not bucket.get(uv_name):
            bucket.put(uv_name, file, program.stat().st_size, 0)
    return {
        "berg-dist": name,
        "berg-dist-sha256": hashlib.sha256(content).hexdigest(),
        "berg-uv": uv_name,
        "berg-uv-sha256": hashlib.sha256(program.read_bytes()).hexdigest(),
        "berg-packages": " ".join(f"{name}=={version(name)}" for name in PACKAGES),
    }
