"""The smallest rows: a job runs, its results and log are in the bucket, its machine is gone."""

from accept.suite import check, row
from accept.world import Trial


@row(
    "story",
    "a job's results, log and exit code are in the bucket, and its machine is gone",
    is_real=True,
    usd=0.02,
    is_sample=True,
)
def first_job(t: Trial) -> None:
    job = t.run("echo said it; echo wrote it > $BERG_RESULTS_DIR/out; exit 3")
    state = t.ended(job, "FAILED")
    check(state["exit_code"] == 3, f"exit code {state['exit_code']}")
    check(t.results(job).get("out") == b"wrote it\n", "the result is not in the bucket")
    check("said it" in t.ok("log", job).out, "berg log lacks the output")
    t.gone()
