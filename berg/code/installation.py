"""What a machine installs for a repo, decided from the files that are sent to it.

The folder that the command runs in comes first, then its parents up to the root of the repo. The
first of these that is there counts: uv.lock, pylock.toml, poetry.lock or Pipfile.lock, a
pyproject.toml that only uv understands, requirements.txt and a package that says how it is built,
the dependencies of a pyproject.toml, a chosen group. Nothing of the repo is run here.

The job also records which files name packages that are not installed: its machine finds a missing
module in the log (machine/installation.py).
"""

import contextlib
import fnmatch
import json
import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from berg import BergError, validation
from berg.code import dist, uvlock
from berg.code.dist import normal
from berg.code.snapshot import Files
from berg.code.uvlock import meets, parse
from berg.job import SHELL, Installation
from berg.plain import plural, size

PROJECT, REQUIREMENTS = "pyproject.toml", "requirements.txt"
VENV = ".venv"
# Compiling all of a package takes as long as installing it; python compiles what is imported.
PIP = ["python", "-m", "pip", "install", "--no-input", "--no-compile", "--progress-bar=off"]
UV_PIP = ["uv", "pip", "install", "--python", "python"]
CONDA = ["environment.yml", "environment.yaml", "conda.yml", "conda.yaml", "conda-lock.yml"]
CONDA += ["pixi.toml", "pixi.lock"]
WITH_CONDA = (
    "Take an image that has its packages (--docker IMAGE, or a disk image of yours: --image), "
    "or install them on the machine: --install-script FILE"
)
LOCKS = ("uv.lock", "pylock.toml", "poetry.lock", "Pipfile.lock", "pdm.lock")
DECLARING = (REQUIREMENTS, "setup.py", *LOCKS)
PYTHONS = [f"3.{minor}" for minor in range(8, 16)]
# Option that takes another image, and what makes one of one's own, by where it is installed.
OTHER_IMAGE = {"machine": "--image", "pod": "--docker", "build": "--python"}
OWN_IMAGE = {"machine": "a disk image", "pod": "a container image"}
MADE_BY = {"machine": "berg image create", "pod": "berg image build --push"}
# Extras that are for machines with these accelerators, by what people call them.
FITTING = {
    "gpu": re.compile(r"gpu|cuda|cuda-?\d+|cu\d+"),
    "tpu": re.compile(r"tpu"),
    "": re.compile(r"cpu"),
}
SCRIPT = re.compile(r"^# /// script\s*$((?:\n#.*)*)", re.MULTILINE)
RUN_BY_UV = "run it with `uv run"
SETUP = re.compile(r"^\[(metadata|options)\]", re.MULTILINE)
CALLS_UV = re.compile(r"\buvx?\b")
Table = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    """What is asked for, and where it is to run."""

    folder: str = ""  # of the repo, that the command runs in
    command: str = ""  # "": a devbox, or an image
    script: str = ""  # --install-script
    install: str = ""  # uv, pip, none or a command; "": what the files say
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    container: str = ""  # image of --docker
    accelerator: str = ""  # gpu or tpu
    image: str = ""  # of the machine
    python: str = ""  # that the image has, such as 3.12; "": not known
    torch: str = ""  # the same of torch
    is_own_image: bool = False  # it may have all that is needed
    where: str = "machine"  # or pod, or build: of a container image


