"""What users are told, word for word: each command of told/ is typed again, and must say the same. TELL=1 writes it anew.

Besides berg and programs of the shell a file has `put` and `row` for records of jobs, `machine` for one that runs
nothing, `objects` and `object` for what the bucket has, `write` for an object, with the escapes of a Python string, and
`call` for what the cloud itself is asked.
"""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import Cloud, Done, git
from records import machine, put, put_row

FILES = sorted(Path(__file__).with_name("told").glob("*.txt"))
# What is another one each time.
VARIES = {
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?Z?|\b\d{8}T\d{6}\b|\b\d{4}-\d{6}-\w\w\b": "TIME",
    r'(synced_until"?: )""': r'\1"TIME"',  # short jobs end before the first
    r"(\.\d{3})\d+": r"\1",
    r"/\S*bin/(?=git|ssh|rsync)": "",
    r"/\S*uv venv .*": "uv venv",
    r"\b\d{1,3}s\b *|\b\d{5}d\b": "SOON ",
    r'(?<="id": ")[0-9a-f]{16}(?=")': "HASH",
    r"\b\d{15,}\b": "NUMBER",
    r"(gke-\S+)-[0-9a-f]{8}-\w{4} *": r"\1-NODE ",
    r"(?<=\) in )\d+\.\d s": "SOON",
    r"((?<=-)[0-9a-f]{10}|\b[0-9a-f]{16,64})\b": "HASH",
}
# What is said of whatever takes a moment.
WAITS = (
    r"(?m)^(Asking Google( for prices)?|(Comparing|Looking|Reading|Sending the|Waiting) [^.:\n]*"
)
WAITS += r"|\S+ (SUBMITTED|STARTING|INSTALLING|RUNNING|UPLOADING)( .*)?)\n"


def lines(text: str) -> list[str]:
    """Those of a text; of JSON one for each key or element."""
    try:
        found = json.loads(text)
    except ValueError:
        return [line.rstrip() for line in text.splitlines() if line.strip()]
    if isinstance(found, dict):
        return [f"{key}: {json.dumps(value)}" for key, value in found.items()]
    return [*map(json.dumps, found)] if found and isinstance(found, list) else [text.strip()]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_users_are_told(
    file: Path, cloud: Cloud, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = {"NAME": "t", "EMAIL": "t@example.com", "DATE": "2026-01-01T00:00:00Z"}
    for what, text in who.items():  # a commit has the same hash each time
        monkeypatch.setenv(f"GIT_AUTHOR_{what}", text)
        monkeypatch.setenv(f"GIT_COMMITTER_{what}", text)
    git(project, "commit", "-q", "--amend", "--reset-author", "--no-edit")
    varies = {re.escape(str(project)): "PROJECT", re.escape(str(cloud.home)): "HOME"}
    varies |= {re.escape(cloud.config.endpoint): "CLOUD", cloud.config.bucket: "BUCKET", **VARIES}
    jobs: dict[str, Any] = {}

    def typed(line: str) -> Done:
        given = re.findall(r"^(?:\w+=\S* )*", line)[0].split()
        env = dict(word.split("=", 1) for word in given)
        command, *words = shlex.split(line)[len(env) :]
        if command == "berg":
            env = {"BERG_USER": "teller", "BERG_FORMAT": "human", "COLUMNS": "200", **env}
            return cloud.run(*words, cwd=project, **env)
        if command == "call":
            cloud.call(*words[:2], *map(json.loads, words[2:]))
            return Done(0, "", "")
        pairs = [each.partition("=") for each in words * (command in ("put", "row", "machine"))]
        plain, values = [], {}
        for key, equals, value in pairs:
            values |= {key: json.loads(value)} if equals else {}
            plain += [] if equals else [key]
        if command == "put":
            jobs[words[0]] = put(cloud, *plain, **{"user": "teller", **values})
        elif command == "row":
            put_row(cloud, jobs[words[0]], int(words[1]), words[2], **values)
        elif command == "write":
            cloud.bucket.write(words[0], words[1].encode().decode("unicode_escape").encode())
        elif command == "machine":
            whole = re.sub(r"-\d+$", "", words[0])  # of a job's several machines
            machine(cloud, words[0], jobs.get(whole), **{"user": "teller", **values})
        elif command == "objects":
            return Done(0, "\n".join(cloud.names(*words)), "")
        elif command == "object":
            return Done(0, cloud.read(*words).decode(), "")
        else:
            shell = ["bash", "-c", line]
            done = subprocess.run(shell, cwd=project, capture_output=True, text=True)
            return Done(done.returncode, done.stdout, done.stderr)
        return Done(0, "", "")

    before, now = file.read_text(), ""
    for line in before.splitlines():
        if not line.startswith("  "):
            now += f"{line}\n"
        if line.startswith("$ "):
            done = typed(line[2:])
            said = lines(done.out) + [f"! {text}" for text in lines(re.sub(WAITS, "", done.err))]
            said += [f"[{done.code}]"] * (done.code != 0)
            shown = "".join(f"  {text}\n" for text in said)
            for pattern, name in varies.items():
                shown = re.sub(pattern, name, shown)
            now += shown
    cloud.clean()
    if os.environ.get("TELL"):
        file.write_text(now)
    assert now == before
