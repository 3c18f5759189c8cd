"""`berg kill`: what it says at once, and what it says to who leaves it."""

import signal

import pytest
from conftest import wait_for


@pytest.mark.slow
def test_ctrl_c_says_what_becomes_of_the_job_and_does_not_wait_for_it(berg, tmp_path):
    stubborn = "trap '' TERM; echo begun; while true; do sleep 1; done"
    assert berg("run", "-g", "0", "-n", "stubborn", stubborn).returncode == 0
    wait_for(lambda: "begun" in berg.log("stubborn"), 60, "the command")
    killing = berg.start("kill", "stubborn")
    assert killing.stderr.readline() == "Ending stubborn\n"
    told = lambda: any("berg-kill-stubborn" in str(each) for each in berg.machines().values())
    wait_for(told, 30, "the word to the machine")
    killing.send_signal(signal.SIGINT)
    _, rest = killing.communicate(timeout=10)  # the command has 30 s
    assert killing.returncode == 130
    assert "berg: interrupted\n" in rest
    assert "stubborn is RUNNING, and ends without you if it already got the request.\n" in rest
    assert "See it:  berg show stubborn\nEnd it:  berg kill stubborn\n" in rest
    assert berg("kill", "--now", "stubborn").returncode == 0
