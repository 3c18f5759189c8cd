"""`berg skill`: the page that teaches coding agents berg, printed or written where agents look.

It is a SKILL.md (https://agentskills.io): name and description, then what no --help says.
"""

import hashlib
import os
import re
from pathlib import Path

import click

from berg import BergError, __version__, code, terminal

# The folder that most agents read, in a repository or a home, and the one of Claude Code.
FILES = (".agents/skills/berg/SKILL.md", ".claude/skills/berg/SKILL.md")
MOST = 1 << 20  # bytes of a file there that are read
VERSION = re.compile(r'^  version: "(.*)"\n', re.M)
CHECKSUM = re.compile(r'^  checksum: "(.*)"\n', re.M)
PAGE = """\
---
name: berg
description: "Run ML experiments on Google Cloud GPUs with the berg command: train models, sweep hyperparameters, fetch results, limit the cost. Use it when a user wants to train, fine-tune, benchmark or evaluate on cloud accelerators, or asks about berg jobs, their logs, results or machines."
compatibility: "Requires berg on the PATH, git, and a git repository with the code."
metadata:
  version: "VERSION"
---

# Berg

`berg run CMD` sends the working tree (a git repository, uncommitted changes included) to a new machine, runs CMD there, copies
what CMD writes to `$BERG_RESULTS_DIR` (and nowhere else) to a bucket, and deletes the machine. A job needs this computer no more.

## Rules

- Every machine costs money until it is deleted. Give each job `--max-hours`: Google enforces it.
- If berg asks a question, show it to the user. `-y` is fine for what you created yourself.
- Without a terminal a question fails at once and names the option that answers it. An error names the next command: run that.
- Never guess options: `berg COMMAND --help`. For programs there is `--json`: data on stdout, messages on stderr.

## Set up

Rehearse for free, with the same commands, on a cloud that runs on this computer (its GPUs are not real):

```bash
export BERG_HOME=~/.berg-rehearsal     # leave it out to use the real Google Cloud
berg init --local -y
```

`berg local stop` ends a rehearsal. The real Google Cloud is set up by the user: `berg init`.

## One job

```bash
berg run --dry-run -n try1 --max-hours 1 "python train.py --lr=0.1"   # the plan
berg run -n try1 --max-hours 1 "python train.py --lr=0.1"             # returns when the machine is created
timeout 300 berg wait try1              # exit code 124: not finished; repeat
berg show try1 --json                   # state, reason, exit code; look every 15 to 30 s; berg list: all jobs
berg log try1                           # all of the log so far
berg fetch try1 --json                  # to "folder", outside of the repository; only what changed
```

The machine has one L4 GPU. `-g 0 -c 4`: 4 CPUs and no GPU; `-g N -t TYPE`: others. CMD runs in the folder that you are in.
Packages of uv.lock, requirements.txt or pyproject.toml are installed: install nothing by hand. Files that git ignores are left out.
Metrics: lines like `{"step": 1, "loss": 0.1}` in `$BERG_RESULTS_DIR/metrics.jsonl`.

## Several runs: a sweep

```bash
berg run -n grid1 --max-hours 1 --grid lr=0.1,0.01 --parallel 2 "python train.py --lr={lr}"
timeout 300 berg wait grid1
berg sweep grid1 --json                 # each row: state, parameters, last metrics
berg log grid1/0
```

`--grid a=1,2 --grid b=3,4` is all four; `--tasks runs.jsonl` lists them. A sweep is one job: never a loop of `berg run`.

## End, and leave nothing behind

```bash
berg list                               # jobs that are not final have machines
berg kill NAME                          # saves the last results, then deletes the machine
berg reap --json                        # what was left behind; berg reap deletes it
berg rm NAME -y                         # delete results, log and state; only if the user wants that
```

Devboxes cost money until `berg kill`.

## States and exit codes

SUBMITTED, STARTING, INSTALLING, RUNNING, UPLOADING, then one of FAILED, KILLED, LOST, SUCCEEDED, which are final. LOST: the
machine vanished; results up to the last upload are in the bucket.

Exit codes: 0 done; 1 an error; 2 berg does not understand the command line, or a question needs an option; 130 interrupted,
and the job continues; others, of `berg wait`, `berg run --wait` and `berg ssh`: the exit code of the job's command.

These block until the job ends or for ever; run them with `timeout`, or not at all: `berg wait`, `berg run --wait`,
`berg run --tail`, `berg tail`, `berg ssh` without a command.

## Common mistakes

| Instead of | do |
|---|---|
| `berg rerun` after you repaired the code | `berg run` again: rerun has the code of the earlier job |
| `berg rerun` after a lost machine | `berg run --resume NAME`: it continues with the saved results |
| waiting without a limit for a GPU that is out of stock | another type, zone, or `--spot` |
| killing a job that installs for minutes | `berg log NAME`; the first start installs packages |
| parsing tables | `--json` |

## Commands

COMMANDS

In Python: `berg.run` and `berg.Job`.
"""


