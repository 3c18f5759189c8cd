"""The working tree as a commit: make it, send what is new of it, restore it on a machine.

The user's index, stash, refs and objects stay untouched: files are added to a copy of the index,
and new objects go to a folder of berg's own. In the bucket a snapshot is one pack, or a small pack
on top of a pack that was sent before:

    .berg/repos/<repo>/<commit>.pack
    .berg/repos/<repo>/<commit>-on-<base>.pack

History is cut behind HEAD, so that a machine gets two commits at most: HEAD, and on top of it the
changes that were not committed. Of a sparse checkout it gets what is checked out, without HEAD.
Files travel as they are in the working tree, without git's filters. Not covered: a submodule that
was never checked out stays empty.
"""

import contextlib
import fnmatch
import hashlib
import json
import math
import os
import posixpath
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any

from berg import BergError, config, job, plain
from berg.code import git as program
from berg.code.git import (
    LINK,
    STAGED,
    SUBMODULE,
    Entry,
    Found,
    GitError,
    common_folder,
    names,
    text,
)
from berg.code.git import run as git

LONGEST_NAME = 100  # characters of a repo's; it is a part of longer names
MAX_UNTRACKED_BYTES = 1 << 30
LARGE_UNTRACKED = 50_000_000  # bytes from which an untracked file is named
SENT = "sent.json"  # what was sent of a repo, by bucket
IGNORE_FILE = ".bergignore"  # at the root of a repo: what .gitignore says, for berg alone
REPLACED = ["for-each-ref", "--format=%(refname:lstrip=2)", "refs/replace"]
# Files that git changes on the way between the working tree and its objects, as Git LFS does.
FILTERED = [*STAGED, "--", ":(exclude,attr:!filter)", ":(exclude,attr:-filter)"]
# What such files begin with if their content is not here -> how to get it.
POINTERS = {
    b"version https://git-lfs.": "a pointer of Git LFS without its content: git lfs pull",
    b"\0GITCRYPT": "encrypted: git-crypt unlock",
}
DIFFERENCE = ["diff-tree", "-r", "-z", "--no-renames", "--name-status"]
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
# In paths that are not UTF-8. What decides about an installation is in others: a job records it.
UNDECODABLE = re.compile("[\udc80-\udcff]")
MOST_LINKS = 8  # that are followed, one after the other


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
    # the job that ran it, of one that is only in the bucket
    ran: job.Job | None = None
    is_sparse: bool = False  # the working tree lacks files of HEAD on purpose

    @property
    def oldest(self) -> str:
        """The commit behind which history is cut."""
        return self.commit if self.is_sparse else self.head

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
OpenPack = Callable[[str], IO[bytes]]  # opens a pack of the bucket by name


def find_root(folder: Path) -> Path:
    """Root of the git working tree around `folder`; raises BergError where there is none to run."""
    bare = BergError(
        f"{folder} is a bare git repo, or in one. Run berg outside of it, in a working tree: git "
        "worktree add PATH"
    )
    try:
        root = program.path(folder, "--show-toplevel")
    except GitError as error:
        if re.search("bare repository|must be run in a work tree", str(error)):
            raise bare from None
        raise BergError(
            f"{folder} is not in a git repo, so the code that ran could not be known. "
            "Run: git init && git add -A && git commit -m start"
        ) from None
    # git before 2.38 takes a bare repo whose configuration names a working tree
    if not (root / ".git").exists() and "GIT_DIR" not in os.environ:
        raise bare
    return root


def take(folder: Path) -> Snapshot:
    """Make a commit of the working tree around a folder; raise BergError where there is none."""
    root = find_root(folder)
    return commit_tree(root, folder_name(root.name))


