"""Checkpoints of the packages that people use, on Spot machines that Google takes while they save:
each resumes from a checkpoint that is whole, and no older than promised.

The programs in accept/savers say what they resumed from, and when each save began and ended. They
import their packages from the environment that runs the suite.
"""

import importlib.util
import re
import sysconfig
import time
from pathlib import Path
from typing import Any

from accept.suite import Missing, Red, check, row
from accept.world import FINAL, Trial

SAVERS = Path(__file__).parent / "savers"
ALONE = "GLOO_SOCKET_IFNAME=lo HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES= WANDB_MODE=offline"
TOLD = re.compile(r"^(resumed|saving|saved) (\d+) ([\d.]+)$", re.M)


def steps(t: Trial, job: str) -> dict[str, list[tuple[int, float]]]:
    """Steps and times of what the programs said so far; red if one of them found a bad checkpoint."""
    log = t.log(job)
    if bad := re.search(r"^(mixed|torn): .*$", log, re.M):
        raise Red(bad[0])
    if (state := t.state(job)).get("state") in FINAL:
        raise Red(
            f"the job ended {state['state']}: {state.get('reason')}: {log.strip().splitlines()[-1:]}"
        )
    told = TOLD.findall(log)
    words = ("resumed", "saving", "saved")
    return {word: [(int(n), float(at)) for what, n, at in told if what == word] for word in words}


def saver(
    t: Trial,
    program: str,
    package: str,
    machines: int = 1,
    says_saved: bool = True,
) -> str:
    """Preempt a saver twice, with notice and without, and see what it resumes from."""
    if importlib.util.find_spec(package.partition(".")[0]) is None:
        raise Missing(f"the suite's own python has no {package}: make .venv/savers")
    t.files({f"{name}.py": (SAVERS / f"{name}.py").read_text() for name in ("common", program)})
    site = sysconfig.get_paths()["purelib"]
    command = f"{ALONE} SAVERS_STEPS=100000 PYTHONPATH={site} python {program}.py $BERG_RESULTS_DIR"
    many = ["-m", str(machines), "--each"] if machines > 1 else []
    job = t.run(f"{command} $BERG_NODE_RANK $BERG_NUM_NODES", "--spot", *many)
    told = []

    def last_save() -> int:
        return max((step for step, _ in steps(t, job)["saving"]), default=0)

    def has_resumed(attempt: int) -> Any:
        found = steps(t, job)
        return len(found["resumed"]) >= attempt * machines and found

    for attempt, cut in enumerate(["power loss", "preemption", "power loss"], 1):
        t.until(lambda n=attempt: has_resumed(n), f"attempt {attempt}", 150, 0.5)
        enough = last_save() + (3 if attempt > 1 else 6)
        t.until(lambda n=enough: last_save() > n, "saves", 120, 0.3)
        time.sleep(t.dice.uniform(8, 14) if attempt == 1 else t.dice.uniform(2, 6))
        at, victim = time.time(), t.machines(job)[t.dice.randrange(machines)]["name"]
        t.power(victim, "preempt" if cut == "preemption" else "crash", grace=25)
        found = t.until(lambda n=attempt: has_resumed(n + 1), f"attempt {attempt + 1}", 150, 0.5)
        latest = sorted(found["resumed"], key=lambda told: told[1])[-machines:]
        resumed = {step for step, _ in latest}
        check(len(resumed) == 1, f"the machines resumed from different steps: {sorted(resumed)}")
        (step,) = resumed
        until = at if cut == "preemption" else at - 30
        ready = [s for s, when in found["saved"] if when <= until and says_saved]
        sure = max([*ready, *(s for s, when in found["resumed"] if when <= at)])
        last = max(s for s, when in found["saving"] if when <= at + 30)
        if cut == "power loss":  # its last lines are lost, too
            last = max(last, step)
        check(sure <= step <= last, f"after a {cut} it resumed from {step}, not {sure} to {last}")
        told.append(f"{cut}: {step} of {last}")
    check(step > 0, "it never got further than its first attempt")
    t.ok("kill", "-y", job)
    return ", ".join(told)


for program, package, given in [
    ("torch_one_file", "torch", {}),
    ("hf_trainer", "transformers", {}),
    ("torch_dcp", "torch", {"machines": 2}),
    ("orbax_manager", "orbax.checkpoint", {}),
    ("lightning_last", "lightning", {}),
    ("optuna_study", "optuna", {}),
    ("wandb_offline", "wandb", {"says_saved": False}),
]:
    row(
        "savers",
        f"{program.replace('_', ' ')} resumes from what was whole and at most 30 s old",
        program.replace("_", " "),
        program=program,
        package=package,
        minutes=10,
        **given,
    )(saver)
