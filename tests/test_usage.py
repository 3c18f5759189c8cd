"""How busy machines are: samples beside their logs, which no fault of nvidia-smi disturbs."""

import json
from pathlib import Path

import pytest
from conftest import Cloud, commit

from berg import usage

ANSWER = "0, 98, 1024, 4096, 350.5, 61\n1, [N/A], 3072, 4096, [N/A], 30\n"
# What an image with GPUs has: among the machine's own programs.
BRING = 'cp nvidia-smi "$(echo "$PATH" | tr : "\\n" | grep -m 1 usr/local/sbin)"'


def smi(project: Path, script: str) -> list[str]:
    """Options of a job on whose machine nvidia-smi is this script."""
    (project / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (project / "nvidia-smi").chmod(0o755)
    commit(project)
    return ["-g", "0", "--install", BRING, "--wait"]


def test_samples_are_beside_the_log_and_shown_after_the_job(cloud: Cloud, project: Path) -> None:
    words = smi(project, f"printf '{ANSWER}'")
    cmd = "until grep -q 350.5 /root/berg/*.usage.jsonl; do sleep 0.2; done"
    cloud.ok("run", "-n", "busy", *words, cmd, cwd=project)
    log, file = sorted(cloud.names(".berg/logs/busy/"))
    assert file == log.removesuffix(".log") + ".usage.jsonl"
    samples = [json.loads(line) for line in cloud.read(file).splitlines()]
    assert samples[-1]["cpu_percent"] > 0 and samples[-1]["memory_percent"] > 0
    assert samples[-1]["gpus"][1]["percent"] is None and samples[-1]["gpus"][0]["watt"] == 350.5
    shown = json.loads(cloud.run("show", "busy", "--json").out)["usage"]
    assert shown["GPU"] == {"mean": 98, "peak": 98} and shown["GPU memory"]["peak"] == 50
    assert "GPU 98 % (peak 98 %), GPU memory 50 % (peak 50 %), CPU" in cloud.run("show", "busy").out


@pytest.mark.slow
def test_an_nvidia_smi_that_hangs_hurts_no_job(cloud: Cloud, project: Path) -> None:
    words = smi(project, "exec sleep 60")
    cloud.ok("run", "-n", "stuck", *words, "sleep 8", cwd=project)
    assert "left running" not in cloud.log("stuck"), cloud.log("stuck")


def test_a_driver_that_hangs_costs_the_gpus_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 2\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name, value in {"FIRST": 0, "EVERY": 0, "PATIENCE": 0.5}.items():
        monkeypatch.setattr(usage, name, value)
    spared: set[int] = set()
    sampler = usage.Sampler(tmp_path / "m.usage.jsonl", spared)
    sampler.look()
    assert not sampler.file.exists() and len(spared) == 1
    sampler.next -= 1
    sampler.look()
    assert usage.parse(sampler.file.read_bytes())[0]["gpus"] == []
    assert usage.Sampler.asked
    usage.Sampler.asked.wait()
    program.write_text(f"#!/bin/sh\nprintf '{ANSWER}'\n")
    sampler.look()  # takes what that one said, which is nothing
    assert not spared
    for _ in range(2):
        sampler.look()
        if usage.Sampler.asked:
            usage.Sampler.asked.wait()
    assert usage.parse(sampler.file.read_bytes())[-1]["gpus"][0]["percent"] == 98


def test_what_is_no_sample_is_skipped() -> None:
    sample = {"time": 5, "cpu_percent": "x", "gpus": [{"index": 0, "percent": 40}], "more": 1}
    lines = ["{", "[]", "7", '{"time": 1}', '{"time": "1", "gpus": []}', json.dumps(sample), '{"ti']
    found = usage.parse("\n".join(lines).encode())
    assert len(found) == 1 and usage.shares(found[0]) == {"GPU": 40}
