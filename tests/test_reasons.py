"""The line of an output that says what failed, as tables; and a limit that was met."""

from pathlib import Path

import pytest
from conftest import Cloud

from berg.reasons import of_command, of_installer

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    boo()\n'
TORCHRUN = (
    "".join(f"[rank0]: {line}\n" for line in f"{TRACE}KeyError: 'lr'".splitlines())
    + "E1129 10:00:00 api.py:984] failed (exitcode: 1) local_rank: 0 (pid: 12) of binary: /usr/bin/python\n"
    + f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n====\n"
    + "train.py FAILED\nFailures:\n  <NO_OTHER_FAILURES>\nRoot Cause (first observed failure):\n[0]:\n"
    + "  exitcode  : 1 (pid: 12)\n  error_file: <N/A>\n  traceback : To enable traceback see: errors.html\n"
)
MPI = (
    "Primary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n"
)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (f"{TRACE}KeyError: 'lr'\n", "KeyError: 'lr'"),
        (f"{TRACE}omegaconf.errors.MissingMandatoryValue: lr\n    full_key: lr\n",
         "omegaconf.errors.MissingMandatoryValue: lr"),
        (f"{TRACE}RuntimeError: Error(s) for Net:\n\tMissing key(s): fc\n",
         "RuntimeError: Error(s) for Net: Missing key(s): fc"),
        (TORCHRUN, "KeyError: 'lr'"),
        (f"{TRACE}ValueError: a\n{MPI}", "ValueError: a"),
        (f"{TRACE}KeyError: 'x'\n\nDuring handling of\n\n{TRACE}hydra.errors.Inst: y\nfull_key: z\n",
         "hydra.errors.Inst: y"),
        (f"{TRACE}KeyError: 'a'\nException ignored in: <f>\n{TRACE}AttributeError: b\n", "KeyError: 'a'"),
        ("bash: line 1: pyhton: command not found\n", "bash: line 1: pyhton: command not found"),
        ("python: can't open file '/x/trian.py': [Errno 2] No such file or directory\n",
         "python: can't open file '/x/trian.py': [Errno 2] No such file or directory"),
        ("usage: t.py [-h]\nt.py: error: unrecognized arguments: --foo\n",
         "t.py: error: unrecognized arguments: --foo"),
        ("epoch 1\nthe configuration is wrong\n[berg] Ended 2 processes\n", "the configuration is wrong"),
        ("", ""),
        ("\x1b[31mError: no\x1b[0m such key\nbye\n", "Error: no such key"),
        ("[1,0]<stderr>:ValueError: mpi\nbye\n", "ValueError: mpi"),
        ("(main pid=12, ip=10.0.0.1) ValueError: ray\nbye\n", "ValueError: ray"),
        ("[default3]:OSError: launched\nbye\n", "OSError: launched"),
        ("ValueError: first\nRuntimeError: last\nbye\n", "RuntimeError: last"),
        ("ValueError: long ago\n" + "epoch\n" * 80, "epoch"),
        ("ValueError: not so long ago\n" + "epoch\n" * 79, "ValueError: not so long ago"),
        ("ValueError: " + "x" * 400, "ValueError: " + "x" * 288),
        ("a.c:1:2: fatal error: no.h\nbye\n", "a.c:1:2: fatal error: no.h"),
        ("make: *** No rule to make target 'x'.\nbye\n", "make: *** No rule to make target 'x'."),
        ("sh: line 1: 12 Killed python3 x\nbye\n", "sh: line 1: 12 Killed python3 x"),
        ("Segmentation fault (core dumped)\nbye\n", "Segmentation fault (core dumped)"),
        ("KeyboardInterrupt\nbye\n", "KeyboardInterrupt"),
        ("panic: it broke\nbye\n", "panic: it broke"),
        ("the error rate is 5\nbye\n", "bye"),
        ("subprocess.CalledProcessError: Command 'x' returned 1\n",
         "subprocess.CalledProcessError: Command 'x' returned 1"),
        ("ValueError: why\nsubprocess.CalledProcessError: Command 'x' returned 1\n", "ValueError: why"),
        ("  last line  \n\n", "last line"),
        ("ls: x: Permission denied\nbye\n", "ls: x: Permission denied"),
        ("sh: 1: x: not found\nnot found by me\n", "sh: 1: x: not found"),
        ("sh: line 1: 12 Aborted python3 x\nbye\n", "sh: line 1: 12 Aborted python3 x"),
        ("SystemExit: 3\nbye\n", "SystemExit: 3"),
        ("fatal: not a git repository\nbye\n", "fatal: not a git repository"),
        (f"{TRACE}RuntimeError: Error(s) for Net:\n\tMissing key(s): fc\n\tand more\n",
         "RuntimeError: Error(s) for Net: Missing key(s): fc"),
        (f"  + Exception Group {TRACE[:36]}  |   File \"x.py\"\n  | ExceptionGroup: two (1 sub-exception)\n"
         "  +-+---------------- 1 ----------------\n    | ValueError: of a task\n"
         "    +------------------------------------\n", "ValueError: of a task"),
        (f"ValueError: in a process\n{TRACE}torch.ProcessRaisedException: one\n",
         "ValueError: in a process"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failed_command(output: str, says: str) -> None:
    assert of_command(output) == says


@pytest.mark.parametrize(
    ("output", "says"),
    [
        ("Using\n  × No solution found:\n  ╰─▶ Because x was\n      not found.\n\n  hint: y\n",
         "No solution found: Because x was not found."),
        ("error: The lockfile needs to be updated.\n\nhint: To update it\n",
         "The lockfile needs to be updated."),
        ("  × Failed to build `foo`\n  ├─▶ The backend\n\n      [stderr]\n      Traceback\n"
         "      ModuleNotFoundError: No module named 'torch'\n\n      hint: z\n",
         "Failed to build `foo`: ModuleNotFoundError: No module named 'torch'"),
        ("  error: subprocess-exited-with-error\n\n  × setup.py did not run.\n  │ exit code: 1\n"
         "      ModuleNotFoundError: No module named 'torch'\nnote: x\nERROR: Failed to build\n",
         "setup.py did not run: ModuleNotFoundError: No module named 'torch'"),
        ("ERROR: No matching distribution found for x\nWARNING: pip\n",
         "No matching distribution found for x"),
        ("one\nlast line\n\n", "last line"),
        ("", ""),
        ("fatal: no repository\nmore\n", "fatal: no repository"),
        ("\x1b[31merror\x1b[0m: Failed\n  Caused by: it\n  Caused by: broke\nhint: no\n",
         "Failed Caused by: it Caused by: broke"),
        ("error: Failed\n├─▶ one\n╰─▶ two\n\nnot of it\n", "Failed one two"),
        ("error: Failed\n├─▶ one\nerror: another\n", "Failed one"),
        ("error: a" + "b" * 400 + "\nCaused by: c" + "d" * 400 + "\n",
         "a" + "b" * 149 + " … " + "d" * 150),
        ("ERROR: Could not build.\nx.c:1: fatal error: y.h: none\nbuild: not found\n",
         "Could not build: build: not found"),
    ],
)  # fmt: skip
def test_the_reason_of_a_failed_installation_is_its_own_error(output: str, says: str) -> None:
    assert of_installer(output) == says


@pytest.mark.slow
def test_a_limit_that_is_met_while_installing_says_so(cloud: Cloud, project: Path) -> None:
    words = ["-g", "0", "-n", "slow-install", "--max-hours", "0.02", "--install", "sleep 100"]
    says = "(--max-hours) while it was INSTALLING"
    cloud.fails("run", *words, "--wait", "true", cwd=project, says=says)
