"""Berg's commands: parse, call, print. The only module that prints."""

import json
import os
import sys
import time
from pathlib import Path

import click

from berg import BergError, __version__, config

GPU_HELP = "GPU type: p100, v100, t4, a100, h100, l4, …"


def say(text: str) -> None:
    """Everything that is not data goes to standard error."""
    click.echo(text, err=True)


def main() -> None:
    """Run the command line; every error ends in one sentence, and in a traceback only with BERG_DEBUG=1."""
    try:
        sys.exit(cli.main(standalone_mode=False))
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        show_traceback()
        error.show()
        sys.exit(1)
    except (click.Abort, KeyboardInterrupt):
        say("berg: interrupted")
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        show_traceback()
        BergError(describe(error)).show()
        sys.exit(1)


def show_traceback() -> None:
    if os.environ.get("BERG_DEBUG") == "1":
        import traceback

        traceback.print_exc()


def describe(error: Exception) -> str:
    from berg.storage import explain

    try:
        sentence = explain(error, config.load())
    except Exception:
        sentence = None
    if sentence is None and isinstance(error, OSError):
        sentence = f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return sentence or f"{type(error).__name__}: {error} (an error of berg's; BERG_DEBUG=1 shows where)"


def complete_names(ctx, param, incomplete: str) -> list[str]:
    try:
        names = (config.home() / "names").read_text().split()
    except OSError:
        return []
    return [name for name in names if name.startswith(incomplete)]


def name_argument(**options):
    return click.argument("name", metavar="NAME", shell_complete=complete_names, **options)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="berg")
def cli() -> None:
    """Run machine-learning experiments on Google Cloud accelerators; keep the results in a bucket.

    \b
    berg init --local                        # try it without Google
    berg run "python train.py --lr=0.1"      # from a git repo
    berg list

    Names complete in the shell after: eval "$(_BERG_COMPLETE=bash_source berg)"
    """


@cli.command()
@click.option("--local", is_flag=True, help="Use the embedded cloud on this computer instead of Google.")
@click.option("--project", help=config.HELP["project"].capitalize() + ".")
@click.option("--region", help=config.HELP["region"].capitalize() + ".")
@click.option("--bucket", help=config.HELP["bucket"].capitalize() + ".")
@click.option("--service-account", help="Account that machines act as.")
@click.option("--image", "default_image", help=config.HELP["default_image"].capitalize() + ".")
@click.option("--image-project", "default_image_project", help=config.HELP["default_image_project"].capitalize() + ".")
@click.option("--create-bucket", is_flag=True, help="Create the bucket without asking.")
@click.option("-y", "--yes", is_flag=True, help="Take earlier answers and defaults; do not ask.")
def init(local: bool, create_bucket: bool, yes: bool, **given: str | None) -> None:
    """Set berg up: find project, region, bucket, service account and image, and keep the answers.

    Running it again offers the earlier answers. Every answer is also a flag.

    \b
    berg init
    berg init --project my-project --region us-central1 --bucket my-bucket -y
    berg init --local                        # no Google account needed
    """
    settings = config.load()
    from berg import init as setup

    if local and settings.project and not settings.endpoint and not yes:
        raise BergError(
            f"{config.path()} leads to Google's project {settings.project!r}, which --local would replace. "
            "To keep both: export BERG_HOME=~/.berg-local (or replace it: berg init --local -y)"
        )
    if local:
        config.save(setup.set_up_local())
    else:
        if settings.endpoint:  # what was answered for the embedded cloud says nothing about Google
            settings = config.Config(user=settings.user)
        config.save(setup.walk_through(settings, given, yes, create_bucket))
    say(f'Saved {config.path()}. Now, in a git repo:  berg run "python train.py"')


