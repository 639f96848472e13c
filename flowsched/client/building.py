"""Workflows built in Python: stages refer to each other's outputs, and the references are the edges.

    wf = Workflow("germline", queue="genomics")
    align = wf.stage("align", command=["./align.sh"], scatter=["L1", "L2"], cpu=4, memory="8Gi",
                     inputs={"reads": "s3://lab/{item}.fq.gz"}, outputs={"bam": "aligned.bam"})
    sort = wf.stage("sort", command=["./sort.sh"], inputs={"bam": align["bam"].each()}, outputs={"bam": "s.bam"})
    wf.stage("call", command=["./call.sh"], inputs={"bams": sort["bam"].all()}, outputs={"vcf": "all.vcf"})

Nothing is checked here but what only Python can know (that a referred stage belongs to the workflow): the service
checks documents, and says everything that is wrong at once.
"""

from __future__ import annotations

import numbers
import operator
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path, PurePath
from typing import Any, NamedTuple, TypeAlias, TypeVar

from flowsched.errors import InvalidRequest
from flowsched.values import replace
from flowsched.workflow.html import table

#: An amount of CPU, memory …: a number, or text such as "500m" or "8Gi".
Quantity: TypeAlias = int | float | str

T = TypeVar("T")

#: Words for resources that a stage or a role takes directly.
_RESOURCES = ("cpu", "memory", "disk", "gpu")


@dataclass(frozen=True, slots=True)
class Reference:
    """An output of a stage, as an input of another one. Without a match the service chooses (`all`)."""

    stage: str
    output: str
    match: str | None = None

    def each(self) -> Reference:
        """Element by element: shard i reads what shard i wrote, and starts when that one has ended."""
        return replace(self, match="index")

    def all(self) -> Reference:
        """Every shard reads everything: a barrier."""
        return replace(self, match="all")

    def chunks(self) -> Reference:
        """Shard i of w reads the i-th of w equal parts."""
        return replace(self, match="chunk")


Input: TypeAlias = str | Path | Reference | Mapping[str, Any]
Output: TypeAlias = str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StageHandle:
    """A stage that was added to a workflow: what its outputs are called by."""

    name: str
    outputs: tuple[str, ...]

    def output(self, name: str) -> Reference:
        """One of its outputs.

        Raises:
            InvalidRequest: It declares no such output.
        """
        if name not in self.outputs:
            declared = ", ".join(self.outputs) or "none"
            raise InvalidRequest(f"stage {self.name!r} has no output {name!r}; it declares {declared}")
        return Reference(self.name, name)

    __getitem__ = output


