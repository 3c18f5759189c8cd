"""What differs between two jobs, and nothing else."""

import json
from pathlib import Path

import pytest
from conftest import Cloud

TRAIN = "echo '{\"loss\": %s}' > $BERG_RESULTS_DIR/metrics.jsonl"


@pytest.mark.slow
def test_two_jobs_differ_in_command_code_environment_and_metrics(
    cloud: Cloud, project: Path
) -> None:
    options = ["-g", "0"]
    for name, loss, env in (("one", "0.5", "A=1"), ("two", "0.25", "A=2")):
        (project / "train.py").write_text(f"print({loss})\n")
        words = ["run", *options, "-n", name, "--env", env, TRAIN % loss]
        assert cloud.run(*words, cwd=project).code == 0
    assert [cloud.run("wait", name).code for name in ("one", "two")] == [0, 0]
    done = cloud.run("diff", "one", "two")
    assert done.code == 0, done.err
    lines = [line.split() for line in done.out.splitlines()]
    assert ["env", "A", "1", "2"] in lines and ["loss", "0.5", "0.25"] in lines
    assert "-print(0.5)\n+print(0.25)\n" in done.out and "machine type" not in done.out
    assert "+print" not in cloud.run("diff", "one", "two", "--stat").out
    same = json.loads(cloud.run("diff", "one", "one", "--json").out)
    assert same == {"names": ["one", "one"], "differences": [], "metrics": [], "code": ""}
    refused = cloud.run("diff", "one", "three")
    assert refused.code == 1 and "there is no job 'three'" in refused.err