def folder_name(name: str) -> str:
    """Return a repo's name as a folder on machines and in the bucket."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip(".-")[:LONGEST_NAME] or "repo"


def commit_tree(root: Path, repo_name: str, branch: str | None = None) -> Snapshot:
    """Make a commit of a working tree, and of those of its submodules; the branch is the one that
    is checked out unless it is named.

    Only `git status` looks at all files, once. What does not need its answer runs in parallel.
    """
    snapshot = Snapshot(root, repo_name, "", "", "", objects_folder(root))
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary, ThreadPoolExecutor() as pool:
        theirs = index_of(root, temporary)
        looking = pool.submit(program.look, root, {**theirs, "GIT_OPTIONAL_LOCKS": "0"})
        last = pool.submit(text, root, "log", "-1", "--no-show-signature", "--format=%H%n%T%n%cI")
        listed = pool.submit(git, root, *STAGED, "-v", env=theirs)
        filtered = pool.submit(git, root, *FILTERED, env=theirs)
        replaced = text(root, *REPLACED).split()
        env = {**objects_of(snapshot), "GIT_INDEX_FILE": f"{temporary}/changed"}
        found = looking.result()
        head, tree_of_head, date = last.result().split("\n")
        if head != found.head:  # a commit was made meanwhile
            return commit_tree(root, repo_name, branch)
        snapshot.head = snapshot.commit = head
        snapshot.branch = found.branch if branch is None else branch
        program.look_closer(root, found, listed.result(), replaced)
        try:
            changes = add_changes(snapshot, env, found)
            named = pool.submit(git, root, *FILTERED, env=env)
            tree = program.edited(root, env, tree_of_head, changes)
            difference = pool.submit(git, root, *DIFFERENCE, head, tree, env=env)
            stored = {**entries_in(filtered.result()), **entries_in(named.result())}
            stored = {path: entry for path, entry in stored.items() if changes.get(path, entry)}
            unseen = unfiltered(snapshot, env, stored)
            tree = program.edited(root, env, tree, unseen | dict.fromkeys(found.sparse))
            if tree != tree_of_head:
                snapshot.commit = commit_on(snapshot, env, tree, date)
            note_difference(snapshot, found, names(difference.result()))
        except GitError as error:
            raise BergError(f"git cannot add the files of {root}: {error}") from None
    return snapshot


def commit_on(snapshot: Snapshot, env: dict[str, str], tree: str, date: str) -> str:
    """Make a commit of a tree on top of HEAD; return its id.

    It is dated as HEAD, so that the same files make the same commit, which is sent only once.
    """
    for role in ("AUTHOR", "COMMITTER"):
        env = env | {
            f"GIT_{role}_NAME": "berg",
            f"GIT_{role}_EMAIL": "berg@localhost",
            f"GIT_{role}_DATE": date,
        }
    where = snapshot.branch or "a detached HEAD"
    message = f"The working tree of {where} on {snapshot.head[:12]}"
    return text(snapshot.root, "commit-tree", tree, "-p", snapshot.head, "-m", message, env=env)


def index_of(root: Path, temporary: str) -> dict[str, str]:
    """Return git's variables for a repo's index; where it has none, HEAD makes one in a folder."""
    if program.path(root, "--path-format=absolute", "--git-path", "index").exists():
        return {}
    env = {"GIT_INDEX_FILE": str(Path(temporary, "index"))}
    with contextlib.suppress(GitError):  # where there is no commit yet
        git(root, "read-tree", "HEAD", env=env)
    return env


def add_changes(snapshot: Snapshot, env: dict[str, str], found: Found) -> dict[str, Entry | None]:
    """Return the entries of what HEAD has otherwise; note what does not travel as it is here."""
    travelling = leave_out(snapshot, found)
    known = {**found.staged, **dict.fromkeys(found.deleted)}
    changes = known | add(snapshot.root, env, found.before, travelling)
    special = {**found.special, **changes}
    for path in sorted(path for path, entry in special.items() if entry and entry[0] == LINK):
        if (snapshot.root / path).is_symlink():
            target = (snapshot.root / path).readlink()
            inside = os.path.normpath(Path(path).parent / target)
            if f"{inside}/".startswith(("/", "../", ".git/")):
                snapshot.doubtful.append(f"{path} (a link to {target}, which is not sent)")
    return changes | add_submodules(snapshot, special)


def unfiltered(
    snapshot: Snapshot, env: dict[str, str], stored: dict[str, Entry]
) -> dict[str, Entry | None]:
    """Return entries for files with the content that the working tree has, not what filters make
    of it; note where both differ, and what has no content here.
    """
    inner = {**env, "GIT_INDEX_FILE": f"{env['GIT_INDEX_FILE']}-unfiltered"}
    stored = {path: entry for path, entry in stored.items() if entry[0] not in (LINK, SUBMODULE)}
    if not stored:
        return {}
    options = program.without_filters(snapshot.root)
    made = add(snapshot.root, inner, stored, sorted(stored), options)
    others = [path for path, entry in made.items() if entry not in (stored[path], None)]
    for path, name in filters_of(snapshot.root, others).items():
        if name != "lfs":
            snapshot.doubtful.append(f"{path} (as it is here, without git's filter {name})")
    for path in (path for path, entry in made.items() if entry == stored[path]):
        if why := why_unreadable(snapshot.root / path):
            snapshot.doubtful.append(f"{path} ({why})")
    return made


def why_unreadable(path: Path) -> str:
    """Return what a file is instead of its content, and how to get that; "" if it is that."""
    with path.open("rb") as file:
        start = file.read(100)
    return next((why for begin, why in POINTERS.items() if start.startswith(begin)), "")


def filters_of(
    root: Path, paths: Collection[str], *options: str, env: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the names of the filters of files, by path."""
    asked = b"".join(os.fsencode(path) + b"\0" for path in paths)
    command = ["check-attr", *options, "-z", "--stdin", "filter"]
    answer = names(git(root, *command, env=env, stdin=asked)) if asked else []
    return dict(zip(answer[::3], answer[2::3], strict=True))