def page(root: click.Group) -> str:
    """The page, with a line for each command as its own help says it."""
    context, lines = click.Context(root), []
    for name in root.list_commands(context):
        command = root.get_command(context, name)
        assert command
        parts = [
            part
            for part in command.collect_usage_pieces(click.Context(command))
            if part != "[OPTIONS]"
        ]
        if isinstance(command, click.Group):
            parts = ["|".join(command.commands)]
        lines.append(f"- `{' '.join(['berg', name, *parts])}`: {command.get_short_help_str(100)}")
    text = PAGE.replace("COMMANDS\n", "\n".join(lines) + "\n")
    text = text.replace('"VERSION"', f'"{__version__}"')
    line = f'  checksum: "{checksum(text)}"\n'
    return VERSION.sub(lambda found: found[0] + line, text)


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def is_ours(text: str) -> bool:
    """Whether a page is as some version of Berg wrote it."""
    found = CHECKSUM.search(text)
    return found is not None and found[1] == checksum(CHECKSUM.sub("", text))


def write(path: Path, text: str, yes: bool) -> None:
    """Write the page; ask before a file is replaced that Berg did not write."""
    before = path.read_bytes()[:MOST].decode(errors="replace") if path.is_file() else None
    if before == text:
        return terminal.say(f"{path} is up to date")
    if before is not None and not is_ours(before):
        question = f"{path} was not written by berg, or was changed since. Replace it?"
        if not terminal.confirm(question, yes, "-y"):
            return terminal.say(f"{path} stays as it is")
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name("SKILL.md.new")
    new.write_text(text)
    new.replace(path)
    return terminal.say(f"Wrote {path}")


@click.command()
@click.option("--install", is_flag=True, help="Write it where agents look, in this repository.")
@click.option("--user", is_flag=True, help="With --install: in your home instead.")
@click.option("-y", "--yes", is_flag=True, help="Replace files that berg did not write.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def skill(context: click.Context, install: bool, user: bool, yes: bool, as_json: bool) -> None:
    """Print or install the page that teaches coding agents berg.

    \b
    berg skill
    berg skill --install                     # in this repository; again after an update of berg
    berg skill --install --user              # for all repositories
    """
    if user and not install:
        raise click.UsageError("--user says where to install: give --install, too")
    root = context.find_root().command
    assert isinstance(root, click.Group)
    text = page(root)
    if not install:
        if as_json:
            return terminal.show_json({"name": "berg", "version": __version__, "text": text})
        return terminal.show(text.removesuffix("\n"))
    top = Path.home() if user else code.find_root(Path.cwd())
    for path in (top / name for name in FILES):
        # A repository that somebody else wrote must not lead out of itself.
        if not user and not os.path.realpath(path).startswith(os.path.realpath(top) + os.sep):
            raise BergError(f"{path} is behind a link that leads out of {top}. Delete the link")
        write(path, text, yes)
    return None
