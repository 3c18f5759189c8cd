"""Who asks a metadata server: the machine's user gets answers, other people on the computer none."""

import asyncio
import os
import subprocess

import pytest
from aiohttp import web

from localcloud.machines import peers

ASK = "import urllib.request as r, sys; print(r.urlopen(sys.argv[1], timeout=10).read().decode())"


@pytest.fixture
def answers():
    """What a server that asks `may_ask` answers to a program; `prefix` runs it, as `user`."""

    async def serve(prefix: list[str], user: str | None) -> str:
        async def handler(request):
            return web.Response(text=str(peers.may_ask(request.transport)))

        app = web.Application()
        app.router.add_get("/", handler)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        # The system's python: other people may not read that of the tests.
        command = [*prefix, "/usr/bin/python3", "-c", ASK, url]
        try:
            done = await asyncio.to_thread(
                subprocess.run, command, user=user, capture_output=True, text=True
            )
        finally:
            await runner.cleanup()
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return lambda prefix=(), user=None: asyncio.run(serve(list(prefix), user))


def test_the_user_of_the_machines_is_answered(answers):
    assert answers() == "True"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_somebody_else_on_this_computer_is_not(answers):
    assert answers(user="nobody") == "False"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_nobodys_own_namespaces_make_no_machine_of_roots(answers):
    own = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*own, "true"], user="nobody", capture_output=True).returncode:
        pytest.skip("other users make no namespaces here")
    assert answers(own, user="nobody") == "False"


def test_a_connection_that_is_closed_belongs_to_nobody():
    assert peers.owner_of(("127.0.0.1", 1), ("127.0.0.1", 2)) is None
