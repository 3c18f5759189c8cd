"""Search the hyperparameters of the digits example with Optuna: each trial is a job on a machine of its own.

Jobs whose test loss is above the median of the others' at the same epoch are killed. The study is a file: start the same
command again, and it goes on.
"""

import argparse
import time
from pathlib import Path

import optuna

import berg

CODE = Path(__file__).parent.parent / "digits"


def objective(trial, options):
    lr = trial.suggest_float("lr", 0.001, 1, log=True)
    hidden = trial.suggest_categorical("hidden", [16, 64, 256])
    name = f"{options.name}-{trial.number}"
    command = f"python train.py --epochs={options.epochs} --lr={lr} --hidden={hidden}"
    where = f"--logdir=/root/berg_results/{options.name}/{trial.number}"
    job = berg.run(
        f"{command} {where}", folder=CODE, name=name, gpus=0, max_hours=1, spot=options.spot
    )
    while not job.state.is_final:
        time.sleep(5)
        now = job.data()[
            "metrics"
        ]  # the last values of its metrics.jsonl; empty until there are any
        if "epoch" in now:
            trial.report(now["test_loss"], step=now["epoch"])
            if trial.should_prune():
                job.kill()
                raise optuna.TrialPruned
    if job.state.state != "SUCCEEDED":
        raise RuntimeError(f"{name} is {job.state.state}: {job.state.reason}")
    return job.data()["metrics"]["test_loss"]


def main():
    parser = argparse.ArgumentParser(description="Search hyperparameters with Optuna and berg.")
    parser.add_argument(
        "--name", default="tune", help="of the study, with which names of jobs begin"
    )
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--parallel", type=int, default=4, help="machines at the same time")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--spot", action="store_true")
    options = parser.parse_args()
    study = optuna.create_study(
        study_name=options.name, storage=f"sqlite:///{options.name}.db", load_if_exists=True
    )
    study.optimize(
        lambda trial: objective(trial, options),
        options.trials,
        n_jobs=options.parallel,
        catch=(RuntimeError,),  # a trial that failed; others go on
    )
    print(
        f"the best test loss is {study.best_value:.4f}, of {options.name}-{study.best_trial.number}"
    )
    print(study.best_params)


if __name__ == "__main__":
    main()
