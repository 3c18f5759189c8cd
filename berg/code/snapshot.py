"""The working tree as a commit: make it, send what is new of it, restore it on a machine.

The user's index, stash, refs and objects stay untouched: files are added to a copy of the index,
and new objects go to a folder of berg's own. In the bucket a snapshot is one pack, or a small pack
on top of a pack that was sent before:

    .berg/repos/<repo>/<commit>.pack
    .berg/repos/<repo>/<commit>-on-<base>.pack

History is cut behind HEAD, so that a machine gets two commits at most: HEAD, and on top of it the
changes that were not committed. Not covered: a submodule that was never checked out stays empty.
"""

import contextlib
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from berg import BergError, computer, config, words

MAX_UNTRACKED_BYTES = 1 << 30
LARGE_UNTRACKED = 50_000_000  # bytes from which an untracked file is named
IGNORE_FILE = ".bergignore"  # at the root of a repo: what .gitignore says, for berg alone
# Names of files that mostly hold what is nobody else's business.
SECRET = re.compile(
    r"""(^|/)(
    \.env(\..+)? | \.netrc | \.pypirc | \.npmrc | \.htpasswd | kaggle\.json
    | id_(rsa|dsa|ecdsa|ed25519)
    | .*\.(pem|key|p12|pfx|jks|keystore|kdbx)
    | (.*[-_.])?(credentials?|secrets?|service[-_]?account)([-_.].*)?\.(json|ya?ml|toml|txt|ini)
    )$""",
    re.VERBOSE | re.IGNORECASE,
)
GITLINK = b"160000 "  # the mode of a submodule in the index
# Content of Git LFS travels as it lies in the working tree: a machine may lack git-lfs.
NO_LFS = ["-c", "filter.lfs.clean=", "-c", "filter.lfs.smudge=", "-c", "filter.lfs.process="]
NO_LFS += ["-c", "filter.lfs.required=false"]
LFS_FILES = ["ls-files", "-z", "--", ":(attr:filter=lfs)"]
# A submodule's own files are looked at when it is its turn.
STATUS = ["status", "--porcelain=v2", "-z", "--no-renames", "--untracked-files=all"]
STATUS += ["--ignored=matching", "--ignore-submodules=dirty"]
# What git refuses in a pack, but for what old programs wrote and honest histories still have.
STRICT = "--strict=" + ",".join(
    f"{each}=ignore"
    for each in (
        "zeroPaddedFilemode",
        "badFilemode",
        "badTimezone",
        "badDate",
        "badDateOverflow",
        "badEmail",
        "badName",
        "missingEmail",
        "missingNameBeforeEmail",
        "missingSpaceBeforeDate",
        "missingSpaceBeforeEmail",
        "multipleAuthors",
        "zeroPaddedDate",
        "nulInCommit",
    )
)
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass
class Snapshot:
    """A commit that holds the working tree; `commit` equals `head` when nothing was changed."""

    root: Path
    repo_name: str
    branch: str  # "": HEAD is detached
    head: str
    commit: str
    objects: Path  # folder of berg's own for new objects
    changed: list[str] = field(default_factory=list)  # "M path": modified, A new, D deleted
    left_out: list[str] = field(default_factory=list)  # "path (why)"
    # the same of untracked files that travel, and perhaps should not
    doubtful: list[str] = field(default_factory=list)
    submodules: dict[str, "Snapshot"] = field(default_factory=dict)
    sent: dict[str, Any] | None = (
        None  # what `send` returned when it was sent, of one that lies only in the bucket
    )

    @property
    def dirty(self) -> bool:
        return bool(self.changed) or any(s.dirty for s in self.submodules.values())

    def all_changed(self) -> list[str]:
        inner = [
            f"{line[:2]}{path}/{line[2:]}"
            for path, s in self.submodules.items()
            for line in s.all_changed()
        ]
        return self.changed + inner


OnProgress = Callable[[int, int], None]  # bytes that were sent, of how many


