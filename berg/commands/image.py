"""The commands about container images: build."""

from pathlib import Path
from typing import Any

import click

from berg import config, plain
from berg.commands.terminal import say


@click.group()
def image() -> None:
    """Make container images of the repo, for pods of a cluster.

    No job needs one: a pod of a stock image installs what the repo names. One's own starts sooner,
    and has what pip does not install.

    \b
    berg image build --push
    berg run --cluster train --docker $(berg image build --push) "python train.py"
    """


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
def build(**options: Any) -> None:
    """Build an image of the repo around you, and print its name, which --docker takes.

    What is in it is the working tree: the last commit and what you changed since, ignored files
    not, nor what .dockerignore names. Its tag is the commit. A repo without a Dockerfile gets a
    small one, which is shown. docker, podman or Google's Cloud Build (--builder cloud) build it.
    The repository in Artifact Registry is made if it is missing.

    \b
    berg image build
    berg image build --push --platform linux/amd64,linux/arm64
    berg image build --push --builder cloud -f docker/Dockerfile --name trainer
    """
    settings = config.load_ready()
    from berg.laptop import images

    name = images.build(settings, images.Wanted(**options), Path.cwd(), say)
    if options["push"]:
        say(f'\nRun with it:  berg run --cluster NAME --docker {name} "python train.py"\n')
    plain.echo(name)


COMMANDS = (image,)
