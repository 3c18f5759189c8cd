"""`berg open`: Jupyter of a machine in the browser here, and the command for an editor there."""

import http.cookiejar
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import wait_for
from test_ssh import needs_sshd

from berg import BergError
from berg.config import Config
from berg.laptop import ssh

# What berg asks of Jupyter: a server on a port, in its list with the token of its environment.
JUPYTER = r"""#!/usr/bin/env python3
import http.server, json, os, pathlib, sys, threading
known = pathlib.Path.home() / "servers.json"
if sys.argv[1:3] == ["server", "list"]:
    print(known.read_text() if known.exists() else "", end="")
    sys.exit()
token = os.environ["JUPYTER_TOKEN"]
assert token not in " ".join(sys.argv) and "SSH_CONNECTION" not in os.environ, sys.argv
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_right = self.path == "/lab?token=" + token
        self.send_response(200 if is_right else 403)
        self.end_headers()
        self.wfile.write(b"welcome" if is_right else b"no")
server = http.server.HTTPServer(("127.0.0.1", 0), Page)
row = {"port": server.server_port, "token": token, "base_url": "/", "pid": os.getpid()}
known.write_text(json.dumps(row) + "\n")
server.serve_forever()
"""


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"port": 0}, "its port is 0"),
        ({"port": "8888"}, "port"),
        ({"token": 'a"><script>'}, "its token has characters"),
        ({"path": "@evil.example/"}, "its path is not valid"),
        ({"path": "//evil.example/\nlab"}, "its path is not valid"),
    ],
)
def test_a_machine_that_says_something_odd_of_its_server_is_not_believed(said, why):
    usual = {"port": 8888, "token": "abc", "path": "/lab"}
    assert ssh.server_from(json.dumps(usual).encode()).token == "abc"
    with pytest.raises(ValueError, match=why):
        ssh.server_from(json.dumps({**usual, **said}).encode())


def test_the_page_for_the_browser_is_its_owners_alone(tmp_path):
    page = ssh.write_page(tmp_path, ssh.JupyterServer(8888, "abc", "/lab"), "127.9.8.7:4711")
    assert page.stat().st_mode & 0o777 == 0o600
    assert 'url=http://127.9.8.7:4711/lab?token=abc"' in page.read_text()


LISTEN = """
import http.server, socketserver, sys
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        print(self.headers.get("Cookie", "no cookie"), flush=True)
        self.send_response(200)
        self.send_header("Set-Cookie", "login=secret; Path=/")
        self.end_headers()
server = socketserver.TCPServer((sys.argv[1], int(sys.argv[2])), Page)
print(server.server_address[1], flush=True)
server.serve_forever()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as another user")
def test_a_port_of_another_user_gets_no_cookie_of_jupyters(monkeypatch):
    """A browser sends cookies to all ports of the host that set them; so does python's jar."""
    host, port = ssh.free_address()
    listen, pipe = ["/usr/bin/python3", "-c", LISTEN], subprocess.PIPE
    as_other = {"user": 65534, "group": 65534, "extra_groups": [], "cwd": "/"}
    jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
    browser = urllib.request.build_opener(urllib.request.ProxyHandler({}), jar)
    with (
        subprocess.Popen([*listen, host, str(port)], stdout=pipe, text=True) as jupyter,
        subprocess.Popen([*listen, "127.0.0.1", "0"], stdout=pipe, text=True, **as_other) as other,
    ):
        assert int(jupyter.stdout.readline()) == port
        theirs = f"http://127.0.0.1:{int(other.stdout.readline())}/"
        for address in (f"http://{host}:{port}/", f"http://{host}:{port}/", theirs):
            browser.open(address, timeout=10).close()
        heard = [each.stdout.readline().strip() for each in (jupyter, jupyter, other)]
        jupyter.terminate()
        other.terminate()
    assert heard == ["no cookie", "login=secret", "no cookie"]


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_machine_that_never_stops_talking_is_not_listened_to(monkeypatch, stream):
    endless = f"import sys\nwhile True: sys.{stream}.write('x' * 10_000)"
    monkeypatch.setattr(ssh, "require", lambda _: sys.executable)
    monkeypatch.setattr(ssh, "command", lambda *_: ["ssh", "-c", endless])
    with pytest.raises(BergError, match="cannot be reached on box: it prints too much"):
        ssh.find_server(Config(), SimpleNamespace(machine="box"))


