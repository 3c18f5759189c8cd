"""How much the tests notice: break one thing of a module at a time, and see whether its tests fail.

    make mutate                       # all modules of the table, and docs/testing.md is written
    make mutate MODULES=berg/states.py SAMPLE=100

Mutants come from cosmic-ray's operators (another comparison, a number plus one, `and` for `or`, no
decorator, an exception that nobody raises...). Of all that a module has, a seeded sample is tried.
Each runs in a copy of the repo, against the tests that stand nearest to its module; a mutant that
they do not notice has survived, and is printed as a diff.
"""

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from queue import SimpleQueue

import cosmic_ray.plugins
from cosmic_ray.ast import ast_nodes, get_ast_from_path
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator

# The tests nearest to each module, the quickest first; those of other files would notice more.
TESTS = {
    "berg/google/sending.py": "tests/google/test_sending.py tests/google/test_mirror.py "
    "tests/google/test_mirror_model.py",
    "berg/google/mirror.py": "tests/google/test_mirror_decisions.py "
    "tests/google/test_watch_passes.py tests/google/test_mirror.py "
    "tests/google/test_mirror_model.py tests/google/test_fetch.py",
    "berg/google/fetch.py": "tests/google/test_fetch.py tests/google/test_helpers.py tests/test_computer.py",
    "berg/machine/saving.py": "tests/machine/test_saving.py",
    "berg/machine/outcome.py": "tests/machine/test_outcome.py",
    "berg/states.py": "tests/test_states.py",
    "berg/laptop/launch.py": "tests/test_launch.py tests/test_defaults.py tests/test_flex.py "
    "tests/commands/test_bad_input.py",
    "berg/laptop/ending.py": "tests/test_ending.py tests/commands/test_kill.py",
    "berg/laptop/records.py": "tests/commands/test_records.py",
}
LONGEST = 400  # seconds until the tests of a mutant count as hanging, which they notice
BEGIN, END = "<!-- mutants -->\n", "<!-- end of mutants -->"


@dataclass
class Mutant:
    module: str
    code: str
    difference: str
    noticed: bool = False


def mutants(module: str, sample: int, seed: int) -> list[Mutant]:
    """Some of the mutants that a module has, by chance; the seed says which."""
    source = Path(module).read_text()
    tree = get_ast_from_path(Path(module))
    places = []
    for name in sorted(cosmic_ray.plugins.operator_names()):
        kind = cosmic_ray.plugins.get_operator(name)
        if kind.arguments():
            continue
        found = [at for node in ast_nodes(tree) for at in kind().mutation_positions(node)]
        places += [(kind, occurrence) for occurrence in range(len(found))]
    chosen = random.Random(f"{seed} {module}").sample(places, min(sample, len(places)))
    made = [mutated(source, kind(), occurrence) for kind, occurrence in chosen]
    return [Mutant(module, code, difference(module, source, code)) for code in made if code]


def mutated(source: str, operator: Operator, occurrence: int) -> str | None:
    """Return the code with one thing broken; None where cosmic-ray has no way to break it."""
    try:
        return mutate_code(source, operator, occurrence)
    except AttributeError:  # such as of an exception whose name has a dot
        return None


def difference(module: str, before: str, after: str) -> str:
    lines = unified_diff(before.splitlines(), after.splitlines(), module, module, "", "", 1, "")
    return "\n".join(lines)


def copy_of_repo(folder: Path) -> Path:
    """The files that git knows, and those that are new."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if Path(name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(name, folder / name)
    return folder


def tests_pass(copy: Path, tests: str) -> bool:
    """Run tests in a copy of the repo, until the first that fails or until they hang."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["--timeout", str(LONGEST // 2), *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, timeout=LONGEST
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def check_without_mutants(modules: list[str], copy: Path) -> None:
    """End the program if tests fail that should notice mutants: they would notice everything."""
    for tests in sorted({TESTS[module] for module in modules}):
        if not tests_pass(copy, tests):
            sys.exit(f"these tests fail without a mutant: {tests}")


def try_mutant(mutant: Mutant, copies: "SimpleQueue[Path]") -> Mutant:
    copy = copies.get()
    file = copy / mutant.module
    before = file.read_text()
    try:
        file.write_text(mutant.code)
        mutant.noticed = not tests_pass(copy, TESTS[mutant.module])
    finally:
        file.write_text(before)
        copies.put(copy)
    print("." if mutant.noticed else f"\nsurvived:\n{mutant.difference}\n", end="", flush=True)
    return mutant


def write_table(page: Path, tried: list[Mutant]) -> None:
    """Write the scores of the modules that were tried; rows of others stay."""
    head, _, rest = page.read_text().partition(BEGIN)
    old, _, tail = rest.partition(END)
    rows = {line.split("`")[1]: line for line in old.splitlines() if "`" in line}
    for module in {each.module for each in tried}:
        mine = [each for each in tried if each.module == module]
        noticed = sum(each.noticed for each in mine)
        share = f"{100 * noticed / len(mine):.0f} %"
        rows[module] = f"| `{module}` | {len(mine)} | {noticed} | {share} |"
    lines = ["| module | mutants tried | noticed | score |", "|---|---:|---:|---:|"]
    lines += [rows[name] for name in sorted(rows)]
    page.write_text(head + BEGIN + "\n".join(lines) + "\n" + END + tail)


def main() -> None:
    parser = argparse.ArgumentParser(description="Try whether the tests notice broken lines.")
    parser.add_argument("modules", nargs="*", default=list(TESTS), help="files of berg/")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="copies of the repo side by side")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    given = parser.parse_args()
    for module in given.modules:
        if module not in TESTS:
            parser.error(f"{module} has no tests in {sys.argv[0]}")
    with tempfile.TemporaryDirectory() as folder:
        copies: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.jobs):
            copies.put(copy_of_repo(Path(folder, str(number))))
        check_without_mutants(given.modules, Path(folder, "0"))
        with ThreadPoolExecutor(given.jobs) as pool:
            todo = [
                m for module in given.modules for m in mutants(module, given.sample, given.seed)
            ]
            tried = list(pool.map(lambda mutant: try_mutant(mutant, copies), todo))
    print(f"\n{sum(each.noticed for each in tried)} of {len(tried)} mutants were noticed")
    if given.page:
        write_table(given.page, tried)


if __name__ == "__main__":
    main()