def note_difference(snapshot: Snapshot, found: Found, difference: list[str]) -> None:
    """Note what git, and the user who asks it, would not show as changed."""
    status = dict(zip(difference[1::2], difference[::2], strict=True))
    for path, each in status.items():  # as text, because a job's record is text
        snapshot.changed.append(f"{each} {os.fsencode(path).decode(errors='backslashreplace')}")
    for path in sorted(status.keys() & set(found.hidden)):
        snapshot.doubtful.append(f"{path} (changed, but hidden from `git status`)")
    snapshot.is_sparse = bool(found.sparse)
    if found.sparse:
        files = plain.plural(len(found.sparse), "file")
        snapshot.left_out.append(f"{files} that are not in the working tree (sparse checkout)")


def add(
    root: Path,
    env: dict[str, str],
    before: dict[str, Entry],
    paths: list[str],
    options: Collection[str] = (),
) -> dict[str, Entry | None]:
    """Add files to an index of their own; return its entries, and None for paths that are gone.

    It has the entries `before`, from which git knows modes and ends of lines that are to stay.
    """
    if not paths:
        return {}
    lines = [f"{mode} {content}\t{path}\0" for path, (mode, content) in before.items()]
    git(root, "update-index", "-z", "--index-info", env=env, stdin=os.fsencode("".join(lines)))
    # git wants repos inside without their slash
    listed = b"".join(os.fsencode(path.rstrip("/")) + b"\0" for path in paths)
    update = ["update-index", "--add", "--remove", "--replace", "-z", "--stdin"]
    git(root, *options, *update, env=env, stdin=listed)
    return {**dict.fromkeys(before), **entries_in(git(root, *STAGED, env=env))}


def entries_in(listed: bytes) -> dict[str, Entry]:
    """Return the entries of an index from what `git ls-files --stage` says."""
    found = {}
    for line in names(listed):
        about, _, path = line.partition("\t")
        mode, content, _ = about.split(" ")
        found[path] = (mode, content)
    return found


