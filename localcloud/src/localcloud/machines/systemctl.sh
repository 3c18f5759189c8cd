#!/bin/bash
# What systemctl does on a machine of the embedded cloud: begin one kind of unit, a file of /run/systemd/system.
#
# A unit runs apart from the process that started it, in the environment of the machine's first process, its output on the
# console. What `boot.sh` needs to stop it is in /run/systemd/units/NAME.service: process id, INVOCATION_ID (which
# identifies the unit, as its cgroup would), KillMode, TimeoutStopSec, and whether it comes after the network.
#
# As needrestart does after an upgrade of packages, google-startup-scripts can be restarted, which runs the startup
# script once more, and a unit that says RefuseManualStop cannot. Restarting docker, where it is installed, does nothing.
#
# A unit with Restart=on-failure begins again after RestartSec when its first process fails, once the others are killed,
# StartLimitBurst times in all (of the interval only that it is long enough); then that of OnFailure begins.
#
# A setting that would do nothing here, or that systemd does not know in its section, is refused. Not covered: what a
# unit wants, stopping and restarting other units, cgroups, other types than exec.

set -eu
folder=/run/systemd/system

settings() { # SECTION: the settings that are honoured there, and those that have nothing to act on here
    case $1 in
        Unit) echo Description After Wants RefuseManualStop StartLimitIntervalSec StartLimitBurst OnFailure ;;
        Service) echo Type Environment ExecStart Restart RestartSec KillMode TimeoutStopSec StandardOutput OOMPolicy TasksMax \
            LimitNOFILE LimitMEMLOCK LimitNPROC ;;
    esac
}

read_unit() { # FILE: into the array `setting`
    local line section=
    while IFS= read -r line; do
        case $line in
            '' | '#'*) ;;
            '['*']') section=${line//[\[\]]/} ;;
            *)
                [[ " $(settings "$section") " == *" ${line%%=*} "* ]] || refuse "unknown in [$section]: $line"
                setting[${line%%=*}]=${line#*=}
                ;;
        esac
    done <"$1"
}

refuse() {
    echo "systemctl of the embedded cloud: $1" >&2
    exit 1
}

is_active() { # NAME
    local pid rest
    [[ -e $folder/../units/$1 ]] && read -r pid rest <"$folder/../units/$1" && [[ -d /proc/$pid ]]
}

# systemd begins nothing more once the machine goes down.
check_going() { # NAME
    [[ -e $folder/../stopping ]] || return 0
    refuse "Transaction for $1/start is destructive (poweroff.target has 'start' job queued)."
}

start() { # NAME
    local -A setting=([KillMode]=control-group [TimeoutStopSec]=90 [StandardOutput]=journal [After]= [Type]=simple
        [Restart]=no [RestartSec]=0.1 [StartLimitIntervalSec]=10 [StartLimitBurst]=5 [OnFailure]=)
    local after=none
    is_active "$1" && return
    check_going "$1"
    [[ -e $folder/$1 ]] || refuse "Unit $1 not found."
    read_unit "$folder/$1"
    [[ ${setting[KillMode]} =~ ^(control-group|mixed|process)$ ]] || refuse "KillMode=${setting[KillMode]}"
    [[ ${setting[TimeoutStopSec]} =~ ^[0-9]+$ ]] || refuse "TimeoutStopSec=${setting[TimeoutStopSec]}"
    [[ ${setting[StandardOutput]} == tty ]] || refuse "there is no journal here: StandardOutput=tty"
    [[ " ${setting[After]} " != *" network-online.target "* ]] || after=network
    [[ ${setting[Restart]} =~ ^(no|on-failure)$ ]] || refuse "Restart=${setting[Restart]}"
    rm -f "$folder/../units/$1"
    supervise "$1" "$after" </dev/null >>/proc/1/fd/1 2>&1 &
    until [[ -e $folder/../units/$1 ]]; do sleep 0.01; done
    check_going "$1"
}