def git(
    folder: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    stdin: bytes | IO[bytes] | None = None,
    stdout: Any = None,
) -> bytes:
    """Run git in `folder` and return what it printed, or write that to `stdout`; raises
    git.GitCommandError.

    Raises BergError for a repo of another user, in which git does nothing.
    """
    import git as gitpython

    if isinstance(stdin, bytes):
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            return git(folder, *arguments, env=env, stdin=file, stdout=stdout)
    try:
        output: Any = gitpython.Git(str(folder)).execute(
            ["git", *arguments],
            env=env,
            istream=stdin,  # type: ignore[arg-type]
            output_stream=stdout,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
        )
    except gitpython.GitCommandError as error:
        if not (found := re.search(r"dubious ownership in repository at '(.*)'", str(error))):
            raise
        trust = shlex.join(["git", "config", "--global", "--add", "safe.directory", found[1]])
        raise BergError(
            f"git does not trust {found[1]}, which belongs to another user. Run: {trust}"
        ) from None
    output_of_git: bytes = output
    return output_of_git


def text(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> str:
    return git(folder, *arguments, env=env).decode(errors="replace").strip()


def names(output: bytes) -> list[str]:
    return [name.decode(errors="surrogateescape") for name in output.split(b"\0") if name]


def find_root(folder: Path) -> Path:
    """Root of the git working tree around `folder`; raises BergError where there is none to run."""
    try:
        import git as gitpython
    except ImportError:
        raise BergError(
            f"git is not installed. Install it, for example: {computer.install_command('git')}"
        ) from None
    try:
        repo = gitpython.Repo(folder, search_parent_directories=True)
    except gitpython.InvalidGitRepositoryError:
        raise BergError(
            f"{folder} is not in a git repo, so the code that ran could not be known. "
            "Run: git init && git add -A && git commit -m start"
        ) from None
    if repo.working_tree_dir is None:
        raise BergError(
            f"{folder} is a bare git repo. Run berg in a working tree of it: git worktree add PATH"
        )
    return Path(repo.working_tree_dir)


def take(folder: Path) -> Snapshot:
    """Make a commit of the working tree around a folder; raise BergError where there is none."""
    import git as gitpython

    root = find_root(folder)
    try:
        branch = text(root, "symbolic-ref", "--short", "HEAD")
    except gitpython.GitCommandError:
        branch = ""  # detached, as continuous integration checks out; the bucket keeps the commit
    return commit_tree(root, root.name, branch)


def last_commit(root: Path) -> list[str]:
    """Return the id of the last commit, that of its tree, and its date; raise BergError without."""
    import git as gitpython

    try:
        return text(root, "log", "-1", "--no-show-signature", "--format=%H%n%T%n%cI").split("\n")
    except gitpython.GitCommandError:
        raise BergError(
            f"the repo {root} has no commit yet. Run: git add -A && git commit -m start"
        ) from None


def commit_tree(root: Path, repo_name: str, branch: str) -> Snapshot:
    """Make a commit of a working tree, and of those of its submodules.

    Only `git status` looks at all files, once: what it names is added to a copy of the index.
    """
    import git as gitpython

    head, tree_of_head, date = last_commit(root)
    snapshot = Snapshot(root, repo_name, branch, head, head, objects_folder(root))
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary, ThreadPoolExecutor() as beside:
        env = {**objects_of(snapshot), "GIT_INDEX_FILE": copy_index(root, temporary)}
        found = look(root, env)
        travelling = leave_out(snapshot, found)
        try:
            update_index(root, env, found.deleted, "--force-remove")
            update_index(root, env, travelling, "--add", "--remove", "--replace")
            large = beside.submit(git, root, *LFS_FILES, env=env)
            add_submodules(snapshot, env)
            tree = text(root, "write-tree", env=env)
            difference = ["diff-tree", "-r", "-z", "--no-renames", "--name-status"]
            changes = names(git(root, *difference, head, tree, env=env))
            snapshot.changed = [
                f"{status} {path}" for status, path in zip(changes[::2], changes[1::2], strict=True)
            ]
            if paths := names(large.result()):
                add_lfs_content(root, env, paths)
                tree = text(root, "write-tree", env=env)
        except gitpython.GitCommandError as error:
            raise BergError(f"git cannot add the files of {root}: {last_line(error)}") from None
        if tree != tree_of_head:
            # Dated as HEAD, so that the same files make the same commit, which is then sent only
            # once.
            for role in ("AUTHOR", "COMMITTER"):
                env |= {
                    f"GIT_{role}_NAME": "berg",
                    f"GIT_{role}_EMAIL": "berg@localhost",
                    f"GIT_{role}_DATE": date,
                }
            message = f"The working tree of {branch or 'a detached HEAD'} on {head[:12]}"
            snapshot.commit = text(root, "commit-tree", tree, "-p", head, "-m", message, env=env)
    return snapshot


def copy_index(root: Path, temporary: str) -> str:
    """Return the path of a copy of a repo's index in a folder; where it has none, HEAD makes it."""
    copy = str(Path(temporary, "index"))
    theirs = text(root, "rev-parse", "--path-format=absolute", "--git-path", "index")
    try:
        shutil.copy2(theirs, copy)  # as old as it is, so that git trusts no file changed since
    except FileNotFoundError:
        git(root, "read-tree", "HEAD", env={"GIT_INDEX_FILE": copy})
    return copy


@dataclass
class Found:
    """What a working tree has that the index has not: paths, folders with a slash at their end."""

    changed: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    untracked: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)


