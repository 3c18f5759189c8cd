"""Train a small network on scikit-learn's handwritten digits, and show each thing in TensorBoard that it can show.

Scalars: loss and accuracy of each epoch. Images: the digits that the network reads wrong. Graphs: the network. Projector:
what its hidden layer makes of the test images, with their digits. Text: the settings. The event files and what belongs to
them go below --logdir, from where berg brings them to the bucket, and `berg tensorboard` to TensorBoard.

Not covered: profiles (`berg profile` takes them of a running job), several processes (see torch_ddp).
"""

import argparse
import os
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.tensorboard import SummaryWriter


def load_data():
    """Return images as 64 floats in [0, 1], and their digits: for training, then for testing."""
    images, digits = load_digits(return_X_y=True)
    parts = train_test_split(images / 16, digits, test_size=360, stratify=digits, random_state=0)
    x, x_test, y, y_test = (torch.tensor(part) for part in parts)
    return x.float(), y, x_test.float(), y_test


def main():
    parser = argparse.ArgumentParser(description="Train a network, and show it in TensorBoard.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument(
        "--logdir", type=Path, default=Path(os.environ.get("BERG_RESULTS_DIR", "results"))
    )
    args = parser.parse_args()

    torch.manual_seed(0)
    x, y, x_test, y_test = load_data()
    hidden = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
    model = nn.Sequential(hidden, nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    with SummaryWriter(args.logdir) as writer:
        writer.add_text("settings", f"| epochs | lr |\n|-|-|\n| {args.epochs} | {args.lr} |")
        writer.add_graph(model, x[:1])
        for epoch in range(1, args.epochs + 1):
            for chosen in torch.randperm(len(x)).split(64):
                loss = cross_entropy(model(x[chosen]), y[chosen])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            with torch.no_grad():
                read = model(x_test).argmax(1)
            accuracy = (read == y_test).float().mean().item()
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {accuracy:.4f}", flush=True)
            writer.add_scalar("train/loss", loss.item(), epoch)
            writer.add_scalar("test/accuracy", accuracy, epoch)
            wrong = x_test[read != y_test][:16].reshape(-1, 1, 8, 8)
            writer.add_images("test/read wrong", wrong, epoch)
            writer.flush()
        with torch.no_grad():
            seen = hidden(x_test)
        pictures = x_test.reshape(-1, 1, 8, 8)
        writer.add_embedding(seen, y_test.tolist(), pictures, global_step=epoch, tag="hidden")


if __name__ == "__main__":
    main()
