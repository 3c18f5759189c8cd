"""The commands about images: build for pods; create, list, delete for machines."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from berg import config, plain
from berg.commands.terminal import install_options, json_option, say, table, yes_option


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
    from berg.laptop import golden

    names = tuple(filter(None, ",".join(additions).split(",")))
    wanted = golden.Wanted(additions=names, **options)
    plan = golden.plan(settings, wanted, Path.cwd())
    say(tables.plan(plan))
    if dry_run:
        plain.echo(json.dumps(golden.preview(plan, wanted), indent=2))
        return
    made = golden.create(plan, wanted, say, tables.sending)
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
    from berg.google import images
    from berg.laptop import golden

    found = [golden.described(each) for each in images.find(settings)]
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
    from berg.google import images
    from berg.laptop import golden

    images.check_made(settings, list(names))
    if not yes:
        click.confirm(f"Delete {', '.join(names)}?", abort=True, err=True)
    images.delete(settings, list(names))
    say(f"Deleted {', '.join(names)}")
    if golden.lacks_default(settings):
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


COMMANDS = (image,)
