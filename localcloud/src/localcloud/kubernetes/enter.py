"""What a container of an image does last: makes the image its root, and runs its command.

    enter.py UP WHO ROOT WORKDIR own|shared CAPABILITIES COMMAND...

WHO is written to the descriptor UP once the root is the container's: from then on it can be entered.
With `own` the command is process 1; with `shared` process 1 is one that reaps, as Kubernetes'
pause. From the change of roots on nothing of this host is there, so that what is needed is imported
before.
"""

import ctypes
import fcntl
import os
import shutil
import signal
import sys
import termios
from pathlib import Path

DETACH = 2  # MNT_DETACH
DROP = 24  # PR_CAPBSET_DROP
# As the kernel counts them.
CAPABILITIES = (
    "chown dac_override dac_read_search fowner fsetid kill setgid setuid setpcap linux_immutable net_bind_service "
    "net_broadcast net_admin net_raw ipc_lock ipc_owner sys_module sys_rawio sys_chroot sys_ptrace sys_pacct sys_admin "
    "sys_boot sys_nice sys_resource sys_time sys_tty_config mknod lease audit_write audit_control setfcap mac_override "
    "mac_admin syslog wake_alarm block_suspend audit_read perfmon bpf checkpoint_restore"
)
NOT_FOUND, NOT_STARTED = 127, 128


def main() -> None:
    up, who, root, workdir, namespace, capabilities, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(root)
    # the old root lies on top until then
    if libc.pivot_root(b".", b".") or libc.umount2(b".", DETACH):
        raise OSError(ctypes.get_errno(), "the image cannot become the root")
    os.chdir("/")
    os.write(int(up), f"{who}\n".encode())
    os.close(int(up))
    Path(workdir).mkdir(parents=True, exist_ok=True)
    os.chdir(workdir)
    program = shutil.which(command[0])
    if program is None:
        print(f'exec: "{command[0]}": executable file not found in $PATH', file=sys.stderr)
        sys.exit(NOT_FOUND)
    main_process = os.fork() if namespace == "shared" else 0
    if not main_process:
        if os.isatty(0):
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 1)
        limit(libc, capabilities)
        try:
            os.execv(program, command)
        except OSError as error:
            print(f"exec {program}: {(error.strerror or '').lower()}", file=sys.stderr)
            sys.exit(NOT_STARTED)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)  # it goes with its pod, and not before
    while True:
        process, status = os.wait()
        if process == main_process:
            code = os.waitstatus_to_exitcode(status)
            sys.exit(code if code >= 0 else 128 - code)


def limit(libc: ctypes.CDLL, words: str) -> None:
    """Let what is run next have no capabilities but these, which are in setpriv's words; the image
    may lack that.
    """
    kept = words.split(",")
    for number, name in enumerate(CAPABILITIES.split()):
        if f"+{name}" not in kept and "+all" not in kept:
            libc.prctl(DROP, number, 0, 0, 0)  # refused for one that this kernel does not know


main()
