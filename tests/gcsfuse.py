"""A stand-in for gcsfuse 3, where /dev/fuse is not for tests: it takes its flags and no others, and shows
the objects as they are when it mounts, read only.
"""

from pathlib import Path

PROGRAM = r"""#!/usr/bin/env python3
import json, os, re, subprocess, sys, urllib.parse, urllib.request
from pathlib import Path

BOOL, INT, OCTAL, TEXT = "(true|false)?", "-?[0-9]+", "0?[0-7]{3}", ".+"
FLAGS = {
    "app-name": TEXT, "cache-dir": "/.+", "custom-endpoint": "https?://.+", "dir-mode": OCTAL,
    "file-cache-enable-parallel-downloads": BOOL, "file-cache-max-size-mb": INT,
    "file-mode": OCTAL, "log-file": "/.+", "log-format": "text|json", "o": "ro|rw|allow_other",
    "only-dir": TEXT, "profile": "aiml-(training|serving|checkpointing)",
}


def fail(text):
    print("Error: " + text, file=sys.stderr)
    sys.exit(1)


flags, words = {}, []
for word in sys.argv[1:]:
    name, equals, value = word.removeprefix("--").partition("=")
    if not word.startswith("--"):
        words.append(word)
    elif name not in FLAGS:
        fail("unknown flag: --" + name)
    elif not re.fullmatch(FLAGS[name], value):
        fail(f'invalid argument "{value}" for "--{name}" flag')
    else:
        flags[name] = value
if len(words) != 2:
    fail(f"accepts between 2 and 3 arg(s), received {len(words) + 1}")
bucket, point = words
if not Path(point).is_dir():
    fail("mountWithArgs: mountpoint does not exist")
Path(flags["log-file"]).write_text(json.dumps(sys.argv))
base = flags["custom-endpoint"].rstrip("/") + "/b/" + bucket + "/o"
server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")


def get(url, **headers):
    asked = urllib.request.Request(url, headers={k.replace("_", "-"): v for k, v in headers.items()})
    return urllib.request.urlopen(asked).read()


account = f"http://{server}/computeMetadata/v1/instance/service-accounts/default/token"
token = json.loads(get(account, Metadata_Flavor="Google"))["access_token"]
bearer = {"Authorization": "Bearer " + token}
prefix = flags["only-dir"] + "/"
try:
    listed = json.loads(get(base + "?prefix=" + urllib.parse.quote(prefix), **bearer))
except urllib.error.HTTPError as error:
    fail(f"mount: error in iterating through objects: googleapi: Error {error.code}")
Path(flags["cache-dir"]).mkdir(parents=True)
subprocess.run(["mount", "-t", "tmpfs", "gcsfuse", point], check=True)
for item in listed.get("items", []):
    file = Path(point, item["name"].removeprefix(prefix))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(get(base + "/" + urllib.parse.quote(item["name"], safe="") + "?alt=media", **bearer))
subprocess.run(["mount", "-o", "remount," + flags["o"], point], check=True)
"""
INSTALL = "cp gcsfuse /usr/local/sbin/"


def bring(project: Path) -> None:
    """Put it into a repository, whose machines get it with `--install INSTALL`."""
    (project / "gcsfuse").write_text(PROGRAM)
    (project / "gcsfuse").chmod(0o755)
