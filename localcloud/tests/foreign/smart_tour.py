"""What smart_open does with a bucket of the embedded cloud, step by step.

Runs in an environment of its own, where it is. It prints a line for each step that went well;
the exit code tells.

Usage: python client_tour.py URL PROJECT BUCKET
"""

import os
import sys

import google.auth
from google.api_core.exceptions import NotFound
from google.cloud import storage
from smart_open import open as opened

URL, PROJECT, BUCKET = sys.argv[1:]


def step(words: str, is_right: bool = True) -> None:
    assert is_right, words
    print(words, flush=True)


def credentials():
    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    return google.auth.default(scopes=scopes)[0]


def smart_open() -> None:
    client = storage.Client(
        project=PROJECT, credentials=credentials(), client_options={"api_endpoint": URL}
    )
    options = {"client": client, "min_part_size": 256 << 10}
    name, content = f"gs://{BUCKET}/smart/file.bin", os.urandom(1_500_000)
    with opened(name, "wb", transport_params=options) as file:
        for start in range(0, len(content), 100_000):
            file.write(content[start : start + 100_000])
    with opened(name, "rb", transport_params={"client": client}) as file:
        step("written in parts and read", file.read() == content)
        file.seek(700_000)
        step("sought", file.read(10) == content[700_000:700_010])
    with opened(f"gs://{BUCKET}/smart/text.gz", "w", transport_params={"client": client}) as file:
        file.write("grüße\nzwei\n")
    with opened(f"gs://{BUCKET}/smart/text.gz", transport_params={"client": client}) as file:
        step("packed text", file.readlines() == ["grüße\n", "zwei\n"])
    try:
        opened(f"gs://{BUCKET}/smart/none", "rb", transport_params={"client": client}).read()
    except NotFound:
        step("missing")


if __name__ == "__main__":
    smart_open()
