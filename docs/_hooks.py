"""What `make docs` adds to mkdocs: a link to a file outside docs/ becomes a link to the repository, if the file exists."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any, Final

from mkdocs.exceptions import PluginError

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
