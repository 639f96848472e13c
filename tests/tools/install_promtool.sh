#!/bin/sh
# Builds Prometheus' promtool, with which the tests check the alert rules and the dashboard, in the version of
# tests/tools/prometheus/go.mod. Nothing is built that is there already. The first time: about 2 minutes on 2 cores.
#
# On a machine that cannot build (no Go, no module proxy) it says so and is content, unless FLOWSCHED_REQUIRE_KUBE=1: the tests
# are then skipped, or take the promtool of PATH.
set -eu

module=$(cd "$(dirname "$0")/prometheus" && pwd)
bin="${XDG_CACHE_HOME:-$HOME/.cache}/flowsched/kube/bin"

# The reason on stderr; a failure only where the binary is required.
give_up() {
    echo "promtool: $1" >&2
    if [ "${FLOWSCHED_REQUIRE_KUBE:-}" = "1" ]; then exit 1; fi
    exit 0
}

fingerprint() {
    cat "$module/go.mod" "$module/go.sum" "$module/../install_promtool.sh" | cksum
}

if [ -x "$bin/promtool" ] && [ "$(cat "$bin/.prometheus" 2>/dev/null)" = "$(fingerprint)" ]; then
    echo "$bin/promtool"
    exit 0
fi
command -v go >/dev/null || give_up "no Go on this machine: install Go 1.26 or later (https://go.dev/dl/)"
mkdir -p "$bin"
made=$(mktemp -d "$bin/.prometheus.XXXXXX")
trap 'rm -rf "$made"' EXIT
cd "$module"
# Without clients of clouds for service discovery, three quarters of the build: rules need none.
nice go build -mod=readonly -trimpath -tags remove_all_sd -ldflags "-s -w" -o "$made/promtool" \
    github.com/prometheus/prometheus/cmd/promtool ||
    give_up "not built: see above; the modules come from GOPROXY=$(go env GOPROXY), is that reachable?"
mv "$made/promtool" "$bin/promtool"
fingerprint >"$bin/.prometheus"
echo "$bin/promtool"
