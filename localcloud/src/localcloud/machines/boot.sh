#!/bin/bash
# Boots one machine: builds its root file system, moves into it, and is its first process from then on.
#
#   unshare --mount --uts --ipc --pid --fork boot.sh overlay FOLDER IMAGE NAME BIND...
#   boot.sh plain FOLDER IMAGE NAME
#
# FOLDER is prepared by sandbox.py: rootfs/ (the skeleton), upper/ and work/ (for overlays), serial.log
# (standard output here: the serial console). IMAGE holds the image's /root. Each BIND is a host folder that the machine sees read-only at the same path: the
# python that berg itself runs on.
#
# SIGTERM is the power button: what follows is what systemd does on Google's images. At once the reader of the
# startup script's output gets it, no other process of google-startup-scripts.service (KillMode=process), and every unit
# that `systemctl` began (systemctl.sh). What waits for the network at the start keeps it up until it has stopped. Then
# the network goes, and then everything that is left gets SIGTERM.
#
# Nothing here interprets user input: every argument stays one word.

set -u

mount_overlay() { # FOLDER-UNDER-ROOT LOWER
    local part error
    mkdir -p "$folder/upper/$1" "$folder/work/$1" "$new/$1"
    error=$(mount -t overlay overlay \
        -o "lowerdir=$2,upperdir=$folder/upper/$1,workdir=$folder/work/$1$overlay_options" "$new/$1" 2>&1) && return
    if ! grep -q "^[^ ]* $2/" /proc/self/mounts; then
        echo "$error" >&2
        return 1
    fi
    # The host has something mounted below, as podman and docker have, which a user namespace must not uncover.
    for part in "$2"/* "$2"/.[!.]*; do
        if [[ -L $part || -f $part ]]; then
            cp -a "$part" "$new/$1/" 2>/dev/null || :
        elif [[ -d $part ]] && ! mountpoint -q "$part"; then
            mount_overlay "$1/${part##*/}" "$part" || :
        fi
    done
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
        mount_overlay $name /$name
    done
    for name in bin sbin lib lib32 lib64 libx32; do
        if [[ -L /$name ]]; then
            ln -sfn "$(readlink /$name)" "$new/$name"
        elif [[ -d /$name ]]; then
            bind_read_only /$name
        fi
    done
    mount_overlay root "$image"
    if [[ -L $image/berg/venv ]]; then # as a mount: where the link leads may be hidden from some processes, as /tmp is
        rm -f "$new/root/berg/venv" 2>/dev/null || :
        mkdir -p "$new/root/berg/venv"
        mount --bind "$(readlink "$image/berg/venv")" "$new/root/berg/venv"
        mount -o remount,bind,ro "$new/root/berg/venv" 2>/dev/null || :
    fi
    # Its own settings and host key of ssh; the host's keys are not to be seen.
    [[ ! -d $new/etc/ssh ]] || mount --bind "$folder/ssh" "$new/etc/ssh"
    for path; do bind_read_only "$path"; done
    mount_kernel
}

