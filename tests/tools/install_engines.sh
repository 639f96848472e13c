#!/bin/sh
# Installs the engines that take too long for CI: Sprocket (cargo, 20 to 70 minutes and 8 GB the first time), and Nextflow with nf-ga4gh
# (Maven, Java 17). tests/clients runs what is there, beside what `make clients` installs. Each is installed alone: what one lacks is
# named, and does not keep the other away. A build that was broken off goes on where it was.
set -u

here=$(cd "$(dirname "$0")/engines" && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/flowsched"
home="${FLOWSCHED_CLIENTS:-$cache/clients}"
sprocket=0.33.0
nextflow=24.10.0
plugin=nf-ga4gh@1.3.0 # the last one for this Nextflow
missing=0

lacks() {
    echo "engines: no $1: $2" >&2
    missing=1
}

# made NAME WHAT: whether it is there, in this version.
made() {
    [ "$(cat "$home/$1/.made" 2>/dev/null)" = "$2" ] && echo "$2  ($home/$1)"
}

install_nextflow() {
    command -v mvn >/dev/null || { lacks Nextflow "install Maven and a Java 17"; return; }
    mkdir -p "$home/nextflow/bin"
    echo "installing Nextflow $nextflow ..."
    mvn -q -B -f "$here/pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$home/nextflow/lib" ||
        { lacks Nextflow "Maven did not fetch its jars, see above"; return; }
    install -m 755 "$here/nextflow.sh" "$home/nextflow/bin/nextflow"
    # A plug-in that was put there by hand counts, too.
    ls -d "$home/nextflow/plugins"/nf-ga4gh-* >/dev/null 2>&1 ||
        NXF_OFFLINE=false "$home/nextflow/bin/nextflow" plugin install "$plugin" ||
        { lacks "$plugin" "Nextflow's registry of plug-ins did not answer, see above"; return; }
    echo "$1" >"$home/nextflow/.made"
    made nextflow "$1"
}

install_sprocket() {
    command -v cargo >/dev/null || { lacks Sprocket "install Rust"; return; }
    echo "building Sprocket $sprocket, 20 to 70 minutes ..."
    # A release for tests: without link-time optimization it is built in half the time.
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        CARGO_PROFILE_RELEASE_DEBUG=0 \
        nice -n 19 cargo install -q --locked --version "$sprocket" --root "$home/sprocket" \
        --target-dir "$cache/engines/sprocket-target" sprocket ||
        { lacks Sprocket "cargo did not build it, see above"; return; }
    rm -rf "$cache/engines/sprocket-target"
    echo "$1" >"$home/sprocket/.made"
    made sprocket "$1"
}

made nextflow "Nextflow $nextflow" || install_nextflow "Nextflow $nextflow"
made sprocket "Sprocket $sprocket" || install_sprocket "Sprocket $sprocket"
exit "$missing"
