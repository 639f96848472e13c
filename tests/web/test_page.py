"""The web page in a real browser, over a real service: what a person clicks, types and reads."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.web.browser import WEB
from tests.web.conftest import SMALL, Looking, Site

Look = Callable[..., Looking]
#: Remembers the texts that a page draws on a canvas.
DRAWN = """
globalThis.drawn = new Set();
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, ...more) { drawn.add(text); draw.call(this, text, ...more); };
"""
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


def views(site: Site) -> dict[str, tuple[str, str]]:
    """Each view: its address, and a text that is there once it has loaded."""
    run = f"#/runs/{site.runs['germline']}"
    return {
        "runs": ("", "germline"),
        "run": (run, "huge"),
        "task": (f"{run}/tasks/breaks/0", "no such file"),
        "queues": ("#/queues", "running, "),
        "cluster": ("#/cluster", "node-2"),
    }


def test_from_the_list_to_a_log_and_a_reason(look: Look, site: Site) -> None:
    """A person without a token meets the form; then list, run, stage, task, log and reason are a click each."""
    tab = look()
    page = tab.page
    page.goto(site.served.url + "/")
    assert page.url.endswith("/ui")
    page.get_by_label("Token").fill("wrong")
    page.get_by_role("button", name="Use it").click()
    page.get_by_text("The service refused this token").wait_for()
    assert "Authorization" not in page.locator("form.token").inner_text()
    page.get_by_label("Token").fill(site.token)
    page.get_by_role("button", name="Use it").click()
    page.get_by_role("link", name="germline").click()
    assert all("401" in each for each in tab.said)  # the browser notes what was refused before
    tab.said.clear()
    page.get_by_role("heading", name="germline").wait_for()
    page.get_by_text(re.compile(r"^[\d,]+ of [\d,]+ succeeded$")).wait_for()
    page.get_by_role("button", name=re.compile("^huge: ")).click()
    page.get_by_text("Why tasks of huge do not run").wait_for()
    page.locator(".reasons").get_by_text("larger than any node").wait_for()
    page.get_by_role("button", name=re.compile("^greet: ")).press("Enter")
    rows = page.get_by_role("application")
    rows.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="greet[1]").wait_for()
    page.locator(".log").get_by_text("hello from 1").wait_for()
    page.get_by_role("button", name="stderr").click()
    page.locator(".log").get_by_text("careful").wait_for()
    page.get_by_role("heading", name="Why on this node").wait_for()
    page.locator(".reasons").get_by_text("Placed").wait_for()
    page.get_by_role("link", name="Close the task").click()
    page.get_by_role("heading", name="greet[1]").wait_for(state="detached")


def test_runs_are_filtered_while_one_types(look: Look, site: Site) -> None:
    """By a part of a name, or the beginning of an id; without Enter."""
    page = look().open()
    page.get_by_role("link", name="germline").wait_for()
    field = page.get_by_label("Part of a name, or the beginning of an id")
    for text, found in (("ERML", True), ("nothing like it", False), (site.runs["germline"][:9], True)):
        field.fill(text)
        if found:
            page.get_by_role("link", name="germline").wait_for()
        else:
            page.get_by_text("No run is like that.").wait_for()


def test_a_gang_is_marked_on_its_nodes(look: Look, site: Site) -> None:
    """Its letter is on the tiles of its nodes, and the list says how many pods are where."""
    page = look().open("#/cluster")
    page.locator(".gangs").get_by_text("2 pods on").wait_for()
    page.locator(".tile .mark-gang").first.wait_for()
    nodes = [node for node in site.get("/nodes") if node["gangs"]]
    assert page.locator(".tile .mark-gang").count() == len(nodes)
    page.locator(".tile").first.click()
    page.get_by_role("heading", name="node-0").wait_for()


def test_a_drained_node_has_its_state_in_words(look: Look, site: Site) -> None:
    """The page called it "down". A click shows who drained it, and why."""
    site.get("/nodes/node-0/drain", {"reason": "new disk", "by": "ada"})
    try:
        page = look().open("#/cluster")
        tile = page.locator(".tile", has_text="node-0")
        tile.get_by_text(re.compile("^drain(ing|ed)$")).wait_for()
        tile.click()
        facts = page.locator(".facts")
        facts.get_by_text("new disk").wait_for()
        assert "ada" in facts.inner_text()
    finally:
        site.get("/nodes/node-0/uncordon", {})
    page.get_by_text(re.compile("^3 nodes[.]")).wait_for()


def test_what_happens_is_shown_without_a_reload(look: Look, site: Site) -> None:
    """A run appears in the list, and its end on its own page; the button cancels it."""
    page = look().open()
    page.get_by_role("link", name="germline").wait_for()
    document = {
        "name": "later",
        "stages": [{"name": "waits", "command": ["sleep", "600"], "resources": SMALL}],
    }
    run = site.submit(document)
    page.get_by_role("link", name="later").wait_for()
    site.until(run, lambda counts: counts.get("RUNNING"))
    page.get_by_role("link", name="later").click()
    page.locator("h1 .state-running").wait_for()
    page.on("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    page.locator("h1 .state-cancelled").wait_for()
    assert site.get(f"/workflows/{run}")["state"] == "CANCELLED"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_fault_in_any_view(look: Look, site: Site, scheme: str) -> None:
    """Names, roles, contrast, keyboard access (axe-core, all rules of WCAG 2.1 A and AA and its best practices)."""
    axe = (WEB / "ui" / "node_modules" / "axe-core" / "axe.min.js").read_text(encoding="utf-8")
    page = look(color_scheme=scheme).open()
    faults: dict[str, list[Any]] = {}
    for name, (path, text) in views(site).items():
        page.goto(f"{site.served.url}/ui{path}")
        page.get_by_text(text).first.wait_for()
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        if found["violations"]:
            faults[name] = [
                (each["id"], node["html"][:200], node["failureSummary"])
                for each in found["violations"]
                for node in each["nodes"][:3]
            ]
    assert faults == {}


def test_light_and_dark_follow_the_browser(look: Look) -> None:
    """The background is light or dark as the browser asks."""
    for scheme, fits in (("light", lambda shade: shade > 200), ("dark", lambda shade: shade < 60)):
        page = look(color_scheme=scheme).open()
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert all(fits(int(part)) for part in re.findall(r"\d+", colour)), (scheme, colour)


def test_a_phone_scrolls_down_only(look: Look, site: Site) -> None:
    """No view is wider than the screen."""
    page = look(**PHONE).open()
    for path, text in views(site).values():
        page.goto(f"{site.served.url}/ui{path}")
        page.get_by_text(text).first.wait_for()
        wide = page.evaluate("document.documentElement.scrollWidth")
        assert wide <= page.evaluate("innerWidth"), path


def test_the_gantt_shows_what_its_filters_say(look: Look, site: Site) -> None:
    """34 tasks, of them 30 of one stage and one that failed; a click tells what a task did when."""
    page = look().open(f"#/runs/{site.runs['germline']}")
    rows = page.get_by_role("application")
    assert "of 35 tasks" in (rows.get_attribute("aria-label") or "")
    page.get_by_label("Stage", exact=True).select_option("greet")
    page.get_by_role("application", name=re.compile("of 30 tasks")).wait_for()
    rows.click(position={"x": 30, "y": 35})
    page.locator(".gantt-told").get_by_text(re.compile(r"greet\[\d+\] sample-\d+: SUCCEEDED")).wait_for()
    page.get_by_label("Stage", exact=True).select_option("")
    page.get_by_label("State", exact=True).select_option("FAILED")
    page.get_by_role("application", name=re.compile("of 1 tasks")).wait_for()
    rows.click(position={"x": 30, "y": 35})
    page.locator(".gantt-told").get_by_text(
        re.compile(r"breaks: FAILED · on node-\d · exit code 3 .*running")
    ).wait_for()


def test_failures_that_a_policy_ignores_are_seen(look: Look, site: Site) -> None:
    """List, run, stages, graph and timeline say `(2× exit 1)`, as the commands do."""
    script = "test $FLOWSCHED_INDEX -ge 2"
    trial = {"name": "trial", "command": ["sh", "-c", script], "scatter": {"count": 4}, "resources": SMALL}
    trial["policies"] = [{"event": "task_failed", "action": "ignore"}]
    last = {"name": "last", "command": ["true"], "needs": ["trial"], "resources": SMALL}
    run = site.submit({"name": "sweep", "stages": [trial, last]})
    site.until(run, lambda counts: counts.get("SUCCEEDED") == 5)
    codes = "(2× exit 1)"
    page = look().open()
    page.locator("tr", has_text="sweep").get_by_text(codes).wait_for()
    page.get_by_role("link", name="sweep").click()
    page.locator("h1").get_by_text(codes).wait_for()
    page.locator(".box tspan").get_by_text(codes).wait_for()
    page.locator(".stages tr", has_text="trial").get_by_text(codes).wait_for()
    assert (
        page.locator(".fill-returned").count() == 3
    )  # the run's bar, the stage's, the legend of the timeline
    page.get_by_role("application").click(position={"x": 30, "y": 35})
    page.locator(".gantt-told").get_by_text(re.compile(r"trial\[0\]: SUCCEEDED .* exit code 1")).wait_for()


def test_the_log_of_each_attempt_can_be_read(look: Look, site: Site) -> None:
    """The last one is shown first."""
    script = "echo this is attempt $FLOWSCHED_ATTEMPT; test $FLOWSCHED_ATTEMPT = 1"
    flaky = {"name": "flaky", "command": ["sh", "-c", script], "resources": SMALL}
    run = site.submit({"name": "again", "stages": [{**flaky, "retry": {"attempts": 2}}]})
    site.until(run, lambda counts: counts.get("SUCCEEDED") == 1)
    page = look().open(f"#/runs/{run}/tasks/flaky/0")
    page.locator(".log").get_by_text("this is attempt 1").wait_for()
    page.get_by_label("Attempt", exact=True).select_option("0")
    page.locator(".log").get_by_text("this is attempt 0").wait_for()


def test_long_items_can_be_told_apart_beside_an_open_task(look: Look, site: Site) -> None:
    """The timeline leaves out what all items share; at 1200 pixels nothing scrolls sideways, and ✕ is at the top."""
    items = [json.dumps({"model": "a-model-with-a-long-name", "lr": 0.1, "batch": size}) for size in (32, 64)]
    trial = {"name": "trial", "command": ["true"], "scatter": {"items": items}, "resources": SMALL}
    run = site.submit({"name": "grid", "stages": [trial]})
    site.until(run, lambda counts: counts.get("SUCCEEDED") == 2)
    tab = look(viewport={"width": 1200, "height": 900})
    tab.page.add_init_script(DRAWN)
    page = tab.open(f"#/runs/{run}/tasks/trial/1")
    page.get_by_role("heading", name="Why on this node").wait_for()
    page.wait_for_function("() => drawn.has('[0] batch=32') && drawn.has('[1] batch=64')")
    scroll = page.locator(".scroll")
    assert scroll.evaluate("box => box.scrollWidth <= box.clientWidth")
    title, close = page.locator("#task").bounding_box(), page.locator(".task .button").bounding_box()
    assert title is not None
    assert close is not None
    assert close["y"] <= title["y"]
    assert close["x"] >= title["x"] + title["width"]


def test_a_run_that_failed_after_a_retry(look: Look, site: Site) -> None:
    """Rows say why their tasks ended so, skipped stages are not on the critical path, the panel has a heading for each why."""
    plain = {"resources": {"cpu": "50m", "memory": "8Mi"}}
    command = ["sh", "-c", "echo no such file: sample.bam >&2; exit 1"]
    broken = {"name": "broken", "command": command, "needs": ["fine"], "retry": {"attempts": 2}}
    stages = [
        {"name": "fine", "command": ["sleep", "1"]},  # leaves room for words before the bars of the next
        broken,
        {"name": "after", "command": ["true"], "needs": ["broken"]},
    ]
    run = site.submit({"name": "unlucky", "stages": [plain | stage for stage in stages]})
    site.until(run, lambda counts: counts.get("FAILED") == 1)
    page = look().page
    page.add_init_script(
        "window.drawn = []; const draw = CanvasRenderingContext2D.prototype.fillText;"
        "CanvasRenderingContext2D.prototype.fillText = function (...of) { drawn.push(of[0]); return draw.apply(this, of); };"
    )
    page.add_init_script(f"sessionStorage.setItem('flowsched.token', '{site.token}')")
    page.goto(f"{site.served.url}/ui#/runs/{run}")
    page.get_by_role("application", name=re.compile("of 3 tasks")).wait_for()
    end = time.monotonic() + 30
    while not {"exit code 1", "SKIPPED"} <= (drawn := set(page.evaluate("drawn"))):
        assert time.monotonic() < end, drawn
        page.wait_for_timeout(50)
    words = page.get_by_role("region", name="The last lines of broken, which failed first")
    words.get_by_text("no such file: sample.bam").wait_for()
    page.get_by_role("button", name=re.compile("^broken: .*on the critical path")).wait_for()
    page.get_by_role("button", name="after: 0 of 1 tasks have succeeded", exact=True).wait_for()
    page.goto(f"{site.served.url}/ui#/runs/{run}/tasks/broken/0")
    page.get_by_role("heading", name="Why it failed").wait_for()
    page.locator("h3:has-text('Why it failed') + .reasons").get_by_text("exit code 1").wait_for()
    page.locator("h3:has-text('Why on this node') + .reasons").get_by_text("Placed").wait_for()


def test_the_cache_names_its_shards(look: Look, site: Site) -> None:
    """Each by its item: those that were taken, and the one that ran."""
    command = ["sh", "-c", "echo $FLOWSCHED_ITEM > o"]
    stage = {"name": "qc", "cache": True, "command": command, "outputs": [{"name": "o", "path": "o"}]}
    stage["resources"] = {"cpu": "50m", "memory": "8Mi"}
    for items in (["S1", "S2", "S3"], ["S1", "S4", "S3"]):
        last = {"name": "last", "command": ["true"], "needs": ["qc"], "resources": stage["resources"]}
        run = site.submit({"name": "cached", "stages": [{**stage, "scatter": {"items": items}}, last]})
        site.until(run, lambda counts: counts.get("SUCCEEDED") == 4)
    page = look().open(f"#/runs/{run}")
    page.get_by_role("button", name=re.compile("^qc: ")).click()
    page.get_by_text("2 shards (S1, S3): taken from").wait_for()
    page.get_by_text("1 shard (S4): ran: ").wait_for()


def test_the_page_takes_a_token_from_its_address(look: Look, site: Site) -> None:
    """`/ui#token=…` opens without the form, and the token leaves the address at once."""
    page = look().page
    page.goto(f"{site.served.url}/ui#token={site.token}")
    page.get_by_role("link", name="germline").wait_for()
    assert site.token not in page.url


def test_a_link_with_a_token_leads_to_one_run(look: Look, site: Site) -> None:
    """`/ui#token=…/runs/ID` opens that run, and counts the tasks that succeeded."""
    page = look().page
    page.goto(f"{site.served.url}/ui#token={site.token}/runs/{site.runs['germline']}")
    page.get_by_role("heading", name="germline").wait_for()
    assert page.url.endswith(f"/ui#/runs/{site.runs['germline']}")


def test_the_list_names_users_where_there_are_several(look: Look, site: Site) -> None:
    """As a column; runs without a user leave it empty."""
    for user in ("ada", "bob"):
        stage = {"name": "s", "command": ["true"], "resources": SMALL}
        site.submit({"name": f"of-{user}", "user": user, "stages": [stage]})
    page = look().open()
    page.get_by_role("columnheader", name="User").wait_for()
    for user in ("ada", "bob"):
        page.get_by_role("row", name=f"of-{user}").get_by_role("cell", name=user, exact=True).wait_for()
