"""`scheduling/` decides in whole numbers and with stable sorts, so that machines agree; and it is pure."""

from __future__ import annotations

import ast
from pathlib import Path

import flowsched.scheduling

ROOT = Path(flowsched.scheduling.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FORBIDDEN = {
    "exp",
    "log",
    "log2",
    "log10",
    "power",
    "sqrt",
    "float64",
    "float32",
    "lexsort",
    "argpartition",
    "divide",
}
PURE = {
    "__future__",
    "base64",
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "enum",
    "functools",
    "math",  # isqrt; the others are FORBIDDEN
    "heapq",
    "importlib",  # of a recording: the classes of these packages
    "inspect",
    "io",
    "itertools",
    "json",
    "re",
    "struct",
    "sys",  # for its `modules`
    "types",
    "typing",
    "zipfile",
    "zlib",
    "msgspec",  # frozen values; nothing is encoded
    "numpy",
    "flowsched",
}


def nodes(kind: type[ast.AST]) -> list[tuple[str, ast.AST]]:
    """Every syntax node of a kind, with where it stands."""
    found = []
    for path in FILES:
        for item in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(item, kind):
                found.append((f"{path.relative_to(ROOT)}:{getattr(item, 'lineno', 0)}", item))
    return found


def test_no_floats() -> None:
    """No true division, no float constants, no exp or log, no float dtypes."""
    faults = [where for where, item in nodes(ast.BinOp) if isinstance(item.op, ast.Div)]  # type: ignore[attr-defined]
    faults += [where for where, item in nodes(ast.AugAssign) if isinstance(item.op, ast.Div)]  # type: ignore[attr-defined]
    faults += [where for where, item in nodes(ast.Constant) if isinstance(item.value, float)]  # type: ignore[attr-defined]
    faults += [where for where, item in nodes(ast.Attribute) if item.attr in FORBIDDEN]  # type: ignore[attr-defined]
    faults += [where for where, item in nodes(ast.Name) if item.id == "float"]  # type: ignore[attr-defined]
    assert faults == []


def test_sorts_are_stable() -> None:
    """Every sort of an array says kind="stable": others change their order with the machine's instructions."""
    faults = []
    for where, call in nodes(ast.Call):
        function = call.func  # type: ignore[attr-defined]
        if isinstance(function, ast.Attribute) and function.attr in ("sort", "argsort"):
            on_list = isinstance(function.value, ast.Name) and function.value.id == "groups"
            kinds = [key.value.value for key in call.keywords if key.arg == "kind"]  # type: ignore[attr-defined]
            if kinds != ["stable"] and not on_list:
                faults.append(where)
    assert faults == []


def test_only_pure_imports() -> None:
    """NumPy, values, and the layers below: no clock, no randomness, no I/O, no logging."""
    faults = []
    for where, item in nodes(ast.Import) + nodes(ast.ImportFrom):
        names = [item.module or ""] if isinstance(item, ast.ImportFrom) else [a.name for a in item.names]  # type: ignore[attr-defined]
        for name in names:
            top, *rest = name.split(".")
            if top not in PURE or (
                top == "flowsched"
                and rest[:1]
                not in (
                    [],
                    ["scheduling"],
                    ["executor"],
                    ["workflow"],
                    ["errors"],
                    ["statement"],
                    ["values"],
                    ["version"],
                )
            ):
                faults.append(f"{where} {name}")
    assert faults == []


def test_plugins_do_not_know_each_other() -> None:
    """A plugin imports values, never another plugin, the framework or the cycle."""
    for where, item in nodes(ast.ImportFrom):
        if where.startswith("plugins/"):
            allowed = ("snapshot", "catalogue", "podgroup", "constraints", "selectors", "domains")
            module = item.module or ""  # type: ignore[attr-defined]
            assert not module.startswith("flowsched") or module.split(".")[-1] in allowed, where
