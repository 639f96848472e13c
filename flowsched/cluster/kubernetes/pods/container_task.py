"""The containers of a container task, one for each step: their environments, and the steps' orders for files. Pure.

All steps but the last are init containers, so that they run one after the other in images of their own; the last is `task`. A
step is started by its own argument list, unless something has to be done around it that Kubernetes cannot: then `/bin/sh` of
its image does it. The document's values are passed as arguments and variables, and are never part of the script's text.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from msgspec import structs

from flowsched.cluster.kubernetes.agent_keys import signing_key_of
from flowsched.cluster.kubernetes.objects.names import SecretKey, address_below, secret_key, service_host
from flowsched.cluster.kubernetes.objects.release import INPUTS, WORK, GroupRef, ReleaseSettings
from flowsched.cluster.kubernetes.orders import is_target, sign
from flowsched.cluster.kubernetes.packing import pack
from flowsched.cluster.local.orders import OF_THE_IMAGE, inside
from flowsched.cluster.local.runner.image_places import tidy
from flowsched.cluster.local.runner.patterns import is_pattern
from flowsched.cluster.node.cache import file_name
from flowsched.cluster.node.container_paths import Layout, Refusal, local_path, stdio_of
from flowsched.cluster.node.environment import Address, Paths, ceil_cores, environment, expand
from flowsched.executor.protocol import InputFile, Pod
from flowsched.workflow.spec import Container, Delivered, Left, Step

#: The references that `cluster.environment.expand` replaces.
_REFERENCE: Final = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
#: Every container gets variables of the API server's own Service, whatever `enableServiceLinks` says.
_SERVICE_PREFIX: Final = "KUBERNETES_"
#: Stands for a value that only the kubelet knows. No text of a pod can hold it, so no expansion with it equals such a text.
_UNKNOWN: Final = "\0"


def kubelet_expand(text: str, values: Mapping[str, str]) -> str:
    """Expand an argument, or a variable's value, as the kubelet does if it knows these variables."""
    parts: list[str] = []
    at = 0
    while (dollar := text.find("$", at)) >= 0 and dollar + 1 < len(text):
        parts.append(text[at:dollar])
        follower = text[dollar + 1]
        end = text.find(")", dollar + 2)
        if follower == "$":
            parts.append("$")
            at = dollar + 2
        elif follower == "(" and end >= 0:
            name = text[dollar + 2 : end]
            parts.append(values.get(name, f"$({name})"))
            at = end + 1
        else:
            parts.append(text[dollar : dollar + 2])
            at = dollar + 2
    return "".join(parts) + text[at:]


def literal(text: str) -> str:
    """A text that the kubelet expands to `text`, whatever variables there are."""
    return text.replace("$", "$$") if "$$" in text or "$(" in text else text


def spelled(argument: str, env: Mapping[str, str], hidden: Iterable[str] = ()) -> str:
    """An argument that the kubelet expands to what it is on a local cluster.

    Args:
        argument: As the user wrote it.
        env: The variables that `$(NAME)` means on a local cluster.
        hidden: Variables that the kubelet knows beside them: they are not expanded locally, nor here.
    """
    if "$" not in argument:
        return argument
    meant = expand(argument, env)
    known = {**_services(argument), **dict.fromkeys(hidden, _UNKNOWN), **env}
    if kubelet_expand(argument, known) == meant:
        return argument
    return _rewritten(argument, env)


def _rewritten(argument: str, env: Mapping[str, str]) -> str:
    """The same references, and everything else literal."""
    parts: list[str] = []
    at = 0
    for found in _REFERENCE.finditer(argument):
        parts.append(argument[at : found.start()].replace("$", "$$"))
        escaped, name = found.groups()
        parts.append(found[0] if name in env and not escaped else f"$$({name})")
        at = found.end()
    return "".join(parts) + argument[at:].replace("$", "$$")


def _services(argument: str) -> dict[str, str]:
    """The names in a text that may be variables of the API server's Service."""
    words = argument.replace("(", ")").split(")")
    return {word: _UNKNOWN for word in words if word.startswith(_SERVICE_PREFIX)}


# ---- the containers ----


