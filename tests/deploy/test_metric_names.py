"""Dashboard and alerts ask for what an agent publishes, and say something about each of it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from sharer.core.tell.metrics import METRICS, MetricKind
from tests.deploy.chart import CHART, RELEASE, named, objects, template

DASHBOARD: Any = json.loads((CHART / "files" / "dashboard.json").read_text())
ALERTS: Any = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
SCRAPED = frozenset({"node", "job", "instance"})  # labels that come from the PodMonitor
BUILT_IN = frozenset({"le", "up"})

PUBLISHED = {
    name: frozenset(metric.labels)
    for metric in METRICS
    for name in ([f"{metric.name}_bucket"] if metric.kind is MetricKind.HISTOGRAM else [metric.name])
}


def expressions() -> list[tuple[str, str]]:
    """Every query, with what it is for."""
    panels = [(panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]]
    variables = [
        (one["label"], one["query"]["query"]) for one in DASHBOARD["templating"]["list"] if one["type"] == "query"
    ]
    alerts = [(rule["alert"], rule["expr"]) for group in ALERTS for rule in group["rules"]]
    return panels + variables + alerts


@pytest.mark.parametrize(("title", "expression"), expressions(), ids=[title for title, _ in expressions()])
def test_a_query_names_only_metrics_and_labels_that_exist(title: str, expression: str) -> None:
    """P39: a dashboard over labels that the exporter never set."""
    named_metrics = set(re.findall(r"\bsharer_[a-z_]+\b", expression))
    assert named_metrics <= PUBLISHED.keys(), title
    labels = set().union(*(PUBLISHED[name] for name in named_metrics)) | SCRAPED | BUILT_IN
    asked = set(re.findall(r"([a-z_]+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    asked |= {one.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for one in group.split(",")}
    asked |= set(re.findall(r"label_values\([^,]*(?:\{[^}]*\})?, ([a-z]+)\)", expression))
    assert asked <= labels, title


def test_an_alert_s_words_use_labels_that_its_query_keeps() -> None:
    for group in ALERTS:
        for rule in group["rules"]:
            used = set(re.findall(r"\$labels\.([a-z_]+)", json.dumps(rule["annotations"])))
            kept = set().union(*(PUBLISHED.get(name, set()) for name in re.findall(r"sharer_[a-z_]+", rule["expr"])))
            if by := re.findall(r"\bby \(([^)]*)\)", rule["expr"]):
                kept = {one.strip() for one in by[0].split(",")}
            assert used <= kept | SCRAPED, rule["alert"]


def test_every_alert_says_what_it_is_and_what_to_do() -> None:
    rules = [rule for group in ALERTS for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["annotations"]["summary"].endswith(".")
        assert rule["annotations"]["description"].endswith(".")
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule.get("for") or ">" in rule["expr"]


def test_every_metric_is_looked_at_by_somebody() -> None:
    """What neither dashboard nor alert shows is published for nothing, but for what others join with."""
    everything = " ".join(expression for _, expression in expressions())
    unseen = {name for name in PUBLISHED if not re.search(rf"\b{name}\b", everything)}
    others = {"sharer_gpu_info", "sharer_policy_info", "sharer_holders_omitted", "sharer_agent_info"}
    assert unseen <= {*others, "sharer_slice_held"}


def test_panels_do_not_overlap_and_have_names_and_numbers_of_their_own() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        own = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not own & cells, panel["title"]
        cells |= own


def test_the_release_carries_both_as_they_stand_here() -> None:
    found = objects(of="full")
    assert json.loads(named("ConfigMap", f"{RELEASE}-dashboard", found)["data"]["sharer.json"]) == DASHBOARD
    assert named("PrometheusRule", f"{RELEASE}-agent", found)["spec"]["groups"] == ALERTS


def test_the_alert_for_a_missing_agent_looks_for_the_release_s_own() -> None:
    """The job is named after the PodMonitor, and that after the release."""
    made = list(yaml.safe_load_all(template(of="full", release="gpus")))
    (monitor,) = [one for one in made if one["kind"] == "PodMonitor"]
    (rules,) = [one for one in made if one["kind"] == "PrometheusRule"]
    (down,) = [
        rule for group in rules["spec"]["groups"] for rule in group["rules"] if rule["alert"] == "SharerAgentDown"
    ]
    (job,) = re.findall(r'job=~"([^"]*)"', down["expr"])
    assert re.fullmatch(job, f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}")


def test_the_scraper_keeps_the_holder_s_labels_and_adds_the_node() -> None:
    """P39: otherwise `pod` is the agent's own on every series."""
    (endpoint,) = named("PodMonitor", f"{RELEASE}-agent", objects(of="full"))["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is True
    assert endpoint["relabelings"] == [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}]
