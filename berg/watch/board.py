"""What TensorBoard shows of jobs: a folder on this computer that follows the bucket, and the program over it.

    <folder>/<job or folder of results>/…   event files and profiles as they lie in the bucket
    <folder>/…/events.out.tfevents.berg     beside a metrics.jsonl: its numbers, for who writes no event files
    <folder>/<job>/usage/<machine>/…        how busy its machines were

TensorBoard itself is not asked to read the bucket: what changed is brought every half a minute, and nothing else.
"""

import hashlib
import os
import re
import socket
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from berg import BergError, jobs
from berg.config import Config
from berg.google.fetch import fetch
from berg.google.storage import Bucket
from berg.watch import events, usage

SHOWN = re.compile(r"tfevents|(^|/)plugins/profile/|(^|/)metrics\.jsonl$")
MADE = "events.out.tfevents.berg"


def follow(config: Config, name: str, folder: Path) -> int:
    """Bring what changed of a job's or a folder's results; returns how many files are new or changed."""
    bucket = Bucket(config)
    prefix, job_name = jobs.results_prefix(config, name)
    target = folder / (job_name or prefix.removeprefix("berg_results/").strip("/"))
    wanted = [blob for blob in bucket.list(prefix) if SHOWN.search(blob.name[len(prefix) :])]
    changed, _, left = fetch(bucket, prefix, target, listed=wanted)
    if left:
        first, why = next(iter(left.items()))
        raise BergError(f"{len(left)} files could not be brought, the first: gs://{bucket.name}/{first}: {why}")
    for metrics in target.rglob("metrics.jsonl"):
        made = metrics.with_name(MADE)
        if not made.exists() or made.stat().st_mtime < metrics.stat().st_mtime:
            events.write(made, events.metrics(metrics))
    if job_name:
        changed += follow_usage(bucket, job_name, target / "usage")
    return changed


def follow_usage(bucket: Bucket, name: str, folder: Path) -> int:
    changed = 0
    for machine, blobs in usage.objects(bucket, name).items():
        made = folder / machine / MADE
        updated = max(blob.updated.timestamp() for blob in blobs if blob.updated)
        if made.exists() and made.stat().st_mtime >= updated:
            continue
        samples = [sample for blob in blobs for sample in usage.parse(bucket.read(blob.name) or b"")]
        if samples:
            made.parent.mkdir(parents=True, exist_ok=True)
            events.write(made, usage.series(samples))
            os.utime(made, (updated, updated))
            changed += 1
    return changed


def start(folder: Path, port: int) -> tuple[subprocess.Popen, str]:
    """Start TensorBoard over a folder, on loopback; returns its process and address.

    Raises BergError where it is not installed, or does not come up.
    """
    if not find_spec("tensorboard"):
        raise BergError(
            f"TensorBoard is not installed. Install it: pip install 'berg[tensorboard]'. Or show it elsewhere: {folder}"
        )
    port = port or free_port()
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(folder), "--host", "127.0.0.1"]
    log = folder.with_name(f"{folder.name}.log")
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=output, stderr=output)
    end = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return process, f"http://127.0.0.1:{port}/"
        except OSError:
            time.sleep(0.2)
    process.kill()
    lines = log.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
    raise BergError(f"TensorBoard did not start: {lines[-1]} (all it said: {log})")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def key(names: tuple[str, ...]) -> str:
    """Name of a folder that stands for what is shown together."""
    first = re.sub(r"[^a-z0-9-]+", "-", names[0].lower())[:40]
    return f"{first}-{hashlib.sha256(' '.join(sorted(names)).encode()).hexdigest()[:8]}"