@dataclass(frozen=True)
class Repo:
    """A folder of the repo whose files say what to install."""

    files: Files
    folder: str
    project: Table = field(default_factory=dict)  # its pyproject.toml
    top: str = ""  # the folder of uv's workspace around it, or its own
    workspace: Table = field(default_factory=dict)  # pyproject.toml there

    def has(self, name: str) -> bool:
        return self.files.has(self.folder, name)

    def path(self, name: str) -> str:
        return posixpath.join(self.folder, name)

    @property
    def about(self) -> Table:
        found: Table = self.project.get("project", {})
        return found

    @property
    def uv(self) -> Table:
        return tool(self.project, "uv")

    @property
    def name(self) -> str:
        return normal(self.about.get("name", ""))

    @property
    def groups(self) -> Table:
        found: Table = self.project.get("dependency-groups", {})
        return found

    @property
    def optional(self) -> Table:
        """The requirements of each extra; none of those that a build tool reads from files."""
        listed = {**self.about.get("optional-dependencies", {})}
        if not listed:
            listed = {**tool(self.project, "poetry").get("extras", {})}
        if "optional-dependencies" in self.about.get("dynamic", []):
            hooks = tool(self.project, "hatch").get("metadata", {}).get("hooks", {})
            for each in (tool(self.project, "setuptools").get("dynamic", {}), *hooks.values()):
                listed |= {key: [] for key in each.get("optional-dependencies", {})}
        return {normal(name): needs for name, needs in listed.items()}

    @property
    def is_for_uv(self) -> bool:
        """Whether only uv understands where packages come from."""
        both = {**tool(self.workspace, "uv"), **self.uv}
        return bool({"sources", "workspace", "index", "conflicts"} & {*both})

    @property
    def brings_python(self) -> bool:
        """Whether its packages go into an environment of uv's, with a python of its own."""
        locks = ("pylock.toml", "poetry.lock", "Pipfile.lock")
        has_lock = self.files.has(self.top, "uv.lock") or any(map(self.has, locks))
        return has_lock or self.is_for_uv

    @property
    def is_package(self) -> bool:
        """Whether the repo says how it is built."""
        denied = (("uv", "package"), ("poetry", "package-mode"), ("pdm", "distribution"))
        if any(tool(self.project, name).get(key) is False for name, key in denied):
            return False
        settings = re.search(SETUP, self.files.text(self.folder, "setup.cfg"))
        declared = self.project.get("build-system") or tool(self.project, "setuptools")
        return bool(
            declared
            or self.uv.get("package")
            or self.has("setup.py")
            or (settings and self.has(PROJECT))
        )

    @property
    def conda(self) -> str:
        """The first file for conda or pixi; "" without any."""
        return next((self.path(name) for name in CONDA if self.has(name)), "")


def tool(project: Table, name: str) -> Table:
    found = project.get("tool", {}).get(name, {})
    return found if isinstance(found, dict) else {}


def decide(files: Files, wanted: Wanted) -> Installation:
    """Return what a machine installs; raise BergError where that cannot work."""
    try:
        made = decided(files, wanted)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        where = posixpath.join(wanted.folder, PROJECT)
        raise BergError(
            f"{where}, or another file that says what to install, is not valid: {error!r}. "
            "Fix it, or leave it out: --install none"
        ) from error
    if wanted.script:
        made = replace(made, words=f"{wanted.script}, then {made.words}")
        if not made.steps and not made.venv:
            made = replace(made, words=wanted.script)
    commands = [wanted.command, *(step[-1] for step in made.steps if step[0] == "bash")]
    commands.append(files.text("", wanted.script))
    uses_uv = made.venv or any(step[0] == "uv" for step in made.steps) or not wanted.command
    own = scripts(files, wanted)
    notes = [f"{each} names its packages itself: {RUN_BY_UV} {each}`" for each in own]
    notes = [*made.notes, *notes]
    return replace(made, notes=notes, needs_uv=bool(uses_uv or any(map(CALLS_UV.search, commands))))


def decided(files: Files, wanted: Wanted) -> Installation:
    if wanted.container:
        return Installation(words=f"nothing: {wanted.container} has what the command needs")
    if wanted.install not in ("", "uv", "pip"):
        return by_command(wanted)
    repo = find(files, wanted.folder)
    if repo is None:
        check_conda(files, wanted)
        return nothing(Repo(files, wanted.folder), wanted)
    check_python(repo, wanted)
    if wanted.install == "pip":
        if {"sources", "workspace"} & {*repo.uv, *tool(repo.workspace, "uv")}:
            raise BergError(
                "pip does not know [tool.uv.sources], and would take other packages of these names "
                "from PyPI: leave out --install pip"
            )
    elif files.has(repo.top, "uv.lock"):
        return by_uv_lock(repo, wanted)
    elif found := by_other_lock(repo, wanted):
        return found
    elif repo.is_for_uv:  # uv finds the versions on the machine
        choice, notes = choose(repo, wanted, {}, [])
        _, python = python_of(repo, wanted)
        words = f"{repo.path(PROJECT)} by uv, not locked (uv lock){choice_words(choice)}{python}"
        return synced(repo, wanted, ["uv", "sync"], choice, words, notes)
    return by_pip(repo, wanted) or nothing(repo, wanted)


def by_command(wanted: Wanted) -> Installation:
    """Return what --install says."""
    if wanted.extras or wanted.groups:
        raise BergError(
            f"--install {wanted.install} takes no --extra and no --group: leave one of them out"
        )
    if wanted.install == "none":
        return Installation(words="nothing (--install none)")
    steps = [[*SHELL, wanted.install]]
    return Installation(words=wanted.install, folder=wanted.folder, steps=steps)