def objects_folder(root: Path) -> Path:
    """Return berg's own folder for new objects of a repo, made for this user alone."""
    key = hashlib.sha256(os.fsencode(common_folder(root))).hexdigest()[:16]
    config.make_private(config.home() / "repos")  # they hold private code
    folder = config.home() / "repos" / key / "objects"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def leave_out(snapshot: Snapshot, found: Found) -> list[str]:
    """Note what does not travel; return what does of what is untracked or changed."""
    unwanted = left_to_berg(snapshot.root, "--directory")
    configurations = fnmatch.filter(found.untracked, "*/pyvenv.cfg")
    environments = sorted(name.removesuffix("pyvenv.cfg") for name in configurations)
    lifted, named = brought_by_berg(snapshot.root)
    ignored = set(found.ignored) - {*named, *lifted} - folders_of(lifted)
    reasons = {
        **dict.fromkeys(sorted(ignored), "ignored by git"),
        **dict.fromkeys(environments, "a virtual environment"),
        **dict.fromkeys(unwanted, IGNORE_FILE),
    }
    snapshot.left_out = [f"{name} ({why})" for name, why in reasons.items()]
    outside = {*environments, *unwanted}
    folders = tuple(each for each in outside if each.endswith("/"))
    untracked = dict.fromkeys([*found.untracked, *lifted, *named])
    travelling = [
        path for path in untracked if path not in outside and not path.startswith(folders)
    ]
    check_untracked(snapshot, travelling)
    return found.changed + travelling


def folders_of(paths: list[str]) -> set[str]:
    """Return the folders around files, with a slash at their end."""
    return {f"{folder}/" for path in paths for folder in PurePath(path).parents}


def check_untracked(snapshot: Snapshot, paths: list[str]) -> None:
    """Note the files that are large; raise BergError for too many bytes."""
    sizes = {}
    for path in paths:
        with contextlib.suppress(OSError):
            sizes[path] = (snapshot.root / path).lstat().st_size
    for path in sorted(path for path, size in sizes.items() if size >= LARGE_UNTRACKED):
        snapshot.doubtful.append(f"{path} ({plain.size(sizes[path])})")
    if sum(sizes.values()) > MAX_UNTRACKED_BYTES:
        largest = ", ".join(sorted(sizes, key=lambda name: -sizes[name])[:3])
        raise BergError(
            f"{len(sizes)} untracked files of {sum(sizes.values()) / 1e9:.1f} GB would be sent "
            f"with the code, the largest: {largest}. Add data to .gitignore "
            f"or {IGNORE_FILE} (a machine gets it from the bucket), or commit it"
        )


def repo_that_takes(folder: Path, fetched: Path) -> Path | None:
    """Return the root of the repo around what was fetched if it would send untracked files of a
    folder of that along. Git starts in that root, never in what was fetched.
    """
    root = next((each for each in fetched.resolve().parents if (each / ".git").exists()), None)
    if root is None:
        return None
    listing = ["ls-files", "--others", "--exclude-standard", "-z", "--", str(folder.resolve())]
    try:
        below = names(git(root, "--git-dir=.git", *listing))
    except GitError:  # something else has that name
        return None
    return None if set(below) <= set(left_to_berg(root)) else root


def left_to_berg(root: Path, *options: str) -> list[str]:
    """Return the untracked files that .bergignore names; with --directory a folder of nothing else
    once, with a slash at its end.
    """
    if not (root / IGNORE_FILE).is_file():
        return []
    listing = ["ls-files", "--others", "--ignored", f"--exclude-from={IGNORE_FILE}", "-z"]
    return names(git(root, *listing, *options))


def brought_by_berg(root: Path) -> tuple[list[str], list[str]]:
    """Return untracked files that .bergignore has behind a `!`, whether git ignores them or not.

    The first ones are what git lists as if such lines came last in .gitignore: nothing in a folder
    that is still ignored. The others are named by their path from the root.
    """
    if not (root / IGNORE_FILE).is_file():
        return [], []
    lines = (root / IGNORE_FILE).read_text(errors="surrogateescape").splitlines()
    patterns = [line[1:] for line in lines if line.startswith("!")]
    if not patterns:
        return [], []
    paths = [each for each in patterns if "/" in each.rstrip("/") and not each.startswith("**/")]
    listing = ["ls-files", "--others", "-z"]
    shown = [f"--exclude=!{pattern}" for pattern in patterns]
    lifted = names(git(root, *listing, "--exclude-standard", *shown))
    if not paths:
        return lifted, []
    return lifted, names(git(root, *listing, "--ignored", *(f"--exclude={path}" for path in paths)))


