"""The containers of a container task: one for each of its steps, and what stage-in and stage-out are told of its files. Pure.

All steps but the last are init containers, so that they run one after the other in images of their own; the last is `task`.
A step is started by its own argument list, unless something has to be done around it that Kubernetes cannot: then `/bin/sh` of
its image does it. What was asked for is passed as arguments and variables, it is never part of the script's text.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from flowsched.cluster.kubernetes.agent.orders import pack
from flowsched.cluster.kubernetes.places import Layout, local_path, stdio_of, tidy
from flowsched.cluster.kubernetes.references import literal
from flowsched.cluster.kubernetes.release import WORK
from flowsched.cluster.running.patterns import is_pattern
from flowsched.executor.protocol import Pod
from flowsched.workflow.spec import Container, Delivered, Left, Step

#: Names of the containers of all steps but the last: step-0, step-1 …
STEP: Final = "step-"
#: Where a step notes that it began, that it was told to end, and with which code it ended.
NOTES: Final = f"{WORK}/steps"
#: What is written to the termination message of a step whose failure is ignored, before its exit code.
IGNORED: Final = "ignored exit "
#: Linux takes 128 KiB in one variable, its name included.
_PIECE: Final = 100 << 10

#: Connects the files and stays as the first process: notes how the program ended, passes on what the kubelet tells it, and shows
#: the end of what has gone to files, so that a container's log and its report have it (where the image has wc and tail).
#: A file that no earlier step of the pod has written to is emptied first: an earlier attempt may have written there.
#: The container's other processes are killed with its first one. Therefore it waits, for a minute at most, as long as one of
#: them reads a pipe that nothing writes to any more (Cromwell's `tee`): `left` is what `running.finishing` is elsewhere.
_SCRIPT: Final = """\
n=$FLOWSCHED_STEP o=$2 e=$3 g=$4 f=$5 a= b= c= t=0
: >"$n.begun" || exit 125
exec 3<"${1:-/dev/null}" || exit 1
exec 4>&1 5>&2
case $f in *o*) [ ! -f "$o" ] || : >"$o" || exit 1;; esac
case $f in *e*) [ ! -f "$e" ] || : >"$e" || exit 1;; esac
[ -z "$o" ] || { exec >>"$o" || exit 1; a=$(wc -c <"$o" 2>/dev/null); }
[ -z "$e" ] || { exec 2>>"$e" || exit 1; b=$(wc -c <"$e" 2>/dev/null); }
shift 5
flags() { { read -r k; read -r k v; } <"${1%/fd/*}/fdinfo/${1##*/}" || v=; } 2>/dev/null
left() {
  [ $$ = 1 ] && [ / -ef / ] || return 1
  for p in /proc/[0-9]*; do
    [ "$p" != /proc/1 ] || continue
    [ "$t" -ge 40 ] || ! read -r l <"$p/stat" || case ${l##*) } in R*) return 0;; esac
    for d in "$p"/fd/*; do
      [ -p "$d" ] && flags "$d" || continue
      case $v in *0) written "$d" || return 0;; esac
    done
  done 2>/dev/null
  return 1
}
written() {
  for q in /proc/[0-9]*/fd/*; do
    [ "$1" -ef "$q" ] && flags "$q" || continue
    case $v in *[12]) return 0;; esac
  done
  return 1
}
trap ': >"$n.term"; [ -z "$c" ] || kill -TERM "$c" 2>/dev/null' TERM
{ exec "$@"; } <&3 3<&- 4>&- 5>&- &
c=$!
[ ! -e "$n.term" ] || kill -TERM "$c" 2>/dev/null
wait "$c"; r=$?
while kill -0 "$c" 2>/dev/null; do wait "$c"; r=$?; done
while [ ! -e "$n.term" ] && [ "$t" -lt 1200 ] && left; do
  t=$((t + 1)); sleep 0.05 2>/dev/null || sleep 1 2>/dev/null || :
done
echo "$r" >"$n.code"
end() {
  s=$(wc -c <"$1") && s=$((s - ${2:-0})) && [ "$s" -gt 0 ] || return 0
  [ "$s" -le 10240 ] || s=10240
  tail -c "$s" "$1"
}
[ -z "$o" ] || (end "$o" "$a") >&4 2>/dev/null || :
[ -z "$e" ] || [ "$e" = "$o" ] || (end "$e" "$b") >&5 2>/dev/null || :
[ -n "$g" ] || exit "$r"
[ "$r" = 0 ] || echo "ignored exit $r" >"${FLOWSCHED_TERMINATION_LOG:-/dev/termination-log}"
exit 0
"""

Json = dict[str, Any]


def step_names(container: Container) -> list[str]:
    """The names of the steps' containers, in order."""
    return [f"{STEP}{number}" for number in range(len(container.steps) - 1)] + ["task"]


def as_step(pod: Pod, step: Step) -> Pod:
    """The pod as one of its steps sees it."""
    return replace(pod, command=step.command, image=step.image, env={**pod.env, **step.env})


def needs_stage_out(pod: Pod) -> bool:
    """Whether somebody has to stay until the task has ended."""
    container = pod.container
    return bool(pod.outputs) or (container is not None and bool(_delivered(container) or container.leave))


def _delivered(container: Container) -> tuple[Delivered, ...]:
    """What is taken out of a container: nothing of a member of a gang that another speaks for."""
    return container.outputs if container.delivers else ()


def watched(container: Container, layout: Layout) -> bool:
    """Whether stage-out has to know how the steps ended: to leave out what a failed task has made, or to write what is left."""
    stdio = {tidy(path) for step in container.steps for path in stdio_of(step)}
    return bool(container.leave) or any(
        tidy(output.path) not in stdio and not in_place(output, layout) for output in _delivered(container)
    )


def in_place(output: Delivered, layout: Layout) -> bool:
    """Whether an output is written to where it shall be."""
    if is_pattern(output.path):
        prefix = output.path_prefix
        return prefix is not None and layout.place(prefix) == local_path(output.uri)
    return layout.place(output.path) == local_path(output.uri)


def command_of(step: Step, *, watch: bool, before: Sequence[Step] = ()) -> list[str]:
    """What a step's container runs, spelled so that a kubelet changes nothing of it.

    Args:
        step: It.
        watch: Whether stage-out has to know how it ended.
        before: The steps of the same task that run earlier.
    """
    argv = [literal(argument) for argument in step.command]
    if not (watch or step.ignore_error or step.stdin or step.stdout or step.stderr):
        return argv
    files = [literal(path or "") for path in (step.stdin, step.stdout, step.stderr)]
    ignored = "1" if step.ignore_error else ""
    return ["/bin/sh", "-c", literal(_SCRIPT), "flowsched", *files, ignored, _fresh(step, before), *argv]


def _fresh(step: Step, before: Sequence[Step]) -> str:
    """Which streams of a step go to a file that none before it has named: `o`, `e`, both or none."""
    named = {tidy(path) for earlier in before for path in stdio_of(earlier)}
    stdout, stderr = (tidy(path) if path else None for path in (step.stdout, step.stderr))
    empty_stdout = "o" if stdout is not None and stdout not in named else ""
    return empty_stdout + ("e" if stderr is not None and stderr not in {*named, stdout} else "")


def step_variables(number: int) -> list[Json]:
    """What a step's script has to know."""
    return [{"name": "FLOWSCHED_STEP", "value": f"{NOTES}/{number}"}]


def files_variables(pod: Pod, layout: Layout, *, contents: bool) -> list[Json]:
    """What stage-in and stage-out are told of the files of a container task.

    Args:
        pod: With its container.
        layout: Of its files.
        contents: Whether the texts of files that stand in the document are added: only stage-in needs them.
    """
    container = pod.container
    assert container is not None
    told = [{"name": "FLOWSCHED_CONTAINER", "value": literal(pack(_order(pod, container, layout)))}]
    if not contents:
        return told
    texts = [given.content for given in container.inputs if given.content is not None]
    if texts:
        packed = base64.b64encode(zlib.compress(json.dumps(texts).encode(), 6)).decode()
        pieces = [packed[at : at + _PIECE] for at in range(0, len(packed), _PIECE)]
        told += [
            {"name": f"FLOWSCHED_CONTENT_{number}", "value": piece} for number, piece in enumerate(pieces)
        ]
    return told


def _places_left(container: Container, layout: Layout, left: Left) -> list[str]:
    """Where a file shall be left for those who wait for it outside: on shared volumes."""
    path = tidy(left.path)
    wanted = [
        layout.place(path),
        *(local_path(each.uri) or "" for each in container.outputs if tidy(each.path) == path),
    ]
    return [place for place in dict.fromkeys(wanted) if place.startswith("/")]


def _order(pod: Pod, container: Container, layout: Layout) -> Mapping[str, Any]:
    stdio = {tidy(path) for step in container.steps for path in stdio_of(step)}
    watch = watched(container, layout)
    return {
        "view": layout.view,
        "folders": layout.folders,
        "files": layout.files,
        "sources": layout.sources,
        "copies": layout.copies,
        "links": layout.links,
        "contents": [layout.place(given.path) for given in container.inputs if given.content is not None],
        "outputs": [
            {
                "path": tidy(output.path),
                "uri": local_path(output.uri) or output.uri,
                "prefix": tidy(output.path_prefix) if output.path_prefix is not None else None,
                "always": tidy(output.path) in stdio,
            }
            for output in _delivered(container)
        ],
        "return_code": container.return_code,
        "leave": [
            [place, left.content]
            for left in container.leave
            for place in _places_left(container, layout, left)
        ],
        "steps": [step.ignore_error for step in container.steps] if watch else None,
        "stdio": [[step.stdout or "", step.stderr or ""] for step in container.steps],
        "timeout_ms": pod.timeout_ms or 0,
    }
