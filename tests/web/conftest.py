"""A service with a token, some workflows in it, and a browser, once for all tests of the page.

Playwright runs an event loop of its own while the browser is open: the fixtures end with this folder, before async tests of others.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from tests.serving.processes import Served, served
from tests.web.browser import browser, missing

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

REQUIRE = "FLOWSCHED_REQUIRE_BROWSER"
SMALL = {"cpu": "100m", "memory": "16Mi"}
GANG = {"replicas": 2, "command": ["sleep", "600"], "resources": SMALL}
#: One stage of each kind that a person looks for: done, failed, running as a gang, and waiting for ever.
DOCUMENT = {
    "name": "germline",
    "queue": "lab",
    "stages": [
        {
            "name": "greet",
            "command": ["sh", "-c", "echo hello from $FLOWSCHED_INDEX; echo careful >&2"],
            "scatter": {"items": [f"sample-{number}" for number in range(30)]},
            "resources": SMALL,
        },
        {"name": "breaks", "command": ["sh", "-c", "echo no such file >&2; exit 3"], "resources": SMALL},
        {"name": "train", "needs": ["greet"], "gang": True, "roles": {"worker": GANG}},
        {"name": "huge", "command": ["true"], "needs": ["greet"], "resources": {"cpu": 64}},
        {"name": "last", "command": ["true"], "needs": ["train", "huge"], "resources": SMALL},
    ],
}


@dataclass
class Site:
    """The service and the workflows in it."""

    served: Served
    token: str
    runs: dict[str, str] = field(default_factory=dict)  #: name -> id

    def get(self, path: str, body: Any = None) -> Any:
        return self.served.get(f"/api/v1{path}", body, self.token)

    def submit(self, document: dict[str, Any]) -> str:
        self.runs[document["name"]] = self.get("/workflows", document)["id"]
        return self.runs[document["name"]]

    def until(self, run: str, fits: Callable[[dict[str, int]], Any]) -> None:
        """Wait until the counts of a run are so."""
        end = time.monotonic() + 90
        while not fits(counts := self.get(f"/workflows/{run}")["counts"]):
            assert time.monotonic() < end, (counts, self.served.told())
            time.sleep(0.1)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """A browser, or the end of this test: a skip on a laptop, a failure in CI."""
    if why := missing():
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{REQUIRE}=1, but {why}", pytrace=False)
        pytest.skip(why)
    with browser() as opened:
        yield opened


@pytest.fixture(scope="package")
def site(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("web")
    with served(folder / "root", "--nodes", "3", "--racks", "2", token=True) as running:
        running.ready()
        token = next((folder / "root").rglob("token")).read_text().strip()
        made = Site(running, token)
        run = made.submit(DOCUMENT)
        made.until(run, lambda counts: counts.get("RUNNING") == 2 and counts.get("FAILED") == 1)
        yield made
        for each in made.runs.values():
            if made.get(f"/workflows/{each}")["ended_at"] is None:
                made.get(f"/workflows/{each}/cancel", {})


@dataclass
class Looking:
    """One tab, and what it said and asked for meanwhile."""

    page: Page
    site: Site
    said: list[str] = field(
        default_factory=list
    )  #: errors and warnings of the console, exceptions, refusals of the policy
    asked: list[str] = field(default_factory=list)  #: URLs

    def open(self, path: str = "") -> Page:
        """Open a view with the token that the tab keeps."""
        self.page.add_init_script(f"sessionStorage.setItem('flowsched.token', '{self.site.token}')")
        self.page.goto(f"{self.site.served.url}/ui{path}")
        return self.page


@pytest.fixture
def look(chromium: Browser, site: Site) -> Iterator[Callable[..., Looking]]:
    """Opens tabs: `look(color_scheme="dark")`. At the end none may have complained, or asked another server."""
    tabs: list[Looking] = []

    def opened(**settings: Any) -> Looking:
        context = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}} | settings)
        context.set_default_timeout(30_000)
        tab = Looking(context.new_page(), site)
        tab.page.on("console", lambda m: tab.said.append(m.text) if m.type in ("error", "warning") else None)
        tab.page.on("pageerror", lambda error: tab.said.append(str(error)))
        tab.page.on("request", lambda request: tab.asked.append(request.url))
        tabs.append(tab)
        return tab

    yield opened
    for tab in tabs:
        assert [url for url in tab.asked if not url.startswith(site.served.url)] == []
        assert tab.said == []
        tab.page.context.close()