def bytes_to_send(snapshot: Snapshot, bucket_name: str) -> int:
    """Return about how many bytes `send` would upload: as much as git has on disk of what was not
    sent before. The bucket is not asked; 0 for a snapshot that is only in the bucket.
    """
    if snapshot.ran:
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
        return dict(json.loads((objects.parent / SENT).read_text()))
    except (OSError, ValueError):
        return {}


def base_pack(root: Path, bucket_name: str) -> str:
    """Return the object on top of which the next snapshot of a repo goes; "" if none was sent."""
    base = bases_of(objects_folder(root)).get(bucket_name)
    return pack_of(folder_name(root.name), base) if base else ""


def pack_of(repo_name: str, base: dict[str, Any]) -> str:
    """Return the object of what was sent of a repo before."""
    return f".berg/repos/{repo_name}/{base['commit']}.pack"


def add_submodules(snapshot: Snapshot, listed: dict[str, Entry | None]) -> dict[str, Entry | None]:
    """Snapshot each repo inside this one that is listed and checked out; return the entries that
    point at those.
    """
    entries: dict[str, Entry | None] = {}
    for path in sorted(path for path, entry in listed.items() if entry and entry[0] == SUBMODULE):
        inner = snapshot.root / path
        if not (inner / ".git").exists():
            snapshot.left_out.append(
                f"{path}/ (a submodule that is not checked out: git submodule update --init)"
            )
        elif why := program.enter(snapshot.root, inner):
            snapshot.left_out.append(f"{path}/ ({why})")
        else:
            name = folder_name(f"{snapshot.repo_name}.{inner.name}")
            sub = commit_tree(inner, name, "berg")
            snapshot.left_out += [f"{path}/{line}" for line in sub.left_out]
            snapshot.doubtful += [f"{path}/{line}" for line in sub.doubtful]
            snapshot.submodules[path] = sub
            entries[path] = (SUBMODULE, sub.commit)
    return entries


def write_out(snapshot: Snapshot, folder: Path) -> None:
    """Write a snapshot's files, and nothing of git's, to a folder; links as links.

    Raises BergError for a submodule that would land outside: a file system that folds case may
    take a link for a folder on its path.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        env = {**objects_of(snapshot), "GIT_INDEX_FILE": str(Path(temporary, "index"))}
        git(snapshot.root, "read-tree", snapshot.commit, env=env)
        checkout = ["checkout-index", "--all", "--force", f"--prefix={folder}/"]
        git(snapshot.root, *program.without_filters(snapshot.root), *checkout, env=env)
    for path, sub in snapshot.submodules.items():
        if (folder / path).resolve() != folder.resolve() / path:
            raise BergError(f"the submodule {path} would land at a link's place. Move the link")
        write_out(sub, folder / path)


def send(
    snapshot: Snapshot,
    bucket: Any,
    on_progress: OnProgress = lambda n, size: None,
    known: Collection[str] = (),
) -> dict[str, Any]:
    """Upload what the bucket lacks of a snapshot; returns what `restore` needs, for the job's
    metadata.

    `on_progress` gets the bytes sent and the bytes in all, for each pack. What was sent before is
    remembered in a file next to the objects. The bucket is asked whether it is still there, unless
    it is `known` to be, and so is the repo, whose history may have been rewritten since.
    """
    if snapshot.ran:
        return snapshot.ran.snapshot
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
        bases[bucket.name] = {"commit": snapshot.commit, "head": snapshot.oldest, "bytes": size}
        (snapshot.objects.parent / SENT).write_text(json.dumps(bases))
    submodules = {path: send(sub, bucket, on_progress) for path, sub in snapshot.submodules.items()}
    return {
        "commit": snapshot.commit,
        "branch": snapshot.branch,
        "shallow": [snapshot.oldest],
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
    with ThreadPoolExecutor(1) as pool:
        is_there = pool.submit(bucket.exists, first)
        return has_commits(snapshot, base["commit"], base["head"]) and is_there.result()


def has_commits(snapshot: Snapshot, *commits: str) -> bool:
    """Whether commits are there with all that they hold, but for what was cut off behind them."""
    try:
        return not missing(snapshot, *commits)
    except GitError:
        return False


def missing(snapshot: Snapshot, *commits: str) -> list[bytes]:
    """Return the ids of objects of commits that a partial clone did not fetch."""
    trees = [f"{commit}^{{tree}}" for commit in commits]
    listing = ["rev-list", "--objects", "--quiet", "--missing=print", *trees]
    listed = git(snapshot.root, *listing, env=objects_of(snapshot)).split()
    return [line[1:] for line in listed if line.startswith(b"?")]


def complete(snapshot: Snapshot) -> None:
    """Fetch all that a partial clone lacks of a snapshot; git would fetch file by file later.

    Raises BergError if git cannot.
    """
    if not any(Path(common_folder(snapshot.root), "objects/pack").glob("*.promisor")):
        return
    try:
        while lacking := missing(snapshot, snapshot.commit):
            # What git packs it fetches at once.
            wanted, env = b"\n".join([*lacking, b""]), objects_of(snapshot)
            with Path(os.devnull).open("wb") as file:
                pack = ["pack-objects", "--stdout", "-q"]
                git(snapshot.root, *pack, env=env, stdin=wanted, stdout=file)
    except GitError as error:
        raise BergError(
            f"git cannot fetch what {snapshot.root}, a partial clone, lacks of "
            f"{snapshot.commit[:12]}: {error}"
        ) from None


def objects_of(snapshot: Snapshot) -> dict[str, str]:
    """Git's variables for a repo's objects together with those of berg's own folder."""
    theirs = re.sub(r'(["\\])', r"\\\1", f"{common_folder(snapshot.root)}/objects")
    return {
        "GIT_OBJECT_DIRECTORY": str(snapshot.objects),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{theirs}"',  # a colon would separate two
    }


