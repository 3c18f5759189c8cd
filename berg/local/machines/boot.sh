#!/bin/bash
# Boots one machine: builds its root file system, moves into it, and is its first process from then on.
#
#   unshare --mount --uts --ipc --pid --fork boot.sh overlay|bind FOLDER IMAGE NAME BIND...
#   boot.sh plain FOLDER IMAGE NAME
#
# FOLDER is prepared by machines.py: rootfs/ (the skeleton), upper/ and work/ (for overlays), serial.log
# (standard output here: the serial console). IMAGE holds the image's /root. Each BIND is a host folder that
# the machine sees read-only at the same path: the python that berg itself runs on.
#
# SIGTERM is the power button. Nothing here interprets user input: every argument stays one word.

set -u

mount_overlay() { # FOLDER-UNDER-ROOT LOWER
    mount -t overlay overlay \
        -o "lowerdir=$2,upperdir=$folder/upper/$1,workdir=$folder/work/$1$overlay_options" "$new/$1"
}

bind_read_only() { # HOST-FOLDER
    mkdir -p "$new$1"
    mount --bind "$1" "$new$1"
    # In a user namespace the host may have locked other mount flags, and then this is refused.
    mount -o remount,bind,ro "$new$1" 2>/dev/null || :
}

build_root() { # BIND...
    local name path overlay_options=""
    [[ $(</proc/self/uid_map) =~ 4294967295 ]] || overlay_options=,userxattr
    new=$folder/rootfs
    mount --bind "$new" "$new"
    for name in usr etc var opt srv; do
        [[ -d /$name ]] || continue
        if [[ $mode == overlay ]]; then mount_overlay $name /$name; else bind_read_only /$name; fi
    done
    for name in bin sbin lib lib32 lib64 libx32; do
        if [[ -L /$name ]]; then
            ln -sfn "$(readlink /$name)" "$new/$name"
        elif [[ -d /$name ]]; then
            bind_read_only /$name
        fi
    done
    if [[ $mode == overlay ]]; then
        mount_overlay root "$image"
    else
        for name in hosts hostname resolv.conf; do
            [[ ! -e /etc/$name ]] || mount --bind "$folder/upper/etc/$name" "$new/etc/$name"
        done
    fi
    # Its own settings and host key of ssh; the host's keys are not to be seen.
    [[ ! -d $new/etc/ssh ]] || mount --bind "$folder/ssh" "$new/etc/ssh"
    for path; do bind_read_only "$path"; done
    mount -t proc proc "$new/proc"
    mount --rbind /sys "$new/sys"
    mount --rbind /dev "$new/dev"
    mount -t tmpfs -o mode=1777 tmpfs "$new/dev/shm"
    hostname "$machine_name" # the file in /proc/sys is not for the root of a user namespace
}

enter_root() {
    cd "$folder/rootfs"
    pivot_root . old
    cd /
    umount -l /old
    rmdir /old
}

start_sshd() {
    [[ -e /etc/ssh/sshd_config ]] || return
    umask 022
    mkdir -p /run/sshd
    : >/run/utmp # who is logged in; `who` and `wall` read it
    # Where root has no password, its account is locked for a server without PAM.
    grep -q '^root:!' /etc/shadow && sed -i 's/^root:!\+/root:*/' /etc/shadow
    local key=/etc/ssh/ssh_host_ed25519_key
    if [[ ! -e $key.pub ]]; then
        rm -f $key
        ssh-keygen -q -t ed25519 -N '' -C "root@$machine_name" -f $key
    fi
    [[ -e /etc/ssh/passwd ]] || exec /usr/sbin/sshd -D -E /run/sshd.log
    # In a user namespace the server must not be root; see sshd.py.
    exec unshare --mount bash -c '
        for name in passwd group shadow; do mount --bind /etc/ssh/$name /etc/$name || exit; done
        exec unshare --user --map-user=1000 --map-group=1000 /usr/sbin/sshd -D -E /run/sshd.log'
}

say() { # MESSAGE: one line on the console, as the guest environment of Google's images writes it
    printf '%(%b %e %T)T %s google_metadata_script_runner[%d]: %s\n' -1 "$machine_name" $$ "$1"
}

# Copies a script's output to the console. Like Google's reader it gives up at a line over 64 KB, and the
# script then writes into a closed pipe.
console() { # SCRIPT-NAME
    local line
    local LC_ALL=C
    while IFS= read -r -n 65536 line || [[ -n $line ]]; do
        if ((${#line} == 65536)); then
            say "$1: bufio.Scanner: token too long"
            return
        fi
        say "$1: $line"
    done
}

run_script() { # SCRIPT-NAME FILE
    local magic reader status
    [[ -e $2 ]] || { say "No startup scripts to run."; return; }
    say "Found $1 in metadata."
    read -r -n 2 magic <"$2"
    # The reader outlives the power button: what a script says when it is told to stop is still heard.
    exec {to_console}> >(trap '' TERM; console "$1")
    reader=$!
    if [[ $magic == '#!' ]]; then
        "$2" >&$to_console 2>&1 {to_console}>&- {idle}>&- </dev/null &
        wait $!
        status=$?
        exec {to_console}>&-
        to_console=
        wait $reader
        say "$1 exit status $status"
    else
        exec {to_console}>&-
        to_console=
        say "Script \"$1\" failed with error: fork/exec $2: exec format error"
    fi
    say "Finished running startup scripts."
}

power_off() {
    trap '' TERM
    [[ $mode != plain ]] || exit 0 # machines.py finds and signals the processes of a plain machine itself
    say "Powering off: SIGTERM to every process."
    [[ -z $to_console ]] || exec {to_console}>&- # or the reader would never see the end
    kill -TERM -1
    local processes=(/proc/[0-9]*)
    while ((${#processes[@]} > 1)); do
        read -r -t 0.02 <&$idle # a wait that starts no process
        processes=(/proc/[0-9]*)
    done
    exit 0
}

main() {
    mode=$1 folder=$2 image=$3 machine_name=$4
    shift 4
    trap power_off TERM
    exec {idle}<> <(:)
    to_console=
    # The process id as the host counts it, and the start time that tells a reused id apart.
    local stat script=/tmp/metadata-scripts/startup-script
    read -r -a stat </proc/self/stat
    cd "$folder"
    if [[ $mode == plain ]]; then
        export BERG_MACHINE=$folder BERG_ROOT=$folder/root HOME=$folder/root
        script=$folder/rootfs$script
        cd "$HOME"
        echo "${stat[0]} ${stat[21]}" >"$folder/init.pid"
    else
        set -e
        build_root "$@"
        echo "${stat[0]} ${stat[21]}" >"$folder/init.pid"
        enter_root
        set +e
        cd "${HOME:-/}"
    fi
    [[ $mode == plain ]] || start_sshd {idle}>&- </dev/null &
    run_script startup-script "$script"
    while :; do
        sleep infinity {idle}>&- &
        wait $!
    done
}

main "$@"