supervise() { # NAME AFTER: begin the unit, and again if it fails, as it says
    local -a inherited words own=()
    local id main code word tries=0
    mapfile -d '' -t inherited </proc/1/environ
    for word in "${inherited[@]}"; do # systemd gives a system's unit no HOME
        [[ $word == HOME=* ]] || own+=("$word")
    done
    [[ -z ${setting[Environment]-} ]] || own+=("${setting[Environment]}") # of one variable
    read -r -a words <<<"${setting[ExecStart]}"
    while :; do
        id=$(tr -d - </proc/sys/kernel/random/uuid)
        (set_limits && exec env -i "${own[@]}" "INVOCATION_ID=$id" setsid "${words[@]}") &
        main=$! code=0
        echo "$main $id ${setting[KillMode]} ${setting[TimeoutStopSec]} $2" >"$folder/../units/$1.new"
        mv "$folder/../units/$1.new" "$folder/../units/$1"
        [[ ! -e $folder/../stopping ]] || kill -KILL $main # the machine's end began meanwhile
        wait $main || code=$?
        # What a signal ends that asks a program to end is no failure.
        [[ ${setting[Restart]} == on-failure && ! $code =~ ^(0|129|130|141|143)$ ]] || return 0
        [[ ! -e $folder/../stopping ]] || return 0
        kill_rest "$id"
        ((tries += 1))
        ((tries < setting[StartLimitBurst])) || break
        sleep "${setting[RestartSec]}"
    done
    [[ -z ${setting[OnFailure]} ]] || start "${setting[OnFailure]}"
}

kill_rest() { # INVOCATION-ID
    local process
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' 2>/dev/null <"$process/environ" | grep -qx "INVOCATION_ID=$1"; then
            kill -KILL "${process#/proc/}" 2>/dev/null || :
        fi
    done
}

# The limits that a unit names, as far as this host allows, else those of systemd.
set_limits() {
    local name flag files=${setting[LimitNOFILE]-}
    ulimit -Sn 1024
    [[ -z $files ]] || ulimit -n "$files" 2>/dev/null || ulimit -n "$(ulimit -Hn)"
    [[ -n ${setting[LimitMEMLOCK]-} ]] || ulimit -l 8192
    for name in LimitMEMLOCK:l LimitNPROC:u; do
        flag=${name#*:} name=${name%:*}
        [[ ${setting[$name]-infinity} == infinity ]] || refuse "$name=${setting[$name]}"
        ulimit -S"$flag" "$(ulimit -H"$flag")"
    done
}

restart() { # NAME
    local script=/tmp/metadata-scripts/startup-script
    local -a inherited
    if [[ $1 == google-startup-scripts.service ]]; then
        mapfile -d '' -t inherited </proc/1/environ
        env -i "${inherited[@]}" setsid "$script" </dev/null >>/proc/1/fd/1 2>&1
        return
    fi
    if [[ $1 == docker.service ]]; then
        command -v docker >/dev/null || refuse "Unit $1 not found."
        return # the package has a client here, and no daemon
    fi
    grep -qsx RefuseManualStop=yes "$folder/$1" || refuse "restart of $1 is not part of it"
    echo "Failed to restart $1: Operation refused, unit $1 may be requested by dependency only" \
        "(it is configured to refuse manual start/stop)." >&2
    exit 4
}

main() {
    local verb= word
    local -a units=()
    for word; do
        case $word in
            -*) ;;
            *) if [[ -z $verb ]]; then verb=$word; else units+=("${word%.service}.service"); fi ;;
        esac
    done
    case $verb in
        daemon-reload) ;;
        restart) for word in "${units[@]}"; do restart "$word"; done ;;
        start) for word in "${units[@]}"; do start "$word"; done ;;
        is-system-running) if [[ -e $folder/../stopping ]]; then echo stopping && exit 1; else echo running; fi ;;
        is-active) for word in "${units[@]}"; do is_active "$word" || exit 3; done ;;
        *) refuse "$verb is not part of it" ;;
    esac
}

main "$@"