def add_to(
    snapshot: Snapshot, bucket: Any, first: str, base: dict[str, Any], on_progress: OnProgress
) -> list[str]:
    """The packs of a snapshot on top of one that was sent before; [] if it is better sent whole."""
    if base["commit"] == snapshot.commit:
        return [first]
    name = f"{first.rpartition('/')[0]}/{snapshot.commit}-on-{base['commit'][:12]}.pack"
    # A pack that approaches the first one in size is better made the new first one.
    most = max(1 << 20, base["bytes"] / 3)
    size = send_pack(snapshot, bucket, name, base, on_progress, most)
    return [first, name] if size < most else []


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
    revisions = [f"--shallow {snapshot.oldest}", snapshot.commit]
    options = ["--window=0"]  # deltas among the files of one commit save little and cost seconds
    if base:
        revisions = [f"--shallow {base['head']}", *revisions, "--not", base["commit"]]
        options = ["--thin", "--window=10"]
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        pack = Path(temporary, "pack")
        with pack.open("wb") as file:
            command = ["pack-objects", "--revs", "--shallow", "--stdout", "-q", *options]
            command += ["--delta-base-offset", "--compression=1"]
            stdin = "\n".join([*revisions, ""]).encode()
            git(snapshot.root, *command, env=objects_of(snapshot), stdin=stdin, stdout=file)
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