@cli.command()
@click.argument("cmd")
@click.option("-n", "--name", help="Name of the job and its machine.  [default: made from the repo]")
@click.option("-r", "--results-dir", help="Folder under berg_results.  [default: read off the command]")
@click.option("-g", "--num-gpus", type=int, help="GPUs of the machine; 0 for none.  [default: 4]")
@click.option("-t", "--gpu-type", help=f"{GPU_HELP}  [default: p100]")
@click.option("-c", "--num-cpus", type=int, help="vCPUs of the machine.  [default: 8 per GPU]")
@click.option("--machine-type", help="Machine type, where GPUs and CPUs do not say it.")
@click.option("--image", help="Image or image family.  [default: default_image of the config]")
@click.option("--image-project", help="Project of the image.")
@click.option("--disk-gb", type=int, default=200, show_default=True, help="Size of the boot disk.")
@click.option("--zone", "zones", multiple=True, help="Zone to try; may be repeated.  [default: all of the region]")
@click.option("--spot", is_flag=True, help="A cheaper machine that Google may take away.")
@click.option("--max-hours", type=float, default=168, show_default=True, help="Google deletes the machine then.")
@click.option("--install-script", metavar="PATH", help="Script in the repo to run before the command.")
@click.option("--env", multiple=True, metavar="K=V", help="Variable for the command; may be repeated.")
@click.option("--dry-run", is_flag=True, help="Show the plan and the request, and stop.")
@click.option("--no-kill", is_flag=True, help="Keep the machine after the job (until --max-hours).")
@click.option("--wait", is_flag=True, help="Wait for the end; exit with the command's exit code.")
@click.option("--tail", is_flag=True, help="Follow the log, then as --wait.")
@json_option
def run(cmd, zones, image, image_project, dry_run, wait, tail, as_json, **wishes) -> None:
    """Run CMD on a machine of its own, from the root of the git repo around you.

    The code is the working tree: the last commit and what you changed since, untracked files included,
    ignored ones not. What CMD writes under /root/berg_results appears in the bucket. The machine is
    deleted when CMD ends.

    \b
    berg run "python train.py --bs=256 --logdir=/root/berg_results/sweep1/bs_256"
    berg run -g 8 -t a100 --spot --max-hours 24 --tail "python train.py"
    berg run -g 0 -c 16 --wait "make test" && echo passed
    """
    settings = config.load_ready(zones=zones, default_image=image, default_image_project=image_project)
    from berg import launch, tables

    plan = launch.prepare(settings, cmd, folder=Path.cwd(), **wishes)
    say(tables.plan(plan))
    name = plan.job.job_name
    if dry_run:
        click.echo(json.dumps(plan.request(plan.zones[0]), indent=2))
        return
    began = time.monotonic()
    zone = launch.submit(plan, say, tables.sending)
    say(f"Created {name} in {zone} after {time.monotonic() - began:.1f} s\n")
    if not (tail or wait):
        say(f"Follow it:  berg tail {name}\nEnd it:     berg kill {name}\nResults:    berg fetch {name}\n")
    if as_json:
        click.echo(json.dumps({"job": name, "zone": zone, "results": plan.job.gcs_results_dir}))
    elif not tail:
        click.echo(name)
    if tail or wait:
        sys.exit(watch(settings, name, quiet=not tail))


def watch(settings, name: str, quiet: bool = False) -> int:
    """Follow a job to its end; returns the exit code that tells how it went."""
    from berg import jobs, tables

    def write(chunk: bytes) -> None:
        if not quiet:
            sys.stdout.buffer.write(chunk)
            sys.stdout.buffer.flush()

    state = jobs.follow(settings, name, write)
    if state is None:
        return 0
    say(tables.outcome(name, state))
    return 0 if state.state == "SUCCEEDED" else state.exit_code or 1


@cli.command(name="list")
@click.option("-a", "--all", "everybody", is_flag=True, help="Everybody's, not only mine.")
@click.option("-c", "--command", is_flag=True, help="Show the command, too.")
@click.option("--limit", default=20, show_default=True, help="Jobs that are over, at most; the newest.")
@json_option
def list_(everybody: bool, command: bool, limit: int, as_json: bool) -> None:
    """Show machines and recent jobs with what became of them.

    \b
    berg list
    berg list -a -c
    berg list --json | jq -r '.[] | select(.state == "FAILED") | .name'
    """
    settings = config.load_ready()
    from berg import jobs, tables

    entries = jobs.overview(settings, None if everybody else settings.user)
    over = [each for each in entries if each.state and each.state.final and not each.machine]
    entries = [each for each in entries if each not in over[limit:]]
    if as_json:
        click.echo(json.dumps([each.to_dict() for each in entries], indent=2))
    elif entries:
        click.echo(tables.entries(entries, command, everybody))
    else:
        say('Nothing yet. Start with: berg run "python train.py"')


@cli.command()
@name_argument()
def log(name: str) -> None:
    """Print the whole log of a job, also after its machine is gone.

    \b
    berg log digits-1121-0930-x7k | grep loss
    """
    settings = config.load_ready()
    from berg import jobs

    for chunk in jobs.log_chunks(settings, name):
        sys.stdout.buffer.write(chunk)


@cli.command()
@name_argument()
def tail(name: str) -> None:
    """Follow the log of a job until it ends, and tell how it ended.

    \b
    berg tail digits-1121-0930-x7k
    """
    watch(config.load_ready(), name)


@cli.command()
@click.argument("names", metavar="NAME…", nargs=-1, shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="All jobs and machines of mine.")
@click.option("--now", is_flag=True, help="Delete at once, without waiting for the last results.")
@yes_option
def kill(names: tuple[str, ...], everything: bool, now: bool, yes: bool) -> None:
    """End jobs and delete their machines.

    The command gets SIGTERM and 30 seconds, the last results are uploaded, then the machine goes.

    \b
    berg kill digits-1121-0930-x7k
    berg kill 'sweep1-*'
    berg kill --all --now
    """
    if bool(names) == everything:
        raise click.UsageError("give names, or --all")
    settings = config.load_ready()
    from concurrent.futures import ThreadPoolExecutor

    from berg import jobs

    found = jobs.match(settings, names, everything)
    if not found:
        say("There is nothing to kill.")
        return
    if (everything or any(map(jobs.is_glob, names))) and not yes:
        say("\n".join(found))
        click.confirm(f"Kill these {len(found)}?", abort=True, err=True)
    _ = settings.session
    failed = False
    with ThreadPoolExecutor(8) as pool:
        endings = [(name, pool.submit(jobs.kill, settings, name, now, say)) for name in found]
        for name, ending in endings:
            try:
                say(f"{name}: {ending.result() or 'machine deleted'}")
            except Exception as error:
                failed = True
                show_traceback()
                BergError(error.message if isinstance(error, click.ClickException) else describe(error)).show()
    sys.exit(int(failed))


