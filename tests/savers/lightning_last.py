"""Lightning's ModelCheckpoint: the newest one, and a link to it."""

import logging
import os
import time
import warnings

import common
import lightning
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

warnings.simplefilter("ignore")
logging.disable(logging.INFO)
LAST = common.FOLDER / "last.ckpt"


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


begin = 0
if os.path.lexists(LAST):
    if not LAST.is_symlink():
        raise SystemExit("mixed: last.ckpt is no link")
    if LAST.exists():
        found = torch.load(LAST, weights_only=False)
        adam = found["optimizer_states"][0]["state"][0]
        begin = common.same([found["global_step"], int(adam["step"])], str(LAST.resolve()))
    elif any(common.FOLDER.glob("epoch*")):
        raise SystemExit("mixed: last.ckpt leads to nothing")
elif any(common.FOLDER.glob("epoch*")):
    # it is away for a moment while it is made anew
    newest = max(common.FOLDER.glob("epoch*"), key=lambda path: path.stat().st_mtime)
    begin = torch.load(newest, weights_only=False)["global_step"]
    LAST.symlink_to(newest.name)
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
trainer.fit(Model(), data, ckpt_path=LAST if begin else None, weights_only=False)
