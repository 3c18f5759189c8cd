"""The story of a job from outside, as the README tells it."""

import re

from accept.suite import all_hold, check, row
from accept.world import Trial


@row(
    "story",
    "a job that failed: list, show, wait and log know it, its machine goes, and berg rm leaves nothing",
    is_real=True,
    usd=0.04,
    is_sample=True,
)
def first_job(t: Trial) -> None:
    job, script = t.name(), "echo said it; echo wrote it > $BERG_RESULTS_DIR/out; exit 7"
    tailed = t.berg("run", "-g", "0", "-n", job, "--note", "a note", "--tail", script)
    shown, listed = t.ok("show", job).out, t.ok("list").out
    absent = [
        what for what in (job, "FAILED exit code 7", "a note", "said it") if what not in shown
    ]
    all_hold(
        {
            f"run --tail: exit {tailed.code}, {tailed.out!r}": tailed.code == 7
            and "said it" in tailed.out,
            f"berg wait: exit {t.berg('wait', job).code}": t.berg("wait", job).code == 7,
            f"berg show lacks {absent}": not absent,
            "berg log lacks the output": "said it" in t.ok("log", job).out,
            f"berg list lacks it: {listed}": re.search(rf"{job} .*FAILED", listed),
            "the result is not in the bucket": t.results(job).get("out") == b"wrote it\n",
        }
    )
    t.gone()
    t.ok("rm", "-y", job)
    left = [
        name for name in t.cloud.objects("") if job in name and not name.startswith(".berg/bud")
    ]
    check(not left, f"berg rm left {', '.join(left[:3])}")
