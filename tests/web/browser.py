"""A real Chromium for tests and benches of the web page: Debian's (`make browser`), or the one that FLOWSCHED_BROWSER names."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import flowsched

if TYPE_CHECKING:
    from playwright.sync_api import Browser

WEB = Path(flowsched.__file__).parent / "web"
NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """Where it is."""
    named = os.environ.get("FLOWSCHED_BROWSER")
    return named or next(filter(None, map(shutil.which, NAMES)), None)


def missing() -> str:
    """What is missing to look at the page, and how to get it; empty if nothing is."""
    if not (WEB / "dist" / "index.html").exists():
        return "the web page is not built: make ui"
    if find_spec("playwright") is None:
        return "no playwright: pip install playwright"
    return "" if executable() else "no Chromium: make browser"


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser without a window."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=executable(), args=["--no-sandbox"])
        try:
            yield opened
        finally:
            opened.close()