def restore(description: dict[str, Any], folder: Path, open_pack: OpenPack) -> None:
    """Make `folder` a real checkout of a snapshot; `open_pack` opens a pack of it by name.

    Git computes each object's id from its content, so that the commit's id vouches for all files.
    Raises BergError if the commit or a part of it is not in the packs, or git refuses what is.
    """
    commit, branch = commit_of(description), description["branch"]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        init(folder, commit)
        shallow = description["shallow"]
        write_shallow(folder, [*shallow, *(description.get("cut") or [])])
        for name in description["packs"]:
            with open_pack(name) as stream:
                git(folder, "index-pack", STRICT, "--fix-thin", "--stdin", stdin=stream)
        write_shallow(folder, shallow)
        where = f"refs/heads/{branch}" if branch else "HEAD"
        git(folder, "update-ref", "--no-deref", where, commit)
        # what is not in it was made here, or pushed later
        git(folder, "update-ref", "refs/berg/start", commit)
        if branch:
            git(folder, "symbolic-ref", "HEAD", f"refs/heads/{branch}")
        (folder / ".git/info").mkdir(exist_ok=True)
        # for a repo's info/attributes, which count more than .gitattributes
        (folder / ".git/info/attributes").write_text("* -filter\n")
        git(folder, "reset", "--hard", "--quiet", commit)
        if text(folder, "rev-parse", "HEAD") != commit:
            raise BergError(f"commit {commit} cannot be restored: another one was checked out")
        # What an installation and berg write into the checkout is not a change of the user's.
        with (folder / ".git/info/exclude").open("a") as file:
            file.write("*.egg-info/\n__pycache__/\n/build/\nberg_results\n")
    except GitError as error:
        raise BergError(f"commit {commit} cannot be restored: {error}") from None
    for path, sub in description["submodules"].items():
        restore(sub, folder / path, open_pack)


# --- the code of commits


@dataclass(frozen=True)
class Files:
    """Paths from the root of a repo, and what reads one of them; "" for a missing one."""

    paths: frozenset[str]
    read: Callable[[str], str]

    def has(self, folder: str, name: str) -> bool:
        return posixpath.join(folder, name) in self.paths

    def text(self, folder: str, name: str) -> str:
        path = posixpath.join(folder, name)
        return self.read(path) if path in self.paths else ""

    def below(self, folder: str, name: str) -> list[str]:
        """Return the paths of files of a name in the folders of a folder."""
        start = f"{folder}/" if folder else ""
        depth = start.count("/") + 1
        return sorted(
            path
            for path in self.paths
            if path.startswith(start) and path.endswith(f"/{name}") and path.count("/") == depth
        )


def files_in(taken: Snapshot) -> Files:
    """Return the files of a snapshot whose commit is on this computer."""
    return of_commit(taken.root, taken.commit, objects_of(taken))


def of_commit(root: Path, commit: str, env: dict[str, str] | None = None) -> Files:
    """Return the files of a commit of a repo; raise BergError if git cannot read it."""
    try:
        found = entries(root, commit, env)
    except GitError as error:
        raise BergError(f"git cannot list the files of {commit[:12]} in {root}: {error}") from None
    found = {
        path: entry
        for path, entry in found.items()
        if entry[0] != SUBMODULE and not UNDECODABLE.search(path)
    }

    def read(path: str) -> str:
        for _ in range(MOST_LINKS):
            if path not in found:
                return ""
            mode, content = found[path]
            data = git(root, "cat-file", "blob", content, env=env)
            if mode != LINK:
                return data.decode(errors="replace")
            path = posixpath.normpath(posixpath.join(posixpath.dirname(path), os.fsdecode(data)))
        return ""

    return Files(frozenset(found), read)


def entries(root: Path, commit: str, env: dict[str, str] | None = None) -> dict[str, Entry]:
    """Return mode and id of all that a commit has, by path."""
    found = {}
    for line in names(git(root, "ls-tree", "-r", "-z", "--full-tree", commit, env=env)):
        about, _, path = line.partition("\t")
        mode, _, content = about.split()
        found[path] = (mode, content)
    return found


def revision(root: Path, branch: str | None, commit: str | None) -> Snapshot:
    """Return a branch's last commit, here or at origin, or a commit by its id or tag."""
    if branch and commit:
        raise BergError("--branch and --commit both say which code runs: leave one out")
    if branch:
        found = resolve(root, f"refs/heads/{branch}")
        found = found or resolve(root, f"refs/remotes/origin/{branch}")
        what, command = f"branch {branch!r}", f"git fetch origin {branch}"
    else:
        found = "" if not commit or commit.startswith("-") else resolve(root, commit)
        what, command = f"commit {commit!r}", "git fetch --all --tags"
    if not found:
        raise BergError(f"there is no {what} in {root}. Fetch it: {command}")
    return commit_snapshot(root, folder_name(root.name), branch or "", found)


