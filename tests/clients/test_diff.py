"""What differs between two jobs, and nothing else."""

import json
from pathlib import Path

import pytest
from conftest import Cloud
from records import put, put_row

TRAIN = "echo '{\"loss\": %s}' > $BERG_RESULTS_DIR/metrics.jsonl"


@pytest.mark.slow
def test_two_jobs_differ_in_command_code_environment_and_metrics(
    cloud: Cloud, project: Path
) -> None:
    for name, loss, env in (("one", "0.5", "A=1"), ("two", "0.25", "A=2")):
        (project / "train.py").write_text(f"print({loss})\n")
        words = ["run", "-g", "0", "-n", name, "--env", env, "--wait", TRAIN % loss]
        assert cloud.run(*words, cwd=project).code == 0
    done = cloud.ok("diff", "one", "two")
    lines = [line.split() for line in done.out.splitlines()]
    assert ["env", "A", "1", "2"] in lines and ["loss", "0.5", "0.25"] in lines
    assert "-print(0.5)\n+print(0.25)\n" in done.out and "machine type" not in done.out
    assert "+print" not in cloud.run("diff", "one", "two", "--stat").out
    same = json.loads(cloud.run("diff", "one", "one", "--json").out)
    assert same == {"names": ["one", "one"], "differences": [], "metrics": [], "code": ""}
    cloud.fails("diff", "one", "three", says="there is no job 'three'")


def test_rows_and_long_values_are_compared(cloud: Cloud) -> None:
    job = {"cmd": "train {lr}", "rows": [{"lr": "1"}, {"lr": "2" * 90}], "env": {"A": "1"}}
    sweep = put(cloud, "compared", "FAILED", job=job)
    for number, content in enumerate(
        (b'{"loss": 0.5, "same": 1}\n', b'{"loss": 0.25, "same": 1}\n{oops\n')
    ):
        put_row(cloud, sweep, number, "SUCCEEDED", exit_code=0)
        cloud.bucket.write(f"berg_results/compared/{number}/metrics.jsonl", content)
    done = cloud.run("diff", "compared/0", "compared/1")
    assert done.code == 0 and "1 line of compared/1's metrics.jsonl" in done.err, done.err
    assert done.out == (
        f"command\n- train 1\n+ train {'2' * 90}\n\n"
        "last value  compared/0  compared/1\nloss        0.5         0.25\n\n"
        "The code is the same.\n"
    )
    told = json.loads(cloud.run("diff", "compared/0", "compared/1", "--json").out)
    assert told["metrics"] == [{"what": "loss", "first": "0.5", "second": "0.25"}]
    assert [row["what"] for row in told["differences"]] == ["command"] and told["code"] == ""
    code = {"head": "", "commit": "0" * 40, "changed": [], "object": ".berg/repos/none"}
    put(cloud, "codeless", job={"code": code})
    gone = "the code of compared is not in the bucket any more"
    cloud.fails("diff", "compared", "codeless", says=gone)
