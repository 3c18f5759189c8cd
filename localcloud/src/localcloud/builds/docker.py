"""docker's command line on podman: as much of it as builds of images need.

Run as a program. It reads docker's own settings (DOCKER_CONFIG), and refuses what docker's own
builder refuses: several platforms, unless `docker buildx create` has made another one. A registry
on 127.0.0.1 needs no TLS.

Not covered: everything else.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

BINFMT = re.compile(r"tonistiigi/binfmt(:[\w.-]+)?(@sha256:[0-9a-f]{64})?")
BUILDX = Path(os.environ.get("BUILDX_CONFIG") or Path.home() / ".docker/buildx")


def main(words: list[str]) -> int:
    if words[:1] in (["info"], ["version"]) or words[:2] == ["buildx", "version"]:
        return podman("version")
    if words[:2] == ["buildx", "inspect"]:
        return 0 if (BUILDX / words[2]).exists() else fail(f'no builder "{words[2]}" found')
    if words[:2] == ["buildx", "create"]:
        return create(words[2:])
    if words[:2] == ["buildx", "build"]:
        return buildx(words[2:])
    if words[:1] == ["build"]:
        return build(words[1:])
    if words[:1] == ["push"]:
        return push(words[1])
    if words[:3] == ["run", "--privileged", "--rm"] and BINFMT.fullmatch(words[3]):
        # only the host's owner can register emulators of other processors with its kernel
        return 0
    return fail(f"the embedded cloud has no docker {' '.join(words[:2])}")


def fail(why: str) -> int:
    print(f"ERROR: {why}", file=sys.stderr)
    return 1


def podman(*words: str, quiet: bool = False) -> int:
    """Run podman with what docker's settings say of registries."""
    folder = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    settings = (
        json.loads((folder / "config.json").read_text())
        if (folder / "config.json").exists()
        else {}
    )
    # To docker an empty name says that no helper has it; podman takes it for a program.
    helpers = {host: helper for host, helper in settings.get("credHelpers", {}).items() if helper}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as known:
        json.dump({"auths": settings.get("auths", {}), "credHelpers": helpers}, known)
        known.flush()
        variables = {**os.environ, "REGISTRY_AUTH_FILE": known.name}
        return subprocess.run(["podman", *words], env=variables, capture_output=quiet).returncode


def create(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="docker buildx create")
    parser.add_argument("--name", required=True)
    parser.add_argument("--driver", choices=["docker-container"], default="docker-container")
    parser.add_argument("--driver-opt")
    parser.add_argument("--use", action="store_true")
    options = parser.parse_args(words)
    BUILDX.mkdir(parents=True, exist_ok=True)
    (BUILDX / options.name).touch()
    if options.use:
        (BUILDX / "current").write_text(options.name)
    print(options.name, flush=True)
    return 0


def options_of(prog: str, words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=prog)
    parser.add_argument("-t", "--tag", required=True)
    parser.add_argument("-f", "--file", required=True)
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("context")
    if "buildx" in prog:
        parser.add_argument("--platform", default="")
        parser.add_argument("--builder")
        parser.add_argument("--load", action="store_true")
        parser.add_argument("--push", action="store_true")
    return parser.parse_args(words)


def arguments(options: argparse.Namespace) -> list[str]:
    given = [word for each in options.build_arg for word in ("--build-arg", each)]
    return ["--file", options.file, *given, options.context]


def build(words: list[str]) -> int:
    options = options_of("docker build", words)
    forget(options.tag)
    return podman("build", "--tag", options.tag, *arguments(options))


def forget(image: str) -> None:
    """Take a name off what has it: a list would keep what is in it, and an image becomes no list."""
    if podman("manifest", "rm", image, quiet=True):
        podman("untag", image, quiet=True)


def buildx(words: list[str]) -> int:
    options = options_of("docker buildx build", words)
    builder = options.builder or (
        (BUILDX / "current").read_text() if (BUILDX / "current").exists() else ""
    )
    several = "," in options.platform
    if builder and not (BUILDX / builder).exists():
        return fail(f'no builder "{builder}" found')
    if several and not builder:
        return fail("Multi-platform build is not supported for the docker driver.")
    if several and options.load:
        return fail("docker exporter does not currently support exporting manifest lists")
    platform = ["--platform", options.platform] if options.platform else []
    for more in ([], ["--no-cache"]):  # its cache may take an image for that of another platform
        forget(options.tag)
        if code := podman(
            "build", "--manifest", options.tag, *platform, *more, *arguments(options)
        ):
            return code
        if len(listed(options.tag)) == len(options.platform.split(",")):
            break
    return push(options.tag, "manifest", "--all") if options.push else 0


def listed(image: str) -> list:
    ran = subprocess.run(["podman", "manifest", "inspect", image], capture_output=True, text=True)
    return json.loads(ran.stdout)["manifests"]


def push(image: str, *words: str) -> int:
    where = [f"docker://{image}"] if words else []
    trust = ["--tls-verify=false"] if image.startswith("127.0.0.1:") else []
    return podman(*words[:1], "push", *words[1:], *trust, image, *where)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
