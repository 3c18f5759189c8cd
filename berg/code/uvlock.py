"""What a uv.lock or a poetry.lock holds for a machine, read without uv and poetry; and what a
requirement of python packages says, as far as berg needs it: name, extras, versions.

Not covered: when a lock is compared, the contents of sources and dynamic dependencies; whether a
poetry.lock has the versions that pyproject.toml asks for, of which poetry keeps a hash of its own.
"""

import functools
import itertools
import posixpath
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from berg.code.dist import normal

OWN = {"virtual", "editable", "directory"}  # kinds of sources that are folders
MACHINE = {
    "sys_platform": "linux",
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}

EXTRA = re.compile(r"""extra (==|!=) (["'])(.*?)\2""")  # in a marker
NEWEST = 50  # third number of a python's release, or higher than any

LARGE = 10**9  # bytes of a download from which an image of one's own is proposed

Table = dict[str, Any]


@dataclass(frozen=True)
class Chosen:
    """What is installed of a package of the repo besides its dependencies."""

    extras: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()

    def words(self, name: str) -> set[str]:
        """Return the names by which markers of the lock know them."""
        found = {f"extra-{len(name)}-{name}-{each}" for each in self.extras}
        return found | {f"group-{len(name)}-{name}-{each}" for each in self.groups}


@dataclass(frozen=True)
class Locked:
    """The packages that a machine gets from a lock."""

    packages: list[Table]
    bytes: int  # of their files, as far as the lock has sizes
    unsized: list[str]  # names of those without

    def version(self, name: str) -> str:
        """Return the version of a package, "" if it is not among them."""
        found = [str(each.get("version")) for each in self.packages if each["name"] == name]
        return found[0] if found else ""

    @property
    def is_large(self) -> bool:
        """Whether an image with the packages is worth its making."""
        torch = self.version("torch")
        has_cuda = bool(torch) and "+cpu" not in torch
        return self.bytes >= LARGE or (has_cuda and "torch" in self.unsized)


def own(lock: Table, folder: str) -> Table | None:
    """Return the package in a folder of the repo, as seen from the lock; None without one."""
    packages: list[Table] = lock["package"]
    for each in packages:
        for kind in OWN & {*each["source"]}:
            if posixpath.normpath(each["source"][kind]) == (folder or "."):
                return each
    return None


def locked(lock: Table, roots: list[Table], chosen: Chosen, python: str) -> Locked:
    """Return what `uv sync` installs for packages of the repo on Linux, besides those."""
    by_name: dict[str, list[Table]] = {}
    for each in lock["package"]:
        by_name.setdefault(each["name"], []).append(each)
    words: set[str] = set().union(*(chosen.words(each["name"]) for each in roots))
    needs = [need for root in roots for need in wanted_by(root, chosen)]
    found = reached(by_name, needs, Context(python, frozenset(words)))
    packages = [each for each in found if each not in roots]
    from_indexes = [each for each in packages if not {"git", *OWN} & {*each["source"]}]
    sizes = {each["name"]: download(each, python) for each in from_indexes}
    return Locked(packages, sum(sizes.values()), [name for name in sizes if not sizes[name]])


def reached(by_name: dict[str, list[Table]], needs: list[Table], context: "Context") -> list[Table]:
    """Return the packages to which dependencies lead, from one to the next."""
    seen: set[tuple[tuple[str, ...], str]] = set()
    found: dict[tuple[str, ...], Table] = {}
    ahead = [*needs]
    while ahead:
        need = ahead.pop()
        if not holds(need.get("marker", ""), context):
            continue
        for package in candidates(by_name.get(need["name"], []), need, context):
            key = (package["name"], package.get("version", ""), str(package["source"]))
            found[key] = package
            new = {(key, extra) for extra in ("", *need.get("extra", []))} - seen
            seen |= new
            ahead += [each for _, extra in new for each in needs_of(package, extra)]
    return [*found.values()]


def wanted_by(root: Table, chosen: Chosen) -> list[Table]:
    """Return what a package of the repo needs, with the extras and groups that are chosen."""
    found = []
    for extra in ("", *chosen.extras):
        found += needs_of(root, extra)
    for group in chosen.groups:
        found += root.get("dev-dependencies", {}).get(group, [])
    return found


