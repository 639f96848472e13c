"""The house itself: drawings are true, names exist on both sides, the core has no clock, and the product keeps to its budgets."""

from __future__ import annotations

import ast
import functools
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import grimp
import networkx
import pytest

import flowsched
from flowsched import errors
from flowsched.control.leading.failpoints import POINTS
from flowsched.workflow.run.lifecycle import END_OF, TRANSITIONS, TaskEvent
from flowsched.workflow.run.states import TaskState
from tests.house.budgets import budgets, measured
from tests.house.modules import PAGE, page

CODE = Path(flowsched.__file__).parent
ROOT = CODE.parent
PURE = ("workflow", "scheduling", "engine", "simulation")


@functools.cache
def parsed() -> dict[str, ast.Module]:
    """Every module by its path in the package, read once for all tests."""
    paths = sorted(CODE.rglob("*.py"))
    return {p.relative_to(CODE).as_posix(): ast.parse(p.read_text(encoding="utf-8")) for p in paths}


def modules(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Every module of these folders (of all), by its path in the package."""
    return ((n, t) for n, t in parsed().items() if not folders or n.split("/")[0] in folders)


def drawn() -> str:
    """The state diagram as Mermaid text: one arrow for each pair of states, with all events that lead along it."""
    arrows: dict[tuple[TaskState, TaskState], list[str]] = {}
    for event, row in TRANSITIONS.items():
        for before, after in row.items():
            if before is not after:
                arrows.setdefault((before, after), []).append(event.name.lower())
    lines = ["stateDiagram-v2", "    [*] --> PENDING"]
    for (before, after), events in sorted(arrows.items()):
        lines.append(f"    {before.name} --> {after.name}: {', '.join(events)}")
    return "\n".join(lines)


def test_the_state_diagram_is_the_one_drawn_from_the_table() -> None:
    """docs/architecture.md shows what `lifecycle` does; the message holds the block to paste."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    expected = f"<!-- states -->\n```mermaid\n{drawn()}\n```\n<!-- /states -->"
    start, end = text.index("<!-- states -->"), text.index("<!-- /states -->") + len("<!-- /states -->")
    assert text[start:end] == expected, f"put this into docs/architecture.md:\n\n{expected}\n"


def test_every_event_of_the_table_is_raised() -> None:
    """And so a task can be in every state: an event that no code raises would be drawn, counted and documented all the same."""
    raised = {
        node.attr
        for name, tree in modules("workflow")
        if name != "workflow/run/lifecycle.py"
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
        if call.func.attr in {"move", "move_one"}  # `may` only asks
        for node in ast.walk(call.args[-1])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "_E"
    }
    assert raised | {event.name for event in END_OF.values()} == {event.name for event in TaskEvent}
    reached = {after for row in TRANSITIONS.values() for after in row.values()}
    assert reached == set(TaskState)


def test_the_modules_that_the_architecture_names_exist() -> None:
    """Every path between backticks; `a/{b,c}` are two."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    said = set(re.findall(r"`([a-z_]+(?:/[a-z_{},]+)+/?)`", text))
    there = {f"/flowsched/{path.removesuffix('.py').removesuffix('/__init__')}" for path in parsed()}
    there |= {above.as_posix() for path in there for above in Path(path).parents}
    there |= {
        f"/{path.relative_to(ROOT).as_posix().removesuffix('.py')}"
        for top in ("docs", "deploy", "bench", "tests")
        for path in (ROOT / top).rglob("*")
    }
    wrong = {
        name for path in said for name in spread(path) if not any(each.endswith(f"/{name}") for each in there)
    }
    assert not wrong, f"docs/architecture.md names what is not there: {sorted(wrong)}"


def test_the_table_of_modules_is_the_one_drawn_from_their_docstrings() -> None:
    """docs/modules.md."""
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m tests.house.modules"


def spread(path: str) -> list[str]:
    """A path with one `{a,b}` as several."""
    before, brace, rest = path.strip("/").partition("{")
    names, _, after = rest.partition("}")
    return [before + name + after for name in names.split(",")] if brace else [before]


def test_every_task_state_is_reached_and_left() -> None:
    """No state is a mere word: something leads into it, and out of it (a retry leaves even terminal ones)."""
    moves = [
        (before, after)
        for row in TRANSITIONS.values()
        for before, after in row.items()
        if before is not after
    ]
    assert {after for _, after in moves} == set(TaskState)
    assert {before for before, _ in moves} == set(TaskState)


def failpoints_in_code() -> set[str]:
    """Names that are passed to something called failpoint."""
    found = set()
    for name, tree in modules():
        if name == "control/leading/failpoints.py":
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute | ast.Name):
                continue
            called = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if called.strip("_") == "failpoint" and node.args and isinstance(node.args[0], ast.Constant):
                found.add(str(node.args[0].value))
    return found


def test_every_failpoint_that_is_passed_can_be_armed_and_the_other_way_round() -> None:
    """A point that no code passes would make a crash test pass for nothing."""
    assert failpoints_in_code() == set(POINTS)


def error_classes() -> list[type[errors.FlowschedError]]:
    found = [value for _, value in inspect.getmembers(errors, inspect.isclass)]
    return [value for value in found if issubclass(value, errors.FlowschedError)]


def tree_of_errors() -> dict[str, tuple[int, int]]:
    """Name -> (depth, status), as the docstring of `errors` draws it."""
    found = {}
    for line in (errors.__doc__ or "").splitlines():
        bare = line.lstrip("│├└─ ")
        words = bare.split()
        if len(words) > 1 and words[1].isdigit():
            found[words[0]] = ((len(line) - len(bare)) // 4, int(words[1]))
    return found


def test_the_tree_of_errors_is_drawn_as_it_is() -> None:
    """Every class is in the docstring of `errors`, as deep as it inherits, with the status it has."""
    told = {each.__name__: (len(each.__mro__) - 4, each.status) for each in error_classes()}
    assert tree_of_errors() == told


def test_every_error_has_a_title_and_a_status_of_http() -> None:
    """What the API answers with."""
    for each in error_classes():
        assert each.title
        assert 400 <= each.status <= 599


#: Whoever asks these asks the world: (module, attribute), "*" for any attribute.
WORLD = {
    ("time", "*"), ("random", "*"), ("secrets", "*"), ("uuid", "*"), ("os", "*"),
    ("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today"),
}  # fmt: skip


@pytest.mark.parametrize("folder", PURE)
def test_the_core_asks_neither_clock_nor_dice(folder: str) -> None:
    """Time, chance and ids are arguments: so the simulator decides what the service would."""
    for name, tree in modules(folder):
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported = (
                    [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                )
                assert not {word for word, what in WORLD if what == "*"} & set(imported), (
                    f"{name}: {imported}"
                )
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
                owner = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
                assert (owner, node.attr) not in WORLD, f"{name}:{node.lineno}"


def test_no_wing_is_larger_than_its_budget() -> None:
    """Nor are there more exceptions. Take something out, or raise the number in `budgets.toml` and say why in the commit."""
    allowed = budgets()
    found = {f"{table}.{key}": number for table, row in measured().items() for key, number in row.items()}
    over = {
        name: f"{number}, allowed {limit}"
        for name, number in found.items()
        if number > (limit := allowed[name.split(".")[0]].get(name.split(".")[1], 0))
    }
    assert over == {}


def test_every_module_says_what_it_is() -> None:
    """In its first line."""
    for name, tree in modules():
        if tree.body:
            assert ast.get_docstring(tree), name


#: A sentence that begins so has a clause in place of its actor.
NO_ACTOR = re.compile(
    r"(?:^|[.:;!?]\s+|\n\s*)((?:Nobody|Somebody|Who(?:ever)?|What(?:ever)?|Whichever|Those (?:who|that)|nobody|somebody|whoever)\b"
    r"[^.?!]{0,60})"
)


def sentences_without_actor(text: str) -> list[str]:
    """Their beginnings, in the docstrings and comments of a program."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    prose = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)]
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    prose += [token.string.lstrip("#: ") for token in tokens if token.type == tokenize.COMMENT]
    return [found for each in prose for found in NO_ACTOR.findall(each)]


def test_a_sentence_names_its_actor() -> None:
    """The task, the scheduler, the client: CONTRIBUTING.md."""
    text = '"""What waits. Work: nobody runs it."""\nx = 1  # Who asks\n"""What is no docstring."""\n'
    assert len(sentences_without_actor(text)) == 3
    found = {str(p): sentences_without_actor(p.read_text(encoding="utf-8")) for p in CODE.rglob("*.py")}
    assert {name: texts for name, texts in found.items() if texts} == {}


#: The predictor and its parts: rates of disks, spreads of starts, text for people; and where samples are learned.
ASKED = ("predictor", "io_demand", "forecast", "explain", "telemetry")


def test_decisions_ask_the_predictor() -> None:
    """Neither a document's estimate nor a learned amount is read by anything else that decides."""
    around = []
    for name, tree in modules("engine", "scheduling"):
        if name.removesuffix(".py").split("/")[-1] in ASKED:
            continue
        for each in ast.walk(tree):
            if isinstance(each, ast.Attribute):
                of = each.value.attr if isinstance(each.value, ast.Attribute) else ""
                if each.attr in ("estimate", "says_io") or of == "estimates":
                    around.append((name, each.lineno, each.attr))
    assert around == []


def test_only_moves_assigns_a_task_state() -> None:
    """And rebuilding from rows: everything else goes through the table."""
    for name, tree in modules():
        for node in ast.walk(tree):
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                of_states = isinstance(target, ast.Subscript) and isinstance(target.value, ast.Attribute)
                if of_states and target.value.attr == "task_state":
                    assert name == "engine/recovery.py", f"{name}:{node.lineno}"
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "set"
            ):
                first = node.args[0] if node.args else None
                if isinstance(first, ast.Attribute) and first.attr == "task_state":
                    assert name == "workflow/run/moves.py", f"{name}:{node.lineno}"


def test_no_module_imports_itself_through_others() -> None:
    """There is no import cycle, not even by imports in functions or under TYPE_CHECKING. A shared value belongs below both."""
    graph = grimp.build_graph("flowsched", cache_dir=None)
    found = networkx.DiGraph(
        (module, other)
        for module in graph.modules
        for other in graph.find_modules_directly_imported_by(module)
    )
    cycles = [sorted(each) for each in networkx.strongly_connected_components(found) if len(each) > 1]
    assert cycles == []
