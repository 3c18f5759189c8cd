"""What a poetry.lock holds for a machine, as arguments for uv; poetry itself is not needed.

Locks since poetry 2 say which groups a package is for; in older ones dependencies are followed.
Not covered: whether the lock has the versions that pyproject.toml asks for, of which poetry keeps
a hash of its own.
"""

import re
from typing import Any

from berg.code.requirement import meets, normal, parse
from berg.code.uvlock import Context, fits_machine

Table = dict[str, Any]
Need = tuple[str, frozenset[str]]  # a package and its extras
OF_EXTRA = re.compile(r"""extra == (["']).*?\1""")


def packages(
    lock: Table, project: Table, extras: set[str], groups: set[str], python: str
) -> list[Table]:
    """Return the packages of a lock that a machine with a python needs, with extras and groups."""
    context = Context(python, frozenset(extras))
    fitting = [each for each in lock["package"] if meets(python, each.get("python-versions", ""))]
    if not any("groups" in each for each in lock["package"]):
        return followed(fitting, project, extras, groups, context)
    wanted = {"main", *groups}
    return [each for each in fitting if is_for(each, wanted, context)]


def missing(lock: Table, project: Table, extras: set[str], groups: set[str]) -> list[str]:
    """Return what a project names and its lock does not have."""
    there = {normal(each["name"]) for each in lock["package"]}
    return sorted({name for name, _ in roots(project, extras, groups, Context("3.12"))} - there)


def is_for(package: Table, wanted: set[str], context: Context) -> bool:
    """Return whether a package is for one of these groups on the machine."""
    markers = package.get("markers", "")
    if not isinstance(markers, dict):
        markers = dict.fromkeys(package["groups"], markers)
    return any(context.holds(markers.get(group, "")) for group in wanted & {*package["groups"]})


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
        brought = parse(t for extra in wanted for t in package.get("extras", {}).get(extra, []))
        ahead += needs_of(package.get("dependencies", {}), {each.name for each in brought}, context)
    return sorted(found.values(), key=lambda each: str(each["name"]))


def roots(project: Table, extras: set[str], groups: set[str], context: Context) -> list[Need]:
    """Return what a project needs itself, with extras and groups."""
    poetry = project.get("tool", {}).get("poetry", {})
    tables = {**poetry.get("extras", {})}
    optional = {normal(each) for extra in extras for each in tables.get(extra, [])}
    found = needs_of(poetry.get("dependencies", {}), optional, context)
    for group in groups:
        of_group = poetry.get("group", {}).get(group, {}).get("dependencies", {})
        old = poetry.get("dev-dependencies", {}) if group == "dev" else {}
        found += needs_of({**old, **of_group}, set(), context)
    listed = parse(project.get("project", {}).get("dependencies", []))
    return [*found, *((each.name, each.extras) for each in listed)]


def needs_of(table: Table, optional: set[str], context: Context) -> list[Need]:
    """Return the names and extras of dependencies that hold; of optional ones those named."""
    found = []
    for name, entry in table.items():
        for each in entry if isinstance(entry, list) else [entry]:
            about = each if isinstance(each, dict) else {}
            is_wanted = not about.get("optional") or normal(name) in optional
            # Which extras are wanted, says `optional`.
            marker = re.sub(OF_EXTRA, "os_name == 'posix'", about.get("markers", ""))
            if name != "python" and is_wanted and context.holds(marker):
                found.append((normal(name), frozenset(about.get("extras", []))))
    return found


def has_files(found: list[Table], python: str) -> bool:
    """Return whether each package has a wheel for a machine with a python, or none at all."""
    for each in found:
        wheels = [f["file"] for f in each.get("files", []) if f["file"].endswith(".whl")]
        if wheels and not any(fits_machine(wheel, python) for wheel in wheels):
            return False
    return True


def takes(python: str, spec: str) -> bool:
    """Return whether a python meets what poetry writes of it, such as ^3.10 or >=3.9,<3.13."""
    return any(
        all(meets(python, plain_of(part.strip())) for part in one.split(","))
        for one in spec.split("||")
    )


def plain_of(part: str) -> str:
    """Return a part of such a text as others write it."""
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
            texts += [*(["-e"] if each.get("develop") else []), f"./{url}"]
        else:
            indexes += [f"--index={url}"] * bool(url)
            texts.append(f"{each['name']}=={each['version']}")
    return [*dict.fromkeys(indexes), *texts]
