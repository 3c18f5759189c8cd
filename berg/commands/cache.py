"""The commands for a cluster's dataset cache: deploy, status, delete."""

import json
from dataclasses import asdict
from datetime import datetime, timezone

import click

from berg import config, plain
from berg.commands.terminal import json_option, say, yes_option


@click.group()
def cache() -> None:
    """Keep data sets near the pods of a cluster.

    \b
    berg cache deploy train --size 200
    berg cache status train
    berg cache delete train
    """


@cache.command()
@click.argument("name")
@click.option(
    "--size", type=int, default=200, show_default=True, help="GB of objects that it keeps, at most."
)
def deploy(name: str, size: int) -> None:
    """Make the dataset cache of the cluster NAME, or change its size, which empties it.

    It is NGINX on a node of its own, which costs money until berg cache delete. Jobs that begin
    from then on find it in BERG_CACHE_URL: $BERG_CACHE_URL/BUCKET/OBJECT is what
    https://storage.googleapis.com/BUCKET/OBJECT is, with the same token. What Cloud Storage would
    not let them read, the cache does not either.

    \b
    berg cache deploy train --size 200
    """
    settings = config.load_ready()
    from berg.laptop import cache as caches

    caches.deploy(settings, name, size, say)
    say(f"The dataset cache of {name} is ready. Hits: berg cache status {name}")
    say(f"It costs money until:  berg cache delete {name}")


@cache.command()
@click.argument("name")
@json_option
def status(name: str, as_json: bool) -> None:
    """Show how much of what was read came from the cache of the cluster NAME.

    \b
    berg cache status train
    """
    settings = config.load_ready()
    from berg.commands import tables
    from berg.laptop import cache as caches

    found = caches.status(settings, name)
    if as_json:
        about = asdict(found)
        about["since_at"] = moment(about.pop("since"))
        plain.echo(json.dumps({**about, "hit_rate": found.hit_rate}, indent=2))
        return
    plain.echo(tables.cache(found))


def moment(seconds: float) -> str:
    """Return seconds since 1970 as a moment; "" for 0, which has not come."""
    from berg import job

    if not seconds:
        return ""
    return job.timestamp(datetime.fromtimestamp(seconds, timezone.utc))


@cache.command()
@click.argument("name")
@yes_option
def delete(name: str, yes: bool) -> None:
    """Delete the dataset cache of the cluster NAME with its node; the bucket keeps everything.

    Jobs that read through it must be able to go on from the bucket.

    \b
    berg cache delete train
    """
    settings = config.load_ready()
    from berg.laptop import cache as caches

    if not yes:
        click.confirm(f"Delete the dataset cache of {name}, and its node?", abort=True, err=True)
    caches.delete(settings, name, say)
    say(f"Deleted the dataset cache of {name}")


COMMANDS = (cache,)
