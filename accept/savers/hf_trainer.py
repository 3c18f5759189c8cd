"""Hugging Face's Trainer with save_total_limit."""

import json
import time
from pathlib import Path

import common
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(common.SIZE))

    def forward(self, x, labels=None):
        return {"loss": ((self.weight[: x.shape[-1]] - x) ** 2).mean()}


class Say(TrainerCallback):
    def on_step_end(self, args, state, control, **_):
        common.say("saving", state.global_step)

    def on_save(self, args, state, control, **_):
        common.say("saved", state.global_step)
        time.sleep(0.1)


def of(name: str):
    return torch.load(f"{last}/{name}", weights_only=False)


def newest() -> str | None:
    """Return the newest checkpoint that was finished: its state is written last.

    The Trainer itself would take one that a kill has left unfinished, and fail.
    """
    whole = [path.parent for path in common.FOLDER.glob("checkpoint-*/trainer_state.json")]
    return str(max(whole, key=lambda path: int(path.name.partition("-")[2]))) if whole else None


last = newest()
step = 0
if last:
    step = common.same(
        [
            int(last.rpartition("-")[2]),
            json.loads(Path(f"{last}/trainer_state.json").read_text())["global_step"],
            int(of("optimizer.pt")["state"][0]["step"]),
            of("scheduler.pt")["last_epoch"],
        ],
        last,
    )
common.say("resumed", step)
options = TrainingArguments(
    output_dir=str(common.FOLDER),
    save_strategy="steps",
    save_steps=1,
    save_total_limit=2,
    max_steps=step + common.STEPS,
    per_device_train_batch_size=1,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
)
data = [{"x": torch.ones(8)} for _ in range(1000)]
Trainer(Model(), options, train_dataset=data, callbacks=[Say()]).train(resume_from_checkpoint=last)
