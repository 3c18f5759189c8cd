"""The commands that set berg up, clean up and create images: init, doctor, config, local, reap,
image, gpus; and skill, whose page for coding agents is skill.md next to this file.
"""

import contextlib
import hashlib
import json
import os
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from berg import BergError, __version__, computer, config, plain
from berg.commands.terminal import (
    COMPLETE,
    Row,
    agree_to_send,
    all_option,
    answer_option,
    confirm,
    done,
    install_options,
    json_option,
    labelled,
    print_data,
    print_json,
    remember_zones,
    say,
    secrets_option,
    table,
    yes_option,
)


def sentence(key: str) -> str:
    text = config.HELP[key]
    return f"{text[0].upper()}{text[1:]}."


@click.command()
@click.option("--local", is_flag=True, help="Use the embedded cloud on this computer.")
@click.option("--project", help=sentence("project"))
@click.option("--region", help=sentence("region"))
@click.option("--bucket", help=sentence("bucket"))
@click.option("--service-account", help="Account that machines use.")
@click.option("--image", "default_image", metavar="[PROJECT/]IMAGE", help=sentence("default_image"))
@click.option(
    "--monitoring/--no-monitoring",
    default=None,
    help="Let machines write to Cloud Monitoring how busy they are.",
)
@click.option("--create-bucket", is_flag=True, help="Create the bucket without asking.")
@click.option(
    "--fast-network",
    "fast_zones",
    metavar="ZONE",
    multiple=True,
    shell_complete=COMPLETE["zones"],
    help="Make the networks for RoCE in this zone, and ask nothing; repeatable.",
)
@click.option(
    "--remove-fast-network", is_flag=True, help="Delete these networks in all zones; ask nothing."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask: use earlier answers and defaults.")
@answer_option
def init(
    local: bool,
    create_bucket: bool,
    yes: bool,
    monitoring: bool | None,
    fast_zones: tuple[str, ...],
    remove_fast_network: bool,
    **given: str | None,
) -> None:
    """Set berg up: find what it needs, and save the answers.

    It asks for project, region, bucket, service account and image, and offers the earlier answers.
    Every answer is also an option.

    \b
    berg init
    berg init --project my-project --region us-central1 --bucket my-bucket -y
    berg init --local                        # no Google account needed
    berg init --fast-network us-central1-b   # for users without that right
    """
    if fast_zones or remove_fast_network:
        change_fast_network(fast_zones, remove_fast_network)
        return
    if local and any(given.values()):
        raise click.UsageError("--local needs no settings but --monitoring: leave the others out")
    from berg.google import storage

    settings = load_or_set_aside()
    if monitoring is not None:
        settings.monitoring = int(monitoring)
    if local:
        answers = set_up_local(settings, yes)
    else:
        answers = set_up_google(settings, given, yes, create_bucket)
    config.save(answers)
    storage.remember(answers["bucket"], "")  # the next command looks up its owner
    text = f'Saved {config.path()}. Now, in a git repo:  berg run "python train.py"'
    done(text, name=str(config.path()), done="saved", settings=answers)


def change_fast_network(zones: tuple[str, ...], is_removed: bool) -> None:
    """Make the networks for RoCE in some zones, or delete those of all."""
    from berg.google import fabric

    settings = config.load_ready()
    if zones and is_removed:
        raise click.UsageError("leave out --fast-network or --remove-fast-network")
    for zone in fabric.zones_with(settings, zones) if zones else []:
        fabric.make(settings, zone)
        done(
            f"The networks for RoCE in {zone} are there", name=fabric.network_of(zone), done="made"
        )
    if not is_removed:
        return
    for name in fabric.networks(settings):
        fabric.remove(settings, name)
        done(f"Deleted the network {name}", name=name, done="deleted")


def set_up_local(settings: config.Config, yes: bool) -> dict[str, Any]:
    """Start the embedded cloud, and return the settings for it."""
    from berg.laptop import init as setup

    if settings.project and not settings.endpoint and not yes:
        raise BergError(
            f"{config.path()} has the settings of Google's project {settings.project!r}, which "
            "--local would replace. To keep both: export BERG_HOME=~/.berg-local. To replace them: "
            "berg init --local -y"
        )
    return setup.set_up_local(settings.monitoring)


def set_up_google(
    settings: config.Config, given: dict[str, str | None], yes: bool, create_bucket: bool
) -> dict[str, Any]:
    """Ask for the settings for Google, and return them."""
    from berg.google.api import explain
    from berg.laptop import init as setup

    if config.read_file().get("endpoint") == settings.endpoint and settings.endpoint:
        # the answers for the embedded cloud are of no use for Google
        settings = config.Config(user=settings.user, monitoring=settings.monitoring)
    try:
        return setup.walk_through(settings, given, yes, create_bucket)
    except (click.ClickException, click.Abort):
        raise
    except Exception as error:
        # explained for the new settings, not for those that are in force
        if why := explain(error, settings):
            raise BergError(why) from error
        raise


def load_or_set_aside() -> config.Config:
    """Return the present settings; a file that cannot be read is renamed."""
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

    Settings, tools, credentials, APIs, rights, bucket, image, quotas, firewall. The exit code is 1
    if a check failed.

    \b
    berg doctor
    berg doctor --json | jq -r '.[] | select(.status != "ok") | .fix'
    """
    from berg.laptop import doctor as checks

    findings = checks.examine()
    if as_json:
        print_json([vars(each) for each in findings])
    else:
        for each in findings:
            checks.show(each, sys.stdout)
    sys.exit(any(each.status == checks.FAILED for each in findings))


ABOUT_ODDS = (
    "SPOT ODDS are Google's for one machine in the best zone: obtainability (0.7 good, 0.3 poor), "
    "hours that it lasts, and the share of ended machines that were preempted."
)


@click.command()
@click.option("-a", "--all", "everywhere", is_flag=True, help="Show the zones of all regions.")
@click.option("--tpu", is_flag=True, help="Show TPUs: families, topologies, zones, prices.")
@json_option
def gpus(everywhere: bool, tpu: bool, as_json: bool) -> None:
    """Show GPU types or TPUs: their zones, quota left, prices.

    Quotas, prices of a GPU and zones are those of the configured region, on demand and for Spot;
    `?` means that Google does not show it. SPOT ODDS are Google's for one machine in the region's
    best zone: obtainability (0.7 good, 0.3 poor), hours that it lasts, and the share of ended
    machines that were preempted.

    TPUs (--tpu) with one host are a machine; several are a slice. v5p and tpu7x have larger slices
    than those shown. Google's API has no quotas for TPUs.

    \b
    berg gpus
    berg gpus --json | jq -r '.[] | select(.type == "l4") | .zones[]'
    berg gpus --tpu
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.google import offers, prices

    listed, why = prices.look_up(settings, settings.region)
    about = tables.about_prices(listed, why)
    if tpu:
        tpus = offers.tpus(settings, listed)
        print_data(tpus, tables.tpu_table(tpus), as_json)
        if listed:
            about += tables.per_chip(tpus)
    else:
        found = offers.gpus(settings, listed)
        remember_zones({zone for each in found for zone in each.zones})
        text = tables.gpus(found, settings.region, everywhere)
        print_data([asdict(each) for each in found], text, as_json)
        if listed:
            about += " Of the smallest machine with such GPUs."
        if not everywhere and any(each.spot_odds for each in found):
            about += f"\n{ABOUT_ODDS}"
    say(f"\n{about}")


@click.group(name="config")
def config_group() -> None:
    """Show and change the settings.

    \b
    berg config show
    berg config get bucket
    berg config set zones us-central1-a,us-central1-b
    """


@config_group.command()
@json_option
def path(as_json: bool) -> None:
    """Print the path of the file with the settings.

    \b
    $EDITOR $(berg config path)
    """
    print_data({"name": str(config.path())}, config.path(), as_json)


@config_group.command()
@json_option
def show(as_json: bool) -> None:
    """Print the effective settings.

    BERG_* variables take precedence over the file, and the file over the defaults.

    \b
    berg config show --json
    """
    settings = config.load()
    values = {key: getattr(settings, key) for key in config.HELP}
    rows = [(key, json.dumps(value), f"# {config.HELP[key]}") for key, value in values.items()]
    print_data(values, labelled(rows, sys.stdout, max(map(len, values))), as_json)


key_argument = click.argument("key", metavar="KEY", type=click.Choice([*config.HELP]))


@config_group.command()
@key_argument
@json_option
def get(key: str, as_json: bool) -> None:
    """Print one effective setting; lists are separated by commas.

    \b
    gcloud storage ls gs://$(berg config get bucket)
    """
    value = getattr(config.load(), key)
    text = ",".join(value) if isinstance(value, list) else value
    print_data({"name": key, "value": value}, text, as_json)


@config_group.command(name="set")
@key_argument
@click.argument("value")
@answer_option
def set_(key: str, value: str) -> None:
    """Change a setting in the file.

    \b
    berg config set default_image my-project/my-golden-image
    berg config set zones us-central1-a,us-central1-b
    """
    config.save({key: parse(key, value.strip())})
    now = config.read_file()[key]
    text = f"{key} is {json.dumps(now)} in {config.path()}"
    done(text, name=key, done="set", value=now)
    if os.environ.get(f"BERG_{key.upper()}"):
        say(f"The variable BERG_{key.upper()} is set, and takes precedence")


@config_group.command()
@key_argument
@answer_option
def unset(key: str) -> None:
    """Remove a setting from the file; its default applies again.

    \b
    berg config unset zones
    """
    config.save({key: None})
    now = getattr(config.Config(), key)
    done(f"{key} is {json.dumps(now)}, the default", name=key, done="unset", value=now)


def parse(key: str, text: str) -> Any:
    """Return the value of a setting; raises BergError for what it cannot be."""
    if not text:
        raise BergError(f"{key} needs a value. To remove it: berg config unset {key}")
    value = config.convert(key, text, getattr(config.Config(), key))
    if key == "zones":
        for zone in value:
            if not re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z0-9]+", zone):
                raise BergError(
                    f"zones: {zone!r} is not a zone: give names such as us-central1-a, with "
                    "commas between them"
                )
    if key == "gpu_type" and value != "cheapest":
        from berg.google import shapes

        for each in value.split(","):
            shapes.name_of(each, None)
    if key == "ssh_port" and not 1 <= value <= 65535:
        raise BergError(f"ssh_port must be 1 to 65535, not {value}")
    if key == "endpoint" and not value.startswith(("http://", "https://")):
        raise BergError(
            f"endpoint must be an address, not {value!r}. For Google: berg config unset endpoint"
        )
    return value


