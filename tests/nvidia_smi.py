"""A stand-in for nvidia-smi, which the install script of a repo brings to machines."""

from pathlib import Path

from conftest import commit

# Answers what stands in the file beside it, and keeps what it was asked.
PROGRAM = '#!/bin/sh\necho "$@" >"$0.asked"\ncat "$0.answer"\n'
INSTALL = """folder=$(echo "$PATH" | tr : "\\n" | grep -m 1 usr/local/sbin)  # the machine's own programs
cp nvidia-smi nvidia-smi.answer "$folder"
echo "$folder/nvidia-smi.answer" >/tmp/answer
"""


def bring(repo: Path, answer: str) -> list[str]:
    """Put it into a repo; returns options for `berg run`. A command changes the answer in `$(cat
    /tmp/answer)`.
    """
    (repo / "nvidia-smi").write_text(PROGRAM)
    (repo / "nvidia-smi").chmod(0o755)
    (repo / "nvidia-smi.answer").write_text(answer)
    (repo / "install.sh").write_text(INSTALL)
    commit(repo)
    return ["-g", "0", "--install-script", "install.sh"]


def busy(*percents: int) -> str:
    """The answer for GPUs that are so busy."""
    return "".join(
        f"{n}, {percent}, 20000, 40960, 310.50, 66\n" for n, percent in enumerate(percents)
    )