def resolve(root: Path, name: str) -> str:
    """Return the id of the commit of that name, "" if there is none."""
    try:
        return text(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except GitError:
        return ""


def commit_snapshot(root: Path, repo_name: str, branch: str, commit: str) -> Snapshot:
    """Return the snapshot of a commit, with those of its submodules that are here."""
    taken = Snapshot(root, repo_name, branch, commit, commit, objects_folder(root))
    with tempfile.TemporaryDirectory(prefix="berg-") as temporary:
        env = {"GIT_INDEX_FILE": str(Path(temporary, "index"))}
        git(root, "read-tree", commit, env=env)
        stored = entries_in(git(root, *FILTERED, env=env))
        filters = filters_of(root, stored, "--cached", env=env)
    for path, name in filters.items():
        why = "content of Git LFS" if name == "lfs" else f"as git's filter {name} stores it"
        taken.left_out.append(f"{path} ({why})")
    for path, (mode, inner) in entries(root, commit).items():
        if mode != SUBMODULE:
            continue
        folder = root / path
        is_there = (folder / ".git").exists() and not program.enter(root, folder)
        if is_there and resolve(folder, inner):
            name = folder_name(f"{repo_name}.{folder.name}")
            taken.submodules[path] = commit_snapshot(folder, name, "berg", inner)
        else:
            why = f"a submodule whose commit {inner[:12]} is not here"
            taken.left_out.append(f"{path}/ ({why}: git submodule update --init)")
    complete(taken)
    return taken


def kind_of(taken: Snapshot, path: str) -> str:
    """Return what a commit has at a path: a tree or a blob; "" for nothing."""
    try:
        return text(taken.root, "cat-file", "-t", f"{taken.commit}:{path}", env=objects_of(taken))
    except GitError:
        return ""


def between(
    before: dict[str, Any], after: dict[str, Any], folder: Path, open_pack: OpenPack
) -> str:
    """Return git's diff of two snapshots, "" if they are the same.

    `folder` is empty, and used for the repo. Raises BergError if a snapshot is damaged, or its
    packs do not hold its commit.
    """
    if before["commit"] == after["commit"]:
        return ""
    try:
        unpack(folder, [before, after], open_pack)
        options = ["--no-color", "--no-ext-diff", "--no-textconv", "--stat", "--patch"]
        return text(folder, "diff", *options, commit_of(before), commit_of(after), "--")
    except GitError as error:
        raise BergError(f"the code cannot be compared: {error}") from None


def files_of(description: dict[str, Any], folder: Path, open_pack: OpenPack) -> Files:
    """Return the files of a snapshot, whose packs are put into a folder, as `between` does."""
    try:
        unpack(folder, [description], open_pack)
    except GitError as error:
        raise BergError(f"the code cannot be read: {error}") from None
    return of_commit(folder, commit_of(description))


def unpack(folder: Path, descriptions: list[dict[str, Any]], open_pack: OpenPack) -> None:
    """Make a repo without a working tree from the packs of snapshots."""
    # Neither the user's nor the system's configuration is for a repo of Berg's own.
    program.distrusted[folder.resolve()] = [], program.NO_CONFIG
    init(folder, commit_of(descriptions[0]))
    # Commits behind which the history of a snapshot's packs ends.
    ends = []
    for each in descriptions:
        ends += [*each.get("shallow", []), *(each.get("cut") or [])]
    write_shallow(folder, [end for end in ends if COMMIT.fullmatch(str(end))])
    for name in dict.fromkeys(str(pack) for each in descriptions for pack in each.get("packs", [])):
        # where packs are in the bucket
        if not name.startswith(".berg/repos/") or not name.endswith(".pack"):
            raise BergError(f"{name[:80]!r} is not the name of a pack")
        with open_pack(name) as stream:
            git(folder, "index-pack", "--fix-thin", "--stdin", stdin=stream)


def commit_of(description: dict[str, Any]) -> str:
    name = str(description["commit"])
    if not COMMIT.fullmatch(name):
        raise BergError(f"{name[:80]!r} is not the id of a commit")
    return name