def find(files: Files, folder: str) -> Repo | None:
    """Return the first folder, from this one up to the root, whose files declare anything."""
    for each in upwards(folder):
        project = load(files, posixpath.join(each, PROJECT))
        declares = {"project", "build-system", "dependency-groups"} & {*project}
        declares |= {"uv", "poetry"} & {*project.get("tool", {})}
        if declares or any(files.has(each, name) for name in DECLARING):
            top = each
            if not files.has(each, "uv.lock") and files.has(each, PROJECT):
                top = workspace_of(files, each)
            return Repo(files, each, project, top, load(files, posixpath.join(top, PROJECT)))
    return None


def upwards(folder: str) -> list[str]:
    """Return a folder of the repo and those around it, up to its root."""
    parts = folder.split("/") if folder else []
    return ["/".join(parts[:count]) for count in range(len(parts), -1, -1)]


def workspace_of(files: Files, folder: str) -> str:
    """Return the folder of the workspace of uv's that a folder is a member of, or itself."""
    for each in upwards(folder)[1:]:
        workspace = tool(load(files, posixpath.join(each, PROJECT)), "uv").get("workspace")
        if workspace is None:
            continue
        path = posixpath.relpath(folder, each or ".")
        is_member = any(matches(path, text) for text in workspace.get("members", []))
        if is_member and not any(matches(path, text) for text in workspace.get("exclude", [])):
            return each
    return folder


def matches(path: str, pattern: str) -> bool:
    pattern = posixpath.normpath(pattern)
    same_depth = "**" in pattern or path.count("/") == pattern.count("/")
    return same_depth and fnmatch.fnmatchcase(path, pattern)


def load(files: Files, path: str) -> Table:
    """Return a file of TOML, {} if it is not there; raise BergError if it cannot be read."""
    if path not in files.paths:
        return {}
    return validation.parse_toml(files.read(path), path)


# --- uv.lock


def by_uv_lock(repo: Repo, wanted: Wanted) -> Installation:
    """Return what `uv sync` installs; raise BergError for a lock that is out of date."""
    from packaging.specifiers import SpecifierSet

    path = posixpath.join(repo.top, "uv.lock")
    lock = load(repo.files, path)
    if lock.get("version") != 1:
        raise BergError(
            f"{path} has version {lock.get('version')}, and the uv of machines, {dist.UV_VERSION}, "
            "reads version 1. Take another way: --install"
        )
    try:
        roots = roots_of(repo, lock, path)
        choice, notes = choose(repo, wanted, lock, roots)
        python, words = python_of(repo, wanted, str(lock.get("requires-python", "")))
        active = uvlock.Chosen(
            frozenset(choice.extras), frozenset({*choice.groups, *defaults(repo)})
        )
        locked = uvlock.locked(lock, roots, active, python)
        notes += downloads(locked, wanted)
    except (KeyError, TypeError, AttributeError) as error:
        raise BergError(f"{path} is damaged ({error!r}). Make it again: uv lock") from None
    sync = ["uv", "sync", "--frozen"]
    required = str(tool(repo.workspace, "uv").get("required-version", ""))
    exact = f"=={required}" if required[:1].isdigit() else required
    if not SpecifierSet(exact).contains(dist.UV_VERSION):
        sync = ["uv", "tool", "run", "--no-config", "--from", f"uv{exact}", *sync]
        notes.append(f"the repo asks for uv {required}: that one is downloaded to install it")
    count = plural(len(locked.packages), "package")
    made = synced(
        repo, wanted, sync, choice, f"{path}: {count}{choice_words(choice)}{words}", notes
    )
    return replace(made, no_sync=made.no_sync or has_foreign_settings(repo, lock))


def has_foreign_settings(repo: Repo, lock: Table) -> bool:
    """Return whether a lock was made with settings that the repo does not have: `uv run` would make
    it again.
    """
    settings = {*tool(repo.workspace, "uv"), *load(repo.files, posixpath.join(repo.top, "uv.toml"))}
    made_with = {re.sub(r"-(mode|span)$", "", each) for each in lock.get("options", {})}
    return not made_with <= settings


def roots_of(repo: Repo, lock: Table, path: str) -> list[Table]:
    """Return the packages of a lock that are to be installed; raise BergError if one of them, or
    of the workspace, is not as its pyproject.toml says.
    """
    sources = {**tool(repo.workspace, "uv").get("sources", {}), **repo.uv.get("sources", {})}
    found = []
    for folder, project in {repo.top: repo.workspace, repo.folder: repo.project}.items():
        package = uvlock.own(lock, posixpath.relpath(folder or ".", repo.top or "."))
        if package is None or "project" not in project:
            continue
        if folder == repo.folder:
            found.append(package)
        if differing := uvlock.outdated(package, project, sources):
            raise BergError(
                f"{path} is older than {posixpath.join(folder, PROJECT)}: "
                f"{', '.join(differing)}. Run: uv lock"
            )
    if found:
        return found
    # the root of a workspace that is no project itself: all members
    names = {normal(each) for each in lock.get("manifest", {}).get("members", [])}
    return [each for each in lock["package"] if each["name"] in names]


