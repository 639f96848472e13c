#!/bin/sh
# A task that tells on its executor: task.sh MARKS KIND SECONDS [file:VARIABLE | list:VARIABLE]...
# It holds a lock that only this task uses (whoever finds it held runs twice at once), writes down that it started, works,
# and writes as output its own name around the contents of its inputs.
set -u
marks=$1 kind=$2 seconds=$3
shift 3
name="$FLOWSCHED_STAGE.$FLOWSCHED_INDEX.${FLOWSCHED_ROLE-}${FLOWSCHED_ROLE_INDEX-}"
me="$marks/$FLOWSCHED_WORKFLOW.$name"
exec 9>>"$me.lock"
flock -n 9 || echo "$FLOWSCHED_ATTEMPT $$" >>"$me.DOUBLE"
echo "$FLOWSCHED_ATTEMPT $$" >>"$me.starts"

case $kind in
serve) exec sleep "$seconds" ;;
last) until [ -e "$marks/go" ]; do sleep 0.1; done ;;
fail) exit 3 ;;
flaky) [ -e "$me.failed" ] || { : >"$me.failed"; exit 3; } ;;
esac

told=
for input; do
    eval "path=\$FLOWSCHED_INPUT_${input#*:}"
    case $input in
    file:*) told="$told,$(cat "$path")" ;;
    list:*) while read -r one; do told="$told,$(cat "$one")"; done <"$path" ;;
    esac
done
sleep "$seconds"
printf '%s(%s)' "$name" "${told#,}" >"${FLOWSCHED_OUTPUT_OUT:-/dev/null}"
