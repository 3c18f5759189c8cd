"""What the worker imports, and how it finds who it is."""

import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

CODE = """
import berg.machine.installation
import google.auth, os
print(google.auth.default()[1], [key for key in os.environ if "RETRIES" in key])
"""


class Metadata(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"project")


@pytest.mark.slow
def test_a_metadata_server_that_is_away_for_seconds_is_waited_for(tmp_path):
    with HTTPServer(("127.0.0.1", 0), Metadata, bind_and_activate=False) as server:
        server.server_bind()  # it listens later
        there = dict.fromkeys(
            ("GCE_METADATA_HOST", "GCE_METADATA_IP"), f"127.0.0.1:{server.server_address[1]}"
        )
        env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], **there}
        command = [sys.executable, "-c", CODE]
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            time.sleep(8)
            server.server_activate()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            out, words = process.communicate(timeout=60)
            server.shutdown()
    assert out == "project []\n", words


def test_the_worker_begins_without_googles_own_libraries():
    """They take a tenth of a second to import, and machines do not get them."""
    code = "import berg.worker, sys; print('google.api_core' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