def look(root: Path, env: dict[str, str]) -> Found:
    """Compare a working tree with an index, in git's one walk; raise BergError at a conflict."""
    found = Found()
    lists = {"?": found.untracked, "!": found.ignored, "D": found.deleted, ".": [], "#": []}
    for entry in names(git(root, *STATUS, env=env)):
        kind, _, path = entry.partition(" ")
        if kind == "1":  # in the index; what matters is how the file differs from that
            states, *_, path = path.split(" ", 7)
            kind = states[1]
        if kind in ("u", "U"):
            raise BergError(f"{root} has files with merge conflicts. Resolve them: git status")
        lists.get(kind, found.changed).append(path)
    return found


def update_index(root: Path, env: dict[str, str], paths: list[str], *options: str) -> None:
    """Let an index have these files as they are; git wants repos inside without their slash."""
    if paths:
        listed = b"".join(os.fsencode(path.rstrip("/")) + b"\0" for path in paths)
        git(root, "update-index", *options, "-z", "--stdin", env=env, stdin=listed)


def common_folder(root: Path) -> Path:
    """Return the folder of git's that all working trees of a repo share."""
    return Path(text(root, "rev-parse", "--path-format=absolute", "--git-common-dir"))


def objects_folder(root: Path) -> Path:
    """Return berg's own folder for new objects of a repo, made for this user alone."""
    key = hashlib.sha256(str(common_folder(root)).encode()).hexdigest()[:16]
    config.make_private(config.home() / "repos")  # they hold private code
    folder = config.home() / "repos" / key / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def leave_out(snapshot: Snapshot, found: Found) -> list[str]:
    """Note what does not travel; return what does of what is untracked or changed."""
    unwanted = left_to_berg(snapshot.root, "--directory")
    environments = {
        str(Path(name).parent) for name in found.untracked if Path(name).name == "pyvenv.cfg"
    } - {"."}
    snapshot.left_out = [f"{name} (ignored by git)" for name in found.ignored]
    snapshot.left_out += [f"{name}/ (a virtual environment)" for name in sorted(environments)]
    snapshot.left_out += [f"{name} ({IGNORE_FILE})" for name in unwanted]
    outside = {f"{folder}/" for folder in environments}.union(unwanted)
    travelling = beyond(outside, found.untracked)
    sizes = sizes_of(snapshot.root, travelling)
    snapshot.doubtful = doubtful(sizes)
    if sum(sizes.values()) > MAX_UNTRACKED_BYTES:
        largest = ", ".join(sorted(sizes, key=lambda name: -sizes[name])[:3])
        raise BergError(
            f"{len(sizes)} untracked files of {sum(sizes.values()) / 1e9:.1f} GB would travel with "
            "the code, "
            f"the largest: {largest}. Add data to .gitignore or {IGNORE_FILE} (a machine gets it "
            "from the bucket), or commit it"
        )
    return found.changed + travelling


def repo_that_takes(folder: Path) -> Path | None:
    """Return the root of the repo around a folder if it would send untracked files of it along."""
    try:
        root = find_root(folder)
    except BergError:
        return None
    inside = str(folder.resolve())
    below = git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", inside)
    if set(names(below)) <= set(left_to_berg(root)):
        return None
    return root


def beyond(outside: set[str], paths: list[str]) -> list[str]:
    """Return the paths that are not of `outside`: files, and folders with a slash at their end."""
    folders = tuple(each for each in outside if each.endswith("/"))
    return [path for path in paths if path not in outside and not path.startswith(folders)]


