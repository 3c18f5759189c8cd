"""How long the command line takes to answer, against other tools and click alone."""

import common
from common import CLEAN, Target, ratio, rounds, table, timed

WHY_CLICK = (
    "the rest is berg's own modules for messages, click's parts for a help, and the help's text"
)
MOST = (1.35, 1.35, 1.5)  # what is completed is a command's, whose module is imported


def measure(repeats: int) -> list[common.Result]:
    berg = common.installed_berg()
    click, own = (
        "`python -c 'import click'`",
        {"help": "`berg --help`", "version": "`berg --version`"},
    )
    completion = CLEAN | {
        "_BERG_COMPLETE": "bash_complete",
        "COMP_WORDS": "berg tail dig",
        "COMP_CWORD": "2",
    }
    sides = {
        own["help"]: lambda: timed(berg / "berg", "--help"),
        own["version"]: lambda: timed(berg / "berg", "--version"),
        "`berg tail dig<TAB>`": lambda: timed(berg / "berg", env=completion),
        click: lambda: timed(berg / "python", "-c", "import click"),
    }
    note = "Each is installed in an environment of its own; none uses the network."
    for package, words in (("dsub", ["dsub", "--help"]), ("skypilot[gcp]", ["sky", "--help"])):
        folder = common.peer(package)
        if isinstance(folder, str):
            note += f" {package} is missing: {folder}."
        else:
            sides[f"`{' '.join(words)}`"] = lambda command=(folder / words[0], *words[1:]): timed(
                *command
            )  # type: ignore
    gcloud = "`gcloud --version`"
    if common.has("gcloud"):
        sides[gcloud] = lambda: timed("gcloud", "--version")
    else:
        note += " gcloud is missing."
    for side in sides.values():
        side()  # compiles what was installed just now
    costs = rounds(sides, repeats * 4)
    targets = [
        Target(
            f"{shown} of {name} over click", ratio(costs, name, click, what), most, why=WHY_CLICK
        )
        for name, most in zip(list(costs)[:3], MOST, strict=True)
        for shown, what in (("wall", "wall"), ("CPU", "cpu"))
    ]
    if gcloud in costs:
        targets.append(
            Target(
                f"{own['help']} over {gcloud}",
                ratio(costs, own["help"], gcloud),
                0.12,
                why=WHY_CLICK,
            )
        )
    return [table("Start-up", note, costs, targets)]


if __name__ == "__main__":
    common.main(__doc__, measure)
