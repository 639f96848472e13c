"""How large the product is, by wing, and how many exceptions it holds: `python -m tests.house.budgets` lowers `budgets.toml`.

A number of `budgets.toml` falls by this program. It rises only by hand, in the commit that needs it, where a reviewer sees it.
"""

from __future__ import annotations

import ast
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

import grimp
from typer.core import TyperGroup
from typer.main import get_command

import flowsched
from flowsched.cli.app import app

CODE: Final = Path(flowsched.__file__).parent
FILE: Final = Path(__file__).with_name("budgets.toml")
#: A folder of these is a wing of its own.
_DEEPER: Final = "cluster"
#: A private function of at most so many lines with one use is a one-use helper.
_SHORT: Final = 8
#: A class with more fields is several values.
_FIELDS: Final = 20
_Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def measured() -> dict[str, dict[str, int]]:
    """The tables of `budgets.toml` as they would be now."""
    texts = {path.relative_to(CODE): path.read_text(encoding="utf-8") for path in sorted(CODE.rglob("*.py"))}
    trees = [ast.parse(text) for text in texts.values()]
    lines: Counter[str] = Counter()
    for path, text in texts.items():
        lines[_wing(path)] += text.count("\n")
    exceptions = {
        "modules": len(texts),
        "single_importers": _single_importers(),
        "one_use_helpers": sum(_one_use_helpers(tree) for tree in trees),
        "local_imports": sum(_local_imports(tree) for tree in trees),
        "large_classes": sum(
            isinstance(node, ast.ClassDef) and _fields(node) > _FIELDS
            for tree in trees
            for node in ast.walk(tree)
        ),
        "parameters_of_serve": _parameters_of("serve"),
    }
    return {"lines": dict(sorted(lines.items())), "exceptions": exceptions}


def budgets() -> dict[str, dict[str, int]]:
    """What `budgets.toml` allows."""
    return tomllib.loads(FILE.read_text(encoding="utf-8"))


def _wing(path: Path) -> str:
    """The wing of a module: its first folder, of `cluster` its second; "root" for the modules beside them."""
    folders = path.parts[:-1]
    if not folders:
        return "root"
    return "/".join(folders[:2]) if folders[0] == _DEEPER else folders[0]


def _parameters_of(command: str) -> int:
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return len(group.commands[command].params)


def _single_importers() -> int:
    """Modules that one other module imports, which lies in the same folder."""
    graph = grimp.build_graph("flowsched", cache_dir=None)
    importers = {module: graph.find_modules_that_directly_import(module) for module in graph.modules}
    return sum(
        len(by) == 1 and next(iter(by)).rpartition(".")[0] == module.rpartition(".")[0]
        for module, by in importers.items()
    )


def _one_use_helpers(tree: ast.Module) -> int:
    """Short private functions and methods whose name its module uses once."""
    uses = Counter(
        node.id if isinstance(node, ast.Name) else node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute)
    )
    return sum(
        each.name.startswith("_")
        and not each.name.endswith("__")
        and (each.end_lineno or each.lineno) - each.lineno < _SHORT
        and uses[each.name] == 1
        for each in _functions(tree)
    )


def _local_imports(tree: ast.Module) -> int:
    """Import statements within functions."""
    found = {
        node
        for function in _functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(found)


def _fields(of: ast.ClassDef) -> int:
    """How many values an object of a class has: its annotations, or what its `__init__` sets."""
    declared = sum(isinstance(each, ast.AnnAssign) for each in of.body)
    begins = [each for each in of.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
    assigned = {
        node.attr
        for begin in begins
        for node in ast.walk(begin)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    }
    return max(declared, len(assigned))


def _functions(tree: ast.Module) -> Iterator[_Function]:
    return (node for node in ast.walk(tree) if isinstance(node, _Function))


def main() -> None:
    """Lower each number to what is measured; a number that is exceeded stays."""
    head = FILE.read_text(encoding="utf-8").split("[lines]")[0]
    allowed, tables = budgets(), []
    for table, found in measured().items():
        rows = [f'"{key}" = {min(number, allowed[table].get(key, number))}' for key, number in found.items()]
        tables.append("\n".join([f"[{table}]", *rows]))
    FILE.write_text(head + "\n\n".join(tables) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
