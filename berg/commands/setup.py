"""The commands that set berg up, look around, tidy up: init, doctor, gpus, config, local, reap.

The commands about images: build for pods; create, list, delete for machines.

The commands that say what things cost: prices, costs.
"""

import json
import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from berg import BergError, columns, config, plain, wrapped
from berg.commands.terminal import (
    complete_types,
    install_options,
    json_option,
    remember_zones,
    say,
    table,
    yes_option,
)


def sentence(key: str) -> str:
    text = config.HELP[key]
    return f"{text[0].upper()}{text[1:]}."


@click.command()
@click.option(
    "--local", is_flag=True, help="Use the embedded cloud on this computer instead of Google."
)
@click.option("--project", help=sentence("project"))
@click.option("--region", help=sentence("region"))
@click.option("--bucket", help=sentence("bucket"))
@click.option("--service-account", help="Account that machines act as.")
@click.option("--image", "default_image", metavar="[PROJECT/]IMAGE", help=sentence("default_image"))
@click.option(
    "--monitoring/--no-monitoring",
    default=None,
    help="Machines tell Cloud Monitoring how busy they are.",
)
@click.option("--create-bucket", is_flag=True, help="Create the bucket without asking.")
@click.option("-y", "--yes", is_flag=True, help="Take earlier answers and defaults; do not ask.")
def init(
    local: bool, create_bucket: bool, yes: bool, monitoring: bool | None, **given: str | None
) -> None:
    """Set berg up: find what it needs, and keep the answers.

    That is project, region, bucket, service account and image. Running it again offers the earlier
    answers. Every answer is also a flag. With --monitoring the machines' account may write metrics,
    and memory, GPUs and TPUs appear in Cloud Monitoring (berg dashboard).

    \b
    berg init
    berg init --project my-project --region us-central1 --bucket my-bucket -y
    berg init --local                        # no Google account needed
    """
    options = [option_of(key) for key in given if given[key]]
    if local and options:
        raise click.UsageError(
            f"--local sets up all of the embedded cloud by itself; leave {', '.join(options)} out"
        )
    project, _, image = (given["default_image"] or "").rpartition("/")
    if project:
        given = {**given, "default_image": image, "default_image_project": project}
    from berg.google import storage

    settings = load_or_set_aside()
    if monitoring is not None:
        settings.monitoring = int(monitoring)
    if local:
        answers = set_up_local(settings, yes)
    else:
        answers = set_up_google(settings, given, yes, create_bucket)
    config.save(answers)
    storage.remember(answers["bucket"], "")  # the next command learns whose it is
    say(f'Saved {config.path()}. Now, in a git repo:  berg run "python train.py"')


def option_of(key: str) -> str:
    """Return the option of `berg init` for a setting."""
    return f"--{key.removeprefix('default_').replace('_', '-')}"


def set_up_local(settings: config.Config, yes: bool) -> dict[str, Any]:
    """Return the settings for the embedded cloud, which starts."""
    from berg.laptop import init as setup

    if settings.project and not settings.endpoint and not yes:
        raise BergError(
            f"{config.path()} leads to Google's project {settings.project!r}, which --local would "
            "replace. To keep both: export BERG_HOME=~/.berg-local (or replace it: berg init "
            "--local -y)"
        )
    return setup.set_up_local(settings.monitoring)


def set_up_google(
    settings: config.Config, given: dict[str, str | None], yes: bool, create_bucket: bool
) -> dict[str, Any]:
    """Return the settings for Google, which are asked for."""
    from berg.google.api import explain
    from berg.laptop import init as setup

    if config.read_file().get("endpoint") == settings.endpoint and settings.endpoint:
        # What was answered for the embedded cloud says nothing about Google.
        settings = config.Config(user=settings.user, monitoring=settings.monitoring)
    try:
        return setup.walk_through(settings, given, yes, create_bucket)
    except (click.ClickException, click.Abort):
        raise
    except Exception as error:
        # in the words of the cloud that was asked, not of the one that is set up so far
        if why := explain(error, settings):
            raise BergError(why) from error
        raise