def needs_of(package: Table, extra: str = "") -> list[Table]:
    """Return what a package needs, or one of its extras."""
    optional = package.get("optional-dependencies", {})
    return list(optional.get(extra, []) if extra else package.get("dependencies", []))


def candidates(packages: list[Table], need: Table, context: "Context") -> list[Table]:
    """Return those of the versions of a package that a dependency means on the machine."""
    keys = ("version", "source")
    fitting = [
        each for each in packages if all(each.get(k) == need.get(k, each.get(k)) for k in keys)
    ]
    if len(fitting) < 2:
        return fitting
    return [
        each
        for each in fitting
        if any(holds(marker, context) for marker in each.get("resolution-markers", [""]))
    ][:1]


def download(package: Table, python: str) -> int:
    """Return the bytes of the file that uv downloads of a package; 0 if the lock has no size."""
    wheels = package.get("wheels", [])
    for wheel in wheels:
        place = wheel.get("url") or wheel.get("path") or wheel.get("filename", "")
        if fits_machine(posixpath.basename(place), python):
            return int(wheel.get("size", 0))
    return 0 if wheels else int(package.get("sdist", {}).get("size", 0))


def fits_machine(name: str, python: str) -> bool:
    """Return whether a wheel of this name is for Linux on x86_64 and a python such as 3.12."""
    pythons, abi, platform = name.removesuffix(".whl").split("-")[-3:]
    is_here = platform == "any" or ("linux" in platform and platform.endswith("x86_64"))
    if "musllinux" in platform or not is_here:
        return False
    tag = f"cp{python.replace('.', '')}"
    tags = pythons.split(".")
    if tag in tags or "py3" in tags:
        return not abi.endswith("t")
    bounds = [re.fullmatch(r"cp3(\d+)", each) for each in tags]
    minor = int(python.partition(".")[2])
    return abi == "abi3" and any(each and int(each[1]) <= minor for each in bounds)


@dataclass(frozen=True)
class Context:
    """Where markers are evaluated: a machine with a python, and the extras that are chosen."""

    python: str
    extras: frozenset[str] = frozenset()


@functools.cache
def holds(marker: str, context: Context) -> bool:
    """Return whether a marker holds; one that is not understood does."""
    from packaging.markers import Marker  # 25 ms, for locks alone

    def decided(match: re.Match[str]) -> str:
        """Return a comparison with `extra`, of which several are chosen, as one with Linux."""
        is_so = (match[3] in context.extras) == (match[1] == "==")
        return f"os_name {'==' if is_so else '!='} 'posix'"

    # Of a python such as 3.12 the newest release counts.
    python = {
        "python_version": context.python,
        "python_full_version": f"{context.python}.{NEWEST}",
    }
    try:
        return Marker(EXTRA.sub(decided, marker)).evaluate({**MACHINE, **python})
    except ValueError:
        return True


# --- whether it is up to date


def outdated(package: Table, project: Table, sources: Iterable[str]) -> list[str]:
    """Return what differs between pyproject.toml and the package of its lock, in words.

    The lock has no version of what comes from elsewhere than an index (`sources`): its name counts.
    """
    about, name = project["project"], package["name"]
    if {"dependencies", "optional-dependencies"} & {*about.get("dynamic", [])}:
        return []
    optional = about.get("optional-dependencies", {})
    mine = parse([*about.get("dependencies", []), *itertools.chain(*optional.values())])
    metadata = package.get("metadata", {})
    places = {normal(each) for each in sources} | {each.name for each in mine if each.has_place}
    known = [recorded(each) for each in metadata.get("requires-dist", [])]
    found = differences(mine, known, places) - {name}
    extras = {normal(each) for each in optional} ^ {*metadata.get("provides-extras", [])}
    groups = outdated_groups(metadata.get("requires-dev", {}), project, places)
    return sorted(found | {f"extra {each}" for each in extras} | groups)


