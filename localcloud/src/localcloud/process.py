"""What the process of the embedded cloud does, from its start to its end.

`__main__.py` reads the options; `control.py` starts and stops the process from outside.

It listens on loopback only: the APIs on 127.0.0.1, the same over TLS on 127.0.0.2, as tunnels need
it, the metadata servers on the machines' addresses. SIGTERM ends the machines (SIGTERM, grace,
SIGKILL) and then the server. Killed with SIGKILL it leaves its machines running until the next start.
"""

import argparse
import asyncio
import logging
import os
import signal
from pathlib import Path

from aiohttp import web

from localcloud import guide
from localcloud.call import Cloud
from localcloud.compute import groups, power, resize_requests
from localcloud.compute.state import Settings
from localcloud.container import planes
from localcloud.control import read_json
from localcloud.identity.tokens import write_private
from localcloud.machines import image, sshd, tunnel
from localcloud.machines import sandbox as machines
from localcloud.machines.abilities import abilities
from localcloud.machines.metadata import MetadataServer
from localcloud.server import make_app, open_cloud

log = logging.getLogger("localcloud")


def run(options: argparse.Namespace) -> None:
    """Serve the folder that the options name until SIGTERM or SIGINT comes."""
    try:
        asyncio.run(serve(options))
    except KeyboardInterrupt:
        log.info("interrupted before it listened")


async def serve(options: argparse.Namespace) -> None:
    folder = options.folder.resolve()
    cloud = open_cloud(folder, options.port, options.project, Settings(options.grace))
    compute = cloud.compute
    compute.sandbox = sandbox_of(folder)
    metadata = MetadataServer(compute, cloud.tokens)
    await metadata.start()
    await planes.settle(cloud.container)
    await power.settle(compute)
    if not options.end_machines:
        image.make_images(compute.images)
        groups.resume(compute)
        resize_requests.resume(compute)
        await listen_until_told(cloud, options)
    await power.close(compute)
    await metadata.runner.cleanup()


async def listen_until_told(cloud: Cloud, options: argparse.Namespace) -> None:
    runner = web.AppRunner(
        make_app(cloud), access_log=None, shutdown_timeout=1, auto_decompress=False
    )
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", options.port)
    await site.start()
    cloud.port = runner.addresses[0][1]
    try:
        context = await asyncio.to_thread(tunnel.context, cloud.folder / "tunnel.pem")
        await web.TCPSite(runner, tunnel.ADDRESS, cloud.port, ssl_context=context).start()
    except OSError as error:
        log.warning("no tunnels to machines without an external address: %s", error)
    cloud.tokens.write_credentials(cloud.folder / "credentials.json")
    write_private(cloud.folder / "server.json", {"pid": os.getpid(), "port": cloud.port})
    log.info("listening on 127.0.0.1:%d, state in %s", cloud.port, cloud.folder)
    if not options.quiet:
        print(guide.how_to_use(cloud.folder, cloud.port, options.project), flush=True)
    message = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, message.set)
    await message.wait()
    log.info("asked to stop: ending the machines first")
    # Machines still need the APIs while they end: to upload their last results.
    await planes.close(cloud.container)
    await power.close(cloud.compute)
    await runner.cleanup()


def sandbox_of(folder: Path) -> machines.Sandbox:
    """What machines can be on this host: tried once per folder and user, and when a server of ssh
    came or went.
    """
    path = folder / "abilities.json"
    found = read_json(path)
    known = {"uid": os.geteuid(), "ssh_obstacle": sshd.obstacle()}
    if any(found.get(key) != value for key, value in known.items()):
        found = {**abilities(folder), **known}
        write_private(path, found)
    return machines.Sandbox(found["files"], found["user_namespace"])