def sizes_of(root: Path, paths: list[str]) -> dict[str, int]:
    """Return the bytes of files that are there."""
    sizes = {}
    for path in paths:
        with contextlib.suppress(OSError):
            sizes[path] = (root / path).lstat().st_size
    return sizes


def left_to_berg(root: Path, *options: str) -> list[str]:
    """Return the untracked files that .bergignore names; with --directory a folder of nothing else
    once, with a slash at its end.
    """
    if not (root / IGNORE_FILE).is_file():
        return []
    listing = ["ls-files", "--others", "--ignored", f"--exclude-from={IGNORE_FILE}", "-z"]
    return names(git(root, *listing, *options))


def doubtful(sizes: dict[str, int]) -> list[str]:
    """Return those of the untracked files that travel, by name and bytes, that look like a secret
    or are large, each with why.
    """
    found = [f"{name} (looks like a secret)" for name in sorted(sizes) if SECRET.search(name)]
    large = [name for name in sorted(sizes) if sizes[name] >= LARGE_UNTRACKED]
    return found + [f"{name} ({words.size(sizes[name])})" for name in large]


def bytes_to_send(snapshot: Snapshot, bucket_name: str) -> int:
    """Return about how many bytes `send` would upload: as much as git has on disk of what was not
    sent before. Nobody is asked; 0 of a snapshot that lies only in the bucket.
    """
    if snapshot.sent:
        return 0
    base = bases_of(snapshot.objects).get(bucket_name)
    revisions = [f"{snapshot.commit}^{{tree}}"]
    if base and has_commits(snapshot, base["commit"], base["head"]):
        revisions += ["--not", f"{base['commit']}^{{tree}}"]
    counted = ["rev-list", "--objects", "--disk-usage", *revisions]
    own = int(git(snapshot.root, *counted, env=objects_of(snapshot)))
    return own + sum(bytes_to_send(sub, bucket_name) for sub in snapshot.submodules.values())


def bases_of(objects: Path) -> dict[str, Any]:
    """Return what was sent of a repo before, by bucket, as far as it is remembered."""
    try:
        return dict(json.loads(sent_file(objects).read_text()))
    except (OSError, ValueError):
        return {}


def sent_file(objects: Path) -> Path:
    return objects.parent / "sent.json"


def base_pack(root: Path, bucket_name: str) -> str:
    """Return the object on top of which the next snapshot of a repo goes; "" if none was sent."""
    base = bases_of(objects_folder(root)).get(bucket_name)
    return pack_of(root.name, base) if base else ""


def pack_of(repo_name: str, base: dict[str, Any]) -> str:
    """Return the object of what was sent of a repo before."""
    return f".berg/repos/{repo_name}/{base['commit']}.pack"


def add_submodules(snapshot: Snapshot, env: dict[str, str]) -> None:
    """Snapshot every checked-out repo inside this one, and point the index at those snapshots."""
    listed = git(snapshot.root, "ls-files", "--stage", "-z", env=env)
    links = [entry.partition(b"\t")[2] for entry in listed.split(b"\0") if entry[:7] == GITLINK]
    for path in map(os.fsdecode, links):
        inner = snapshot.root / path
        if not (inner / ".git").exists():
            snapshot.left_out.append(
                f"{path}/ (a submodule that is not checked out: git submodule update --init)"
            )
        else:
            sub = commit_tree(inner, f"{snapshot.repo_name}.{Path(path).name}", "berg")
            snapshot.submodules[path] = sub
            git(
                snapshot.root, "update-index", "--cacheinfo", f"160000,{sub.commit},{path}", env=env
            )


def add_lfs_content(root: Path, env: dict[str, str], paths: list[str]) -> None:
    """Replace the pointers of Git LFS in the index by the files that lie in the working tree."""
    present = b"\0".join(os.fsencode(path) for path in paths if (root / path).is_file())
    git(root, "update-index", "--force-remove", "-z", "--stdin", env=env, stdin=present)
    literal = {**env, "GIT_LITERAL_PATHSPECS": "1"}
    from_stdin = ["--force", "--pathspec-from-file=-", "--pathspec-file-nul"]
    git(root, *NO_LFS, "add", *from_stdin, env=literal, stdin=present)


