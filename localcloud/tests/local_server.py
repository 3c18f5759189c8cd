"""The embedded cloud without its machines: `python local_server.py FOLDER PORT` serves it and
prints its port.
"""

import asyncio
import sys
from pathlib import Path

from aiohttp import web

from localcloud.server import make_app, open_cloud


async def serve(folder: Path, port: int) -> None:
    cloud = open_cloud(folder, port, "test-project")
    cloud.storage.write_interval = 0  # the test of it sets it
    runner = web.AppRunner(make_app(cloud))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    cloud.port = runner.addresses[0][1]
    sys.stdout.write(f"{cloud.port}\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