@click.group()
def local() -> None:
    """Manage the embedded cloud on this computer.

    It has Google's APIs and small machines, to try berg and to test.

    \b
    berg init --local
    berg local status
    """


@local.command()
@answer_option
def start() -> None:
    """Start the embedded cloud; berg also starts it when needed.

    \b
    berg local start
    """
    port = config.read_file().get("endpoint", "").rpartition(":")[2]
    port = config.embedded_cloud().start(config.local_folder(), int(port or 0))
    address = f"http://127.0.0.1:{port}"
    done(f"Running at {address}", name=address, done="started")


@local.command()
@yes_option
@answer_option
def stop(yes: bool) -> None:
    """Stop the embedded cloud and its machines; keep the buckets.

    \b
    berg local stop
    """
    machines = config.embedded_cloud().status(config.local_folder()).get("machines") or {}
    if machines and not yes:
        count = plain.plural(sum(machines.values()), "machine")
        say(f"{count} would be stopped, too. See: berg list -a")
        confirm("Stop the embedded cloud?", yes)
    config.embedded_cloud().stop(config.local_folder())
    done("Stopped.", name=str(config.local_folder()), done="stopped")


@local.command()
@json_option
def status(as_json: bool) -> None:
    """Show whether the embedded cloud runs, and what it offers.

    \b
    berg local status --json
    """
    values = config.embedded_cloud().status(config.local_folder())
    listed = {key: each if isinstance(each, list) else [each] for key, each in values.items()}
    rows = [(key, *map(str, each)) for key, each in listed.items()]
    print_data(values, labelled(rows, sys.stdout, 12), as_json)


