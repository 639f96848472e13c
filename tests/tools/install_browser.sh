#!/bin/sh
# Makes sure that this machine has a Chromium for the tests of the web page, for CI. Does nothing where there is one.
# FLOWSCHED_BROWSER names another one.
set -eu

for candidate in "${FLOWSCHED_BROWSER:-}" "$(command -v chromium || true)" "$(command -v chromium-browser || true)" "$(command -v google-chrome || true)"; do
    if [ -n "$candidate" ] && [ -x "$candidate" ]; then
        echo "browser: $("$candidate" --version 2>/dev/null || echo "$candidate")"
        exit 0
    fi
done
if ! command -v apt-get >/dev/null; then
    echo "no Chromium and no apt-get: install Chromium and set FLOWSCHED_BROWSER" >&2
    exit 1
fi
run=""
[ "$(id -u)" -eq 0 ] || run="sudo"
$run apt-get update -q
DEBIAN_FRONTEND=noninteractive $run apt-get install -q -y --no-install-recommends chromium
