"""A SQLite database, in which each transaction changes two tables."""

import sqlite3
import sys

import common

PATH = common.FOLDER / "runs.db"
database = sqlite3.connect(PATH, isolation_level=None)
database.execute(f"PRAGMA journal_mode={'WAL' if len(sys.argv) > 4 else 'DELETE'}")
database.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER PRIMARY KEY, text)")
database.execute("CREATE TABLE IF NOT EXISTS total (id INTEGER PRIMARY KEY, count)")
database.execute("INSERT OR IGNORE INTO total VALUES (1, 0)")


def load() -> int:
    (answer,) = database.execute("PRAGMA integrity_check").fetchone()
    if answer != "ok":
        sys.exit(f"torn: {answer}")
    (rows,) = database.execute("SELECT count(*) FROM steps").fetchone()
    (last,) = database.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()
    (count,) = database.execute("SELECT count FROM total").fetchone()
    return common.same([rows, last, count], "runs.db")


def save(step: int) -> None:
    database.execute("BEGIN")
    database.execute("INSERT INTO steps VALUES (?, ?)", (step, "x" * 20_000))
    database.execute("UPDATE total SET count = count + 1")
    database.execute("COMMIT")


common.STEPS = 5000
common.run(load, save, pause=0.02)
