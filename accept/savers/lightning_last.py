"""Lightning's ModelCheckpoint: the newest one, and a link to it from each attempt."""

import logging
import time
import warnings
from pathlib import Path

import common
import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

warnings.simplefilter("ignore")
logging.disable(logging.INFO)


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(common.SIZE))

    def training_step(self, batch, _):
        return ((self.weight[: batch.shape[-1]] - batch) ** 2).mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


class Say(Callback):
    def on_train_batch_start(self, trainer, *_):
        common.say("saving", trainer.global_step + 1)

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step > begin + 1:
            common.say("saved", trainer.global_step - 1)
        time.sleep(0.1)


def checked() -> Path | None:
    """Return the newest checkpoint. The links are made after it: one that is newer leads to it.

    While a checkpoint is saved they may lead to nothing, or the newest may be away.
    """
    files = sorted(common.FOLDER.glob("epoch*"), key=lambda path: path.stat().st_mtime_ns)
    for link in common.FOLDER.glob("last*"):
        if not link.is_symlink():
            raise SystemExit(f"mixed: {link.name} is no link")
        is_newer = files and link.lstat().st_mtime_ns > files[-1].stat().st_mtime_ns
        if is_newer and link.resolve() != files[-1]:
            raise SystemExit(f"mixed: {link.name} leads to {link.readlink()}")
    return files[-1] if files else None


begin, newest = 0, checked()
if newest:
    found = torch.load(newest, weights_only=False)
    adam = found["optimizer_states"][0]["state"][0]
    begin = common.same([found["global_step"], int(adam["step"])], newest.name)
common.say("resumed", begin)
keep = ModelCheckpoint(common.FOLDER, save_last="link", save_top_k=1, every_n_train_steps=1)
trainer = lightning.Trainer(
    max_steps=begin + common.STEPS,
    callbacks=[keep, Say()],
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    accelerator="cpu",
)
data = torch.utils.data.DataLoader(torch.ones(1000, 8))
trainer.fit(Model(), data, ckpt_path=newest, weights_only=False)