mount_kernel() {
    mount -t proc proc "$new/proc"
    mount --rbind /sys "$new/sys"
    # The devices that JAX and others count. A host without PCI has no such folder.
    [[ ! -d $folder/pci || ! -d $new/sys/bus/pci/devices ]] || mount --bind "$folder/pci" "$new/sys/bus/pci/devices"
    mount --rbind /dev "$new/dev"
    # Its disks other than the first. A host without the folder gets an empty one, if the server is root there.
    mkdir -p "$new/dev/disk/by-id" 2>/dev/null && mount --bind "$folder/disks" "$new/dev/disk/by-id"
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

# The guest agent's accounts: writes the keys that the metadata names for root to root's file, each below a line that
# says whose it is, and leaves other lines alone. Sets `known`, the tag of those keys; waits for others than known ones.
install_keys() {
    local file=/root/.ssh/authorized_keys line skip='' new
    local -a answer kept=()
    mapfile -t answer < <(ask_for_keys 2>/dev/null)
    # The head of the answer ends with the empty line; the first line after it is the tag.
    while ((${#answer[@]})) && [[ ${answer[0]} != $'\r' ]]; do answer=("${answer[@]:1}"); done
    ((${#answer[@]} > 1)) || return
    new=${answer[1]} answer=("${answer[@]:2}")
    if ((${#answer[@]})); then
        mkdir -p -m 700 /root/.ssh
        while IFS= read -r line || [[ -n $line ]]; do
            if [[ -n $skip ]]; then
                skip=''
            elif [[ $line == '# Added by Google' ]]; then
                skip=1
            else
                kept+=("$line")
            fi
        done < <(cat $file 2>/dev/null)
        (umask 077 && printf '%s\n' "${kept[@]}" "${answer[@]/#/$'# Added by Google\n'}" >$file.google)
        mv $file.google $file
    elif [[ -n $known ]]; then
        rm -f $file # there were some; Google's agent leaves nothing behind, either
    fi
    known=$new
}

ask_for_keys() {
    exec 9<>"/dev/tcp/${GCE_METADATA_HOST%:*}/${GCE_METADATA_HOST#*:}" || return
    printf 'GET /_berg/authorized-keys?known=%s HTTP/1.1\r\nHost: metadata\r\nConnection: close\r\n\r\n' "$known" >&9
    cat <&9
}

follow_keys() {
    local before
    while :; do
        before=$known
        install_keys
        [[ $known != "$before" ]] || sleep 1 # the metadata server is away, or nothing changed
    done
}

say() { # MESSAGE: one line on the console, as the guest environment of Google's images writes it
    printf '%(%b %e %T)T %s google_metadata_script_runner[%d]: %s\n' -1 "$machine_name" $$ "$1"
}

# Copies a script's output to the console, as Google's runner does. Like that one it gives up at a line over 64 KB, and
# the script then writes into a closed pipe.
console() { # SCRIPT-NAME
    local line LC_ALL=C
    trap - TERM
    while IFS= read -r -n 65536 line || [[ -n $line ]]; do
        if ((${#line} == 65536)); then
            say "$1: bufio.Scanner: token too long"
            return
        fi
        say "$1: $line"
    done
}

run_script() { # SCRIPT-NAME FILE
    local magic status
    [[ -e $2 ]] || { say "No startup scripts to run."; return; }
    say "Found $1 in metadata."
    read -r -n 2 magic <"$2"
    exec {to_console}> >(console "$1")
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

# Whether nothing but this process is left; SECONDS to wait for that.
is_alone() {
    local processes=(/proc/[0-9]*) end=$((${EPOCHREALTIME/./} + $1 * 1000000))
    while ((${#processes[@]} > 1)); do
        ((${EPOCHREALTIME/./} < end)) || return 1
        read -r -t 0.02 <&$idle # a wait that starts no process
        processes=(/proc/[0-9]*)
    done
}

# SIGTERM to the processes of units that their KillMode names, SIGKILL to what is left of them when the first process
# of each has ended or its timeout has passed.
stop_units() {
    local file unit pid id mode seconds after pids process end
    local -a stopping=()
    for file in /run/systemd/units/*; do
        [[ -e $file ]] || return
        read -r pid id mode seconds after <"$file"
        [[ -d /proc/$pid ]] || continue
        say "Stopping ${file##*/}"
        pids=$pid
        [[ $mode != control-group ]] || pids=$(processes_of "$id")
        kill -TERM $pids 2>/dev/null
        stopping+=("$file")
    done
    end=$EPOCHSECONDS
    for file in "${stopping[@]}"; do
        read -r pid id mode seconds after <"$file"
        while [[ $after == network && -d /proc/$pid ]] && ((EPOCHSECONDS < end + seconds)); do
            read -r -t 0.02 <&$idle
        done
        [[ $mode == process || $after != network ]] || kill -KILL $(processes_of "$id") 2>/dev/null
    done
}

processes_of() { # INVOCATION-ID
    local folder variables
    for folder in /proc/[0-9]*; do
        mapfile -d '' -t variables 2>/dev/null <"$folder/environ"
        [[ " ${variables[*]} " != *" INVOCATION_ID=$1 "* ]] || echo "${folder#/proc/}"
    done 2>/dev/null
}

network_down() {
    local host=${GCE_METADATA_HOST%:*} port=${GCE_METADATA_HOST#*:}
    (
        exec 9<>"/dev/tcp/$host/$port" || exit
        printf 'POST /_berg/network-down HTTP/1.1\r\nHost: metadata\r\nContent-Length: 0\r\n\r\n' >&9
        read -r -t 5 <&9
    ) 2>/dev/null
}

power_off() {
    trap '' TERM
    [[ $mode != plain ]] || exit 0 # processes.py finds and signals the processes of a plain machine itself
    say "Powering off"
    [[ -z $reader ]] || kill -TERM $reader 2>/dev/null
    [[ -z $services ]] || kill -TERM -- $services 2>/dev/null
    [[ -z $to_console ]] || exec {to_console}>&-
    : >/run/systemd/stopping
    stop_units
    is_alone 2 && exit 0
    network_down
    is_alone 1 && exit 0
    say "Sending SIGTERM to remaining processes..."
    kill -TERM -1
    is_alone 90 # as long as systemd-shutdown waits before SIGKILL
    exit 0
}

main() {
    mode=$1 folder=$2 image=$3 machine_name=$4
    shift 4
    trap power_off TERM
    exec {idle}<> <(:)
    to_console='' reader='' services=''
    # The process id as the host counts it, and the start time that tells a reused id apart.
    local stat script=/tmp/metadata-scripts/startup-script
    read -r -a stat </proc/self/stat
    cd "$folder"
    if [[ $mode == plain ]]; then
        export BERG_MACHINE=$folder BERG_ROOT=$folder/root PATH=$folder/upper/usr/local/sbin:$PATH
        script=$folder/rootfs$script
        cd "$BERG_ROOT"
        echo "${stat[0]} ${stat[21]}" >"$folder/init.pid"
    else
        set -e
        build_root "$@"
        echo "${stat[0]} ${stat[21]}" >"$folder/init.pid"
        enter_root
        set +e
        cd /
        mkdir -p /run/systemd/{system,units} # tells programs that systemd is there
    fi
    if [[ $mode != plain && -e /etc/ssh/sshd_config ]]; then
        known=''
        install_keys # before the startup script begins, as on Google
        start_sshd {idle}>&- </dev/null &
        services=$!
        set -m # a group of its own, because it waits in processes that outlive it
        follow_keys {idle}>&- </dev/null &
        set +m
        services+=" -$!"
        if [[ -x /run/apt-daily ]]; then
            /run/apt-daily {idle}>&- </dev/null &
            services+=" $!"
        fi
    fi
    run_script startup-script "$script"
    while :; do
        sleep infinity {idle}>&- &
        services+=" $!"
        wait $!
        # 127: there is no `sleep` any more, since the machine's files were deleted
        (($? != 127)) || exit 1
    done
}

[[ ${BASH_SOURCE[0]} != "$0" ]] || main "$@"