def load_or_set_aside() -> config.Config:
    """Return the settings so far; a file that cannot be read is kept under another name."""
    try:
        return config.load()
    except BergError as error:
        if not config.path().exists():
            raise
        aside = config.path().with_suffix(".json.broken")
        config.path().rename(aside)
        say(f"{error.message.partition('. ')[0]}. It is now {aside}")
        return config.load()


@click.command()
@json_option
def doctor(as_json: bool) -> None:
    """Check everything that berg needs, and show how to fix it.

    Settings, tools, credentials, APIs, rights, bucket, image, quotas, firewall: one line each, and
    the command that fixes what is wrong. The exit code is 1 if a check failed.

    \b
    berg doctor
    berg doctor --json | jq -r '.[] | select(.status != "ok") | .fix'
    """
    from berg.laptop import doctor as checks

    findings = checks.examine()
    if as_json:
        plain.echo(json.dumps([vars(each) for each in findings], indent=2))
    else:
        for each in findings:
            checks.show(each, sys.stdout)
    sys.exit(any(each.status == checks.FAILED for each in findings))


@click.command()
@click.option(
    "-a", "--all", "everywhere", is_flag=True, help="Zones of all regions, not only of mine."
)
@click.option("--tpu", is_flag=True, help="Show TPUs: families, topologies, zones, prices.")
@json_option
def gpus(everywhere: bool, tpu: bool, as_json: bool) -> None:
    """Show GPU types or TPUs: their zones, quota left, prices.

    Quotas and prices are those of the configured region, on demand and of Spot machines; `?` stands
    for what Google does not show. A quota is a right, not a promise: a zone may be out of stock all
    the same. SPOT ODDS are Google's own of one machine in the region's best zone: obtainability
    (0.7 good, 0.3 poor), hours that one lasts, and how many of those that ended were preempted.

    Of TPUs (--tpu) one host is a machine like any other; several are a slice. v5p and tpu7x have
    larger slices than are shown: sides that are multiples of 4, the smallest first. Google's API
    for regions does not show quotas for TPUs.

    \b
    berg gpus
    berg gpus --all
    berg gpus --json | jq -r '.[] | select(.type == "l4") | .zones[]'
    berg gpus --tpu
    """
    settings = config.load_ready()
    if tpu:
        show_tpus(settings, as_json)
        return
    from berg.commands import tables
    from berg.google import offers, prices

    listed, why = prices.look_up(settings, settings.region)
    found = offers.gpus(settings, listed)
    remember_zones(sorted({zone for each in found for zone in each.zones}))
    if as_json:
        plain.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    plain.echo(tables.gpus(found, settings.region, everywhere))
    about = tables.about_prices(listed, why)
    if listed:
        about += " The smallest machine with such GPUs."
    if not everywhere and any(each.spot_odds for each in found):
        about += f"\n{tables.ABOUT_ODDS}"
    say(f"\n{about}")


def show_tpus(settings: config.Config, as_json: bool) -> None:
    from berg.commands import tables
    from berg.google import offers, prices

    listed, why = prices.look_up(settings, settings.region)
    found = offers.tpus(settings, listed)
    if as_json:
        plain.echo(json.dumps(found, indent=2))
        return
    plain.echo(tables.tpu_table(found))
    about = tables.about_prices(listed, why)
    if listed:
        about += tables.per_chip(found)
    say(f"\n{about}")


@click.group(name="config")
def config_group() -> None:
    """Look at the settings, and change them.

    \b
    berg config show
    berg config get bucket
    berg config set zones us-central1-a,us-central1-b
    """


@config_group.command()
def path() -> None:
    """Print where the settings are.

    \b
    $EDITOR $(berg config path)
    """
    plain.echo(config.path())


