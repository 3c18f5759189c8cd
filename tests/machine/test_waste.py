"""Jobs whose accelerators do nothing: marked in the list, warned, and ended if they were to be."""

import json

import nvidia_smi
import pytest
from conftest import wait_for

GPU = ["-g", "1", "-t", "t4"]


def submit(berg, name: str, *wishes: str, **changes) -> None:
    """A job with a stand-in for nvidia-smi, one sample a second, and other fields of its own."""
    options = ("--install-script", "install.sh", "--sample-seconds", "1")
    started = berg.start("run", "-n", name, *options, *wishes, **changes)
    assert started.wait(60) == 0, started.communicate()


@pytest.mark.slow
def test_idle_gpus_are_marked_in_the_list_until_they_do_something(berg):
    nvidia_smi.bring(berg.repo, nvidia_smi.busy(0))
    command = "sleep 18; sed -i 's/0, 0,/0, 90,/' $(cat /tmp/answer); sleep 100"
    submit(berg, "lazy", *GPU, command, marked_seconds=4)
    wait_for(lambda: "its GPUs are idle for " in berg("list").stdout, 60)
    (told,) = json.loads(berg("list", "--json").stdout)
    assert told["idle"].keys() == {"lazy"} and told["idle"]["lazy"].endswith("Z")
    wait_for(lambda: "idle" not in berg("list").stdout, 60)
    assert berg.state("lazy")["state"] == "RUNNING" and berg.state("lazy")["idle"] == {}


@pytest.mark.slow
def test_a_job_whose_gpus_stay_below_is_warned_and_ended_with_its_results(berg):
    nvidia_smi.bring(berg.repo, nvidia_smi.busy(20, 3))
    wishes = [*GPU, "--min-utilization", "30", "--for", "0.3"]
    command = "echo here >$BERG_RESULTS_DIR/file; sleep 200"
    assert (
        berg(
            "run",
            "-n",
            "waste",
            "--install-script",
            "install.sh",
            "--sample-seconds",
            "1",
            *wishes,
            command,
        ).returncode
        == 0
    )
    wait_for(lambda: "its accelerators stay below 30 %; it ends at " in berg("list").stdout, 90)
    assert berg("wait", "waste").returncode == 143
    state, log = berg.state("waste"), berg.log("waste")
    assert state["state"] == "FAILED" and state["idle"] == {}
    assert (
        state["reason"] == "its accelerators stayed below 30 % for 0.3 minutes (--min-utilization)"
    )
    assert (
        "Warning: its accelerators stay below 30 %; the job ends in 0.1 minutes, unless they do more"
        in log
    )
    assert berg.bucket.read("berg_results/waste/file") == b"here\n"


@pytest.mark.slow
def test_a_job_that_does_something_in_time_goes_on(berg):
    nvidia_smi.bring(berg.repo, nvidia_smi.busy(0))
    wishes = [*GPU, "--min-utilization", "10", "--for", "0.3"]
    command = "sleep 12; sed -i 's/0, 0,/0, 90,/' $(cat /tmp/answer); sleep 12"
    done = berg(
        "run",
        "-n",
        "late",
        "--install-script",
        "install.sh",
        "--sample-seconds",
        "1",
        *wishes,
        "--wait",
        command,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "The accelerators do something again" in berg.log("late")
        and berg.state("late")["reason"] == ""
    )


@pytest.mark.slow
def test_of_a_cluster_all_machines_must_do_too_little(berg):
    nvidia_smi.bring(berg.repo, nvidia_smi.busy(0))
    wishes = [*GPU, "-m", "2", "--each", "--min-utilization", "10", "--for", "0.4"]
    command = '[ "$BERG_NODE_RANK" = 0 ] || sed -i "s/0, 0,/0, 90,/" $(cat /tmp/answer); sleep 45'
    submit(berg, "half", *wishes, command, marked_seconds=4, silence_seconds=9)
    wait_for(
        lambda: (
            "GPUs are idle: half-0 for " in (shown := berg("list").stdout)
            and "half-1 for" not in shown
        ),
        60,
    )
    assert berg("wait", "half").returncode == 0, berg.log("half")


@pytest.mark.slow
def test_what_nobody_tells_ends_no_job(berg):
    nvidia_smi.bring(berg.repo, "0, [N/A], 1024, 40960, [N/A], 41\n")
    with (berg.repo / "install.sh").open("a") as file:
        file.write("sleep 5\n")  # what is sampled while nothing runs yet counts for nothing
    wishes = [*GPU, "--min-utilization", "10", "--for", "0.1"]
    done = berg(
        "run",
        "-n",
        "mig",
        "--install-script",
        "install.sh",
        "--sample-seconds",
        "1",
        *wishes,
        "--wait",
        "sleep 10",
    )
    assert done.returncode == 0, done.stderr
    assert (
        "No accelerator here reports its use: until one does, --min-utilization has no effect"
        in berg.log("mig")
    )


@pytest.mark.parametrize(
    ("wishes", "said"),
    [
        (
            ["-g", "0", "--min-utilization", "10"],
            "--min-utilization is for jobs with GPUs or TPUs: this one has none",
        ),
        (
            [*GPU, "--min-utilization", "101"],
            "--min-utilization 101 is not possible: give percent, 1 to 100",
        ),
        (
            [*GPU, "--min-utilization", "5", "--sample-seconds", "0"],
            "needs at least two samples in --for 30 minutes",
        ),
        (
            [*GPU, "--min-utilization", "5", "--for", "0.5"],
            "two samples in --for 0.5 minutes: there is one every 30 s",
        ),
        (
            [*GPU, "--for", "10"],
            "--for needs --min-utilization",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(berg, wishes, said):
    refused = berg("run", *wishes, "true")
    assert refused.returncode == 1 and said in refused.stderr and berg.objects() == {}
