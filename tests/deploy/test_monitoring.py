"""The dashboard and the alert rules: each metric and label that they name exists, and Prometheus reads the rules."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from flowsched.cluster.kubernetes.agent import metrics as agent_metrics
from flowsched.cluster.kubernetes.agent.streams import Streams
from flowsched.control.metrics import Metrics, Standing
from flowsched.engine.state import EngineState
from tests.deploy.rendering import CHART, LIKE_THE_BASE, ROOT, Object, documents, pod_templates, rendered_helm
from tests.kubernetes.agent_world import several

MONITORING = CHART / "monitoring"
RULES = MONITORING / "alerts.yaml"
BOARD = MONITORING / "dashboard.json"
#: The page with what to do about each alert, and with every metric.
PAGE = next(page for page in (ROOT / "docs").rglob("*.md") if "### FlowschedNoLeader" in page.read_text())
#: Labels that Prometheus itself adds to what it reads.
ADDED = {"namespace", "job", "pod", "instance", "le"}


def rules() -> list[Object]:
    found = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in found for rule in group["rules"]]


def queries() -> Iterator[str]:
    """Every expression of the dashboard, with values for its variables."""
    for panel in json.loads(BOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            text = target["expr"].replace("$__rate_interval", "5m")
            yield text.replace("$namespace", ".*").replace("$job", ".*")


async def texts(tmp_path: Path) -> tuple[str, str]:
    """What service and agent answer to a scrape."""
    service = await Metrics().text(EngineState(), Standing(lease_s=1.0, counted={"watch_relists": 0}), 0)
    async with AsyncExitStack() as stack:
        (served,) = await several(stack, tmp_path, 1)
        return service.decode(), await agent_metrics.text(served.agent, Streams(served.agent))


async def exported(tmp_path: Path) -> tuple[dict[str, set[str]], list[str]]:
    """What service and agent write with nothing to do: name of a series -> labels that it may have; and what they document."""
    found: dict[str, set[str]] = {}
    families = []
    for text in await texts(tmp_path):
        for family in text_string_to_metric_families(text):
            suffixes = {
                "counter": ("_total",),
                "histogram": ("_bucket", "_sum", "_count"),
                "info": ("_info",),
            }
            name = family.name.removesuffix("_total")
            families.append(family.name)
            for suffix in suffixes.get(family.type, ("",)):
                found[name + suffix] = {label for sample in family.samples for label in sample.labels}
    return found, families


#: A family without samples shows no labels. These are written by hand; `test_metrics` sees them on a service at work.
LABELS: dict[str, set[str]] = {
    "flowsched_tasks": {"queue", "state"},
    "flowsched_waiting_pod_groups": {"reason"},
    "flowsched_longest_wait_seconds": {"reason"},
    "flowsched_nodes": {"state"},
    "flowsched_resources": {"resource", "kind"},
    "flowsched_storage_bytes_per_second": {"storage", "kind"},
    "flowsched_cache_bytes": {"kind"},
    "flowsched_pods_ended_total": {"outcome"},
    "flowsched_input_bytes_total": {"source"},
    "flowsched_binds_total": {"outcome"},
    "flowsched_transfers_total": {"outcome"},
    "flowsched_transfer_bytes_total": {"source"},
}
_SERIES = re.compile(r"\b(flowsched_[a-z0-9_]+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


async def test_each_metric_that_is_named_is_exported(tmp_path: Path) -> None:
    """By name and by label, in the dashboard and in the rules."""
    known, _ = await exported(tmp_path)
    expressions = [*queries(), *(rule["expr"] for rule in rules())]
    named = [found for expression in expressions for found in _SERIES.findall(expression)]
    assert len(named) > 50
    assert sorted({name for name, _ in named} - known.keys()) == []
    for name, matchers in named:
        labels = set(_MATCHER.findall(re.sub(r'"[^"]*"', '""', matchers)))
        assert labels <= known[name] | LABELS.get(name, set()) | ADDED, name


async def test_each_metric_is_in_the_documentation(tmp_path: Path) -> None:
    """By its name."""
    known, _ = await exported(tmp_path)
    text = PAGE.read_text()
    wanted = {re.sub(r"_(bucket|sum|count)$", "", name) for name in known}
    assert sorted(name for name in wanted if name not in text) == []


def test_each_alert_says_what_to_do() -> None:
    """Its link leads to a heading of the page; severity, summary and description are there; no alert is there twice."""
    headings = {
        line.removeprefix("### ").lower() for line in PAGE.read_text().splitlines() if line.startswith("### ")
    }
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 5
    for rule in rules():
        assert rule["annotations"].keys() == {"summary", "description", "runbook_url"}
        url, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert (url.endswith(f"/{PAGE.relative_to(ROOT).as_posix()}"), anchor) == (
            True,
            rule["alert"].lower(),
        )
        assert anchor in headings
        assert rule["labels"]["severity"] in ("critical", "warning")


def test_the_dashboard_is_laid_out() -> None:
    """Numbers are used once, no panel lies on another, and each asks the data source that people choose."""
    board = json.loads(BOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert taken.isdisjoint(cells), panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["targets"]
        for target in panel.get("targets", ()):
            assert target["datasource"]["uid"] == "${datasource}"
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


# ---- Prometheus' own tool ----


def said(promtool: str, *arguments: str) -> str:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_prometheus_reads_the_rules(promtool: str) -> None:
    """With its linter: a warning is an error."""
    assert f"SUCCESS: {len(rules())} rules found" in said(
        promtool, "check", "rules", "--lint-fatal", str(RULES)
    )


def test_each_alert_fires_when_it_should(promtool: str) -> None:
    """And only then: series in, alerts out, in tests/deploy/alerts_test.yaml. Each alert has a case that fires."""
    cases = ROOT / "tests" / "deploy" / "alerts_test.yaml"
    fired = {
        case["alertname"]
        for test in yaml.safe_load(cases.read_text())["tests"]
        for case in test["alert_rule_test"]
        if case.get("exp_alerts")
    }
    assert fired == {rule["alert"] for rule in rules()}
    assert "SUCCESS" in said(promtool, "test", "rules", str(cases))


def test_an_alert_that_stays_silent_is_found(promtool: str, tmp_path: Path) -> None:
    """The cases fail where a rule is changed: a threshold of 2 leaders."""
    folder = tmp_path / "deploy" / "helm" / "flowsched" / "monitoring"
    folder.mkdir(parents=True)
    (folder / "alerts.yaml").write_text(
        RULES.read_text().replace("(flowsched_leader) < 1", "(flowsched_leader) < 2")
    )
    (tmp_path / "tests" / "deploy").mkdir(parents=True)
    cases = tmp_path / "tests" / "deploy" / "alerts_test.yaml"
    cases.write_text((ROOT / "tests" / "deploy" / "alerts_test.yaml").read_text())
    done = subprocess.run(
        [promtool, "test", "rules", str(cases)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert "FlowschedNoLeader" in done.stdout + done.stderr


def test_prometheus_reads_the_dashboard(promtool: str, tmp_path: Path) -> None:
    """Each expression, as a recording rule."""
    recorded = [{"record": f"panel:{at}", "expr": query} for at, query in enumerate(queries())]
    file = tmp_path / "panels.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": recorded}]}))
    assert f"SUCCESS: {len(recorded)} rules found" in said(promtool, "check", "rules", str(file))


def test_prometheus_reads_what_is_exported(promtool: str, tmp_path: Path) -> None:
    """Names, types and help texts, as its linter wants them: it says nothing."""
    for text in asyncio.run(texts(tmp_path)):
        command = [promtool, "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")


# ---- the chart ----


def test_monitoring_is_off_until_it_is_asked_for(helm: str) -> None:
    """Nothing of it is in the plain chart: without the operator's definitions an API server refuses its objects."""
    rendered = documents(rendered_helm(helm, LIKE_THE_BASE))
    kinds = {each["kind"] for each in rendered}
    assert kinds.isdisjoint(("ServiceMonitor", "PodMonitor", "PrometheusRule"))
    assert not any("dashboard" in each["metadata"]["name"] for each in rendered)