@cli.command()
@name_argument()
@click.option("--internal", is_flag=True, help="The address inside of the network.")
def ip(name: str, internal: bool) -> None:
    """Print the address of a machine.

    \b
    ping $(berg ip digits-1121-0930-x7k)
    """
    settings = config.load_ready()
    from berg import gce, jobs

    found = jobs.find(settings, name)
    if not found.machine:
        raise BergError(f"{name} has no machine any more ({found.status})")
    external, inside = gce.addresses(found.machine)
    address = inside if internal else external or inside
    if not address:
        raise BergError(f"the machine {name} has no address yet ({found.status}). Try again in a moment")
    click.echo(address)


@cli.command()
@name_argument()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--watch", "keep", is_flag=True, help="Fetch again every 10 seconds until the job is over.")
@json_option
def fetch(name: str, folder: Path | None, keep: bool, as_json: bool) -> None:
    """Bring the results of a job, or of a folder of results, to FOLDER; only what changed.

    FOLDER is ~/berg_results/… by default, the same tree as on the machines.

    \b
    berg fetch digits-1121-0930-x7k
    berg fetch sweep1 ./sweep1 --watch
    """
    settings = config.load_ready()
    from berg import jobs, sync
    from berg.storage import Bucket

    prefix, job_name = jobs.results_prefix(settings, name)
    bucket, target = Bucket(settings), folder or Path.home() / prefix
    while True:
        over = not job_name or (found := jobs.find(settings, job_name)).state is None or found.state.final
        fetched, total = sync.fetch(bucket, prefix, target, lambda path, size: say(f"{size:>14,}  {path}"))
        if not keep or over:
            break
        time.sleep(10)
    if not total:
        raise BergError(f"there is nothing in gs://{bucket.name}/{prefix}. See: berg list")
    if as_json:
        click.echo(json.dumps({"folder": str(target), "files": total, "fetched": fetched}))
    else:
        say(f"{fetched} of {total} files were new or changed")
        click.echo(target)


@cli.group(name="config")
def config_group() -> None:
    """Look at the settings.

    \b
    berg config show
    """


@config_group.command()
def path() -> None:
    """Print where the settings are.

    \b
    $EDITOR $(berg config path)
    """
    click.echo(config.path())


@config_group.command()
@json_option
def show(as_json: bool) -> None:
    """Print the settings in force: BERG_* variables, then the file, then the defaults.

    \b
    berg config show --json
    """
    settings = config.load()
    values = {key: getattr(settings, key) for key in config.HELP}
    if as_json:
        click.echo(json.dumps(values, indent=2))
        return
    width = max(map(len, values))
    for key, value in values.items():
        click.echo(f"{key:<{width}}  {json.dumps(value):<44}  # {config.HELP[key]}")


@cli.group()
def local() -> None:
    """The embedded cloud: Google's APIs and small machines on this computer, for trying and testing.

    \b
    berg init --local
    berg local status
    """


def control():
    from berg.local import control

    return control


@local.command()
def start() -> None:
    """Start the embedded cloud (berg does so by itself when it is needed).

    \b
    berg local start
    """
    port = config.read_file().get("endpoint", "").rpartition(":")[2]
    say(f"Running at http://127.0.0.1:{control().start(config.local_folder(), int(port or 0))}")


@local.command()
@yes_option
def stop(yes: bool) -> None:
    """Stop the embedded cloud and its machines; buckets stay.

    \b
    berg local stop
    """
    confirm_machines("Stop", yes)
    control().stop(config.local_folder())
    say("Stopped.")


@local.command()
@json_option
def status(as_json: bool) -> None:
    """Show whether the embedded cloud runs, and what its machines can do on this computer.

    \b
    berg local status --json
    """
    values = control().status(config.local_folder())
    if as_json:
        click.echo(json.dumps(values, indent=2))
    else:
        for key, value in values.items():
            lines = value if isinstance(value, list) else [value]
            click.echo("\n".join(f"{key if n == 0 else '':<12} {line}" for n, line in enumerate(lines)))


@local.command()
@yes_option
def reset(yes: bool) -> None:
    """Stop the embedded cloud and delete all that it holds: machines, buckets, results.

    \b
    berg local reset -y
    """
    if not yes:
        click.confirm(f"Delete everything in {config.local_folder()}?", abort=True, err=True)
    control().reset(config.local_folder())
    say("Deleted.")


def confirm_machines(verb: str, yes: bool) -> None:
    machines = control().status(config.local_folder()).get("machines") or []
    if machines and not yes:
        say("These machines would be ended: " + ", ".join(map(str, machines)))
        click.confirm(f"{verb} the embedded cloud?", abort=True, err=True)
