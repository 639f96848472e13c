#!/bin/sh
# What `pip install flowsched` gives people:
#
# 1. every lower bound of pyproject.toml at once, on the oldest Python: tests of CLI, API, store, engine and SDK pass;
# 2. the wheels of the base install are at most 80 MB;
# 3. the wheel in an empty environment, without extras and without the clone, on every Python from 3.11 on that is on this
#    machine: the version, and the demo or a run.
#
# Environments are kept below the cache of flowsched. Needs a Python 3.11 and a package index; uv is installed where it is not there.
set -eu

root=$(cd "$(dirname "$0")/../.." && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/flowsched/install"
most=80000000
mkdir -p "$cache"
cd "$root"

if ! command -v uv >/dev/null || ! uv --version >/dev/null 2>&1; then
    [ -x "$cache/uv/bin/uv" ] || { ${PYTHON:-python3} -m venv "$cache/uv" && "$cache/uv/bin/pip" install -q uv; }
    PATH="$cache/uv/bin:$PATH"
fi

echo "== 1. lower bounds, Python 3.11"
lower="$cache/lower"
uv venv -q --clear --python 3.11 "$lower"
uv pip install -q --python "$lower/bin/python" --resolution lowest-direct -e '.[genomics,kubernetes,objectstore,otel,postgresql,wdl]'
# The tools of the tests may be of any version, as long as they change nothing that is there.
uv pip freeze -q --python "$lower/bin/python" --exclude-editable >"$cache/lower.txt"
uv pip install -q --python "$lower/bin/python" -c "$cache/lower.txt" \
    hypothesis jsonschema looptime opentelemetry-proto pytest pytest-asyncio pytest-timeout pytest-xdist
# Left out: how many modules --help loads is up to typer, and only its newer versions load rich late.
"$lower/bin/python" -m pytest -q -n 2 --timeout 300 -p no:cacheprovider \
    tests/cli/test_cli_commands.py tests/api/test_api_routes.py tests/store/test_reads.py tests/store/test_writer.py \
    tests/engine/test_engine_stories.py tests/engine/test_gangs.py tests/service/test_metrics.py tests/service/test_traces.py \
    --deselect tests/cli/test_cli_commands.py::test_help_imports_nothing_heavy

echo "== 2. the wheels of the base install"
rm -rf "$cache/dist" "$cache/wheels"
uv build -q --wheel --out-dir "$cache/dist" .
uv venv -q --clear --seed --python 3.11 "$cache/base"
"$cache/base/bin/python" -m pip download -q --disable-pip-version-check --only-binary :all: -d "$cache/wheels" "$cache"/dist/*.whl
bytes=$(cat "$cache"/wheels/*.whl | wc -c)
echo "$(ls "$cache/wheels" | wc -l) wheels, $((bytes / 1000000)) MB; the largest:"
du -k "$cache"/wheels/*.whl | sort -rn | head -3 | sed 's|/.*/||'
[ "$bytes" -le "$most" ] || { echo "base install: $bytes bytes of wheels, at most $most: see the largest above" >&2; exit 1; }

echo "== 3. the wheel alone"
cd "$cache"
for version in 3.11 3.12 3.13 3.14; do
    found=$(uv python find --no-project --no-python-downloads "$version" 2>/dev/null ||
        ls "$HOME/.pyenv/versions/$version".*/bin/python 2>/dev/null | head -1) || true
    if [ -z "$found" ]; then
        echo "Python $version: left out, it is not on this machine"
        continue
    fi
    alone="$cache/alone"
    uv venv -q --clear --python "$found" "$alone"
    # Python 3.11 takes just the wheels that were measured; others need other builds of some. The wheel is named by its path:
    # found by its version, it would be the one that uv remembers from an earlier build.
    offline=""
    [ "$version" != 3.11 ] || offline="--no-index"
    # shellcheck disable=SC2086
    uv pip install -q --python "$alone/bin/python" $offline --find-links "$cache/wheels" "$cache"/dist/*.whl
    "$alone/bin/flowsched" --version
    trial="run $(echo "$alone"/lib/python*/site-packages/flowsched/_share/workflows/fan-out.json) --root $cache/root"
    [ "$version" != 3.11 ] || trial="demo" # a minute: on one Python only
    rm -rf "$cache/root"
    # shellcheck disable=SC2086
    env -u PYTHONPATH -u FLOWSCHED_SERVER "$alone/bin/flowsched" $trial >"$cache/trial.txt" 2>&1 ||
        { cat "$cache/trial.txt"; echo "flowsched $trial failed on Python $version" >&2; exit 1; }
    echo "flowsched ${trial%% *}: done"
done
