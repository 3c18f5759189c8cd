"""A study of Optuna in a SQLite database."""

import sys

import common
import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
PATH = common.FOLDER / "study.db"
study = optuna.create_study(
    storage=f"sqlite:///{PATH}", study_name="study", load_if_exists=True, sampler=None
)
done = optuna.trial.TrialState.COMPLETE


def load() -> int:
    import sqlite3

    (answer,) = sqlite3.connect(PATH).execute("PRAGMA integrity_check").fetchone()
    if answer != "ok":
        sys.exit(f"torn: {answer}")
    trials = study.get_trials(states=[done])
    if [trial for trial in trials if "x" not in trial.params or trial.value is None]:
        sys.exit("mixed: a trial that is done has no value")
    return len(trials)


def save(step: int) -> None:
    study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=1)


common.STEPS = 5000
common.run(load, save, pause=0.01)