@local.command()
@yes_option
@answer_option
def reset(yes: bool) -> None:
    """Stop the embedded cloud, and delete everything in it.

    \b
    berg local reset -y
    """
    confirm(f"Delete everything in {config.local_folder()}?", yes)
    config.embedded_cloud().reset(config.local_folder())
    done("Deleted.", name=str(config.local_folder()), done="deleted")


@click.command()
@all_option
@yes_option
@json_option
def reap(everyone: bool, yes: bool, as_json: bool) -> None:
    """Find what was left behind, and delete it after asking.

    It finds machines and groups without a running job, disks without a machine, the rest of an
    interrupted berg start --move or berg image create, unused templates and ConfigMaps of berg's,
    and jobs whose submit was cut off. An idle cluster is named with its cost, and stays.

    \b
    berg reap
    berg reap --all --json                   # only look
    """
    settings = config.load_ready()
    from berg.laptop import ending, jobs

    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        say(text)

    leftovers = ending.leftovers(settings, None if everyone else settings.user, note)
    rows = [["KIND", "NAME", "WHERE", jobs.age_heading(), "WHY"]]
    for each in leftovers:
        age = jobs.shown_age(each.what.created_at)
        rows.append([each.kind, each.name, each.where or "global", age, each.why])
    if leftovers or as_json:
        print_data([each.to_dict() for each in leftovers], table(rows), as_json)
    else:
        say("Nothing else was left behind." if notes else "Nothing was left behind.")
    if leftovers and not as_json:
        confirm(f"Delete {'these' if len(leftovers) > 1 else 'it'}?", yes)
        ending.delete_leftovers(settings, leftovers)
        say("Deleted.")