def test_what_a_machine_says_before_its_tunnel_takes_no_memory(monkeypatch):
    monkeypatch.setattr(ssh, "TUNNEL_TIMEOUT", 1)
    read: list[int] = []
    words = [sys.executable, "-c", "while True: print('x' * 10_000, end='')"]
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE) as tunnel:
        line = tunnel.stdout.readline
        monkeypatch.setattr(
            tunnel.stdout, "readline", lambda most: read.append(most) or line(most), raising=False
        )
        with pytest.raises(BergError, match="no tunnel to box opened"):
            ssh.wait_for_tunnel(tunnel, SimpleNamespace(machine="box"))
    assert read and set(read) == {ssh.MOST}


def test_who_listens_in_place_of_a_tunnel_gets_no_token(monkeypatch):
    """Another user of this computer sees the port in ssh's arguments before ssh has it."""
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        program = "import time; time.sleep(1); raise SystemExit(255)  # it cannot have the port"
        monkeypatch.setattr(ssh, "free_address", lambda: ("127.0.0.1", port))
        monkeypatch.setattr(ssh, "find_server", lambda *_: ssh.JupyterServer(1, "token", "/lab"))
        monkeypatch.setattr(ssh, "find_target", lambda *_: SimpleNamespace(machine="box"))
        monkeypatch.setattr(ssh, "require", lambda _: sys.executable)
        monkeypatch.setattr(ssh, "command", lambda *_: ["ssh", "-c", program])
        with (
            pytest.raises(BergError, match="no tunnel to box opened. See: berg ssh box"),
            ssh.jupyter(Config(), "box", print) as (page, _),
        ):
            pytest.fail(f"a browser would have gone to {page.read_text()}")


def test_a_tunnel_that_does_not_open_in_time_is_ended(monkeypatch):
    monkeypatch.setattr(ssh, "TUNNEL_TIMEOUT", 0.2)
    words = [sys.executable, "-c", "import time; print('welcome', flush=True); time.sleep(60)"]
    with subprocess.Popen(words, text=True, stdout=subprocess.PIPE) as tunnel:
        with pytest.raises(BergError, match="no tunnel to box opened"):
            ssh.wait_for_tunnel(tunnel, SimpleNamespace(machine="box"))
        assert tunnel.wait(10) == -signal.SIGTERM


def token_of_open(berg, log: Path) -> str:
    """Open the box's Jupyter, look at it as a browser does, and end the tunnel; its token."""
    command = [sys.executable, "-m", "berg", "open", "box", "--no-browser"]
    with log.open("w") as out:
        process = subprocess.Popen(command, stderr=out, env=berg.environment(), cwd=berg.repo)
    try:
        wait_for(lambda: "file://" in log.read_text() or process.poll() is not None, 60)
        line = next(each for each in log.read_text().splitlines() if "file://" in each)
        page = Path(urllib.parse.urlparse(line.rpartition(" ")[2]).path)
        url = page.read_text().partition("url=")[2].partition('"')[0]
        host = urllib.parse.urlparse(url).hostname
        assert host.startswith("127.") and host != "127.0.0.1"
        assert urllib.request.urlopen(url, timeout=10).read() == b"welcome"
        token = url.partition("token=")[2]
        shown = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True)
        assert token not in shown.stdout and token not in log.read_text()
    finally:
        os.kill(process.pid, signal.SIGINT)
        assert process.wait(20) == 0
    assert not page.exists() and "Jupyter still runs on box" in log.read_text()
    return token


@pytest.mark.slow
@needs_sshd
def test_jupyter_of_a_box_answers_here_with_its_token_and_goes_on(berg, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(berg.home))
    assert berg("devbox", "-g", "0", "-n", "box").returncode == 0
    missing = berg("open", "box")
    assert (
        missing.returncode == 1 and "box has no Jupyter. Install it: berg ssh box" in missing.stderr
    )
    folder = "/usr/local/bin"
    install = f"mkdir -p {folder}; cat >{folder}/jupyter; chmod +x {folder}/jupyter; "
    install += f"cp {folder}/jupyter {folder}/jupyter-lab"
    put = berg("ssh", "box", "--", install, stdin=JUPYTER)
    assert put.returncode == 0, put.stderr

    first = token_of_open(berg, tmp_path / "first")
    second = token_of_open(berg, tmp_path / "second")
    assert first == second, "the second one finds the server of the first"
    assert first not in berg.log("box")

    code = berg("open", "box", "--code")
    assert code.stdout == "code --remote ssh-remote+box /root/code/proj\n", code.stderr
    line = f"Include {berg.home}/ssh/*"
    assert f"put at the beginning of {berg.home}/.ssh/config: {line}" in " ".join(
        code.stderr.split()
    )
    assert berg("open", "box", "--code", "--jupyter").returncode == 2
    berg("kill", "box", "--now")
