"""One build, from its source in the bucket to its images in the registry. What it prints is its log
in the bucket.

A step is a process of this host, in a folder of the build's; docker is podman (docker.py), whose
containers are root directories and no more.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from localcloud.builds.checks import plain
from localcloud.call import Cloud
from localcloud.identity.permissions import allowed

DOCKER = Path(__file__).with_name("docker.py")
FLUSH = 1.0  # seconds between two writes of the log


class Failed(Exception):
    """A build that fails: the kind of failure, and a sentence."""

    def __init__(self, kind: str, detail: str):
        super().__init__(detail)
        self.kind, self.detail = kind, detail


@dataclass
class Run:
    """A build that runs."""

    cloud: Cloud
    row: dict[str, Any]
    account: str
    folder: Path
    log: bytearray = field(default_factory=bytearray)
    written: float = 0.0

    def say(self, text: str) -> None:
        self.log += f"{text}\n".encode()

    def object(self, url: str, permission: str) -> tuple[str, str]:
        """Bucket and name of gs://BUCKET/NAME, if the build's account may do that there."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        found = self.cloud.storage.bucket(bucket)
        if found is None:
            raise Failed("", f"the bucket {bucket} does not exist")
        where = f"projects/{found['project']}/buckets/{bucket}/objects/{name}"
        if not allowed(self.cloud, self.account, permission, where):
            what = f"the Google Cloud Storage object {name}"
            raise Failed("", f"{self.account} does not have {permission} access to {what}.")
        return bucket, name

    def flush(self) -> None:
        """Write the log to the bucket."""
        if self.row.get("options", {}).get("logging") == "NONE":
            return
        place = f"{self.row['logsBucket'].rstrip('/')}/log-{self.row['id']}.txt"
        try:
            bucket, name = self.object(place, "storage.objects.create")
            if self.cloud.storage.find(bucket, name):
                self.object(place, "storage.objects.delete")
        except Failed as failed:
            raise Failed("LOGGING_FAILURE", failed.detail) from None
        content = self.cloud.storage.new_content()
        content.write(bytes(self.log))
        fields = {
            "name": name,
            "contentType": "text/plain",
            "storageClass": "STANDARD",
            **content.hashes(),
        }
        self.cloud.storage.commit(bucket, fields, content)
        self.written = time.monotonic()


def stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime())


async def run(cloud: Cloud, row: dict[str, Any], account: str) -> None:
    """Run a build to its end, or until it is cancelled."""
    folder = cloud.builds.folder / "work" / row["id"]
    this = Run(cloud, row, account, folder)
    seconds = float(row["timeout"].removesuffix("s"))
    row.update(status="WORKING", startTime=stamp())
    cloud.builds.save()
    this.say(f'starting build "{row["id"]}"\n')
    try:
        await asyncio.wait_for(work(this), seconds)
        row["status"] = "SUCCESS"
        this.say("DONE")
    except asyncio.TimeoutError:
        row.update(status="TIMEOUT", statusDetail=f"build timed out after {seconds:g}s")
        this.say("TIMEOUT\nERROR: context deadline exceeded")
    except asyncio.CancelledError:
        row["status"] = "CANCELLED"
        this.say("CANCELLED\nERROR: context canceled")
    except Failed as failed:
        row.update(status="FAILURE", statusDetail=failed.detail)
        row["failureInfo"] = {"type": failed.kind, "detail": failed.detail}
        this.say(f"ERROR\nERROR: {failed.detail}")
    except Exception as error:
        row.update(status="INTERNAL_ERROR", statusDetail=str(error))
        raise
    finally:
        row["finishTime"] = stamp()
        try:
            this.flush()
        except Failed:
            pass  # it is why the build failed
        cloud.builds.save()
        shutil.rmtree(folder, ignore_errors=True)


