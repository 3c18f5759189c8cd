#!/bin/bash
# One container: boot.sh's root file system, then the container's command in a pid namespace of its own.
#
#   container.sh FOLDER IMAGE HOSTNAME WORKDIR CAPABILITIES [--user] BIND... -- COMMAND...
#
# CAPABILITIES are what its root may do, in the words of setpriv.
# FOLDER/mounts has a line `SOURCE TARGET ro|rw` for each volume; SOURCE `tmpfs` makes one of memory. What it prints is
# the container's log. Its exit code is written to FOLDER/exit, even if the server has ended. As with
# shareProcessNamespace, process 1 is one that reaps, as Kubernetes' pause.

set -u

inside() {
    folder=$1 image=$2 machine_name=$3 workdir=$4 capabilities=$5
    shift 5
    local -a binds=()
    local source target access stat
    while [[ $1 != -- ]]; do binds+=("$1"); shift; done
    shift
    set -e
    source "$(dirname "${BASH_SOURCE[0]}")/../machines/boot.sh"
    read -r -a stat </proc/self/stat
    cd "$folder"
    build_root "${binds[@]}"
    while read -r source target access; do
        target=${target/#\/var\/run\//\/run\/} # an absolute link there: it would lead out of the new root
        if [[ $source == tmpfs ]]; then
            mkdir -p "$new$target"
            mount -t tmpfs -o mode=1777 tmpfs "$new$target"
            continue
        fi
        if [[ -d $source ]]; then mkdir -p "$new$target"; else mkdir -p "${new}${target%/*}"; touch "$new$target"; fi
        mount --bind "$source" "$new$target"
        [[ $access == rw ]] || mount -o remount,bind,ro "$new$target" 2>/dev/null || :
    done <"$folder/mounts"
    # Who it is, it says once its root is its own: a command that enters it earlier finds another one.
    local up who="${stat[0]} ${stat[21]}"
    exec {up}>"$folder/init.pid"
    enter_root
    echo "$who" >&$up
    exec {up}>&-
    set +e
    mkdir -p "$workdir"
    cd "$workdir" || exit 128
    if ! type -P "$1" >/dev/null; then
        echo "exec: \"$1\": executable file not found in \$PATH" >&2
        exit 127
    fi
    set -- setpriv --bounding-set "$capabilities" --inh-caps -all "$@"
    [[ ! -t 0 ]] || set -- setsid --ctty "$@"
    "$@" <&0 &
    local main=$! code
    trap : TERM INT HUP # pause goes with its pod, and not before
    while :; do
        wait $main
        code=$?
        [[ -d /proc/$main ]] && ! grep -q '^State:.Z' /proc/$main/status 2>/dev/null || exit $code
    done
}

case $1 in
inside)
    shift
    inside "$@"
    ;;
hold) # outside of the new pid namespace: its first child is process 1 there. `unshare --fork` loses a signal's number.
    shift
    exec {errors}>&2 2>/dev/null # bash's own words about a child that was killed
    bash "${BASH_SOURCE[0]}" inside "$@" <&0 2>&$errors {errors}>&- &
    wait $!
    exit
    ;;
*)
    folder=$1
    # The kubelet may be gone when the container ends: what it must know waits for it.
    user=()
    [[ $6 != --user ]] || user=(--user --map-root-user)
    arguments=("${@:1:5}")
    shift 5
    [[ $1 != --user ]] || shift
    unshare "${user[@]}" --mount --uts --ipc --pid bash "${BASH_SOURCE[0]}" hold "${arguments[@]}" "$@"
    code=$?
    echo $code >"$folder/exit.new"
    mv "$folder/exit.new" "$folder/exit"
    exit $code
    ;;
esac