def outdated_groups(known: Table, project: Table, places: set[str]) -> set[str]:
    """Return what differs between the groups of dependencies."""
    groups = project.get("dependency-groups", {})
    found = set()
    for group, listed in groups.items():
        if any(not isinstance(each, str) for each in listed):  # it includes other groups
            continue
        mine = parse(listed)
        theirs = [recorded(each) for each in known.get(normal(group), [])]
        local = places | {each.name for each in mine if each.has_place}
        if normal(group) in known:
            found |= differences(mine, theirs, local)
        elif mine:
            found.add(f"group {group}")
    return found


@dataclass(frozen=True)
class Requirement:
    """A package, its extras and versions."""

    name: str
    extras: frozenset[str] = frozenset()
    specifiers: frozenset[str] = frozenset()
    has_place: bool = False  # it names a URL

    @property
    def key(self) -> tuple[str, frozenset[str], frozenset[str]]:
        return self.name, self.extras, self.specifiers


def differences(
    mine: Iterable[Requirement], known: Iterable[Requirement], places: set[str]
) -> set[str]:
    """Return the names of requirements that only one side has."""

    def keys(side: Iterable[Requirement]) -> set[tuple[Any, ...]]:
        return {(each.name,) if each.name in places else each.key for each in side}

    return {name for name, *_ in keys(mine) ^ keys(known)}


def recorded(entry: Table) -> Requirement:
    """Return a requirement as a lock records it."""
    return with_extras(entry["name"], entry.get("extras", []), entry.get("specifier", ""))


# --- requirements

REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][\w.-]*)\s*(?:\[([^\]]*)\])?\s*([^;@#]*)(@?)")


def parse(texts: Iterable[str]) -> list[Requirement]:
    """Return the requirements in texts of PEP 508; other lines are left out, and so are markers."""
    found = []
    for text in texts:
        if match := REQUIREMENT.match(text):
            extras = (match[2] or "").split(",")
            specifier = re.sub(r"[\s()]", "", match[3])
            made = with_extras(match[1], extras, specifier)
            found.append(Requirement(*made.key, has_place=bool(match[4])))
    return found


def with_extras(name: str, extras: Iterable[str], specifier: str) -> Requirement:
    wanted = frozenset(normal(each) for each in extras if each.strip())
    return Requirement(normal(name), wanted, frozenset(specifier.split(",")) - {""})


@functools.cache
def meets(version: str, specifiers: str) -> bool:
    """Return whether a release of a version of two numbers, such as 3.12, meets specifiers such as
    >=3.10,<4; what is not understood is met.
    """
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(re.sub(r"\+[\w.]+", "", specifiers))  # a build such as +cu124
    except InvalidSpecifier:
        return True
    return any(wanted.contains(f"{version}.{patch}") for patch in range(NEWEST))


# --- poetry.lock

Need = tuple[str, frozenset[str]]  # a package and its extras


def packages(
    lock: Table, project: Table, extras: set[str], groups: set[str], python: str
) -> list[Table]:
    """Return the packages of a lock that a machine with a python needs, with extras and groups.

    Locks since poetry 2 say which groups a package is for; in older ones dependencies are followed.
    """
    context = Context(python, frozenset(extras))
    fitting = [each for each in lock["package"] if meets(python, each.get("python-versions", ""))]
    if not any("groups" in each for each in lock["package"]):
        return followed(fitting, project, extras, groups, context)
    return [each for each in fitting if is_for(each, {"main", *groups}, context)]


def missing(lock: Table, project: Table, extras: set[str], groups: set[str]) -> list[str]:
    """Return what a project names and its lock does not have."""
    there = {normal(each["name"]) for each in lock["package"]}
    return sorted({name for name, _ in roots(project, extras, groups, Context("3.12"))} - there)


def is_for(package: Table, wanted: set[str], context: Context) -> bool:
    """Return whether a package is for one of these groups on the machine."""
    markers = package.get("markers", "")
    if not isinstance(markers, dict):
        markers = dict.fromkeys(package["groups"], markers)
    return any(holds(markers.get(group, ""), context) for group in wanted & {*package["groups"]})


def followed(
    fitting: list[Table], project: Table, extras: set[str], groups: set[str], context: Context
) -> list[Table]:
    """Return the packages to which the dependencies of a project lead."""
    by_name = {normal(each["name"]): each for each in fitting}
    ahead = roots(project, extras, groups, context)
    found: dict[str, Table] = {}
    seen = set()
    while ahead:
        name, wanted = ahead.pop()
        if (name, wanted) in seen or name not in by_name:
            continue
        seen.add((name, wanted))
        package = found[name] = by_name[name]
        of_extras = parse(t for extra in wanted for t in package.get("extras", {}).get(extra, []))
        optional = {each.name for each in of_extras}
        ahead += poetry_needs(package.get("dependencies", {}), optional, context)
    return sorted(found.values(), key=lambda each: str(each["name"]))


def roots(project: Table, extras: set[str], groups: set[str], context: Context) -> list[Need]:
    """Return what a project needs itself, with extras and groups."""
    poetry = project.get("tool", {}).get("poetry", {})
    tables = poetry.get("extras", {})
    optional = {normal(each) for extra in extras for each in tables.get(extra, [])}
    found = poetry_needs(poetry.get("dependencies", {}), optional, context)
    for group in groups:
        of_group = poetry.get("group", {}).get(group, {}).get("dependencies", {})
        old = poetry.get("dev-dependencies", {}) if group == "dev" else {}
        found += poetry_needs({**old, **of_group}, set(), context)
    listed = parse(project.get("project", {}).get("dependencies", []))
    return [*found, *((each.name, each.extras) for each in listed)]


def poetry_needs(table: Table, optional: set[str], context: Context) -> list[Need]:
    """Return the names and extras of dependencies whose markers hold; of the optional ones only
    those named.
    """
    found = []
    for name, entry in table.items():
        for each in entry if isinstance(entry, list) else [entry]:
            about = each if isinstance(each, dict) else {}
            is_wanted = not about.get("optional") or normal(name) in optional
            # `optional` says which extras are wanted, so their markers always hold.
            marker = EXTRA.sub("os_name == 'posix'", about.get("markers", ""))
            if name != "python" and is_wanted and holds(marker, context):
                found.append((normal(name), frozenset(about.get("extras", []))))
    return found


def has_files(found: list[Table], python: str) -> bool:
    """Return whether each package has a wheel for a machine with a python, or no wheel at all."""
    for each in found:
        wheels = [f["file"] for f in each.get("files", []) if f["file"].endswith(".whl")]
        if wheels and not any(fits_machine(wheel, python) for wheel in wheels):
            return False
    return True


def takes(python: str, spec: str) -> bool:
    """Return whether a python meets poetry's specifiers, such as ^3.10 or >=3.9,<3.13."""
    return any(
        all(meets(python, plain_of(part.strip())) for part in one.split(","))
        for one in spec.split("||")
    )


def plain_of(part: str) -> str:
    """Return one of poetry's specifiers as a standard one."""
    if part.startswith("^"):
        return f">={part[1:]},<{int(part[1:].split('.')[0]) + 1}"
    if match := re.fullmatch(r"~(\d+\.\d+).*", part):
        return f"=={match[1]}.*"
    return part


def arguments(found: list[Table]) -> list[str]:
    """Return packages and their indexes as arguments of `uv pip install`."""
    indexes: list[str] = []
    texts = []
    for each in found:
        source = each.get("source", {})
        url, kind = str(source.get("url", "")), source.get("type", "legacy")
        below = f"#subdirectory={source['subdirectory']}" if source.get("subdirectory") else ""
        if kind == "git":
            texts.append(f"{each['name']} @ git+{url}@{source['resolved_reference']}{below}")
        elif kind == "url":
            texts.append(f"{each['name']} @ {url}{below}")
        elif kind in ("directory", "file"):
            if each.get("develop"):
                texts.append("-e")
            texts.append(f"./{url}")
        else:
            if url:
                indexes.append(f"--index={url}")
            texts.append(f"{each['name']}=={each['version']}")
    return [*dict.fromkeys(indexes), *texts]
