#!/bin/sh
# Makes the virtual environments of the real TES clients that tests/clients runs: py-tes, pydantic-tes, Snakemake, Toil, cwl-tes.
# One folder each for tests/tools/clients/*.txt, which pins the versions; nothing is made that is there already from that file.
# One thing is changed in them: how long py-tes waits for an answer.
#
# Snakemake's storage plugin calls rsync, which is installed by apt-get where it is missing and that is possible.
#
# On a machine that cannot (no package index) it says so and is content, unless FLOWSCHED_REQUIRE_CLIENTS=1: the tests that
# need the clients are then skipped.
set -eu

here=$(cd "$(dirname "$0")/clients" && pwd)
home="${FLOWSCHED_CLIENTS:-${XDG_CACHE_HOME:-$HOME/.cache}/flowsched/clients}"
python="${PYTHON:-python3}"

# The reason on stderr; a failure only where the clients are required.
lacks() {
    echo "clients: $1" >&2
    if [ "${FLOWSCHED_REQUIRE_CLIENTS:-}" = "1" ]; then exit 1; fi
}

give_up() {
    lacks "$1"
    exit 0
}

# What is told of an environment: the clients in it.
versions() {
    "$home/$1/bin/python" -m pip list --disable-pip-version-check 2>/dev/null |
        awk '$1 ~ /^(toil.*|.*-tes)$/ || $1 ~ /^snakemake/ && $1 !~ /interface/ { printf "%s%s %s", sep, $1, $2; sep = ", " }'
}

if ! command -v rsync >/dev/null; then
    command -v apt-get >/dev/null || give_up "no rsync, and no apt-get: install rsync"
    run=""
    [ "$(id -u)" -eq 0 ] || run="sudo -n"
    {
        $run apt-get update -q && DEBIAN_FRONTEND=noninteractive $run apt-get install -q -y --no-install-recommends rsync
    } >/dev/null || give_up "rsync was not installed, see above"
fi

mkdir -p "$home"
for list in "$here"/*.txt; do
    name=$(basename "$list" .txt)
    # The environment is made anew where the list, or the Python it is for, has changed.
    wanted="$(cksum <"$list") $("$python" -c 'import sys; print(sys.version)' | tr '\n' ' ')"
    if [ "$(cat "$home/$name/.made" 2>/dev/null)" != "$wanted" ]; then
        echo "installing $name ..."
        rm -rf "${home:?}/$name"
        "$python" -m venv "$home/$name" || give_up "no virtual environment could be made by $python"
        pip="$home/$name/bin/python -m pip --quiet --disable-pip-version-check"
        # Old packages are built by the tools that their list names, and not by those of today.
        if tools=$(sed -n 's/^# build with: //p' "$list") && [ -n "$tools" ]; then
            $pip install $tools || { lacks "$tools were not installed, see above"; continue; }
            pip="env SETUPTOOLS_USE_DISTUTILS=stdlib $pip" options="--no-build-isolation"
        else
            options=""
        fi
        $pip install $options -r "$list" || { lacks "$name was not installed, see above: is the package index reachable?"; continue; }
        # Each Snakemake job installs its storage plugin with pip: from here, so that tests need no index.
        if plugin=$(grep '^snakemake-storage-plugin' "$list"); then
            $pip download --no-deps --dest "$home/$name/wheels" "$plugin" || give_up "$plugin was not fetched, see above"
        fi
        echo "$wanted" >"$home/$name/.made"
    fi
    # py-tes waits 10 s for an answer, and one that comes later ends a run of Snakemake or Toil: a busy machine needs longer.
    find "$home/$name" -path '*/tes/client.py' -exec sed -i 's/\(^    timeout.*attrib(default=\)10,/\1300,/' {} +
    echo "$name: $(versions "$name")  ($home/$name)"
done
