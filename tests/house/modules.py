"""The table of modules in docs/modules.md, drawn from their docstrings: `python -m tests.house.modules` writes it."""

from __future__ import annotations

import ast
from pathlib import Path

import flowsched

CODE = Path(flowsched.__file__).parent
PAGE = CODE.parent / "docs" / "modules.md"
HEAD = """# Modules

Each package, and the first sentence of each module. `python -m tests.house.modules` writes this page.
[architecture.md](architecture.md) says how the packages work together.
"""


def page() -> str:
    """The page as it should be."""
    lines = [HEAD]
    folders = sorted({path.parent for path in CODE.rglob("*.py")})
    for folder in folders:
        name = folder.relative_to(CODE.parent).as_posix()
        lines.append(f"\n## `{name}/`\n\n{_sentence(folder / '__init__.py')}\n")
        modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
        if modules:
            lines.append("| module | what it knows |\n|---|---|")
            lines += [f"| `{path.stem}` | {_sentence(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _sentence(path: Path) -> str:
    """The first line of a module's docstring, as the cell of a table."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else None
    return (doc or "").split("\n\n")[0].replace("\n", " ").replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
