"""Behind a proxy: what is on this computer, and the metadata server, are asked without it."""

import http.server
import json
import threading
from types import SimpleNamespace

import pytest
from conftest import WHEELHOUSE, Berg

from localcloud import control


class Proxy(http.server.BaseHTTPRequestHandler):
    """Answers 502 to everything, and notes what it was asked."""

    asked: list[str] = []

    def refuse(self) -> None:
        self.asked.append(self.requestline)
        self.send_error(502)

    do_GET = do_POST = do_PUT = do_DELETE = do_CONNECT = do_HEAD = do_PATCH = refuse

    def log_message(self, *_) -> None:
        pass


@pytest.fixture
def proxy():
    Proxy.asked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}", asked=Proxy.asked)
    server.shutdown()
    server.server_close()


@pytest.fixture
def alone(cloud, repo, tmp_path):
    """Berg without settings, for an embedded cloud of its own."""
    home = tmp_path / "home"
    (home / "local").mkdir(parents=True)
    (home / "local/image").symlink_to((cloud.folder / "image").resolve())
    yield Berg(cloud, home, repo, "")
    control.reset(home / "local")


@pytest.mark.slow
@pytest.mark.parametrize("no_proxy", [None, "example.com"])
def test_the_embedded_cloud_works_behind_a_proxy_that_cannot_reach_it(alone, proxy, no_proxy):
    names = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    env = {
        **dict.fromkeys(names, proxy.url),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(WHEELHOUSE),
    }
    env |= {"NO_PROXY": no_proxy} if no_proxy else {}
    ready = alone("init", "--local", **env)
    assert ready.returncode == 0, ready.stderr
    command = 'echo "proxy $http_proxy without $no_proxy"; echo 1 >$BERG_RESULTS_DIR/one'
    ran = alone("run", "-g", "0", "-n", "one", "--tail", command, **env)
    assert ran.returncode == 0, ran.stderr + ran.stdout
    assert f"proxy {proxy.url} without {'example.com,' if no_proxy else ''}" in ran.stdout
    fetched = alone("fetch", "--json", "one", str(alone.home / "results"), **env)
    assert json.loads(fetched.stdout)["files"] == 2, fetched.stderr
    swept = alone(
        "run", "-g", "0", "--wait", "echo {x}", "--grid", "x=1,2", "--parallel", "1", **env
    )
    assert swept.returncode == 0, swept.stderr
    assert alone("doctor", **env).returncode == 0
    assert proxy.asked == []
