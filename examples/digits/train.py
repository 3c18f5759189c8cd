"""Train a multilayer perceptron, written in numpy, to read scikit-learn's handwritten digits.

Every epoch ends with a checkpoint. After a crash, run the same command again: it continues where it
was and ends with the same weights, bit for bit. Not covered: validation splits, augmentation, GPUs.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from threadpoolctl import threadpool_limits


def load_data():
    """Return x_train, x_test, y_train, y_test: 8x8 images as float32 rows in [0, 1], and their digits."""
    images, digits = load_digits(return_X_y=True)  # pixels from 0 to 16
    x = (images / 16).astype(np.float32)
    return train_test_split(x, digits, test_size=360, stratify=digits, random_state=0)


def init_weights(num_inputs, num_hidden, num_classes, rng):
    """Return the weights of a network with one hidden layer: normal, scaled as He et al. 2015 for ReLU."""
    w1 = rng.normal(0, np.sqrt(2 / num_inputs), (num_inputs, num_hidden))
    w2 = rng.normal(0, np.sqrt(2 / num_hidden), (num_hidden, num_classes))
    weights = {"w1": w1, "b1": np.zeros(num_hidden), "w2": w2, "b2": np.zeros(num_classes)}
    return {name: array.astype(np.float32) for name, array in weights.items()}


def forward(weights, x):
    """Return the hidden activations (batch, hidden) and the log-probabilities (batch, classes)."""
    hidden = np.maximum(x @ weights["w1"] + weights["b1"], 0)  # ReLU
    logits = hidden @ weights["w2"] + weights["b2"]
    logits -= logits.max(axis=1, keepdims=True)  # exp() of a large logit would overflow
    return hidden, logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))


def backward(weights, x, y, hidden, log_probs):
    """Return the gradient of the mean cross-entropy with respect to each weight."""
    dlogits = np.exp(log_probs)
    dlogits[np.arange(len(y)), y] -= (
        1  # softmax and cross-entropy together: probabilities - one-hot labels
    )
    dlogits /= len(y)
    dhidden = dlogits @ weights["w2"].T * (hidden > 0)
    return {
        "w1": x.T @ dhidden,
        "b1": dhidden.sum(0),
        "w2": hidden.T @ dlogits,
        "b2": dlogits.sum(0),
    }


def train_epoch(weights, velocity, x, y, lr, batch_size, rng, momentum=0.9):
    """See every example once, in random order: SGD with momentum, in place on weights and velocity."""
    order = rng.permutation(len(x))
    for start in range(0, len(x), batch_size):
        batch = order[start : start + batch_size]
        hidden, log_probs = forward(weights, x[batch])
        gradient = backward(weights, x[batch], y[batch], hidden, log_probs)
        for name in weights:
            velocity[name] = momentum * velocity[name] - lr * gradient[name]
            weights[name] += velocity[name]


def evaluate(part, weights, x, y):
    """Return the mean cross-entropy and the accuracy on a part of the data, named after it."""
    _, log_probs = forward(weights, x)
    loss, accuracy = -log_probs[np.arange(len(y)), y].mean(), (log_probs.argmax(axis=1) == y).mean()
    return {f"{part}_loss": round(float(loss), 5), f"{part}_accuracy": round(float(accuracy), 5)}


def save_checkpoint(path, weights, velocity, progress):
    # renamed: a kill leaves the old file or the new, never a half
    temporary = path.with_suffix(".tmp.npz")
    arrays = weights | {f"velocity_{name}": array for name, array in velocity.items()}
    np.savez(temporary, **arrays, progress=json.dumps(progress))
    temporary.replace(path)


def load_checkpoint(path):
    try:
        with np.load(path) as arrays:
            # numpy skips the checksum where an array's header is damaged
            assert arrays.zip.testzip() is None
            weights = {name: arrays[name] for name in ("w1", "b1", "w2", "b2")}
            velocity = {name: arrays[f"velocity_{name}"] for name in weights}
            return weights, velocity, json.loads(arrays["progress"].item())
    except Exception as error:  # zip, numpy and json each raise their own for a broken file
        sys.exit(
            f"{path} is corrupt ({type(error).__name__}): delete it to start from the first epoch"
        )


def plot_learning_curve(path, metrics):
    import matplotlib.figure  # takes a second: only when there is something to draw

    figure = matplotlib.figure.Figure(figsize=(10, 4), dpi=120, layout="constrained")
    for axes, name in zip(figure.subplots(1, 2), ("loss", "accuracy"), strict=True):
        for part in ("train", "test"):
            values = [row[f"{part}_{name}"] for row in metrics]
            axes.plot(range(1, len(values) + 1), values, ".-", label=part)
        axes.set(title=f"{name}, test {metrics[-1][f'test_{name}']:.3f}", xlabel="epoch")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    temporary = path.with_suffix(".tmp.png")
    figure.savefig(temporary)
    temporary.replace(path)


def main():
    parser = argparse.ArgumentParser(
        description="Train a small neural network to read handwritten digits."
    )
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=128, help="number of hidden units")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logdir", type=Path, default=Path("results"))
    args = parser.parse_args()
    # matrices this small are faster on one core, and sum in the same order each time
    threadpool_limits(1)
    x_train, x_test, y_train, y_test = load_data()
    rng = np.random.default_rng(args.seed)
    weights = init_weights(x_train.shape[1], args.hidden, 10, rng)
    velocity = {name: np.zeros_like(array) for name, array in weights.items()}
    metrics = []
    flags = (
        f"--lr={args.lr} --batch-size={args.batch_size} --hidden={args.hidden} --seed={args.seed}"
    )

    args.logdir.mkdir(parents=True, exist_ok=True)
    checkpoint_path, metrics_path = args.logdir / "checkpoint.npz", args.logdir / "metrics.jsonl"
    if checkpoint_path.exists():
        weights, velocity, progress = load_checkpoint(checkpoint_path)
        if progress["flags"] != flags:
            sys.exit(
                f"{checkpoint_path} is from {progress['flags']}: use these or another --logdir"
            )
        rng.bit_generator.state, metrics = progress["rng_state"], progress["metrics"]
        print(f"{checkpoint_path} already has {len(metrics)} of {args.epochs} epochs", flush=True)
    # The checkpoint decides: a kill can leave metrics.jsonl without its last row, or with half of it.
    metrics_path.write_text("".join(json.dumps(row) + "\n" for row in metrics))

    for epoch in range(len(metrics) + 1, args.epochs + 1):
        start = time.perf_counter()
        train_epoch(weights, velocity, x_train, y_train, args.lr, args.batch_size, rng)
        row = {"epoch": epoch, "seconds": round(time.perf_counter() - start, 5)}
        row |= evaluate("train", weights, x_train, y_train) | evaluate(
            "test", weights, x_test, y_test
        )
        metrics.append(row)
        progress = {
            "epoch": epoch,
            "flags": flags,
            "rng_state": rng.bit_generator.state,
            "metrics": metrics,
        }
        save_checkpoint(checkpoint_path, weights, velocity, progress)
        with metrics_path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(*(f"{name} {value:<7}" for name, value in row.items()), flush=True)
        if epoch % 10 == 0 and epoch < args.epochs:  # a plot takes as long as many epochs
            plot_learning_curve(args.logdir / "learning_curve.png", metrics)
    plot_learning_curve(args.logdir / "learning_curve.png", metrics)
    print(f"final test accuracy {metrics[-1]['test_accuracy']:.3f}")


if __name__ == "__main__":
    main()
