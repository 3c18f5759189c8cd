"""Train a small convolutional network on scikit-learn's handwritten digits, on all TPU chips of a slice.

The same file runs on one CPU, on one machine with TPUs, and on a slice: every process of JAX sees its own chips, and
all chips together form one mesh. The weights are on every chip, each batch is split over all of them, and the compiler
averages the gradients. Worker 0 writes metrics and, after every epoch, a checkpoint, from which a run with the same
--logdir continues, also on another number of chips.

Not covered: models that do not fit on one chip, data that does not fit into the memory of a host.
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def load_data():
    """Return images of 8 x 8 with values from 0 to 1, and their digits: for training, then for testing."""
    images, digits = load_digits(return_X_y=True)  # pixels from 0 to 16
    images = (images / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    parts = train_test_split(
        images, digits.astype(np.int32), test_size=360, stratify=digits, random_state=0
    )
    return parts[0], parts[2], parts[1], parts[3]


def first_weights(key):
    """Two layers of 3 x 3 filters and one dense layer."""
    keys, he = jax.random.split(key, 3), jax.nn.initializers.he_normal()
    return {
        "filters1": he(keys[0], (3, 3, 1, 16)),
        "filters2": he(keys[1], (3, 3, 16, 32)),
        "dense": he(keys[2], (2 * 2 * 32, 10)),
        "bias": jnp.zeros(10),
    }


def network(weights, images):
    """Return the scores of the ten digits for each image."""
    x = images
    for name in ("filters1", "filters2"):
        x = jax.lax.conv_general_dilated(
            x, weights[name], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        x = jax.nn.relu(x)
    return x.reshape(len(x), -1) @ weights["dense"] + weights["bias"]


def mean_loss(weights, images, digits):
    scores = jax.nn.log_softmax(network(weights, images))
    return -jnp.take_along_axis(scores, digits[:, None], axis=1).mean()


@jax.jit
def accuracy(weights, images, digits):
    return (network(weights, images).argmax(1) == digits).mean()


def step(state, images, digits, lr):
    """One step of gradient descent with momentum; the mean over the batch is one over all chips."""
    loss, gradients = jax.value_and_grad(mean_loss)(state["weights"], images, digits)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, state["momentum"], gradients)
    weights = jax.tree.map(lambda w, m: w - lr * m, state["weights"], momentum)
    return {"weights": weights, "momentum": momentum}, loss


def load(path):
    """Return the checkpoint, and the metrics so far, that worker 0 finds; None and no metrics without one."""
    # Only worker 0 is asked: what lies on the disks of the others may be older.
    found = jax.process_index() == 0 and path.exists()
    if not multihost_utils.broadcast_one_to_all(np.array(found)):
        return None, []
    state = jax.tree.map(np.zeros_like, fresh_state())
    text = b""
    if jax.process_index() == 0:
        with np.load(path) as stored:
            state = {
                part: {name: stored[f"{part}/{name}"] for name in names}
                for part, names in state.items()
            }
            text = str(stored["metrics"]).encode()
    length = int(multihost_utils.broadcast_one_to_all(np.array(len(text))))
    padded = np.frombuffer(text.ljust(length), np.uint8)
    state, padded = multihost_utils.broadcast_one_to_all((state, padded))
    return state, json.loads(bytes(np.asarray(padded, np.uint8)).decode())


def save(path, state, metrics):
    arrays = {
        f"{part}/{name}": np.asarray(value)
        for part, names in state.items()
        for name, value in names.items()
    }
    # renamed: a kill leaves the old checkpoint or the new, never a half
    temporary = path.with_suffix(".tmp.npz")
    np.savez(temporary, metrics=json.dumps(metrics), **arrays)
    temporary.replace(path)


def fresh_state():
    weights = first_weights(jax.random.key(0))
    return {"weights": weights, "momentum": jax.tree.map(jnp.zeros_like, weights)}


def print_progress(epoch, number, loss, args, since):
    """Print what this worker does and how fast: its own images per second, and those of all."""
    loss = float(loss)  # waits for the step, so that the time is that of computing
    rate = args.log_every * args.batch_size / (time.perf_counter() - since)
    print(
        f"Training Device={jax.local_devices()[0]} Worker={jax.process_index()}"
        f"/{jax.process_count()} Epoch={epoch} Step={number} Loss={loss:.4f} "
        f"Rate={rate / jax.process_count():.1f} GlobalRate={rate:.1f} "
        f"Time={time.strftime('%H:%M:%S')}",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(
        description="Train a small convolutional network on all chips of a slice."
    )
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch-size", type=int, default=128, help="of all chips together")
    parser.add_argument("--log-every", type=int, default=5, help="steps between two lines")
    parser.add_argument(
        "--logdir", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "results"))
    )
    args = parser.parse_args()

    if int(os.environ.get("BERG_NUM_NODES", 1)) > 1:
        jax.distributed.initialize()  # a slice's machines find each other
    leads, chips = jax.process_index() == 0, jax.device_count()
    print(
        f"worker {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}: "
        f"{jax.local_device_count()} of {chips} {jax.devices()[0].platform} devices",
        flush=True,
    )
    if args.batch_size % chips:
        parser.error(f"--batch-size {args.batch_size} cannot be split over {chips} chips")

    mesh = Mesh(jax.devices(), ("data",))
    everywhere, split = (
        NamedSharding(mesh, PartitionSpec()),
        NamedSharding(mesh, PartitionSpec("data")),
    )
    train_step = jax.jit(step, out_shardings=(everywhere, everywhere), donate_argnums=0)

    def spread(batch):
        """A batch on all chips, of which every process brings what is on its own."""
        return jax.make_array_from_callback(batch.shape, split, lambda index: batch[index])

    args.logdir.mkdir(parents=True, exist_ok=True)
    stored, metrics = load(args.logdir / "checkpoint.npz")
    if stored and leads:
        print(f"going on after epoch {len(metrics)}", flush=True)
    state = jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, everywhere, lambda index: x[index]),
        jax.tree.map(np.asarray, stored or fresh_state()),
    )
    x_train, y_train, x_test, y_test = load_data()

    for epoch in range(len(metrics) + 1, args.epochs + 1):
        start = time.perf_counter()
        order = np.random.default_rng(epoch).permutation(len(x_train))  # the same on all workers
        batches = np.split(
            order[: len(order) // args.batch_size * args.batch_size], len(order) // args.batch_size
        )
        losses = []
        since = time.perf_counter()
        for number, batch in enumerate(batches, start=1):
            state, loss = train_step(state, spread(x_train[batch]), spread(y_train[batch]), args.lr)
            losses.append(loss)
            if number % args.log_every == 0:
                print_progress(epoch, number, loss, args, since)
                since = time.perf_counter()
        train_loss = float(np.mean([float(loss) for loss in losses]))
        if leads:
            local = jax.tree.map(lambda x: np.asarray(x.addressable_data(0)), state)
            row = {"epoch": epoch, "chips": chips, "workers": jax.process_count()}
            row |= {
                "seconds": round(time.perf_counter() - start, 3),
                "train_loss": round(train_loss, 4),
            }
            row["test_accuracy"] = round(float(accuracy(local["weights"], x_test, y_test)), 4)
            metrics.append(row)
            print(json.dumps(row), flush=True)
            (args.logdir / "metrics.jsonl").write_text(
                "".join(json.dumps(row) + "\n" for row in metrics)
            )
            save(args.logdir / "checkpoint.npz", local, metrics)
    multihost_utils.sync_global_devices("the end")  # nobody leaves while worker 0 still writes


if __name__ == "__main__":
    main()