@config_group.command()
@json_option
def show(as_json: bool) -> None:
    """Print the settings in force.

    BERG_* variables come first, then the file, then the defaults.

    \b
    berg config show --json
    """
    settings = config.load()
    values = {key: getattr(settings, key) for key in config.HELP}
    if as_json:
        plain.echo(json.dumps(values, indent=2))
        return
    width = max(map(len, values))
    for key, value in values.items():
        line = f"{key:<{width}}  {json.dumps(value):<44}  # {config.HELP[key]}"
        if 0 < columns(sys.stdout) < len(line):
            line = f"{key:<{width}}  {json.dumps(value)}\n    # {config.HELP[key]}"
        plain.echo(wrapped(line, sys.stdout))


def complete_keys(_: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [key for key in config.HELP if key.startswith(incomplete)]


@config_group.command()
@click.argument("key", shell_complete=complete_keys)
def get(key: str) -> None:
    """Print one setting in force, of a list the values with commas.

    \b
    gcloud storage ls gs://$(berg config get bucket)
    """
    check_key(key)
    value = getattr(config.load(), key)
    if isinstance(value, list):
        value = ",".join(value)
    plain.echo(value)


@config_group.command(name="set")
@click.argument("key", shell_complete=complete_keys)
@click.argument("value")
def set_(key: str, value: str) -> None:
    """Change a setting in the file.

    \b
    berg config set default_image my-golden-image
    berg config set zones us-central1-a,us-central1-b
    """
    check_key(key)
    config.save({key: parse(key, value.strip())})
    say(f"{key} is {json.dumps(config.read_file()[key])} in {config.path()}")
    if os.environ.get(f"BERG_{key.upper()}"):
        say(f"The variable BERG_{key.upper()} is set, and comes first")


@config_group.command()
@click.argument("key", shell_complete=complete_keys)
def unset(key: str) -> None:
    """Take a setting out of the file; its default holds again.

    \b
    berg config unset zones
    """
    check_key(key)
    config.save({key: None})
    say(f"{key} is {json.dumps(getattr(config.Config(), key))}, the default")


def parse(key: str, text: str) -> Any:
    """Return the value of a setting; raises BergError for what it cannot be."""
    if not text:
        raise BergError(f"{key} needs a value. To take it out: berg config unset {key}")
    value = config.convert(key, text, getattr(config.Config(), key))
    if key == "zones":
        check_zones(value)
    if key == "ssh_port" and not 1 <= value <= 65535:
        raise BergError(f"ssh_port must be 1 to 65535, not {value}")
    if key == "endpoint" and not value.startswith(("http://", "https://")):
        raise BergError(
            f"endpoint must be an address, not {value!r}. For Google: berg config unset endpoint"
        )
    return value


def check_zones(zones: list[str]) -> None:
    for zone in zones:
        if not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z0-9]+", zone):
            raise BergError(
                f"zones: {zone!r} is no zone: give names such as us-central1-a, with commas "
                "between them"
            )


def check_key(key: str) -> None:
    if key not in config.HELP:
        raise BergError(f"there is no setting {key!r}. There are: {', '.join(config.HELP)}")


@click.group()
def local() -> None:
    """Look after the embedded cloud on this computer.

    It is Google's APIs and small machines, for trying and testing.

    \b
    berg init --local
    berg local status
    """


@local.command()
def start() -> None:
    """Start the embedded cloud; berg does so when it needs it.

    \b
    berg local start
    """
    port = config.read_file().get("endpoint", "").rpartition(":")[2]
    port = config.embedded_cloud().start(config.local_folder(), int(port or 0))
    say(f"Running at http://127.0.0.1:{port}")


@local.command()
@yes_option
def stop(yes: bool) -> None:
    """Stop the embedded cloud and its machines; buckets stay.

    \b
    berg local stop
    """
    confirm_machines("Stop", yes)
    config.embedded_cloud().stop(config.local_folder())
    say("Stopped.")