def synced(
    repo: Repo, wanted: Wanted, sync: list[str], choice: "Choice", words: str, notes: list[str]
) -> Installation:
    """Return an installation by `uv sync`; what an install script installed before stays."""
    inexact = ["--inexact"] if wanted.script else []
    return Installation(
        words=words,
        notes=notes,
        folder=repo.folder,
        venv=posixpath.join(repo.top, VENV),
        steps=[[*sync, *inexact, *options(choice)]],
        no_sync=bool(choice.extras or choice.groups),
    )


@dataclass(frozen=True)
class Choice:
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


def choice_words(choice: Choice | Wanted) -> str:
    """Return the extras and groups in words."""
    return "".join(f", {kind} {each}" for kind, each in pairs(choice))


def options(choice: Choice | Wanted) -> list[str]:
    """Return them as options of uv's."""
    return [word for kind, each in pairs(choice) for word in (f"--{kind}", each)]


def pairs(choice: Choice | Wanted) -> list[tuple[str, str]]:
    found = [("extra", each) for each in choice.extras]
    return found + [("group", each) for each in choice.groups]


def defaults(repo: Repo) -> list[str]:
    """Return the groups that uv installs unasked."""
    found = repo.uv.get("default-groups", ["dev"])
    return list(repo.groups) if found == "all" else list(map(normal, found))


def choose(repo: Repo, wanted: Wanted, lock: Table, roots: list[Table]) -> tuple[Choice, list[str]]:
    """Return the extras and groups to install, with those that fit the machine, and notes.

    Raise BergError for what uv would refuse, and where a choice is missing that must be made.
    """
    check_names(repo, wanted)
    choice, notes = Choice(tuple(map(normal, wanted.extras)), wanted.groups), []
    rules = [keys_of(rule, repo.name) for rule in repo.uv.get("conflicts", [])]
    asked = {*pairs(choice), *pairs(Choice((), tuple(defaults(repo))))}
    left: dict[str, str] = {}  # name -> kind of what is neither chosen nor excluded
    for keys in rules:
        if len(both := sorted(asked & {*keys})) > 1:
            both_words = " and ".join(f"{kind} {name}" for kind, name in both)
            raise BergError(f"{both_words} exclude each other ({repo.path(PROJECT)}): choose one")
        if {*asked, *pairs(choice)} & {*keys} or len(keys) < 2:
            continue
        names = ", ".join(name for _, name in keys)
        if found := fitting([name for kind, name in keys if kind == "extra"], wanted):
            choice = replace(choice, extras=(*choice.extras, found))
            has = {"gpu": "GPUs", "tpu": "TPUs", "": "no GPUs"}[wanted.accelerator]
            notes.append(f"extra {found}, as the machine has {has}; one of {names}: --extra")
        else:
            check_frameworks(repo, keys, lock, roots)
            left |= {name: kind for kind, name in keys}
    return choice, [*notes, *unchosen(repo, wanted, choice, rules, left)]


def unchosen(
    repo: Repo,
    wanted: Wanted,
    choice: Choice,
    rules: list[list[tuple[str, str]]],
    left: dict[str, str],
) -> list[str]:
    """Name what could be chosen: extras and groups that exclude each other, and the extra for
    accelerators like the machine's.
    """
    notes = [f"none of {', '.join(left)} is chosen (--{min(left.values())})"] if left else []
    free = {*repo.optional} - {*choice.extras} - {name for keys in rules for _, name in keys}
    if wanted.accelerator and (found := fitting(sorted(free), wanted)):
        notes.append(f"extra {found} is not chosen (--extra {found})")
    return notes


def fitting(extras: list[str], wanted: Wanted) -> str:
    """Return the one of these extras that is called after what the machine has; "" if it is not
    one.
    """
    found = [each for each in extras if FITTING[wanted.accelerator].fullmatch(each)]
    return found[0] if len(found) == 1 else ""


def keys_of(rule: Iterable[Table], name: str) -> list[tuple[str, str]]:
    """Return the extras and groups of this package that a conflict names."""
    found: list[tuple[str, str]] = []
    for each in rule:
        if normal(each.get("package", name)) == name:
            found += [(kind, normal(each[kind])) for kind in ("extra", "group") if kind in each]
    return found


