"""Write pictures of the page of a job and of a sweep, as `berg page` shows them, to a folder; where
Chromium is.

python tools/screenshot.py docs
"""

import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from berg import config, job
from berg.google.storage import Bucket

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PICTURES = {
    "page-job.png": ("job/digits-1121-0930-x7k/index.html", 1640),
    "page-sweep.png": ("sweep/lr/index.html", 1640),
}
BEGAN = "2026-11-21T09:3{}:00Z"


def write_job(
    bucket: Bucket, name: str, folder: str, rate: float, sweep: str = "", width: int = 64
) -> None:
    """What a job that is over leaves in the bucket."""
    cmd = f"python train.py --lr={rate} --width={width}"
    this = job.Job(
        name,
        cmd,
        folder,
        f"gs://{bucket.name}/berg_results/{folder}",
        "digits",
        "3f9d2c61" * 5,
        "b04e77a9" * 5,
    )
    this.created_at, this.created_by, this.snapshot = (
        BEGAN.format(0),
        "ada",
        {"commit": "b04e77a9" * 5, "branch": "main"},
    )
    this.git_dirty, this.git_changed_files, this.env = (
        True,
        ["M train.py"],
        {"SEED": "7", "WANDB_API_KEY": "x"},
    )
    this.gpus_per_machine, this.gpu_type, this.machine_type = 1, "l4", "g2-standard-12"
    this.image = "projects/deeplearning-platform-release/global/images/pytorch-2-9-cu129-ubuntu-2404-nvidia-580"
    if sweep:
        this.sweep, this.params = sweep, {"lr": str(rate), "width": str(width)}
    state = job.State(
        "SUCCEEDED", 0, machine=name, zone="us-central1-a", ran_seconds=480, job=this.summary()
    )
    state.history = [
        [word, BEGAN.format(at)] for at, word in enumerate(("SUBMITTED", "STARTING", "RUNNING"))
    ]
    state.history += [["UPLOADING", BEGAN.format(8)], ["SUCCEEDED", BEGAN.format(9)]]
    text = state.to_json()
    bucket.write(job.metadata_path(name), this.to_json())
    bucket.write(job.state_path(name), text, metadata={"state": text})
    dice = random.Random(name)
    rows, lines = [], [f"[berg] Running: {cmd}"]
    for step in range(240):
        loss = (
            2.3 * math.exp(-step * min(rate, 0.05) * width / 300)
            + 0.15
            + dice.gauss(0, 0.03)
            + max(0, rate - 0.05) * 4
        )
        rows.append(
            {"step": step, "train_loss": round(loss, 4), "test_accuracy": round(1 - loss / 2.6, 4)}
        )
        lines.append(
            f"\x1b[2mstep {step:4}\x1b[0m loss \x1b[36m{loss:.4f}\x1b[0m accuracy \x1b[32m{1 - loss / 2.6:.4f}\x1b[0m"
        )
    lines.append(f"[berg] Job {name} SUCCEEDED")
    began = 1795253520
    samples = [
        {"time": began + at, "cpu_percent": 30 + dice.gauss(0, 4), "memory_percent": 22 + at / 60}
        | {
            "gpus": [
                {
                    "index": 0,
                    "percent": 88 + dice.gauss(0, 5),
                    "memory_mb": 9000 + at,
                    "watt": 66 + dice.gauss(0, 2),
                }
            ]
        }
        for at in range(0, 480, 30)
    ]
    bucket.write(
        f"berg_results/{folder}/metrics.jsonl", "".join(json.dumps(each) + "\n" for each in rows)
    )
    bucket.write(f"{job.log_prefix(name)}{name}.1.log", "\n".join(lines) + "\n")
    bucket.write(
        f"{job.log_prefix(name)}{name}.1.usage.jsonl",
        "".join(json.dumps(each) + "\n" for each in samples),
    )


def main(folder: Path) -> None:
    if not CHROMIUM:
        sys.stderr.write(
            f"{', '.join(PICTURES)} stay as they are: Chromium is not installed (apt-get install chromium)\n"
        )
        return
    with tempfile.TemporaryDirectory() as scratch:
        home, out = Path(scratch) / "berg", Path(scratch) / "out"
        clean = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("BERG_", "GOOGLE_"))
        }
        env = {**clean, "BERG_HOME": str(home), "HOME": scratch}
        berg = [sys.executable, "-m", "berg"]
        subprocess.run([*berg, "init", "--local", "-y"], env=env, check=True, capture_output=True)
        try:
            settings = json.loads((home / "berg.json").read_text())
            known = {key: value for key, value in settings.items() if key in config.HELP}
            bucket = Bucket(config.Config(**known))
            write_job(bucket, "digits-1121-0930-x7k", "digits", 0.02)
            for number in range(12):
                rate, width = (0.003, 0.01, 0.03, 0.1)[number % 4], (32, 64, 128)[number // 4]
                write_job(bucket, f"lr-{number:02}", f"lr/{number:02}", rate, "lr", width)
            bucket.write(job.sweep_path("lr"), json.dumps({"jobs": []}))
            names = ["digits-1121-0930-x7k", "lr"]
            subprocess.run(
                [*berg, "page", "--export", str(out), *names],
                env=env,
                check=True,
                capture_output=True,
            )
        finally:
            subprocess.run(
                [*berg, "local", "reset", "-y"], env=env, check=True, capture_output=True
            )
        for name, (page, height) in PICTURES.items():
            shot = Path(scratch) / name
            command = [
                CHROMIUM,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--hide-scrollbars",
                "--no-first-run",
            ]
            command += [
                f"--user-data-dir={scratch}/profile",
                "--disable-background-networking",
                "--disable-component-update",
            ]
            command += [
                f"--window-size=1000,{height}",
                f"--screenshot={shot}",
                (out / page).as_uri(),
            ]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
            shutil.copyfile(shot, folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
