"""`berg sync`, `berg ssh` and `berg open` on a devbox."""

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import BERG, Cloud, commit, git, until, write

from berg import gce, sync


@pytest.fixture
def box(cloud: Cloud, project: Path) -> Iterator[str]:
    commit(project, {"old/a.py": "a\n"})
    name = "syncbox"
    cloud.ok("devbox", "-g", "0", "-n", name, "--install", "none", "-y", cwd=project)
    until(lambda: b'"RUNNING"' in cloud.read(f".berg/jobs/{name}_state.json"))
    yield name
    cloud.run("kill", "-y", "--now", name)
    cloud.run("rm", "-y", name)


@pytest.mark.slow
def test_what_changes_is_sent_and_what_was_made_there_stays(
    cloud: Cloud, project: Path, box: str
) -> None:
    def there(command: str) -> str:
        return cloud.run("ssh", box, "--", command, cwd=project).out

    def sync(*options: str) -> str:
        done = cloud.ok("sync", box, "--once", *options, cwd=project)
        return done.err

    assert there("pwd; echo $BERG_JOB; command -v tt").split()[1:] == [box, "/usr/local/bin/tt"]
    words = [*BERG, "ssh", box, "--", "cat; exit 4"]
    done = subprocess.run(words, env=cloud.env, input="typed\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "typed\n"), done.stderr
    there("echo mine >own.txt; echo mine >old/own.txt; git add own.txt")
    write(
        project,
        {"train.py": "print('second')\n", "new file.py": "print('new')\n", ".env": "TOKEN=x\n"},
    )
    assert ".env" in sync()
    assert there("python3 train.py; python3 'new file.py'; ls -A").split() == [
        "second", "new", ".git", "new", "file.py", "old", "own.txt", "train.py"
    ]  # fmt: skip
    (project / "new file.py").unlink()
    (project / "old/a.py").unlink()
    sync("--send-secrets")
    assert there("ls -A; ls old").split() == [
        ".env", ".git", "old", "own.txt", "train.py", "own.txt"
    ]  # fmt: skip
    there("cd /; timeout 40 python3 -m http.server 8766 >/dev/null 2>&1 &")
    words = [*BERG, "open", box, "8766", "--no-browser"]
    tunnel = subprocess.Popen(words, env=cloud.env, stdout=subprocess.PIPE, text=True)
    assert tunnel.stdout
    url = tunnel.stdout.readline().strip()
    assert b"Directory listing" in urllib.request.urlopen(url, timeout=10).read()
    tunnel.send_signal(signal.SIGINT)
    assert tunnel.wait(10) == 130
    other = project.parent / "other"
    commit(other, {"x": ""})
    cloud.fails("sync", box, "--once", cwd=other, says="proj")


def test_another_laptop_is_let_in_and_sends_whatever_files(
    cloud: Cloud, project: Path, box: str, tmp_path: Path
) -> None:
    (other := tmp_path / "laptop").mkdir()
    (other / "berg.json").write_bytes((cloud.home / ".berg/berg.json").read_bytes())

    def berg(*words: str) -> str:
        done = cloud.run(*words, cwd=project, BERG_HOME=str(other))
        return done.out

    (project / "run").write_text("#!/bin/sh\n")
    (project / "run").chmod(0o755)
    (project / "link").symlink_to("train.py")
    write(project, {"sp ace 'q\" ünï": "odd\n", "becomes/folder": "inside\n", "env/pyvenv.cfg": ""})
    (project / "uv.lock").touch()
    done = cloud.ok("sync", box, "--once", cwd=project, BERG_HOME=str(other))
    assert f"uv.lock has changed: install it again on {box}\n" in done.err
    look = "touch own; ls; test -x run && readlink link && cat 'sp ace '*"
    said = berg("ssh", box, "--", look)
    assert said.split("\n")[-3:] == ["train.py", "odd", ""] and "env" not in said, said
    (project / "becomes/folder").unlink()
    (project / "becomes").rmdir()
    (project / "becomes").write_text("a file\n")
    (project / "link").unlink()
    (project / "run").unlink()
    (project / "old/a.py").unlink()
    write(project, {"link/inside": "in a folder\n"})
    berg("sync", box, "--once")
    assert berg("ssh", box, "--", "cat becomes link/inside; ls own run") == (
        "a file\nin a folder\nown\n"
    )
    berg("ssh", box, "--", "mkdir -p old; echo theirs | tee run old/a.py")
    berg("sync", box, "--once")  # what somebody makes there later stays
    assert berg("ssh", box, "--", "cat run old/a.py") == "theirs\ntheirs\n"


def test_a_login_works_with_os_login_and_takes_no_other_host_key(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    """Also where the project wants OS Login; and from a machine that only has the address."""

    def require(*items: dict[str, str]) -> None:
        path = "/compute/v1/projects/berg-local"
        now = cloud.call("GET", path)["commonInstanceMetadata"]
        body = {"fingerprint": now["fingerprint"], "items": items}
        cloud.call("POST", f"{path}/setCommonInstanceMetadata", body)

    (tmp_path / "berg.json").write_bytes((cloud.home / ".berg/berg.json").read_bytes())
    words = ["run", "-g", "0", "-n", "login", "--install", "none", "sleep 300"]
    put_key = """ssh-keygen -q -t ed25519 -N '' -f /tmp/k; cut -d' ' -f2 /tmp/k.pub | curl -sfX PUT -d @- \
        -H Metadata-Flavor:Google http://$GCE_METADATA_HOST/computeMetadata/v1/instance/guest-attributes/hostkeys/ssh-ed25519"""
    require({"key": "enable-oslogin", "value": "TRUE"})
    try:
        assert cloud.run(*words, cwd=project).code == 0
        assert cloud.run("ssh", "login", "hostname").out == "login\n"
        until(lambda: cloud.run("ssh", "login", "true", BERG_HOME=str(tmp_path)).code == 0, 20)
        assert cloud.run("ssh", "login", "--", put_key).code == 0
        done = cloud.run("ssh", "login", "echo in")
        assert done.code == 255 and "verification failed" in done.err and not done.out, done
    finally:
        require()


def test_each_machine_of_several_is_reached_by_its_number(cloud: Cloud, project: Path) -> None:
    where = "echo $BERG_NODE_RANK of $MASTER_ADDR; sleep 300"
    (project / "pyproject.toml").write_text(
        "[tool.berg]\ndisk-gb = 150\n"
    )  # a person's choice, too
    words = ["-m", "2", "--each", "-n", "duo", "--install", "none", where]
    done = cloud.ok("run", "-g", "0", "--note", "why", "--json", *words, cwd=project)
    said, state = json.loads(done.out), cloud.shown("duo")
    first, _ = sorted(gce.machines(cloud.config, "duo"), key=lambda machine: machine.name)
    told = said["name"], said["zone"], state["note"], sorted(state["metadata"]["options"])
    assert (*told, state["rate"]) == (
        "duo", first.zone, "why", ["disk_gb", "each", "gpus", "install", "machines", "name", "note"],
        pytest.approx(said["usd_per_hour"] / 2),
    )  # fmt: skip
    for rank in (0, 1):
        until(lambda rank=rank: f"\n{rank} of {first.inner_address}\n" in cloud.log("duo"))
        assert cloud.run("ssh", f"duo/{rank}", "hostname").out == f"duo-{rank}\n"
    (project / "train.py").write_text("print('both')\n")
    assert cloud.run("sync", "duo", "--once", cwd=project).code == 0
    for rank in (0, 1):
        done = cloud.run("ssh", f"duo/{rank}", "python3 train.py")
        assert done.out == "both\n", done.err
    assert cloud.run("ssh", "duo/2", "true").err.startswith("Error: duo has no machine 2")


def test_the_rsync_of_macos_is_named(cloud: Cloud, project: Path, tmp_path: Path) -> None:
    (tmp_path / "rsync").write_text("#!/bin/sh\necho openrsync: protocol version 29\n")
    (tmp_path / "rsync").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    cloud.fails("sync", "any", "--once", cwd=project, PATH=path, says="brew install rsync")


def test_what_is_sent_is_what_git_would_take(tmp_path: Path) -> None:
    root, inner = tmp_path / "proj", tmp_path / "inner"
    for folder in (root, inner):
        commit(folder, {"a.py": "a\n", "gone.py": "gone\n", ".gitignore": "*.log\n"})
    git(root, "submodule", "--quiet", "add", str(inner), "sub")
    write(root, {"new\tfile": "new", "out.log": "ignored"})
    (root / "link").symlink_to("a.py")
    os.mkfifo(root / "pipe")
    (root / "gone.py").unlink()
    write(root, {"sub/more": "more", "venv/pyvenv.cfg": ""})
    files = sync.files_of(root)
    assert {*files} == {
        ".gitignore", ".gitmodules", "a.py", "new\tfile", "link",
        "sub/.gitignore", "sub/a.py", "sub/gone.py", "sub/more",
    }  # fmt: skip
    before = files["a.py"]
    assert before[1] == 2 and sync.files_of(root) == files
    (root / "a.py").chmod(0o755)
    assert sync.files_of(root)["a.py"] != before
    (tmp_path / "moved").mkdir()
    (root / "sub").rename(tmp_path / "moved/sub")
    (root / "sub").mkdir()  # a submodule that is not here
    assert not [path for path in sync.files_of(root) if path.startswith("sub")]


def test_what_looks_like_a_secret_stays_unless_the_job_has_it() -> None:
    said: list[str] = []
    files = dict.fromkeys(("a.py", ".env", "sub/.env", "known/.env"), (0, 0, 0))
    sync.without_secrets(files, {"known/.env"}, said.append)
    assert {*files} == {"a.py", "known/.env"}
    assert [text.partition(": ")[2].partition(". Ignore")[0] for text in said] == [
        ".env",
        "sub/.env",
    ]
    assert all("--send-secrets" in text for text in said)
    assert sync.joined(["a", "b c"]) == b"a\0b c\0"
    assert sync.last_line(b"one\ntwo\x07 \xff\n\n") == "two \ufffd"
