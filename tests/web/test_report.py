"""`flowsched report` in a real browser: one file that needs neither the service nor the network."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.forks import ran
from tests.web.browser import WEB
from tests.web.conftest import Site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PAINTED = """() => {
    const canvas = document.querySelector("canvas");
    return canvas.width > 0 && canvas.toDataURL().length > 5000;
}"""


@pytest.fixture(scope="module")
def file(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of the run that still goes on, compared with itself."""
    made = tmp_path_factory.mktemp("report") / "report.html"
    run = site.runs["germline"]
    asked = ["report", run, "--with", run, "-o", str(made)]
    env = os.environ | {"FLOWSCHED_SERVER": site.served.url, "FLOWSCHED_TOKEN": site.token}
    ran(asked, env=env).check_returncode()
    return made


@pytest.fixture(params=["light", "dark"])
def page(request: pytest.FixtureRequest, chromium: Browser, file: Path) -> Iterator[Page]:
    """The file in a tab. At the end the tab has asked for nothing else, and has not complained."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, color_scheme=request.param)
    context.set_default_timeout(30_000)
    opened, asked, said = context.new_page(), [], []
    opened.on("request", lambda each: asked.append(each.url))
    opened.on("console", lambda each: said.append(each.text) if each.type in ("error", "warning") else None)
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.goto(file.as_uri())
    yield opened
    assert (asked, said) == ([file.as_uri()], [])
    context.close()


def test_a_report_shows_the_run_by_itself(page: Page) -> None:
    """Graph, timeline, usage, what waited for what, and the attempt that failed; a stage shows its tasks alone."""
    page.get_by_role("heading", name="germline", exact=False).first.wait_for()
    page.wait_for_function(PAINTED)
    timeline = page.get_by_role("application").first
    assert "of 35 tasks" in (timeline.get_attribute("aria-label") or "")
    legend = page.get_by_role("list", name="Colours").first.locator("li").all_inner_texts()
    assert [text.strip() for text in legend][-2:] == ["failed", "no bar: cached, or never ran"]
    page.locator(".box", has_text="greet").first.click()
    page.get_by_role("heading", name="Timeline of greet").wait_for()
    assert "of 30 tasks" in (timeline.get_attribute("aria-label") or "")
    used = page.get_by_role("region", name="Used, of what was asked for").first
    assert "greet" in used.inner_text()
    waited = page.get_by_role("region", name="What waited for what").first
    assert "greet" in waited.locator("tr", has_text="train").inner_text()
    failed = page.get_by_role("region", name="Attempts that did not succeed").first
    assert failed.locator("tr", has_text="breaks[0]").locator("td").all_inner_texts()[3] == "3"
    page.get_by_role("heading", name="Compared with germline").wait_for()


def test_cached_stages_are_not_praised_for_their_speed(
    chromium: Browser, site: Site, file: Path, tmp_path: Path
) -> None:
    """Of the other run, made like it but slower and without the cache; shares differ by percentage points. Memory that fits has
    a sentence for each stage.
    """
    before, data = re.split(r'(?<=type="application/json">)', file.read_text(encoding="utf-8"))
    data, after = data.split("</script>", 1)
    report = json.loads(data)
    one, other = report["runs"]
    one["cpu_efficiency"], other["cpu_efficiency"] = 0.21, 0.0445
    for run, cached, seconds in ((one, 30, 1.0), (other, 0, 10.0)):
        stage = next(stage for stage in run["stages"] if stage["name"] == "greet")
        stage["cached"], stage["running_seconds"], stage["core_hours"] = cached, seconds, seconds
    assert one["fitted"] == []
    one["fitted"] = [["greet", "memory: asked 1 GiB, given 180 MiB (30 attempts); 2.50 GiB-hours saved"]]
    next(stage for stage in one["stages"] if stage["name"] == "greet")["fitted_memory"] = {
        "saved_gib_hours": 2.5
    }
    made = tmp_path / "made.html"
    made.write_text(f"{before}{json.dumps(report)}</script>{after}", encoding="utf-8")
    page = chromium.new_page()
    page.goto(made.as_uri())
    whole = page.get_by_role("region", name="Table: the whole run, compared")
    assert whole.locator("tr", has_text="CPU efficiency").locator("td").all_inner_texts()[1:] == [
        "21 %", "4 %", "+17 points",
    ]  # fmt: skip
    assert whole.locator("tr", has_text="from the cache").locator("td").all_inner_texts()[1:3] == ["30", "0"]
    row = page.get_by_role("region", name="Table: stages, compared").locator("tr", has_text="greet")
    assert "30 cached" in row.inner_text()
    assert "−90 %" in row.inner_text()
    assert row.locator(".better").count() == 0
    assert whole.locator("tr", has_text="Core-hours").locator(".better").count() == 0
    assert page.locator("li", has_text="memory: asked 1 GiB").all_inner_texts() == [
        "greet, memory: asked 1 GiB, given 180 MiB (30 attempts); 2.50 GiB-hours saved"
    ]
    assert page.locator("dl.facts div", has_text="GiB-hours saved").locator("dd").all_inner_texts() == [
        "2.50"
    ]
    page.close()


def test_axe_finds_no_fault_in_a_report(page: Page) -> None:
    """As in the page: names, roles, contrast, keyboard access."""
    page.wait_for_function(PAINTED)
    page.evaluate((WEB / "ui" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [
        (each["id"], node["html"][:200], node["failureSummary"])
        for each in found["violations"]
        for node in each["nodes"][:3]
    ] == []