def test_the_chart_has_rules_and_dashboard_as_they_are(helm: str) -> None:
    """Word by word, with the labels by which an operator's Prometheus and Grafana select them."""
    values = {
        **LIKE_THE_BASE,
        "metrics.serviceMonitor": "true",
        "metrics.podMonitor": "true",
        "metrics.alerts": "true",
        "metrics.labels.release": "prometheus",
        "metrics.dashboard": "true",
    }
    rendered = documents(rendered_helm(helm, values))
    (rule,) = [each for each in rendered if each["kind"] == "PrometheusRule"]
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    selected = [
        each for each in rendered if each["metadata"].get("labels", {}).get("release") == "prometheus"
    ]
    assert [each["kind"] for each in selected] == ["PodMonitor", "PrometheusRule", "ServiceMonitor"]
    (board,) = [each for each in rendered if each["metadata"]["name"] == "flowsched-dashboard"]
    assert json.loads(board["data"]["flowsched.json"]) == json.loads(BOARD.read_text())
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_prometheus_is_told_of_the_agents_if_that_is_asked_for(helm: str) -> None:
    """A PodMonitor that selects the agents' pods, by the name of their port; and their network policy lets Prometheus in."""
    values = {**LIKE_THE_BASE, "metrics.podMonitor": "true", "metrics.prometheusNamespace": "monitoring"}
    rendered = documents(rendered_helm(helm, values))
    (monitor,) = [each for each in rendered if each["kind"] == "PodMonitor"]
    template = dict(pod_templates(rendered))["flowsched-agent"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert (endpoint["port"] in ports, endpoint["path"]) == (True, "/metrics")

    def let_in(objects: list[Object]) -> list[Any]:
        policy = next(
            each
            for each in objects
            if (each["kind"], each["metadata"]["name"]) == ("NetworkPolicy", "flowsched-agent")
        )
        return list(policy["spec"]["ingress"][0]["from"])

    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert prometheus in let_in(rendered)
    plain = let_in(documents(rendered_helm(helm, LIKE_THE_BASE)))
    assert [each for each in let_in(rendered) if each not in plain] == [prometheus]


def test_without_agents_there_is_no_monitor_of_them(helm: str) -> None:
    """Even if it is asked for."""
    values = {**LIKE_THE_BASE, "metrics.podMonitor": "true", "agent.enabled": "false"}
    assert not any(each["kind"] == "PodMonitor" for each in documents(rendered_helm(helm, values)))