@local.command()
@json_option
def status(as_json: bool) -> None:
    """Show whether the embedded cloud runs, and what it can do.

    \b
    berg local status --json
    """
    values = config.embedded_cloud().status(config.local_folder())
    if as_json:
        plain.echo(json.dumps(values, indent=2))
    else:
        for key, value in values.items():
            lines = value if isinstance(value, list) else [value]
            for n, line in enumerate(lines):
                plain.echo(wrapped(f"{key if n == 0 else '':<12} {line}", sys.stdout, 13))


@local.command()
@yes_option
def reset(yes: bool) -> None:
    """Stop the embedded cloud and delete all that it holds.

    That is machines, buckets, results.

    \b
    berg local reset -y
    """
    if not yes:
        click.confirm(f"Delete everything in {config.local_folder()}?", abort=True, err=True)
    config.embedded_cloud().reset(config.local_folder())
    say("Deleted.")


def confirm_machines(verb: str, yes: bool) -> None:
    machines = config.embedded_cloud().status(config.local_folder()).get("machines") or {}
    if machines and not yes:
        count = sum(machines.values())
        say(f"{count} machine{'s' if count > 1 else ''} would be ended. See them: berg list -a")
        click.confirm(f"{verb} the embedded cloud?", abort=True, err=True)


@click.command()
@click.option("-a", "--all", "everybody", is_flag=True, help="Everybody's, not only mine.")
@yes_option
@json_option
def reap(everybody: bool, yes: bool, as_json: bool) -> None:
    """Find what was left behind, and delete it after asking.

    That is machines and groups that no live job owns, disks that no machine has, what a berg start
    --move left that broke off, and unused templates and ConfigMaps of berg's. Machines delete
    themselves, and Google deletes them at --max-hours: this finds what went wrong all the same. A
    cluster that is idle is named with what it costs, and stays.

    \b
    berg reap
    berg reap --all --json                   # only look
    """
    settings = config.load_ready()
    from berg.laptop import jobs, reap

    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        say(text)

    user: str | None = settings.user
    if everybody:
        user = None
    leftovers = reap.find(settings, user, note)
    if as_json:
        plain.echo(json.dumps([each.to_dict() for each in leftovers], indent=2))
        return
    if not leftovers and notes:
        say("Nothing else was left behind.")
        return
    if not leftovers:
        say("Nothing was left behind.")
        return
    for each in leftovers:
        age = jobs.age(each.what.created_at)
        line = f"{each.kind:<8}  {each.name}  {each.where or 'global'}  {age} old: {each.why}"
        plain.echo(wrapped(line, sys.stdout, 10))
    if not yes:
        which = "it"
        if len(leftovers) > 1:
            which = "these"
        click.confirm(f"Delete {which}?", abort=True, err=True)
    reap.delete(settings, leftovers)
    say("Deleted.")


@click.group()
def image() -> None:
    """Make images of disks or containers with what the repo needs.

    No job needs one: its machine or pod installs what the repo names. With one's own it starts
    sooner, and has what pip does not install.

    \b
    berg image create --default
    berg image build --push
    berg run --cluster train --docker $(berg image build --push) "python train.py"
    """