async def work(this: Run) -> None:
    row, workspace, home = this.row, this.folder / "workspace", this.folder / "home"
    for folder in (workspace, home / ".docker"):
        folder.mkdir(parents=True)
    this.say("FETCHSOURCE")
    this.flush()
    await fetch(this, workspace)
    log_in(this, home / ".docker/config.json")
    this.say("BUILD")
    steps = row["steps"]
    for number, step in enumerate(steps):
        begun, prefix = stamp(), f"Step #{number}" if len(steps) > 1 else ""
        this.say(f"Starting {prefix}" if prefix else "")
        code = await execute(
            this,
            [plain(each) for each in step.get("args") or []],
            workspace / step.get("dir", ""),
            f"{prefix}: " if prefix else "",
        )
        step.update(
            status="FAILURE" if code else "SUCCESS", timing={"startTime": begun, "endTime": stamp()}
        )
        if code:
            step["exitCode"] = code
            what = f'build step {number} "{step["name"]}" failed: step exited with non-zero status: {code}'
            raise Failed("USER_BUILD_STEP", what)
        this.say(f"Finished {prefix}" if prefix else "")
    this.say("PUSH")
    results = []
    for image in row.get("images") or []:
        this.say(f"Pushing {image}")
        if await execute(this, ["push", image], workspace, ""):
            raise Failed(
                "PUSH_FAILED", f'error pushing image "{image}": step exited with non-zero status: 1'
            )
        results.append({"name": image, "digest": digest_of(this.cloud, image)})
    row["results"] = {"images": results} if results else {}


async def fetch(this: Run, workspace: Path) -> None:
    """Bring the source to the workspace."""
    source = (this.row.get("source") or {}).get("storageSource")
    if not source:
        return
    url = f"gs://{source['bucket']}/{source['object']}"
    try:
        bucket, name = this.object(url, "storage.objects.get")
    except Failed as failed:
        raise Failed("FETCH_SOURCE_FAILED", failed.detail) from None
    found = this.cloud.storage.find(bucket, name)
    if found is None or source.get("generation") not in (None, found["generation"]):
        raise Failed(
            "FETCH_SOURCE_FAILED", f"fetching storage object {url}: storage: object doesn't exist"
        )
    path = str(this.cloud.storage.path(found["generation"]))
    tar = await asyncio.create_subprocess_exec(
        "tar", "-xzf", path, "-C", str(workspace), stderr=subprocess.DEVNULL
    )
    if await tar.wait():
        raise Failed("FETCH_SOURCE_FAILED", f"{url} is no .tar.gz archive")


def log_in(this: Run, file: Path) -> None:
    """Let docker know who the build is at the registry."""
    pair = f"oauth2accesstoken:{this.cloud.tokens.mint(this.account)}"
    auths = {f"127.0.0.1:{this.cloud.port}": {"auth": base64.b64encode(pair.encode()).decode()}}
    file.touch(0o600)
    file.write_text(json.dumps({"auths": auths}))


async def execute(this: Run, words: list[str], folder: Path, prefix: str) -> int:
    """Run docker, with what it prints in the log; its exit code. It ends with the build."""
    home = this.folder / "home"
    kept = {
        key: value
        for key, value in os.environ.items()
        if key == "PATH" or key.lower().endswith("_proxy")
    }
    variables = {
        **kept,
        **this.cloud.builds.podman(),
        "HOME": str(home),
        "TMPDIR": str(this.folder),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(DOCKER),
        *words,
        cwd=folder,
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        limit=1 << 20,
        umask=0o022,
    )
    assert process.stdout
    try:
        while line := await process.stdout.readline():
            this.say(f"{prefix}{line.decode(errors='replace').rstrip()}")
            if time.monotonic() > this.written + FLUSH:
                this.flush()
        return await process.wait()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def digest_of(cloud: Cloud, image: str) -> str:
    """The digest that the registry has for a name."""
    path, _, tag = image.partition("/")[2].rpartition(":")
    project, id, name = path.split("/", 2)
    for repository, images in cloud.artifacts.images.items():
        if (
            repository.startswith(f"projects/{project}/")
            and repository.endswith(f"/{id}")
            and name in images
        ):
            return images[name]["tags"].get(tag, "")
    return ""
