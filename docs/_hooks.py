"""What `make docs` adds to mkdocs: links to files outside docs/ become links to the repository, and notebooks become pages."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

_ROOT: Final = Path(__file__).parents[1]
_LINK: Final = re.compile(r"(\]\()((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrite links that leave docs/. A reader of the repository follows the same links as relative paths."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def rewritten(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[2]))
        if target == "docs" or target.startswith("docs/"):
            return found[0]
        if not (_ROOT / target).exists():
            raise PluginError(f"{folder}: the link {found[2]} leads to {target}, which does not exist")
        kind = "tree" if (_ROOT / target).is_dir() else "blob"
        return f"{found[1]}{config['repo_url']}/{kind}/main/{target}{found[3] or ''})"

    return _LINK.sub(rewritten, markdown)


# ---- notebooks: each becomes a page ----


def on_files(files: Any, config: Any, **_: Any) -> Any:
    """Add a page for each notebook, with what it showed when it ran; the notebook itself stays to be downloaded."""
    for file in [each for each in files if each.src_uri.endswith(".ipynb")]:
        notebook = json.loads((_ROOT / "docs" / file.src_uri).read_text())
        name = posixpath.basename(file.src_uri)
        text = "\n\n".join(_cell(cell) for cell in notebook["cells"])
        text = re.sub(r"\]\(([\w-]+)\.ipynb\)", r"](\1.md)", text)
        text += f"\n\nThis page as a notebook: [{name}]({name})\n"
        files.append(File.generated(config, file.src_uri.removesuffix(".ipynb") + ".md", content=text))
    return files


def _cell(cell: dict[str, Any]) -> str:
    source = "".join(cell["source"])
    if cell["cell_type"] == "markdown":
        return source
    fence = "````"  # the programs in a notebook have fences of their own nowhere
    return "\n\n".join(
        [f"{fence}python\n{source}\n{fence}", *filter(None, map(_output, cell.get("outputs", ())))]
    )


def _output(output: dict[str, Any]) -> str:
    """A table as it is (flowsched has escaped it); all else as text."""
    if output["output_type"] == "error":
        return "```text\n" + "\n".join(output["traceback"]) + "\n```"
    data = output.get("data", {})
    if "text/html" in data:
        return "".join(data["text/html"])
    return "```text\n" + "".join(output.get("text") or data.get("text/plain", "")).rstrip() + "\n```"