#: Names of the containers of all steps but the last: step-0, step-1 …
STEP: Final = "step-"
#: Where a step notes that it began, that it was told to end, and with which code it ended.
NOTES: Final = f"{WORK}/steps"
#: The prefix of the exit code in the termination message of a step that may fail (its failure is ignored).
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
while { [ ! -e "$n.term" ] || [ "$r" = 0 ]; } && [ "$t" -lt 1200 ] && left; do
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
    return structs.replace(pod, command=step.command, image=step.image, env={**pod.env, **step.env})


def needs_stage_in(pod: Pod) -> bool:
    """Whether the pod needs a stage-in container, which lays out inputs, folders of outputs and a gang's hostfile.

    Without it a kubelet starts one container less, and the task starts about a second earlier.
    """
    return bool(pod.inputs or pod.outputs) or pod.gang is not None or pod.container is not None


def needs_stage_out(pod: Pod) -> bool:
    """Whether the pod needs a stage-out container, which runs until the task has ended."""
    container = pod.container
    return bool(pod.outputs) or (container is not None and bool(_delivered(container) or container.leave))


def _delivered(container: Container) -> tuple[Delivered, ...]:
    """The outputs that this container delivers; none if another member delivers for the gang."""
    return container.outputs if container.delivers else ()


def watched(container: Container, layout: Layout) -> bool:
    """Whether stage-out has to know how the steps ended: to leave out what an interrupted one made, or to write what is left."""
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
    """The command of a step's container, escaped so that a kubelet expands nothing in it.

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
    """The variables that a step's script reads."""
    return [{"name": "FLOWSCHED_STEP", "value": f"{NOTES}/{number}"}]


def files_variables(pod: Pod, layout: Layout, *, contents: bool) -> list[Json]:
    """The variables that describe the files of a container task to stage-in and stage-out.

    Args:
        pod: With its container.
        layout: Of its files.
        contents: Whether the texts of files that stand in the document are added: only stage-in needs them.
    """
    container = pod.container
    assert container is not None
    variables = [{"name": "FLOWSCHED_CONTAINER", "value": literal(pack(_order(pod, container, layout)))}]
    if not contents:
        return variables
    texts = [placed.content for placed in container.inputs if placed.content is not None]
    if texts:
        packed = base64.b64encode(zlib.compress(json.dumps(texts).encode(), 6)).decode()
        pieces = [packed[at : at + _PIECE] for at in range(0, len(packed), _PIECE)]
        variables += [
            {"name": f"FLOWSCHED_CONTENT_{number}", "value": piece} for number, piece in enumerate(pieces)
        ]
    return variables


def _places_left(container: Container, layout: Layout, left: Left) -> list[str]:
    """Where a file is left for programs outside that wait for it: on shared volumes."""
    path = tidy(left.path)
    wanted = [
        layout.place(path),
        *(local_path(each.uri) or "" for each in container.outputs if tidy(each.path) == path),
    ]
    return [place for place in dict.fromkeys(wanted) if place.startswith("/")]


def _written_in_place(container: Container, layout: Layout, stdio: Iterable[str]) -> list[str]:
    """The files of shared volumes that the steps write to: stage-in sees that their user may."""
    outputs = [
        each.path for each in _delivered(container) if not is_pattern(each.path) and in_place(each, layout)
    ]
    paths = [*stdio, *map(tidy, outputs), *([tidy(container.return_code)] if container.return_code else [])]
    return sorted({place for path in paths if (place := layout.place(path)).startswith("/")})


def _order(pod: Pod, container: Container, layout: Layout) -> Mapping[str, Any]:
    stdio = {tidy(path) for step in container.steps for path in stdio_of(step)}
    watch = watched(container, layout)
    return {
        "view": list(layout.view.items()),
        "folders": layout.folders,
        "files": layout.files,
        "sources": layout.sources,
        "copies": layout.copies,
        "links": layout.links,
        "contents": [layout.place(placed.path) for placed in container.inputs if placed.content is not None],
        "writes": _written_in_place(container, layout, stdio),
        "outputs": [
            {
                "path": tidy(output.path),
                "uri": local_path(output.uri) or output.uri,
                "prefix": tidy(output.path_prefix) if output.path_prefix is not None else None,
                "always": tidy(output.path) in stdio,
            }
            for output in _delivered(container)
        ],
        "last": pod.is_last,
        "fitted": pod.is_fitted,
        "return_code": container.return_code,
        "leave": [
            [place, left.content, left.reason]
            for left in container.leave
            for place in _places_left(container, layout, left)
        ],
        "steps": [step.ignore_error for step in container.steps] if watch else None,
        "stdio": [[step.stdout or "", step.stderr or ""] for step in container.steps],
        "timeout_ms": pod.timeout_ms or 0,
    }


