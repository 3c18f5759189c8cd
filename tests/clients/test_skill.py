"""What coding agents get: a page that is right, where they look, and output that they can read."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

from conftest import Cloud

from berg.cli import COMMANDS
from berg.clients.skill import FILES, VERSION, checksum, is_ours
from berg.terminal import AGENTS


def test_the_page_is_installed_and_a_person_s_own_is_not_replaced(
    cloud: Cloud, project: Path
) -> None:
    files = [project / f"{where}/skills/berg/SKILL.md" for where in (".agents", ".claude")]
    (project / "deep").mkdir()
    assert cloud.run("skill", "--install", cwd=project / "deep").code == 0
    text = cloud.run("skill").out
    assert [file.read_text() for file in files] == [text, text]
    assert re.match(r'---\nname: berg\ndescription: "[^"\n]{100,1024}"\n', text)
    assert not [name for name in COMMANDS if f"\n- `berg {name}" not in text]
    files[0].write_text(text.replace("# Berg", "# Our own Berg"))
    files[1].write_text("")
    assert "-y" in cloud.fails("skill", "--install", says="changed since", cwd=project)
    assert cloud.run("skill", "--install", "-y", cwd=project).code == 0
    assert [file.read_text() for file in files] == [text, text]
    outside = cloud.home / "outside"
    outside.mkdir()
    files[0].unlink()
    files[0].parent.rmdir()
    files[0].parent.symlink_to(outside)
    cloud.fails("skill", "--install", says="leads out of", cwd=project)
    assert not [*outside.iterdir()]


def test_an_agent_gets_tabs_and_is_not_asked_at_a_terminal(cloud: Cloud) -> None:
    none = dict.fromkeys(AGENTS, "")
    agent = {**none, "CLAUDECODE": "1"}
    for words, env, has_tabs in (([], none, False), ([], agent, True),
                                 (["--format", "agent"], none, True),
                                 (["--format", "human"], agent, False)):  # fmt: skip
        assert ("\t" in cloud.run(*words, "list", **env).out) is has_tabs, words
    _, terminal = pty.openpty()
    ask = "from berg.terminal import confirm; confirm('Delete it?', False, '-y')"
    done = subprocess.run(
        [sys.executable, "-c", ask], stdin=terminal, capture_output=True, text=True, timeout=30,
        env={**os.environ, "BERG_FORMAT": "agent"},
    )  # fmt: skip
    assert "answer with -y" in done.stderr


def test_the_page_of_an_earlier_berg_is_replaced_without_a_question(
    cloud: Cloud, project: Path, tmp_path: Path
) -> None:
    own = {"HOME": str(tmp_path)}
    assert cloud.run("skill", "--user").code == 2
    done = cloud.run("skill", "--install", "--user", cwd=project, **own)
    files = [tmp_path / name for name in FILES]
    assert done.code == 0 and all(f"Wrote {file}" in done.err for file in files), done.err
    assert not (project / ".agents").exists()
    text = files[0].read_text()
    told = json.loads(cloud.run("skill", "--json").out)
    assert told["text"] == text == cloud.run("skill").out and told["name"] == "berg"
    assert f'version: "{told["version"]}"' in text and is_ours(text)
    again = cloud.run("skill", "--install", "--user", cwd=project, **own)
    assert all(f"{file} is up to date" in again.err for file in files)
    bare = re.sub(r'  checksum: ".*"\n', "", text).replace("# Berg", "# An earlier Berg")
    old = VERSION.sub(lambda found: f'{found[0]}  checksum: "{checksum(bare)}"\n', bare)
    for file, content in zip(files, (old, text + "mine\n")):
        file.write_text(content)
    done = cloud.run("skill", "--install", "--user", cwd=project, **own)
    assert done.code == 1 and f"Wrote {files[0]}" in done.err and "changed since" in done.err
    assert files[0].read_text() == text and files[1].read_text().endswith("mine\n")
    line = next(line for line in text.splitlines() if line.startswith("- `berg image"))
    assert line.startswith("- `berg image create|list|delete`: Make disk images"), line
