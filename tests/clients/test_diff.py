"""What differs between two jobs, and nothing else."""

import json
from pathlib import Path

from conftest import Cloud
from records import put, put_row

from berg import code as code_


def test_rows_long_values_and_code_are_compared(cloud: Cloud, project: Path) -> None:
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
    for name, text in (("code-a", "1"), ("code-b", "2")):
        (project / "train.py").write_text(f"{text}\n")
        code_.send(taken := code_.take(project), cloud.bucket)
        put(cloud, name, job={"code": taken.record(), "env": {"A": text}})
    git = project / ".git"  # where a hook of git's says so: another repository is looked at
    out = cloud.ok("diff", "code-a", "code-b", GIT_DIR=str(git)).out
    assert "bare = true" not in (git / "config").read_text()
    assert "\nenv A  1       2\n" in out and "\n-1\n+2\n" in out and "machine type" not in out, out
    assert cloud.run("diff", "code-a", "code-b", "--stat").out.endswith(" 1 deletion(-)\n")
    same = json.loads(cloud.run("diff", "code-a", "code-a", "--json").out)
    assert same == {"names": ["code-a"] * 2, "differences": [], "metrics": [], "code": ""}