@image.command()
@click.option(
    "--from",
    "source",
    default="",
    metavar="[PROJECT/]IMAGE",
    help="Image or family to begin with.",
)
@click.option("--family", default="", help="Family of the image.  [default: berg-REPO]")
@click.option(
    "--with",
    "additions",
    multiple=True,
    metavar="LIST",
    help="Have these as well: horovod, openmpi, tmux.",
)
@click.option(
    "--install-script", default="", metavar="FILE", help="Script of the repo that installs more."
)
@install_options
@click.option("--zone", "zones", multiple=True, help="Zone of the machine; repeatable.")
@click.option("--disk-gb", type=int, default=0, help="Size.  [default: that of the other image]")
@click.option("--default", "as_default", is_flag=True, help="Let jobs boot it from now on.")
@click.option("--dry-run", is_flag=True, help="Print the plan and the request, do nothing.")
def create(as_default: bool, dry_run: bool, additions: tuple[str, ...], **options: Any) -> None:
    """Make an image for machines, with what the repo around you needs; print its name.

    A machine boots from the default image, or another one (--from), installs what the repo's files
    name for machines with GPUs (--extra for others) and what berg itself needs, and loses the code,
    keys and logs again. It is stopped, its disk becomes the image, and it is deleted, also if that
    fails or is interrupted. The newest image of a family is the one that jobs boot.

    \b
    berg image create --default
    berg image create --from my-image --with openmpi,tmux
    berg image create --with horovod --default
    berg image create --install-script setup.sh --family trainer
    berg run --image my-project/berg-myrepo "python train.py"
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import images

    names = tuple(filter(None, ",".join(additions).split(",")))
    wanted = images.MachineImage(additions=names, **options)
    plan = images.image_plan(settings, wanted, Path.cwd())
    say(tables.plan(plan))
    if dry_run:
        plain.echo(json.dumps(images.preview(plan, wanted), indent=2))
        return
    made = images.create(plan, wanted, say, tables.sending)
    where = {"default_image": made["family"], "default_image_project": settings.project}
    if as_default:
        config.save(where)
        say(f"Jobs boot the newest image of {made['family']} from now on")
    else:
        name = f"{settings.project}/{made['family']}"
        say(f'\nRun with it:  berg run --image {name} "python train.py"\n')
    plain.echo(made["name"])


@image.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the images for machines that berg made, the newest first.

    \b
    berg image list
    """
    settings = config.load_ready()
    from berg.google import instances
    from berg.laptop import images

    found = [images.described(each) for each in instances.find_images(settings)]
    if as_json:
        plain.echo(json.dumps(found, indent=2))
        return
    header = ["NAME", "FAMILY", "GB", "STATUS", "MADE", "BY", "OF"]
    rows = [list(map(str, each.values())) for each in found]
    plain.echo(table([header, *rows], sys.stdout))


@image.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@yes_option
def delete(names: tuple[str, ...], yes: bool) -> None:
    """Delete images for machines that berg made.

    What was booted from them stays.

    \b
    berg image delete berg-myrepo-20261123-041500
    """
    settings = config.load_ready()
    from berg.google import instances
    from berg.laptop import images

    instances.check_made(settings, list(names))
    if not yes:
        click.confirm(f"Delete {', '.join(names)}?", abort=True, err=True)
    for name in names:
        instances.delete_image(settings, name)
    say(f"Deleted {', '.join(names)}")
    if images.lacks_default(settings):
        say(
            f"Jobs boot {settings.default_image} by default, and there is no such image any more.\n"
            "Make one:  berg image create --default\n"
            "Or go back to Google's:  berg config unset default_image; "
            "berg config unset default_image_project"
        )