# ---- the order of stage-in and stage-out: inputs, outputs, and the files beside them ----
#
# How it travels, and its signature, are in `orders`.


_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_NO_LAYOUT: Final = Layout()
#: Made by stage-in beside what outputs need: TMPDIR.
TEMPORARY: Final = "tmp"


def order_of(
    pod: Pod,
    layout: Layout = _NO_LAYOUT,
    expires_ms: int = 0,
    service: str = "",
) -> dict[str, Any]:
    """The order of a pod's steps, as a value.

    Args:
        pod: The pod that is to run.
        layout: Of a container task's files. An output that is written in place is not part of the order: it leaves no copy.
        expires_ms: Wall clock; from then on an agent begins nothing by it.
        service: Name of the Service below which its gang's members are found; "" = they have loopback addresses.
    """
    parents = {str(PurePosixPath(output.path).parent) for output in pod.outputs if inside(output.path)}
    return {
        "pod": pod.name,
        "inputs": [
            {
                "name": input_file.name,
                "uris": list(input_file.uris),
                "manifest": input_file.manifest,
                "path": layout.inputs.get(input_file.name) or input_path(input_file),
            }
            for input_file in pod.inputs
        ],
        "outputs": [
            {
                "name": output.name,
                "path": output.path,
                "uri": output.uri,
                "optional": output.optional,
                "value": output.value,
            }
            for output in pod.outputs
        ],
        "folders": sorted((parents - {"."}) | {TEMPORARY}),
        "gang": _gang_order(pod, service) if pod.gang else None,
        "expires_ms": expires_ms,
        "delivers": [
            (f"{top}/" if wild or output.directory else top, output.directory and not wild)
            for output in (_delivered(pod.container) if pod.container is not None else ())
            for top, wild in [((local_path(output.uri) or output.uri).rstrip("/"), is_pattern(output.path))]
            if is_target(top) and not in_place(output, layout)
        ],
    }


def _gang_order(pod: Pod, service: str) -> dict[str, Any]:
    """The data from which the agent writes the files of a gang's member: as long for 10,000 members as for two."""
    assert pod.gang is not None
    return {
        "runs": pod.gang.roster.runs,
        "service": service,
        "slots": ceil_cores(pod.cpu_millicores),
        "port": pod.gang.master_port,
    }


def input_path(input_file: InputFile) -> str:
    """Where an input is in the pod's `inputs` volume: a folder of its own, or its manifest."""
    safe = _UNSAFE.sub("_", input_file.name) or "_"
    safe = f"_{safe}" if safe.startswith(".") else safe
    if input_file.manifest:
        return f"{safe}.manifest"
    # The end of a file's name, which holds its extension: at most 200 of the 255 bytes that a name may have.
    name = file_name(input_file.uris[0] if input_file.uris else "").encode(errors="replace")[-200:]
    return f"{safe}/{name.decode(errors='ignore')}"


# ---- the environments of a pod's containers ----
#
# The task's is that of a local cluster, as far as an image lets it be.


#: Set on a local cluster, where there is no image that could say them.
_TOKEN: Final = "FLOWSCHED_GANG_TOKEN"
#: The key of a gang's token in its Secret.
TOKEN_KEY: Final = "token"

EnvVar = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    """The task's container: its variables in order, and its command so spelled that a kubelet expands it as we mean it."""

    env: list[EnvVar]
    command: list[str]


def service_of(pod: Pod, settings: ReleaseSettings, group: GroupRef | None) -> str:
    """The Service below which a pod's gang is found; "" = the pod is alone, or the members have loopback addresses."""
    if pod.gang is None or settings.gang_addresses == "seat":
        return ""
    if group is None:
        raise ValueError(f"{pod.name} has a seat in a gang and no group: other members could not find it")
    return service_host(group.name, settings.namespace)