class Workflow:
    """A workflow document that grows stage by stage.

    Args:
        name: Its name for people.
        queue: Where it waits; None = the service's own default.
        user: Whose it is; None = the user of the token.
        priority: Higher is first in its queue.
        labels: Texts by name, to find it by.
    """

    def __init__(
        self,
        name: str,
        *,
        queue: str | None = None,
        user: str | None = None,
        priority: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self._head = _plain(_without_empty(queue=queue, user=user, priority=priority, labels=labels))
        self._stages: dict[str, dict[str, Any]] = {}

    def stage(
        self,
        name: str,
        *,
        command: Sequence[str],
        scatter: int | Iterable[str] | None = None,
        cpu: Quantity | None = None,
        memory: Quantity | None = None,
        disk: Quantity | None = None,
        gpu: Quantity | None = None,
        image: str | None = None,
        env: Mapping[str, str] | None = None,
        inputs: Mapping[str, Input] | None = None,
        outputs: Mapping[str, Output] | None = None,
        needs: Iterable[StageHandle | str] = (),
        **more: Any,
    ) -> StageHandle:
        """Add a stage: one task, or one per element of `scatter`.

        Args:
            name: Unique in the workflow.
            command: Program and arguments, as a list; no shell reads them.
            scatter: How many shards, or one item per shard (`{item}` in URIs, `FLOWSCHED_ITEM` in the task).
            cpu: Cores.
            memory: Bytes, or a quantity such as "8Gi".
            disk: As memory.
            gpu: Devices.
            image: Container image.
            env: Environment variables.
            inputs: By name: a URI, a `Path` on this machine, or an output of another stage.
            outputs: By name: the file below the task's folder, or a mapping with `path`, `value` …
            needs: Stages to wait for without reading from them.
            more: Any other field of a stage: `retry`, `timeout`, `estimate`, `when`, `policies` …

        Raises:
            InvalidRequest: An argument is of a wrong type; the message says what to write.
        """
        where = f"stage {name!r}"
        body: dict[str, Any] = {"command": _listed(command, f"the command of {where}")}
        if image is not None:
            body["container"] = {"image": image}
        body |= _without_empty(
            env=_env(env, where),
            resources=_without_empty(cpu=cpu, memory=memory, disk=disk, gpu=gpu),
        )
        return self._add(name, scatter, body | more, inputs, outputs, needs)

    def gang(
        self,
        name: str,
        *,
        roles: Mapping[str, Mapping[str, Any]],
        scatter: int | Iterable[str] | None = None,
        inputs: Mapping[str, Input] | None = None,
        outputs: Mapping[str, Output] | None = None,
        needs: Iterable[StageHandle | str] = (),
        **more: Any,
    ) -> StageHandle:
        """Add a gang: pods of several roles that start together or not at all.

        Args:
            name: Unique in the workflow.
            roles: By name: `replicas`, `command`, `min`, `grow`, `completes`, and `cpu`, `memory`, `gpu`, `image` …
            scatter: One gang per element.
            inputs: As of a stage.
            outputs: As of a stage; `role` says which role writes the file.
            needs: As of a stage.
            more: Any other field of a stage.

        Raises:
            InvalidRequest: An argument is of a wrong type; the message says what to write.
        """
        where = f"gang {name!r}"
        body: dict[str, Any] = {"gang": True}
        body["roles"] = {
            role: _role(role, settings) for role, settings in _mapping(roles, f"roles of {where}").items()
        }
        return self._add(name, scatter, body | more, inputs, outputs, needs)

    def _repr_html_(self) -> str:
        """A notebook's display: its stages."""
        stages = [_row(stage) for stage in self._stages.values()]
        number = len(stages)
        return table(stages, _Row._fields, f"workflow {self.name}: {number} stage{'s' * (number != 1)}")

    def __repr__(self) -> str:
        """Its name and its stages."""
        return f"Workflow({self.name!r}, stages=[{', '.join(self._stages)}])"

    def to_document(self) -> dict[str, Any]:
        """The document, as JSON values."""
        return {"name": self.name, **self._head, "stages": [dict(stage) for stage in self._stages.values()]}

    def _add(
        self,
        name: str,
        scatter: int | Iterable[str] | None,
        body: Mapping[str, Any],
        inputs: Mapping[str, Input] | None,
        outputs: Mapping[str, Output] | None,
        needs: Iterable[StageHandle | str],
    ) -> StageHandle:
        if name in self._stages:
            raise InvalidRequest(f"the workflow has a stage {name!r} already")
        stage: dict[str, Any] = {"name": name}
        where = f"stage {name!r}"
        if scatter is not None:
            stage["scatter"] = _scatter(scatter, where)
        stage |= body
        read, written = _mapping(inputs, f"inputs of {where}"), _mapping(outputs, f"outputs of {where}")
        stage |= _without_empty(
            needs=[
                need.name if isinstance(need, StageHandle) else need
                for need in _listed(needs, f"needs of {where}")
            ],
            inputs=[self._input(key, value, where) for key, value in read.items()],
            outputs=[_output(key, value, where) for key, value in written.items()],
        )
        self._stages[name] = _plain(stage)
        return StageHandle(name, tuple(written))

    def _input(self, name: str, source: Input, where: str) -> dict[str, Any]:
        match source:
            case Reference():
                if source.stage not in self._stages:
                    raise InvalidRequest(
                        f"input {name!r} refers to stage {source.stage!r} of another workflow"
                    )
                return {"name": name, "from": f"{source.stage}.{source.output}"} | _without_empty(
                    match=source.match
                )
            case Path():
                return {"name": name, "uri": source.absolute().as_posix()}
            case str():
                return {"name": name, "uri": source}
            case Mapping():
                return {"name": name, **source}
            case _:
                raise InvalidRequest(
                    f"input {name!r} of {where} is {source!r}, expected a URI, a Path, an output of a stage, or a mapping"
                )


class _Row(NamedTuple):
    """A stage as a row of a table."""

    stage: str
    tasks: str
    runs: str
    reads: list[str]
    writes: list[str]
    resources: str


def _short(uri: str) -> str:
    """A URI for people: of a file of this machine its name."""
    return posixpath.basename(uri) if uri.startswith(("/", "file:")) else uri


def _row(stage: Mapping[str, Any]) -> _Row:
    scatter, roles = stage.get("scatter", {}), stage.get("roles", {})
    width = scatter.get("count", len(scatter.get("items", ("one",))))
    members = [f"{role} × {settings.get('replicas', 1)}" for role, settings in roles.items()]
    return _Row(
        stage["name"],
        f"{width} × gang of {', '.join(members)}" if stage.get("gang") else str(width),
        " ".join(
            [
                posixpath.basename(part) if at == 0 else part
                for at, part in enumerate(stage.get("command", ()))
            ]
        ),
        [each.get("from") or _short(str(each.get("uri", ""))) for each in stage.get("inputs", ())],
        [each["name"] for each in stage.get("outputs", ())],
        ", ".join(f"{name} {amount}" for name, amount in stage.get("resources", {}).items()),
    )


def _output(name: str, output: Output, where: str) -> dict[str, Any]:
    if isinstance(output, str | PurePath):
        return {"name": name, "path": str(output)}
    if isinstance(output, Mapping):
        return {"name": name, **output}
    raise InvalidRequest(
        f"output {name!r} of {where} is {output!r}, expected a file below the task's folder, or a mapping such as "
        '{"path": "model.json", "value": True}'
    )


def _mapping(value: Mapping[str, T] | None, what: str) -> dict[str, T]:
    """A mapping as a dictionary of its own; None is empty."""
    if value is not None and not isinstance(value, Mapping):
        raise InvalidRequest(f"{what}: found {value!r}, expected a mapping by name")
    return dict(value or {})


def _listed(value: object, what: str) -> list[Any]:
    """A value as a list. A text would become its letters, and a set has another order in each run."""
    if isinstance(value, str | bytes | Mapping | set | frozenset) or not isinstance(value, Iterable):
        raise InvalidRequest(f"{what} is {value!r}, expected a list")
    return list(value)


def _scatter(value: object, where: str) -> dict[str, Any]:
    """A number of shards, or their items."""
    count = _number(value)
    if isinstance(count, int) and not isinstance(count, bool):
        return {"count": count}
    return {"items": _listed(value, f"scatter of {where}")}


def _role(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    where = f"role {name!r}"
    settings = _mapping(body, where)
    role = {key: value for key, value in settings.items() if key not in (*_RESOURCES, "image")}
    if "command" in role:
        role["command"] = _listed(role["command"], f"the command of {where}")
    if "env" in role:
        role["env"] = _env(role["env"], where)
    short = {key: settings[key] for key in _RESOURCES if key in settings}
    if short:
        role["resources"] = {**role.get("resources", {}), **short}
    if "image" in settings:
        role["container"] = {"image": settings["image"]}
    return role


def _without_empty(**fields: Any) -> dict[str, Any]:
    """The fields that are neither None nor empty."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and not (isinstance(value, list | dict) and not value)
    }


def _env(env: Mapping[str, Any] | None, where: str) -> dict[str, Any]:
    """Environment variables; a path is its text."""
    variables = _mapping(env, f"env of {where}")
    return {name: str(value) if isinstance(value, PurePath) else value for name, value in variables.items()}


def _plain(value: Any) -> Any:
    """A value with Python's own numbers in place of NumPy's, and a duration's text in place of a `timedelta`."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, timedelta):
        return f"{value // timedelta(milliseconds=1)}ms"
    return _number(value)


def _number(value: Any) -> Any:
    """A number of another library as Python's own; anything else as it is."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    try:
        return operator.index(value)
    except TypeError:
        return float(value) if isinstance(value, numbers.Real) else value
