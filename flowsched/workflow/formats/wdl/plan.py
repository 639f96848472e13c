"""A WDL workflow and its inputs, read into a `Plan`: the entry of the WDL planner.

Pure: sources come as texts (`sources`) or from a callback, and nothing is read, fetched or written. miniwdl takes half a second
to load: import this when it is needed. A hostile source may still cost time and memory: a service plans in a process with
limits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import WDL
from WDL import Error, Tree, Value

from flowsched.errors import Fault, InvalidDocument, TooLarge
from flowsched.workflow.formats.wdl.calls import Draft, Walk
from flowsched.workflow.formats.wdl.documents import Documents, Reader
from flowsched.workflow.formats.wdl.sources import Files, Sources, files_of
from flowsched.workflow.graph import topological_order
from flowsched.workflow.plan import EdgePlan, NodePlan, Plan

NOTES: Final = 50


def plan_wdl(
    sources: Sources,
    inputs: Mapping[str, Any] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    contents: Mapping[str, str] | None = None,
) -> Plan:
    """The plan of a workflow, from sources in memory.

    Args:
        sources: The sources.
        inputs: As Cromwell takes them: `{"workflow.input": value}`; None if they are not known at all (then optional ones are
            unknown too).
        sizes: Bytes of files, by the URI or path in the inputs: what `size()` answers.
        contents: Texts of files, likewise: what `read_lines()` and its like read.

    Raises:
        InvalidDocument: With file, line and column of each fault.
        TooLarge: A limit is exceeded.
    """

    def read(uri: str, importer: str | None) -> tuple[str, str] | None:
        name = sources.main if importer is None else sources.find(uri, importer)
        return None if name is None else (sources.texts[name], name)

    known = sorted(name for name in sources.texts if name != sources.main)
    return plan_from(sources.main, read, inputs, files=files_of(sizes or {}, contents or {}), offered=known)


def plan_from(
    main: str,
    read: Reader,
    inputs: Mapping[str, Any] | None = None,
    *,
    files: Files,
    offered: list[str] | None = None,
) -> Plan:
    """The plan of a workflow. A callback reads its sources. See `plan_wdl`.

    Args:
        main: Name of the workflow's own source.
        read: Called for it and for each import.
        inputs: See `plan_wdl`.
        files: The known facts about the files that the inputs name.
        offered: Names of the imports there are, for messages.

    Raises:
        InvalidDocument: With file, line and column of each fault.
        TooLarge: A limit is exceeded.
    """
    try:
        documents = Documents(read, offered)
        document = documents.load(main)
        if document.workflow is None:
            raise InvalidDocument(
                [Fault(main, "tasks but no workflow", "a workflow, whose calls can be planned")]
            )
        values, notes = _values(document.workflow, inputs)
        walk = Walk(values, inputs is not None, files)
        walk.go(document.workflow)
    except RecursionError:
        raise TooLarge(f"{main} has expressions or sections nested deeper than can be read") from None
    return _plan(
        document.workflow.name, f"WDL {document.effective_wdl_version}", walk, documents.notes + notes
    )


def _values(
    workflow: Tree.Workflow, inputs: Mapping[str, Any] | None
) -> tuple[dict[str, Value.Base], list[str]]:
    """The inputs as WDL values, and notes of those that the workflow does not have."""
    found: dict[str, Value.Base] = {}
    notes: list[str] = []
    faults: list[Fault] = []
    available = workflow.available_inputs
    for key, value in (inputs or {}).items():
        try:
            for binding in WDL.values_from_json({key: value}, available, namespace=workflow.name):
                found[binding.name] = binding.value
        except Error.InputError as error:
            if str(error).startswith("unknown input"):
                notes.append(f"the workflow has no input {key}")
            else:
                faults.append(Fault(f"$[{key!r}]", repr(value)[:60], f"an input of its type ({error})"))
        except (TypeError, ValueError, KeyError, AttributeError, AssertionError) as error:
            faults.append(
                Fault(f"$[{key!r}]", repr(value)[:60], f"an input of its type ({error or 'it has another'})")
            )
    if faults:
        raise InvalidDocument(faults)
    return found, notes


def _plan(name: str, language: str, walk: Walk, notes: list[str]) -> Plan:
    numbers = {path: number for number, path in enumerate(walk.nodes)}
    drafts = list(walk.nodes.values())
    parents = [sorted(numbers[path] for path in each.data | each.order if path in numbers) for each in drafts]
    order = topological_order(parents)
    levels, edges = _edges(drafts, parents, order, numbers)
    nodes = tuple(_node(drafts[number], levels[number]) for number in order)
    if len(notes) > NOTES:
        notes = [*notes[:NOTES], f"and {len(notes) - NOTES} more"]
    return Plan(
        name, language, nodes, tuple(edges), tuple(walk.scatters), tuple(walk.conditions), tuple(notes)
    )


def _edges(
    drafts: list[Draft], parents: list[list[int]], order: tuple[int, ...], numbers: Mapping[str, int]
) -> tuple[list[int], list[EdgePlan]]:
    """Levels, and the edges: of those of order, only the ones that do not follow from others."""
    levels = [0] * len(drafts)
    above = [0] * len(drafts)  # bit i: node i is an ancestor
    edges: list[EdgePlan] = []
    for child in order:
        levels[child] = max((levels[parent] + 1 for parent in parents[child]), default=0)
        data = {numbers[path] for path in drafts[child].data if path in numbers}
        implied = 0
        for parent in parents[child]:
            implied |= above[parent]
        for parent in parents[child]:
            above[child] |= above[parent] | (1 << parent)
            if parent in data or not implied >> parent & 1:
                edges.append(
                    EdgePlan(drafts[parent].path, drafts[child].path, "data" if parent in data else "order")
                )
    return levels, edges


def _node(draft: Draft, level: int) -> NodePlan:
    certain = draft.runs == "yes" and draft.tasks is not None
    return NodePlan(
        path=draft.path,
        task=draft.task,
        workflow=draft.workflow,
        call=draft.call,
        scatters=draft.scatters,
        conditions=draft.conditions,
        tasks=draft.tasks,
        runs=draft.runs,
        until=tuple(sorted(draft.until)),
        gang_width=draft.tasks if certain else None,
        level=level,
        image=draft.image,
        files=draft.files,
        more_files=draft.more_files,
        **draft.amounts,
    )
