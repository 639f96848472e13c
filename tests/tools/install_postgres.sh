#!/bin/sh
# Makes sure that this machine has PostgreSQL's server binaries, for CI. Does nothing where they are.
# The tests start their own servers (tests/postgres.py); a cluster that Debian may start is not used.
set -eu

if [ -n "${FLOWSCHED_PG_BIN:-}" ] && [ -x "$FLOWSCHED_PG_BIN/initdb" ]; then
    echo "PostgreSQL: $("$FLOWSCHED_PG_BIN/postgres" --version)"
    exit 0
fi
for candidate in "$(command -v initdb || true)" /usr/lib/postgresql/*/bin/initdb; do
    if [ -x "$candidate" ]; then
        echo "PostgreSQL: $("$candidate" --version)"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null; then
    echo "no PostgreSQL and no apt-get: install PostgreSQL 12 or later and set FLOWSCHED_PG_BIN" >&2
    exit 1
fi
run=""
[ "$(id -u)" -eq 0 ] || run="sudo"
$run apt-get update -q
DEBIAN_FRONTEND=noninteractive $run apt-get install -q -y --no-install-recommends postgresql