def check_frameworks(
    repo: Repo, keys: list[tuple[str, str]], lock: Table, roots: list[Table]
) -> None:
    """Raise BergError where none of several extras or groups is chosen that alone bring torch or
    the like: without one of them nothing would run.
    """
    tables = {"extra": repo.optional, "group": repo.groups}
    frameworks = []
    for kind, name in keys:
        needs: list[Any] = next((v for k, v in tables[kind].items() if normal(k) == name), [])
        frameworks.append({each.name for each in parse(t for t in needs if isinstance(t, str))})
    there = {each.name for each in parse(repo.about.get("dependencies", []))}
    if lock:
        groups = uvlock.Chosen(groups=frozenset(defaults(repo)))
        there = {each["name"] for each in uvlock.locked(lock, roots, groups, "3.12").packages}
    if alone := set.intersection(*frameworks) & {"torch", "jax", "tensorflow"} - there:
        names, (kind, last) = ", ".join(name for _, name in keys), keys[-1]
        raise BergError(
            f"choose one of {names}, which exclude each other and alone bring "
            f'{", ".join(sorted(alone))}: --{kind} {last}, or {kind}s = ["{last}"] below '
            f"[tool.berg] in {PROJECT}"
        )


def check_names(repo: Repo, wanted: Wanted) -> None:
    """Raise BergError for an extra or a group that is not there."""
    where = repo.path(PROJECT)
    for extra in wanted.extras:
        if normal(extra) not in repo.optional:
            there = ", ".join(repo.optional) or "none"
            raise BergError(f"there is no extra {extra!r} in {where}. There are: {there}")
    groups = {*repo.groups, *repo.workspace.get("dependency-groups", {})}
    if "dev-dependencies" in repo.uv:
        groups.add("dev")
    for group in wanted.groups:
        if normal(group) not in map(normal, groups):
            there = ", ".join(sorted(groups)) or "none"
            raise BergError(f"there is no group {group!r} in {where}. There are: {there}")


def downloads(locked: uvlock.Locked, wanted: Wanted) -> list[str]:
    """Return what the plan says of the packages of a lock that a machine downloads."""
    torch = locked.version("torch")
    if not torch and not locked.is_large:
        return []
    parts = [size(locked.bytes)] if locked.bytes else []
    if torch:
        of_image = f"; the image has {wanted.torch}" if wanted.torch else ""
        unknown = " (whose size it does not say)" if "torch" in locked.unsized else ""
        parts.append(f"torch {torch} from the lock{unknown}{of_image}")
    lines = [f"downloads {', '.join(parts)}"]
    if wanted.is_own_image:
        if wanted.where != "build":
            lines[0] += ", unless the image has it"
    elif locked.is_large:
        own, command = OWN_IMAGE[wanted.where], MADE_BY[wanted.where]
        lines.append(f"each start downloads that; {own} with it: {command}")
    return lines


# --- other locks


def by_other_lock(repo: Repo, wanted: Wanted) -> Installation | None:
    """Return what a lock of another tool brings; None without one that is read."""
    venv = repo.path(VENV)
    if repo.has("poetry.lock") and not repo.has("pylock.toml"):
        return by_poetry_lock(repo, wanted)
    for lock in ("pylock.toml", "Pipfile.lock"):
        if not repo.has(lock):
            continue
        if wanted.extras or wanted.groups:
            raise BergError(
                f"{lock} has no extras and groups to choose: leave out --extra and --group"
            )
        step = ["uv", "pip", "sync", lock]
        if lock == "Pipfile.lock":
            step = ["uv", "pip", "install", "--no-deps", *pipenv_arguments(repo)]
        words = repo.path(lock) + python_of(repo, wanted)[1]
        return Installation(words, [], repo.folder, venv, [step])
    if repo.has("pdm.lock") and not repo.has(REQUIREMENTS) and not wanted.install:
        raise BergError(
            f"{repo.path('pdm.lock')} is not read. Write it in a form that is, and commit that: "
            "pdm export -o pylock.toml. Or install the newest versions that "
            f"{PROJECT} allows: --install pip"
        )
    return None


