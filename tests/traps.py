"""A folder full of programs that no command of berg's may start: each writes a note if it runs."""

import subprocess
from pathlib import Path

# The packages that berg starts or imports, and some of python's own.
PACKAGES = ("berg", "click", "git", "google", "localcloud", "pip", "requests", "tensorboard")
MODULES = ("sitecustomize", "usercustomize", "json", "logging", "runpy", "random")
HOOKS = ("post-checkout", "post-commit", "post-index-change", "pre-commit", "reference-transaction")


class Traps:
    """The traps of one folder, and the notes of those that went off."""

    def __init__(self, notes: Path):
        self.notes = notes
        notes.mkdir()

    def sprung(self) -> list[str]:
        return sorted(path.name for path in self.notes.iterdir() if path.suffix != ".sh")

    def forget(self) -> None:
        for name in self.sprung():
            (self.notes / name).unlink()

    def program(self, name: str, then: str = "cat") -> Path:
        """Return a program that notes its name, and passes on what it reads, as filters do."""
        path = self.notes / f"{name}.sh"
        path.write_text(f"#!/bin/sh\n: >'{self.notes / name}'\n{then}\n")
        path.chmod(0o755)
        return path

    def lay_packages(self, folder: Path) -> None:
        for name in PACKAGES:
            (folder / name).mkdir()
            for file in ("__init__.py", "__main__.py", "main.py"):
                (folder / name / file).write_text(self.module(f"package-{name}"))
        for name in MODULES:
            (folder / f"{name}.py").write_text(self.module(f"module-{name}"))

    def module(self, name: str) -> str:
        return f"open({str(self.notes / name)!r}, 'w').close()\nraise ImportError('trap')\n"

    def lay_git(self, git_folder: Path, name: str, foreign: bool = True) -> None:
        """Let a repo's own configuration name programs; filters too, if nobody chose them."""
        settings = {
            "core.fsmonitor": str(self.program(f"fsmonitor-{name}")),
            "core.sshCommand": str(self.program(f"ssh-{name}", "exit 1")),
            "diff.external": str(self.program(f"diff-{name}")),
        }
        if foreign:
            for kind in ("clean", "smudge"):
                settings[f"filter.evil.{kind}"] = str(self.program(f"{kind}-{name}"))
            settings["filter.evil.required"] = "true"
        for key, value in settings.items():
            run("git", "config", "--file", str(git_folder / "config"), key, value)
        (git_folder / "hooks").mkdir(exist_ok=True)
        for hook in HOOKS:
            (git_folder / "hooks" / hook).write_bytes(self.program(f"{hook}-{name}").read_bytes())
            (git_folder / "hooks" / hook).chmod(0o755)

    def lay_bare(self, folder: Path) -> None:
        """A bare repo such as a clone can have among its files, which says that it is not bare."""
        run("git", "init", "-q", "--bare", str(folder))
        self.lay_git(folder, f"bare-{folder.name}")
        for key, value in (("core.bare", "false"), ("core.worktree", str(folder))):
            run("git", "config", "--file", str(folder / "config"), key, value)

    def lay_repo(self, folder: Path) -> None:
        """A repo as an archive of files can have it, with changes that git looks at."""
        run("git", "init", "-q", str(folder))
        (folder / ".gitattributes").write_text("* filter=evil\n")
        (folder / "file").write_text("1\n")
        run("git", "-C", str(folder), "add", "-A")
        who = ("-c", "user.name=t", "-c", "user.email=t@localhost")
        run("git", *who, "-C", str(folder), "commit", "-qm", "start")
        (folder / "file").write_text("2\n")
        (folder / "new").write_text("3\n")
        self.lay_git(folder / ".git", f"inner-{folder.name}")

    def lay(self, repo: Path) -> None:
        """All of them, in a repo of the user's."""
        self.lay_packages(repo)
        self.lay_bare(repo / "bare")
        self.lay_repo(repo / "inner")
        self.lay_git(repo / ".git", "root", foreign=False)
        assert self.sprung() == []


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