@image.command()
@click.option("-f", "--file", type=click.Path(path_type=Path), help="The Dockerfile.")
@click.option("--name", help="Name of the image.  [default: the repo's]")
@click.option(
    "--python",
    metavar="VERSION",
    help="Version of python; for a Dockerfile of yours ARG PYTHON_VERSION.",
)
@click.option(
    "--platform",
    "platforms",
    default="linux/amd64",
    show_default=True,
    help="linux/amd64,linux/arm64: both.",
)
@click.option("--push", is_flag=True, help="Push it to the project's Artifact Registry.")
@click.option(
    "--builder",
    type=click.Choice(["docker", "podman", "cloud"]),
    help="Who builds.  [default: who is there]",
)
@click.option("--force", is_flag=True, help="Push it also where the commit has an image already.")
@click.option(
    "--install-script", default="", metavar="FILE", help="Script of the repo that installs more."
)
@install_options
def build(**options: Any) -> None:
    """Build an image of the repo around you, and print its name, which --docker takes.

    What is in it is the working tree: the last commit and what you changed since, ignored files
    not, nor what .dockerignore names. Its tag is the commit. A repo without a Dockerfile gets one,
    which is shown: it installs what `berg run` would install for machines with GPUs (--extra for
    others). docker, podman or Google's Cloud Build (--builder cloud) build it. The repository in
    Artifact Registry is made if it is missing.

    \b
    berg image build --extra gpu
    berg image build --push --platform linux/amd64,linux/arm64
    berg image build --push --builder cloud -f docker/Dockerfile --name trainer
    """
    settings = config.load_ready()
    from berg.laptop import images

    name = images.build(settings, images.Wanted(**options), Path.cwd(), say)
    if options["push"]:
        words = [word for each in options["extras"] for word in ("--extra", each)]
        words += [word for each in options["groups"] for word in ("--group", each)]
        words += ["--install", options["install"]] if options["install"] else []
        chosen = shlex.join(["--docker", name, *words])
        say(f'\nRun with it:  berg run --cluster NAME {chosen} "python train.py"\n')
    plain.echo(name)


@click.command(name="prices")
@click.option(
    "-t",
    "--gpu-type",
    shell_complete=complete_types,
    help="Only this GPU type, or several with commas, in all numbers that a machine may have.",
)
@json_option
def prices_(gpu_type: str | None, as_json: bool) -> None:
    """Compare what GPUs cost an hour, on demand and otherwise.

    These are Google's list prices in the configured region, without disk and traffic, from the
    Cloud Billing Catalog, which is asked once a day. The cheapest GPU comes first; `?` stands for a
    price that is not in the list.

    \b
    berg prices
    berg prices -t l4,t4
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.google import offers, prices

    listed, why = prices.look_up(settings, settings.region)
    found = offers.priced(settings, listed, settings.region, gpu_type)
    if as_json:
        plain.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    plain.echo(tables.priced(found, settings.region))
    say(f"\n{tables.about_prices(listed, why)}")


@click.command(name="costs")
@click.option("-a", "--all", "everybody", is_flag=True, help="Everybody's, not only mine.")
@click.option(
    "--spend-cap",
    type=click.IntRange(1),
    metavar="DOLLARS",
    help="Print the command that lets Google itself end what the project costs in a month.",
)
@json_option
def costs_(everybody: bool, spend_cap: int | None, as_json: bool) -> None:
    """Show what jobs cost by week and user, and what costs money now.

    A job counts in the week in which it was submitted, at the list price of that moment, from its
    worker's beginning to its end. Jobs whose price was unknown are counted apart, never as nothing;
    those that were deleted (berg rm) are in no sum. Below stands what costs money now, whatever its
    jobs do: machines, disks, clusters with their caches. What Google bills differs: discounts,
    traffic, addresses and the bucket are not in it.

    --spend-cap prints a command to copy: a cap of Google's for Compute Engine in this project. It
    takes rights for the billing account, which berg should not have.

    \b
    berg costs
    berg costs --spend-cap 500
    berg costs -a --json
    """
    settings = config.load_ready()
    from berg.commands import tables

    if spend_cap:
        plain.echo(tables.cap_command(settings.project, spend_cap))
        return
    from berg.laptop import jobs, spending

    user = None if everybody else settings.user
    entries = jobs.overview(settings, user, say=say)
    told = [(each.state, each.running) for each in entries if each.state]
    weeks = spending.weeks(told)
    there = spending.billable(settings)
    if as_json:
        found = {"weeks": [asdict(each) for each in weeks], "now": [asdict(each) for each in there]}
        plain.echo(json.dumps(found, indent=2))
        return
    plain.echo(tables.sums(weeks))
    if there:
        plain.echo(f"\n{tables.billable_table(there)}")


COMMANDS = (
    init,
    doctor,
    gpus,
    config_group,
    local,
    reap,
    image,
    prices_,
    costs_,
)