def by_poetry_lock(repo: Repo, wanted: Wanted) -> Installation:
    """Return what poetry.lock brings for a python for which its packages have files."""
    check_names(repo, replace(wanted, groups=()))
    path = repo.path("poetry.lock")
    lock = load(repo.files, path)
    extras, groups = {*map(normal, wanted.extras)}, {*wanted.groups}
    if missing := uvlock.missing(lock, repo.project, extras, groups):
        raise BergError(
            f"{path} is older than {repo.path(PROJECT)}: {', '.join(missing)}. Run: poetry lock"
        )
    needs = lock.get("metadata", {}).get("python-versions", "")
    liked = filter(None, (wanted.python, pinned_python(repo), "3.12"))
    pythons = [each for each in (*liked, *PYTHONS[::-1]) if uvlock.takes(each, needs)]
    if not pythons:
        raise BergError(f"{path} is for python {needs}, and there is none")
    found = {each: uvlock.packages(lock, repo.project, extras, groups, each) for each in pythons}
    # Where no python has files of all packages, some are built.
    python = next((each for each in found if uvlock.has_files(found[each], each)), pythons[0])
    download = "" if wanted.python in ("", python) else ", which uv downloads"
    count = plural(len(found[python]), "package")
    named = uvlock.arguments(found[python])
    steps = []
    if named:
        steps.append(["uv", "pip", "install", "--no-deps", *named])
    if repo.is_package:
        steps.append(["uv", "pip", "install", "--no-deps", "-e", "."])
    return Installation(
        words=f"{path}: {count}{choice_words(wanted)}, python {python}{download}",
        notes=conda_notes(repo, wanted)
        + downloads(uvlock.Locked(found[python], 0, unsized=["torch"]), wanted),
        folder=repo.folder,
        venv=repo.path(VENV),
        python=python,
        steps=steps,
    )


def pipenv_arguments(repo: Repo) -> list[str]:
    """Return the packages of Pipfile.lock, and their index, as arguments of uv's."""
    try:
        lock = json.loads(repo.files.text(repo.folder, "Pipfile.lock"))
        sources = [str(each["url"]) for each in lock["_meta"].get("sources", [])]
        found = []
        for name, entry in lock["default"].items():
            extras = f"[{','.join(entry['extras'])}]" if entry.get("extras") else ""
            marker = f" ; {entry['markers']}" if entry.get("markers") else ""
            place = entry.get("version") or f" @ git+{entry['git']}@{entry['ref']}"
            found.append(f"{name}{extras}{place}{marker}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise BergError(
            f"{repo.path('Pipfile.lock')} cannot be read. Write what it locks into a file that "
            "can be: pipenv requirements > requirements.txt, and --install pip"
        ) from None
    indexes = [f"--index={url}" for url in sources if "pypi.org" not in url and "$" not in url]
    return [*indexes, *found]


# --- the image's python, whose torch stays


@dataclass(frozen=True)
class Step:
    words: str
    command: list[str]
    may_fail: bool = False


def by_pip(repo: Repo, wanted: Wanted) -> Installation | None:
    """Return what pip installs into the image's python, or uv into one of its own (--install uv);
    None if nothing is declared.
    """
    check_names(repo, wanted)
    is_uv = wanted.install == "uv"
    steps = pip_steps(repo, wanted)
    if not steps:
        return None
    _, python = python_of(repo, wanted) if is_uv else ("", "")
    words = " and ".join(each.words for each in steps if each.words)
    return Installation(
        words=words + (f", by uv{python}" if is_uv else ""),
        notes=[*conda_notes(repo, wanted), *pip_notes(repo, wanted)],
        folder=repo.folder,
        venv=repo.path(VENV) if is_uv else "",
        steps=[each.command for each in steps],
        may_fail=[index for index, each in enumerate(steps) if each.may_fail],
    )


def pip_steps(repo: Repo, wanted: Wanted) -> list[Step]:
    pip, uv_pip = PIP, UV_PIP
    if wanted.install == "uv":
        pip = uv_pip = ["uv", "pip", "install"]
    steps = []
    if repo.has(REQUIREMENTS):
        steps.append(Step(repo.path(REQUIREMENTS), [*pip, "-r", REQUIREMENTS]))
    if repo.is_package:
        dot = f".[{','.join(wanted.extras)}]" if wanted.extras else "."
        where = f" in {repo.folder}" if repo.folder else ""
        steps.append(Step(f"-e {dot}{where}", [*pip, "-e", dot]))
    elif repo.about:
        extras = Choice(wanted.extras)
        words = f"the dependencies of {repo.path(PROJECT)}{choice_words(extras)}"
        steps.append(Step(words, [*uv_pip, "-r", PROJECT, *options(extras)]))
        # Without a word on how it is built, setuptools builds some folders and refuses others.
        if not repo.uv:
            steps.append(Step("", [*pip, "--no-deps", "-e", "."], may_fail=True))
    if wanted.groups:
        words = ", ".join(f"group {each}" for each in wanted.groups)
        steps.append(Step(words, [*uv_pip, *options(Choice((), wanted.groups))]))
    if not steps and tool(repo.project, "poetry"):
        raise BergError(
            f"{repo.path(PROJECT)} uses poetry, and there is no poetry.lock. Run: poetry lock"
        )
    return steps