def last_line(error: Any) -> str:
    output = (
        error.stderr
        if isinstance(error.stderr, str)
        else (error.stderr or b"").decode(errors="replace")
    )
    lines = [
        line for line in output.replace("stderr:", "").strip(" \n'").splitlines() if line.strip()
    ]
    # which file; the last line only sums up
    named = [line for line in lines if line.startswith("error: ")][:1]
    return [*lines[-1:], *named][-1].strip() if lines else str(error)


def write_out(snapshot: Snapshot, folder: Path) -> None:
    """Write a snapshot's files, and nothing of git's, to a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        env = {**objects_of(snapshot), "GIT_INDEX_FILE": str(Path(temporary, "index"))}
        git(snapshot.root, "read-tree", snapshot.commit, env=env)
        git(
            snapshot.root,
            *NO_LFS,
            "checkout-index",
            "--all",
            "--force",
            f"--prefix={folder}/",
            env=env,
        )
    for path, sub in snapshot.submodules.items():
        write_out(sub, folder / path)


def send(
    snapshot: Snapshot,
    bucket: Any,
    on_progress: Callable[[int, int], None] = lambda n, size: None,
    known: Collection[str] = (),
) -> dict[str, Any]:
    """Upload what the bucket lacks of a snapshot; returns what `restore` needs, for the job's
    metadata.

    `on_progress` hears how many bytes of how many went up, pack by pack. What was sent before is
    remembered in a file beside the objects. That is a hint: the bucket is asked whether it is still
    there, unless it is `known` to be, and so is the repo, whose history may have been rewritten
    since.
    """
    if snapshot.sent:
        return snapshot.sent
    prefix = f".berg/repos/{snapshot.repo_name}/"
    bases = bases_of(snapshot.objects)
    base = bases.get(bucket.name)
    packs = []
    first = pack_of(snapshot.repo_name, base) if base else ""
    if base and is_base(snapshot, bucket, first, base, known):
        packs = add_to(snapshot, bucket, first, base, on_progress)
    if not packs:
        packs = [f"{prefix}{snapshot.commit}.pack"]
        size = send_pack(snapshot, bucket, packs[0], None, on_progress)
        bases[bucket.name] = {"commit": snapshot.commit, "head": snapshot.head, "bytes": size}
        sent_file(snapshot.objects).write_text(json.dumps(bases))
    submodules = {path: send(sub, bucket, on_progress) for path, sub in snapshot.submodules.items()}
    return {
        "commit": snapshot.commit,
        "branch": snapshot.branch,
        "shallow": [snapshot.head],
        "cut": [base["head"]] if base and len(packs) > 1 else [],
        "packs": packs,
        "submodules": submodules,
    }


def is_base(
    snapshot: Snapshot, bucket: Any, first: str, base: dict[str, Any], known: Collection[str]
) -> bool:
    """Whether the bucket still has a pack that was sent, and the repo what was in it."""
    if first in known:
        return has_commits(snapshot, base["commit"], base["head"])
    with ThreadPoolExecutor(1) as beside:
        is_there = beside.submit(bucket.exists, first)
        return has_commits(snapshot, base["commit"], base["head"]) and is_there.result()


def has_commits(snapshot: Snapshot, *commits: str) -> bool:
    """Whether commits are there with all that they hold, but for what was cut off behind them."""
    import git as gitpython

    try:
        trees = [f"{commit}^{{tree}}" for commit in commits]
        git(snapshot.root, "rev-list", "--objects", "--quiet", *trees, env=objects_of(snapshot))
    except gitpython.GitCommandError:
        return False
    return True


def objects_of(snapshot: Snapshot) -> dict[str, str]:
    """Git's variables for a repo's objects together with those of berg's own folder."""
    return {
        "GIT_OBJECT_DIRECTORY": str(snapshot.objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f"{common_folder(snapshot.root)}/objects",
    }


def add_to(
    snapshot: Snapshot, bucket: Any, first: str, base: dict[str, Any], on_progress: OnProgress
) -> list[str]:
    """The packs of a snapshot on top of one that was sent before; [] if it is better sent anew."""
    if base["commit"] == snapshot.commit:
        return [first]
    name = f"{first.rpartition('/')[0]}/{snapshot.commit}-on-{base['commit'][:12]}.pack"
    # A pack that approaches the first one in size is better made the new first one.
    most = max(1 << 20, base["bytes"] / 3)
    return (
        [first, name] if send_pack(snapshot, bucket, name, base, on_progress, most) < most else []
    )


def send_pack(
    snapshot: Snapshot,
    bucket: Any,
    name: str,
    base: dict[str, Any] | None,
    on_progress: OnProgress,
    most: float = math.inf,
) -> int:
    """Upload the objects of a snapshot that its base lacks, if they are less than `most`; returns
    their bytes.
    """
    revisions = [f"--shallow {snapshot.head}", snapshot.commit]
    options = ["--window=0"]  # deltas among the files of one commit save little and cost seconds
    if base:
        revisions = [f"--shallow {base['head']}", *revisions, "--not", base["commit"]]
        options = ["--thin", "--window=10"]
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        pack = Path(temporary, "pack")
        with pack.open("wb") as file:
            command = [
                "pack-objects",
                "--revs",
                "--shallow",
                "--stdout",
                "-q",
                "--delta-base-offset",
            ]
            stdin = "\n".join([*revisions, ""]).encode()
            git(
                snapshot.root,
                *command,
                "--compression=1",
                *options,
                env=objects_of(snapshot),
                stdin=stdin,
                stdout=file,
            )
        size = pack.stat().st_size
        if size < most:
            bucket.upload(name, pack, lambda n: on_progress(n, size))
        return size


def write_shallow(folder: Path, commits: list[str]) -> None:
    """Let git know behind which commits of a repo the history is cut."""
    (folder / ".git/shallow").write_text("".join(f"{commit}\n" for commit in commits))


def all_packs(description: dict[str, Any]) -> Iterator[str]:
    yield from description.get("packs", [])
    for sub in description.get("submodules", {}).values():
        yield from all_packs(sub)


def init(folder: Path, commit: str) -> None:
    """Make a folder a repo whose ids are like that of a commit."""
    # Older gits, which know sha1 alone, pass over the variable and would refuse an option.
    kind = "sha256" if len(commit) == 64 else "sha1"
    git(folder, "init", "--quiet", env={"GIT_DEFAULT_HASH": kind})


def restore(
    description: dict[str, Any], folder: Path, open_pack: Callable[[str], IO[bytes]]
) -> None:
    """Make `folder` a real checkout of a snapshot; `open_pack` opens a pack of it by name.

    Git makes each object's id anew from its content, so that the commit's id vouches for all files.
    Raises BergError if the commit or a part of it is not in the packs, or git refuses what is.
    """
    import git as gitpython

    commit, branch = description["commit"], description["branch"]
    if not COMMIT.fullmatch(commit):
        raise BergError(f"{commit[:80]!r} is not the id of a commit")
    folder.mkdir(parents=True, exist_ok=True)
    try:
        init(folder, commit)
        shallow, cut = description["shallow"], description.get("cut")
        write_shallow(folder, [*shallow, *(cut or [])])
        # An earlier berg did not say where it cut the history of the first pack.
        strict = [] if cut is None else [STRICT]
        for name in description["packs"]:
            with open_pack(name) as stream:
                git(folder, "index-pack", *strict, "--fix-thin", "--stdin", stdin=stream)
        write_shallow(folder, shallow)
        git(
            folder, "update-ref", "--no-deref", f"refs/heads/{branch}" if branch else "HEAD", commit
        )
        # what is not in it was made here, or pushed later
        git(folder, "update-ref", "refs/berg/start", commit)
        if branch:
            git(folder, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
        for setting in NO_LFS[1::2]:
            git(folder, "config", *setting.split("=", 1))
        git(folder, "reset", "--hard", "--quiet", commit)
        if text(folder, "rev-parse", "HEAD") != commit:
            raise BergError(f"commit {commit} cannot be restored: another one was checked out")
        # What an installation writes into the checkout is not a change of the user's.
        with (folder / ".git/info/exclude").open("a") as file:
            file.write("*.egg-info/\n__pycache__/\n/build/\n")
    except gitpython.GitCommandError as error:
        raise BergError(f"commit {commit} cannot be restored: {last_line(error)}") from None
    for path, sub in description["submodules"].items():
        restore(sub, folder / path, open_pack)