def task_environment(
    pod: Pod, settings: ReleaseSettings, group: GroupRef | None, layout: Layout = _NO_LAYOUT
) -> TaskEnvironment | Refusal:
    """The task's environment and command.

    Args:
        pod: The pod that is to run.
        settings: Of the installation.
        group: Its Secret holds the gang's token; None = the pod is alone.
        layout: Of a container task's files.
    """
    values = _values(pod, settings, address_below(service_of(pod, settings, group)))
    sources = _sources(pod, group)
    if isinstance(sources, Refusal):
        return sources
    env: list[EnvVar] = [
        {"name": name, "value": literal(value)} for name, value in values.items() if name not in sources
    ]
    env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": found.name, "key": found.key}}}
        for name, found in sources.items()
    ]
    # A local cluster allows the token in a command; its value matters neither to the kubelet nor to us.
    stated = values | ({_TOKEN: f"$({_TOKEN})"} if _TOKEN in sources else {})
    hidden = [name for name in sources if name != _TOKEN]
    visible = {name: value for name, value in stated.items() if name not in hidden}
    return TaskEnvironment(env, [spelled(argument, visible, hidden) for argument in pod.command])


def step_environment(
    pod: Pod,
    settings: ReleaseSettings,
    group: GroupRef | None,
    expires_ms: int = 0,
    layout: Layout = _NO_LAYOUT,
) -> list[EnvVar]:
    """The environment of stage-in and of stage-out."""
    service = service_of(pod, settings, group)
    text = pack(order_of(pod, layout, expires_ms, service))
    agent = f"http://$(HOST_IP):{settings.agent_port}" if settings.agent_port else ""
    return [
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
        {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "FLOWSCHED_AGENT", "value": agent},
        {"name": "FLOWSCHED_ORDER", "value": literal(text)},
        {"name": "FLOWSCHED_SIGNATURE", "value": sign(signing_key_of(settings.agent_key), text)},
        {"name": "FLOWSCHED_INPUTS", "value": INPUTS},
        {"name": "FLOWSCHED_WORK", "value": WORK},
    ]


def _values(pod: Pod, settings: ReleaseSettings, address: Address) -> dict[str, str]:
    """The values of the variables that are no secrets."""
    by_number = pod.gpu_millis > 0 and (pod.gpu_millis % 1000 > 0 or not settings.gpu.resource)
    described = pod if by_number and settings.gpu.fractions == "cuda" else structs.replace(pod, gpu_ids=())
    inputs = {input_file.name: f"{INPUTS}/{input_path(input_file)}" for input_file in pod.inputs}
    if pod.container is not None:
        inputs |= {placed.input: placed.path for placed in pod.container.inputs if placed.input is not None}
    values, _ = environment(described, Paths(WORK, WORK, inputs, ""), address)
    for name in OF_THE_IMAGE:
        if name not in pod.env:
            del values[name]
    return values | _devices(pod, settings, by_number)


def _devices(pod: Pod, settings: ReleaseSettings, by_number: bool) -> dict[str, str]:
    """The variables for the container runtime of a GPU node. For whole devices a device plugin sets them.

    A pod without a GPU gets `void`: images made for GPUs say `all`, and would get all.
    """
    if pod.gpu_millis == 0 or settings.gpu.fractions == "dra":  # a claim's driver adds the devices by itself
        return {"NVIDIA_VISIBLE_DEVICES": "void"}
    if not by_number or not pod.gpu_ids:
        return {}
    if settings.gpu.fractions == "runtime":
        return {"NVIDIA_VISIBLE_DEVICES": ",".join(map(str, pod.gpu_ids))}
    # By default CUDA numbers devices by speed. This makes it number them by PCI bus, as device plugins do.
    return {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def _sources(pod: Pod, group: GroupRef | None) -> Mapping[str, SecretKey] | Refusal:
    """Variables that come from Secrets: the task's own, and its gang's token, which must not be in the pod's text."""
    sources: dict[str, SecretKey] = {}
    for name, reference in pod.secrets.items():
        found = secret_key(reference)
        if found is None:
            return Refusal(
                "SecretMissing",
                f"{name} asks for the secret {reference!r}; on Kubernetes that is NAME or NAME/KEY, with a name of "
                "lower-case letters, digits, '-' and '.'",
            )
        sources[name] = found
    if pod.gang is not None and group is not None:
        sources[_TOKEN] = SecretKey(group.name, TOKEN_KEY)
    return sources