script_option = click.option(
    "--install-script", default="", metavar="FILE", help="Script in the repo that installs more."
)


@click.group()
def image() -> None:
    """Create disk or container images with what the repo needs.

    Jobs do not need one: their machines and pods install what the repo names. With an image of your
    own they start sooner, and have what pip does not install.

    \b
    berg image create --default
    berg image build --push
    berg run --cluster train --docker $(berg image build --push) "python train.py"
    """


@image.command()
@click.option(
    "--from", "source", default="", metavar="[PROJECT/]IMAGE", help="Image or family to start from."
)
@click.option("--family", default="", help="Family of the image.  [default: berg-REPO]")
@click.option(
    "--with",
    "additions",
    multiple=True,
    callback=lambda ctx, param, lists: tuple(filter(None, ",".join(lists).split(","))),
    metavar="LIST",
    help="Install these, too: horovod, openmpi, roce, tmux.",
)
@script_option
@install_options
@click.option("--zone", "zones", multiple=True, help="Zone of the machine; repeatable.")
@click.option("--disk-gb", type=int, default=0, help="Disk size.  [default: that of the image]")
@click.option("--default", "as_default", is_flag=True, help="Use it for jobs from now on.")
@secrets_option
@click.option("--dry-run", is_flag=True, help="Show the plan, with --json also the request; stop.")
@json_option
def create(
    as_default: bool, send_secrets: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Create an image for machines with what the repo needs, and print its name.

    A machine boots from the default image, or another one (--from), installs what the repo's files
    name for machines with GPUs (--extra for others) and what berg needs, and deletes the code, keys
    and logs. Its disk becomes the image, and it is deleted, also after an error or interruption.
    Jobs boot the newest image of a family.

    \b
    berg image create --default
    berg image create --from my-image --with horovod,openmpi,tmux
    berg image create --install-script setup.sh --family trainer
    berg run --image my-project/berg-myrepo "python train.py"
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import images

    wanted = images.MachineImage(**options)
    plan = images.image_plan(settings, wanted, Path.cwd())
    (plain.echo if dry_run and not as_json else say)(tables.plan(plan))
    if dry_run:
        if as_json:
            print_json({"request": images.preview(plan, wanted)})
        return
    agree_to_send(plan.snapshot, settings.bucket, plan.leaks, send_secrets)
    made = images.create(plan, wanted, say, tables.sending)
    family = f"{settings.project}/{made['family']}"
    if as_default:
        config.save({"default_image": family})
        say(f"From now on jobs boot the newest image of {family}")
    else:
        say(f'\nRun with it:  berg run --image {family} "python train.py"\n')
    print_data(made, made["name"], as_json)


@image.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the machine images that berg created, the newest first.

    \b
    berg image list
    """
    settings = config.load_ready()
    from berg.google import instances
    from berg.laptop import images

    found = [images.row(each) for each in instances.find_images(settings)]
    header = ["NAME", "FAMILY", "GB", "STATUS", "CREATED", "BY", "FROM"]
    print_data(found, table([header, *(list(map(str, each.values())) for each in found)]), as_json)


@image.command()
@click.argument("names", metavar="NAME…", nargs=-1, required=True)
@yes_option
@answer_option
def delete(names: tuple[str, ...], yes: bool) -> None:
    """Delete machine images that berg created.

    Machines that were booted from them stay.

    \b
    berg image delete berg-myrepo-20261123-041500
    """
    settings = config.load_ready()
    from berg.google import api, instances
    from berg.laptop import images

    instances.check_made(settings, list(names))
    confirm(f"Delete {', '.join(names)}?", yes)
    for name in names:
        with api.waiting(f"Waiting until Google has deleted {name}"):
            instances.delete_image(settings, name)
        done(f"Deleted {name}", name=name, done="deleted")
    if images.lacks_default(settings):
        say(
            f"Jobs boot {settings.default_image} by default, which does not exist any more.\n"
            "Create one:  berg image create --default\n"
            "Or go back to Google's:  berg config unset default_image"
        )


@image.command()
@click.option("-f", "--file", type=click.Path(path_type=Path), help="The Dockerfile.")
@click.option("--name", help="Name of the image.  [default: the repo's]")
@click.option(
    "--python",
    metavar="VERSION",
    help="Version of Python; your own Dockerfile gets it as ARG PYTHON_VERSION.",
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
    help="What builds the image.  [default: what is installed]",
)
@click.option("--force", is_flag=True, help="Push it even if the commit has an image already.")
@script_option
@install_options
@secrets_option
@json_option
def build(send_secrets: bool, as_json: bool, **options: Any) -> None:
    """Build a container image of the repo, and print its name for --docker.

    It contains the working tree, uncommitted changes included, without ignored files and what
    .dockerignore names. Its tag is the commit. For a repo without a Dockerfile berg writes one,
    with what `berg run` would install for machines with GPUs (--extra for others).

    \b
    berg image build --extra gpu
    berg image build --push --builder cloud -f docker/Dockerfile --name trainer
    """
    settings = config.load_ready()
    from berg.code import leaks
    from berg.code.snapshot import Snapshot
    from berg.laptop import images

    def agree(taken: Snapshot) -> None:
        agree_to_send(taken, settings.bucket, leaks.find(taken, settings.bucket), send_secrets)

    name = images.build(settings, images.Wanted(**options), Path.cwd(), say, agree)
    if options["push"]:
        words = [word for each in options["extras"] for word in ("--extra", each)]
        words += [word for each in options["groups"] for word in ("--group", each)]
        words += ["--install", options["install"]] if options["install"] else []
        chosen = shlex.join(["--docker", name, *words])
        say(f'\nRun with it:  berg run --cluster NAME {chosen} "python train.py"\n')
    print_data({"name": name, "pushed": options["push"]}, name, as_json)


# --- the page that teaches coding agents to use berg


# In a repository or a home: the folder that most agents read, and the one of Claude Code.
SKILL_FILES = (".agents/skills/berg/SKILL.md", ".claude/skills/berg/SKILL.md")
SKILL_VERSION = re.compile(r'^  version: "(.*)"\n', re.M)
SKILL_CHECKSUM = re.compile(r'^  checksum: "(.*)"\n', re.M)


@click.command()
@click.option("--install", is_flag=True, help="Write it where agents look, in this repository.")
@click.option("--user", is_flag=True, help="With --install: in your home instead.")
@yes_option
@json_option
def skill(install: bool, user: bool, yes: bool, as_json: bool) -> None:
    """Print or install the page that teaches coding agents berg.

    --install writes this SKILL.md to .agents/skills/berg and .claude/skills/berg, and asks before
    it replaces a file that berg did not write or that was changed.

    \b
    berg skill
    berg skill --install                     # in this repository; again after an update of berg
    berg skill --install --user              # for all repositories
    """
    if user and not install:
        raise click.UsageError("--user says where to install: give --install, too")
    text = skill_page(click.get_current_context().find_root().command)
    if install:
        top = Path.home() if user else repository()
        paths = [top / each for each in SKILL_FILES]
        for path in paths:
            if not user and not path.resolve().is_relative_to(top.resolve()):
                raise BergError(f"{path} is behind a link that leads out of {top}. Delete the link")
        rows = [{"name": str(path), "done": write_skill(path, text, yes)} for path in paths]
        if as_json:
            print_json(rows)
        return
    about = {"name": "berg", "version": __version__, "text": text}
    print_data(about, text.removesuffix("\n"), as_json)
    say_outdated(text)


def repository() -> Path:
    """Return the root of the repository around this folder."""
    from berg.code import snapshot

    return snapshot.find_root(Path.cwd())


def write_skill(path: Path, text: str, yes: bool) -> str:
    """Write the page to a file, and say so; return what was done.

    Asks before it replaces a file that berg did not write.
    """
    before = installed_skill(path)
    if before == text:
        say(f"{path} is up to date")
        return "unchanged"
    if before is not None and not is_our_skill(before):
        confirm(f"{path} was not written by berg, or was changed since. Replace it?", yes)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()  # with the usual mode, which stays
    computer.write(path, text)
    if before is None:
        say(f"Wrote {path}")
        return "written"
    say(f"Replaced {path}, which was of berg {version_of(before)}")
    return "replaced"


def installed_skill(path: Path) -> str | None:
    """Return what is in a file, None if there is none."""
    return path.read_text(errors="replace") if path.is_file() else None


def say_outdated(text: str) -> None:
    """Name the installed pages that are not the one of this berg."""
    tops = {Path.home(): " --user"}
    with contextlib.suppress(BergError):
        tops[repository()] = ""
    for top, option in tops.items():
        for path in (top / each for each in SKILL_FILES):
            there = installed_skill(path)
            if there not in (None, text):
                say(
                    f"{path} is of berg {version_of(there or '')}, not of this one, which is "
                    f"{__version__}. To replace it: berg skill --install{option}"
                )


def version_of(text: str) -> str:
    """Return the version that a page names."""
    found = SKILL_VERSION.search(text)
    return found[1] if found else "unknown"


def is_our_skill(text: str) -> bool:
    """Return whether a page is as berg wrote it."""
    found = SKILL_CHECKSUM.search(text)
    return found is not None and found[1] == checksum(SKILL_CHECKSUM.sub("", text))


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def skill_page(root: Any) -> str:
    """Return SKILL.md for berg's group of commands."""
    text = (Path(__file__).parent / "skill.md").read_text()
    text = text.replace("COMMANDS", list_commands(root)).replace("OPTIONS", list_options(root))
    text = text.replace('"VERSION"', f'"{__version__}"')
    line = f'  checksum: "{checksum(text)}"\n'
    return SKILL_VERSION.sub(lambda found: found[0] + line, text)


def list_commands(root: Any) -> str:
    """Return a line for each section of the help, with its commands and their arguments."""
    lines = []
    for heading, names in root.sections.items():
        usages = ", ".join(f"`berg {usage_of(name, root.commands[name])}`" for name in names)
        lines.append(f"- {heading}: {usages}")
    return "\n".join(lines)


def usage_of(name: str, command: click.Command) -> str:
    """Return a command with its arguments; of a group the commands in it."""
    if isinstance(command, click.Group):
        return (
            f"{name} {'|'.join(each for each, sub in command.commands.items() if not sub.hidden)}"
        )
    pieces = command.collect_usage_pieces(click.Context(command))
    return " ".join([name, *(piece for piece in pieces if piece != "[OPTIONS]")])


def list_options(root: Any) -> str:
    """Return the options of `berg run` that its --help shows."""
    rows = [each for each in root.commands["run"].params if isinstance(each, Row)]
    usual = [each for each in rows if each.row.usual]
    return ", ".join(f"`{each.opts[-1]}`" for each in usual)


COMMANDS = (init, doctor, gpus, config_group, local, reap, image, skill)