def pip_notes(repo: Repo, wanted: Wanted) -> list[str]:
    """Say what is not read, and what differs from the image."""
    notes = [f"{name} is not read" for name in LOCKS if repo.has(name)]
    if not wanted.extras:
        is_dynamic = "dependencies" in repo.about.get("dynamic", [])
        has_others = is_dynamic or repo.about.get("dependencies") or repo.has(REQUIREMENTS)
        if repo.optional and not has_others:
            names = ", ".join(repo.optional)
            notes.append(f"{repo.path(PROJECT)} names packages in extras alone: {names} (--extra)")
        else:
            notes += unchosen(repo, wanted, Choice(), [], {})
    pinned = pinned_python(repo)
    if pinned and wanted.python not in ("", pinned) and wanted.install != "uv":
        notes.append(
            f".python-version is {pinned}, and the image has python {wanted.python}: uv brings "
            "the other one (--install uv)"
        )
    return notes + torch_notes(repo, wanted)


def torch_notes(repo: Repo, wanted: Wanted) -> list[str]:
    """Say that pip replaces the image's torch, where what is named does not take it."""
    if wanted.install == "uv":
        return []
    built_with = parse(repo.project.get("build-system", {}).get("requires", []))
    if repo.is_package and "torch" in {each.name for each in built_with}:
        return [
            "building it downloads another torch; with the one that is there: --install "
            '"pip install --no-build-isolation -e ."'
        ]
    texts = [*repo.about.get("dependencies", [])]
    texts += repo.files.text(repo.folder, REQUIREMENTS).splitlines()
    for each in parse(texts):
        specifiers = ",".join(sorted(each.specifiers))
        if each.name == "torch" and wanted.torch and not meets(wanted.torch, specifiers):
            return [f"torch {specifiers} is downloaded; the image has {wanted.torch}"]
    return []


def conda_notes(repo: Repo, wanted: Wanted) -> list[str]:
    return [f"{repo.conda} is not read"] if repo.conda and not wanted.script else []


def nothing(repo: Repo, wanted: Wanted) -> Installation:
    """Return that nothing is installed, and what was seen that could be."""
    check_names(repo, wanted)
    why = "no requirements.txt, pyproject.toml or uv.lock here or above"
    if repo.groups:
        why = f"groups {', '.join(repo.groups)} of {repo.path(PROJECT)}: none is chosen (--group)"
    elif repo.project:
        why = f"{repo.path(PROJECT)} names no packages"
    notes: list[str] = []
    if wanted.script:
        return Installation(words=f"nothing ({why})")
    if conda := nearest_conda(repo.files, wanted.folder):
        notes.append(f"{conda} is not read. {WITH_CONDA}")
    if below := repo.files.below(wanted.folder, REQUIREMENTS):
        others = f" (and {', '.join(below[1:3])})" if below[1:] else ""
        notes.append(
            f"{below[0]}{others} is not installed from here: --install "
            f'"pip install -r {posixpath.relpath(below[0], wanted.folder or ".")}", or run the '
            f"command there: --cwd {posixpath.dirname(below[0])}"
        )
    return Installation(words=f"nothing ({why})", notes=notes)


def check_conda(files: Files, wanted: Wanted) -> None:
    """Raise BergError where only a file for conda or pixi says what a command needs."""
    is_chosen = wanted.script or wanted.install or wanted.is_own_image
    if wanted.command and not is_chosen and (conda := nearest_conda(files, wanted.folder)):
        raise BergError(
            f"{conda} is not read: berg installs with uv and pip, not with conda. {WITH_CONDA}, or "
            "run the command without it: --install none"
        )


def nearest_conda(files: Files, folder: str) -> str:
    found = (Repo(files, each).conda for each in upwards(folder))
    return next(filter(None, found), "")


def scripts(files: Files, wanted: Wanted) -> dict[str, str]:
    """Return the scripts of a command that name their packages themselves and are not run by uv,
    with what they say.
    """
    found = {}
    for word in re.findall(r"[\w./-]+\.py\b", wanted.command):
        path = posixpath.normpath(posixpath.join(wanted.folder, word))
        is_by_uv = re.search(rf"\buv run (--?[\w-]+ )*{re.escape(word)}", wanted.command)
        block = SCRIPT.search(files.read(path)) if path in files.paths else None
        if block and not is_by_uv:
            found[word] = block[1]
    return found


# --- python


