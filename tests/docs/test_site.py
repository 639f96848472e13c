"""The site: every page has its place in the navigation, every relative link leads to a file."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
OURS = [*PAGES, *(ROOT / name for name in ("README.md", "bench/README.md", "workflows/README.md"))]
REPOSITORY = "https://github.com/flowsched/flowsched/"


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name Python objects, without importing them."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda loader, suffix, node: suffix)


def navigation() -> list[str]:
    """The pages in the order of the site."""

    def within(item: Any) -> list[str]:
        if isinstance(item, str):
            return [item]
        values = item if isinstance(item, list) else list(item.values())
        return [page for value in values for page in within(value)]

    return within(yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)["nav"])


def test_every_page_is_in_the_navigation_once() -> None:
    """A page that is missing there is not in the menu of the site: add it to `nav` of mkdocs.yml."""
    notebooks = [
        path.with_suffix(".md") for path in DOCS.rglob("*.ipynb")
    ]  # docs/_hooks.py makes pages of them
    pages = [page.relative_to(DOCS).as_posix() for page in (*PAGES, *notebooks)]
    assert sorted(navigation()) == sorted(pages)


def test_the_first_page_leads_to_every_page() -> None:
    """docs/README.md is the menu of those who read the repository."""
    links = set(re.findall(r"\]\(([\w/.-]+\.(?:md|ipynb))", (DOCS / "README.md").read_text(encoding="utf-8")))
    pages = {path.relative_to(DOCS).as_posix() for path in (*PAGES, *DOCS.rglob("*.ipynb"))}
    assert {page for page in pages - links if not page.startswith("decisions/0")} == {"README.md"}


@pytest.mark.parametrize("page", OURS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    """Relative ones, and those to the repository, which PyPI and the site need. `make docs` checks anchors, too."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)]
    missing = []
    for target in targets:
        if target.startswith(REPOSITORY):
            path = ROOT / re.sub(r"^(blob|tree|raw)/main/", "", target.removeprefix(REPOSITORY))
        elif "://" in target or not target:
            continue
        else:
            path = page.parent / target
        if not path.exists():
            missing.append(target)
    assert missing == []
