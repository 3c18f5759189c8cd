"""A webhook for `--notify`, which keeps what it is told."""

import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Webhook:
    """A server that keeps what it is told."""

    def __init__(self):
        self.told: list[tuple[str, dict]] = []
        self.answers: list[int] = []  # statuses; then 200
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                content = self.rfile.read(int(self.headers["Content-Length"]))
                outer.told.append((self.path, json.loads(content)))
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.secret = f"T0K3N{os.urandom(8).hex()}"
        self.url = f"http://127.0.0.1:{self.server.server_port}/services/{self.secret}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def webhook():
    hook = Webhook()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
