"""A process of a fetch that downloads small objects; see fetch.Helpers.

It is run by its path, and imports nothing of berg's. Its first line of input describes the bucket,
each later one an object; it answers each with a line: the number of the task, and 1 if the file is
there and matches its checksum. On any trouble it answers 0 without a second try: then berg asks.
"""

import base64
import http.client
import json
import os
import queue
import signal
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import google_crc32c

BLOCK = 1 << 20
SECONDS = 60  # without a byte of an answer


def connect(where: dict[str, Any]) -> http.client.HTTPConnection:
    """Return a connection that is opened when it is first used."""
    if not where["tls"]:
        return http.client.HTTPConnection(where["host"], where["port"], timeout=SECONDS)
    context = ssl.create_default_context(cafile=where["cafile"], capath=where["capath"])
    return http.client.HTTPSConnection(
        where["host"], where["port"], timeout=SECONDS, context=context
    )


def bring(connection: http.client.HTTPConnection, task: dict[str, Any]) -> bool:
    """Write an object to `part`; return whether it matches its checksum."""
    connection.request("GET", task["target"], headers=task["headers"])
    answer = connection.getresponse()
    sent = answer.getheader("Content-Encoding", "identity")
    if answer.status != 200 or sent != answer.getheader("X-Goog-Stored-Content-Encoding", sent):
        connection.close()
        return False
    crc = 0
    with Path(task["part"]).open("wb", buffering=0) as file:
        while block := answer.read(BLOCK):
            crc = google_crc32c.extend(crc, block)
            file.write(block)
        size = file.tell()
    hashed = base64.b64encode(crc.to_bytes(4, "big")).decode()
    is_whole = size == int(answer.getheader("Content-Length", "-1"))
    hashes = answer.getheader("X-Goog-Hash", "").replace(" ", "").split(",")
    return is_whole and f"crc32c={hashed}" in hashes


def work(where: dict[str, Any], tasks: "queue.SimpleQueue[dict[str, Any]]") -> None:
    """Download one object after the other, until the process ends."""
    connection = connect(where)
    while True:
        task = tasks.get()
        try:
            done = bring(connection, task)
        except Exception:
            connection.close()
            done = False
        os.write(1, f"{task['number']} {done:d}\n".encode())


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    where = json.loads(sys.stdin.readline())
    tasks: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    for _ in range(where["threads"]):
        threading.Thread(target=work, args=(where, tasks), daemon=True).start()
    for line in sys.stdin:
        tasks.put(json.loads(line))


if __name__ == "__main__":
    main()
