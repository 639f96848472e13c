#!/bin/sh
# One task of the black-box run: task.sh JOURNAL MARKS KIND LABEL SECONDS LINES [file:VARIABLE | list:VARIABLE | path:FILE]...
# It appends START and END to the journal, with the boot's clock (no clock jump reaches it). It holds a lock as long as it, or any
# process that it leaves, lives. An attempt that finds the lock held runs beside another one.
set -u
journal=$1 marks=$2 kind=$3 label=$4 seconds=$5 lines=$6
shift 6
key="$label.${FLOWSCHED_STAGE-task}.${FLOWSCHED_INDEX-0}.${FLOWSCHED_ROLE-}${FLOWSCHED_ROLE_INDEX-}"
attempt=${FLOWSCHED_ATTEMPT-0}
export BLACKBOX_KEY="$key"

say() {
    read -r up _ </proc/uptime
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$1" "$key" "$attempt" "$$" "$up" "$2" >>"$journal"
}
finish() {
    say END "$1"
    exit "$1"
}
# The task waits for room on a full disk, so that every task must succeed in the end.
put() {
    tries=0
    until awk -v line="$2" -v lines="$lines" 'BEGIN { for (i = 0; i < lines; i++) print line }' 2>/dev/null >"$1"; do
        tries=$((tries + 1))
        [ "$tries" -gt 600 ] && finish 74
        sleep 0.5
    done
}

exec 9>>"$marks/$key.lock"
if flock -n 9; then say START alone; else say START beside; fi

case $kind in
fail) sleep "$seconds"; finish 3 ;;
flaky) [ -e "$marks/$key.failed" ] || { : >"$marks/$key.failed"; finish 3; } ;;
gate) [ -e "$marks/$label.open" ] || finish 4 ;;
child) # detached: an own session, no environment, no open stream
    setsid env -i /bin/sh -c 'while :; do sleep 5; done' "blackbox-child:$key" </dev/null >/dev/null 2>&1 & ;;
echo) # half of the output comes from a background child that ends soon after the task's main process
    (sleep "$seconds"; awk -v lines="$lines" 'BEGIN { for (i = 0; i < lines; i++) print "late" }') &
    awk -v lines="$lines" 'BEGIN { for (i = 0; i < lines; i++) print "early" }'
    finish 0 ;;
tee) # as Cromwell's script: tee in the background writes the file that the task names as its standard output
    out="${TMPDIR:-/tmp}/out.$$"
    mkfifo "$out"
    tee "$1" <"$out" &
    (sleep "$seconds"; awk -v lines="$lines" 'BEGIN { for (i = 0; i < lines; i++) print "line", i }') >"$out"
    rm "$out"
    finish 0 ;;
esac

digest=$(
    for input; do
        case $input in
        path:*) cat "${input#path:}" ;;
        *) eval "path=\$FLOWSCHED_INPUT_${input#*:}" ;;
        esac
        case $input in
        file:*) cat "$path" ;;
        list:*) while read -r one; do cat "$one"; done <"$path" ;;
        esac
    done | sha256sum
)
sleep "$seconds"
if [ "$kind" = stdout ]; then
    awk -v line="${digest%% *}" -v lines="$lines" 'BEGIN { for (i = 0; i < lines; i++) print line }'
elif [ -n "${FLOWSCHED_OUTPUT_OUT-${BLACKBOX_OUT-}}" ]; then
    put "${FLOWSCHED_OUTPUT_OUT-${BLACKBOX_OUT-}}" "${FLOWSCHED_STAGE-task}.${FLOWSCHED_INDEX-0} ${digest%% *}"
fi
finish 0
