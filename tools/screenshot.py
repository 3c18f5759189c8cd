"""Draw what `berg run` and `berg list` print, and where Chromium is pictures of the page, to a folder.

python tools/screenshot.py docs

The output is that of the embedded cloud, with other ages and costs, so that it is the same each time.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

CHROMIUM = next(
    filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), ""
)
PAGES = {"page-job.png": ("#job/digits", 1250), "page-sweep.png": ("#job/lr", 1250)}
BERG = [sys.executable, "-c", "from berg.cli import main; main()"]
GIT = ["git", "-c", "user.name=ada", "-c", "user.email=ada@example.com"]
DATE = {f"GIT_{who}_DATE": "2026-11-21T09:30:00Z" for who in ("AUTHOR", "COMMITTER")}
PROGRAM = """import argparse, json, math, os, random, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
parser.add_argument("--seconds", type=int, default=0)
options = parser.parse_args()
random.seed(0)
with open(os.environ["BERG_RESULTS_DIR"] + "/metrics.jsonl", "w") as file:
    for step in range(240):
        loss = 2.3 * math.exp(-step * options.lr * 0.8) + 0.15 + random.gauss(0, 0.03) + options.lr
        print(f"step {step:4} loss {loss:.4f} accuracy {1 - loss / 2.6:.4f}")
        file.write(json.dumps({"step": step, "loss": loss, "accuracy": 1 - loss / 2.6}) + "\\n")
time.sleep(options.seconds)
"""
# What differs each time -> what is drawn, of the same width.
SAME = [(r"(?<=  )(\d+[smhd]) +(?=\S)", "2m   "), (r"  AGE +", "  AGE  "),
        (r"\$\d\.\d\d(?=  |\n)", lambda found: "$0.04")]  # fmt: skip
LETTER, LINE, EDGE = 8.43, 20, 16  # pixels of a letter, from line to line, and around all


def svg(text: str) -> str:
    """A picture of a terminal; lines that begin with $ are typed."""
    lines = text.rstrip().splitlines()
    width = round(max(map(len, lines)) * LETTER + 2 * EDGE)
    height = len(lines) * LINE + 2 * EDGE
    rows = [
        f'<text x="{EDGE}" y="{EDGE + LINE * number + 14}"'
        + ' font-weight="bold"' * line.startswith("$ ") + f">{escape(line)}</text>"
        for number, line in enumerate(lines)
    ]  # fmt: skip
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n'
        f'<rect width="{width}" height="{height}" rx="8" fill="#f6f8fa"/>\n'
        '<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="14" fill="#1f2328"'
        ' style="white-space: pre" xml:space="preserve">\n' + "\n".join(rows) + "\n</g>\n</svg>\n"
    )


def draw(folder: Path, scratch: Path) -> None:
    clean = {
        key: text for key, text in os.environ.items() if not key.startswith(("BERG_", "GOOGLE_"))
    }
    env = {
        **clean,
        **DATE,
        "BERG_HOME": str(scratch / "berg"),
        "HOME": str(scratch),
        "BERG_USER": "ada",
    }
    env |= {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    repo = scratch / "digits"
    repo.mkdir()
    (repo / "train.py").write_text(PROGRAM)
    (repo / "requirements.txt").write_text("")

    def run(*words: str, typed: str = "") -> str:
        """The output of a command in the repository, below what one would type for it."""
        done = subprocess.run(words, cwd=repo, env=env, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)  # fmt: skip
        if done.returncode:
            sys.exit(f"{words}: {done.stderr}")
        return f"$ {typed}\n{done.stdout}"

    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "Train"]):
        run(*GIT, *words)
    run(*BERG, "init", "--local", "-y")
    try:
        cmd = "python train.py --lr=0.02"
        plan = run(*BERG, "run", "--dry-run", "-n", "digits", "--spot", cmd,
                   typed=f'berg run -n digits --spot "{cmd}"')  # fmt: skip
        run(*BERG, "run", "-g", "0", "-n", "lr", "--grid", "lr=0.003,0.01,0.03,0.1", "--parallel", "2",
            "--wait", "python train.py --lr={lr}")  # fmt: skip
        run(*BERG, "run", "-n", "digits", "--spot", "--wait", cmd)
        box = run(*BERG, "run", "-n", "long", f"{cmd} --seconds=900")
        while "RUNNING" not in box:
            time.sleep(1)
            box = run(*BERG, "list", typed="berg list")
        for pattern, same in SAME:
            box = re.sub(pattern, same, box)
        (folder / "run.svg").write_text(svg(plan))
        (folder / "list.svg").write_text(svg(box))
        if CHROMIUM:
            run(*BERG, "page", "--export", str(scratch / "out"), "digits", "lr")
            for name, (place, height) in PAGES.items():
                run(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                    "--virtual-time-budget=10000",  # charts are drawn when they are seen
                    f"--user-data-dir={scratch}/profile", f"--window-size=1000,{height}",
                    f"--screenshot={folder.absolute() / name}",
                    (scratch / "out/index.html").as_uri() + place)  # fmt: skip
    finally:
        run(*BERG, "local", "reset", "-y")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        draw(Path(sys.argv[1]), Path(temporary))