def check_python(repo: Repo, wanted: Wanted) -> None:
    """Raise BergError for a python that there is not, or that only uv would bring."""
    needs = str(repo.about.get("requires-python", ""))
    has = f"the image {wanted.image} has python {wanted.python}"
    has = has if wanted.python else "the python of the image is not known"
    if not any(meets(each, needs) for each in PYTHONS):
        raise BergError(f"requires-python {needs}: no python meets it; {has}")
    is_uvs = wanted.install == "uv" or (wanted.install == "" and repo.brings_python)
    if wanted.python and not is_uvs and not meets(wanted.python, needs):
        raise BergError(
            f"requires-python {needs}, and {has}. Let uv bring one: --install uv, or take another "
            f"{OTHER_IMAGE[wanted.where]}"
        )
    pinned = pinned_python(repo)
    if is_uvs and pinned and not meets(pinned, needs):
        raise BergError(
            f".python-version is {pinned}, and requires-python {needs} of {repo.path(PROJECT)} "
            "does not take it: change one of them"
        )


def pinned_python(repo: Repo) -> str:
    """Return the first two numbers of the version in .python-version; "" without one."""
    for folder in upwards(repo.folder):
        if text := repo.files.text(folder, ".python-version"):
            match = re.match(r"\s*(?:cpython[@-]?)?(\d+\.\d+)", text)
            return match[1] if match else ""
    return ""


def python_of(repo: Repo, wanted: Wanted, needs: str = "") -> tuple[str, str]:
    """Return the python of an environment that uv makes, and what the plan says of it."""
    needs = str(repo.about.get("requires-python", "")) or needs
    pinned = pinned_python(repo)
    if pinned:
        download = "" if pinned == wanted.python else ", which uv downloads"
        return pinned, f", python {pinned}{download}"
    if wanted.python and meets(wanted.python, needs):
        return wanted.python, f", python {wanted.python}"
    found = next((each for each in ("3.12", *PYTHONS[::-1]) if meets(each, needs)), "3.12")
    return found, f", python {needs}, which uv downloads" if wanted.python else ""


LIST = re.compile(r"(^|/)requirements([^/]*|/[^/]+)\.txt$")
Source = tuple[Iterable[str], str]  # requirements; what names them, and how to install them
MOST_LISTS, MOST = 20, 500  # files that are looked at, packages that a job records


def named(files: Files, wanted: Wanted, made: Installation) -> dict[str, list[str]]:
    """Return packages that are not installed, by what names them; files that are not in their form
    name nothing.
    """
    found: dict[str, list[str]] = {}
    if wanted.container:
        return found
    seen: set[str] = set()
    with contextlib.suppress(BergError, AttributeError, TypeError, ValueError):
        for texts, where in sources(files, wanted, made):
            new = {each.name for each in parse(t for t in texts if isinstance(t, str))} - seen
            if new and len(seen) < MOST:
                found[where] = sorted(new)
                seen |= new
    return found


def sources(files: Files, wanted: Wanted, made: Installation) -> Iterator[Source]:
    """Yield requirements that are not installed."""
    for name, text in scripts(files, wanted).items():
        yield re.findall(r"[\"']([^\"']+)[\"']", text), f"{name} itself: {RUN_BY_UV} {name}`"
    repo = find(files, wanted.folder) or Repo(files, wanted.folder)
    installed = {word for step in made.steps for word in step} | {*wanted.extras, *defaults(repo)}
    if not made.steps:
        yield repo.about.get("dependencies", []), repo.path(PROJECT)
    for kind, table in (("extra", repo.optional), ("group", repo.groups)):
        for name in table.keys() - installed:
            yield table[name], f"{kind} {name} of {repo.path(PROJECT)} (--{kind} {name})"
    is_read = {posixpath.join(made.folder, REQUIREMENTS)} if REQUIREMENTS in installed else set()
    yield from lists(files, wanted, "--install-script" if made.steps else "--install", is_read)
    for folder in upwards(wanted.folder):
        if conda := Repo(files, folder).conda:
            lines = re.findall(r"^\s*-\s*(\S+)", files.read(conda), re.MULTILINE)
            yield lines, f"{conda}, which is not read"


def lists(files: Files, wanted: Wanted, how: str, is_read: set[str]) -> Iterator[Source]:
    """Yield the same of lists for pip, those next to the root first."""
    found = sorted(
        filter(LIST.search, files.paths - is_read), key=lambda path: (path.count("/"), path)
    )
    for path in found[:MOST_LISTS]:
        command = f"pip install -r {posixpath.relpath(path, wanted.folder or '.')}"
        yield files.read(path).splitlines(), f"{path} ({how}: {command})"
