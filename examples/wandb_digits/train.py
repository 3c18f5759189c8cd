"""Train a classifier on scikit-learn's handwritten digits, and log it to Weights & Biases.

With WANDB_API_KEY in the environment it logs online. Without, it writes the same run to `wandb/` below its logdir, from
where `wandb sync` sends it later. A run that finds its checkpoint goes on, under the same run of W&B's.

Not covered: sweeps of W&B's, artifacts, several processes.
"""

import argparse
import os
from pathlib import Path

import joblib
import numpy as np
import wandb
from sklearn.datasets import load_digits
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split


def main():
    parser = argparse.ArgumentParser(
        description="Train a classifier, and log it to Weights & Biases."
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--alpha", type=float, default=1e-4, help="strength of the regularisation")
    parser.add_argument("--project", default="berg-digits")
    parser.add_argument(
        "--logdir", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "results"))
    )
    args = parser.parse_args()
    args.logdir.mkdir(parents=True, exist_ok=True)

    run = wandb.init(
        project=args.project,
        id=os.environ.get("BERG_JOB"),  # so that a job that begins anew goes on with its run
        resume="allow",
        mode="online" if os.environ.get("WANDB_API_KEY") else "offline",
        dir=args.logdir,
        config={"epochs": args.epochs, "alpha": args.alpha},
    )
    images, digits = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(
        images / 16, digits, test_size=360, stratify=digits, random_state=0
    )
    checkpoint = args.logdir / "model.joblib"
    model, first = SGDClassifier(loss="log_loss", alpha=args.alpha, random_state=0), 1
    if checkpoint.exists():
        model, first = joblib.load(checkpoint)
    for epoch in range(first, args.epochs + 1):
        order = np.random.default_rng(epoch).permutation(len(x))
        model.partial_fit(x[order], y[order], classes=np.arange(10))
        row = {
            "epoch": epoch,
            "train_accuracy": model.score(x, y),
            "test_accuracy": model.score(x_test, y_test),
        }
        run.log(row)
        print(row, flush=True)
        joblib.dump((model, epoch + 1), checkpoint.with_suffix(".tmp"))
        checkpoint.with_suffix(".tmp").replace(checkpoint)
    run.finish()


if __name__ == "__main__":
    main()
