"""Dashboard, alerts and runbooks use names that exist, and belong together."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from kvferry.telemetry.names import LABEL_VALUES, METRICS

from .promql import names_in

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RUNBOOKS = ROOT / "docs" / "runbooks"
TARGET_LABELS = {"job", "instance"}
"""Prometheus adds them to whatever it scrapes."""

ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
DASHBOARD: dict[str, Any] = json.loads((DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries() -> Iterator[tuple[str, str]]:
    """(where it stands, the query) for everything that is asked of Prometheus."""
    for rule in ALERTS:
        yield rule["alert"], rule["expr"]
    for panel in PANELS:
        for target in panel["targets"]:
            yield f"{panel['title']} {target['refId']}", target["expr"]


def samples() -> dict[str, set[str]]:
    """Name of every sample that a replica exposes, with its labels."""
    found: dict[str, set[str]] = {}
    for metric in METRICS:
        if metric.kind == "histogram":
            found[f"{metric.name}_bucket"] = {*metric.labels, "le"}
            found[f"{metric.name}_sum"] = found[f"{metric.name}_count"] = set(metric.labels)
        else:
            found[metric.name] = set(metric.labels)
    return found


SAMPLES = samples()
QUERIES = dict(queries())
each_query = pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES.keys())
each_alert = pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])


@each_query
def test_a_query_names_only_samples_that_exist(query: str) -> None:
    assert names_in(query).metrics - SAMPLES.keys() == set()


@each_query
def test_a_query_groups_only_by_labels_of_its_samples(query: str) -> None:
    names = names_in(query)
    known = set.union(TARGET_LABELS, *(SAMPLES[metric] for metric in names.metrics))
    assert names.grouped - known == set()


@each_query
def test_a_query_matches_only_labels_and_values_that_exist(query: str) -> None:
    for metric, label, operator, text in names_in(query).matched:
        assert label in SAMPLES[metric] | TARGET_LABELS
        if label in LABEL_VALUES:
            values = text.split("|") if "~" in operator else [text]
            assert set(values) <= {str(value) for value in LABEL_VALUES[label]}


@each_query
def test_counters_are_asked_for_by_rate(query: str) -> None:
    bare = re.sub(r"(rate|increase)\([^()]*\[[^\]]*\]\)", "", query)
    counters = {
        name for name in names_in(bare).metrics if name.endswith(("_total", "_bucket", "_sum", "_count"))
    }
    # What breaks once and for good is the one counter whose value says it.
    assert counters <= ({"kvferry_failures_total"} if 'part="cache"' in bare else set())


def test_every_metric_is_on_the_dashboard() -> None:
    shown = set.union(*(names_in(t["expr"]).metrics for panel in PANELS for t in panel["targets"]))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    assert {metric.name for metric in METRICS} - families == set()


def test_no_panel_shows_one_hit_rate() -> None:
    assert [p["title"] for p in PANELS if re.search(r"hit.?rate", p["title"].lower())] == []


def test_the_dashboard_is_in_step_with_its_source() -> None:
    assert dashboard_module().dashboard() == DASHBOARD


def dashboard_module() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kvferry_dashboard", DEPLOY / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_panels_have_numbers_of_their_own() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_variables_ask_for_labels_that_are_there() -> None:
    asked = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    for query in asked:
        inside, label = re.fullmatch(r"label_values\((.*), (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert names_in(inside).metrics <= SAMPLES.keys()
        assert label in TARGET_LABELS


@each_alert
def test_an_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    page = ROOT / rule["annotations"]["runbook_url"]
    assert page == RUNBOOKS / f"{rule['alert']}.md"
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"# {rule['alert']}\n")
    assert [part for part in ("**What it means.**", "**See it.**", "**Do.**") if part not in text] == []


@each_alert
def test_an_alert_says_what_how_bad_and_for_whom(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert {"summary", "description", "runbook_url"} <= set(rule["annotations"])
    named = set(re.findall(r"\$labels\.(\w+)", json.dumps(rule["annotations"])))
    assert named <= names_in(rule["expr"]).grouped


def test_every_runbook_has_an_alert_and_stands_in_the_list() -> None:
    pages = {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == {rule["alert"] for rule in ALERTS}
    listed = re.findall(
        r"^\| \[(\w+)\]\(\1\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE
    )
    assert dict(listed) == {rule["alert"]: rule["labels"]["severity"] for rule in ALERTS}


@pytest.mark.parametrize("page", sorted(RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_runbook_names_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    titles = {panel["title"] for panel in PANELS}
    assert set(re.findall(r"kvferry_\w+", text)) - SAMPLES.keys() == set()
    assert set(re.findall(r"(?<!\*)\*([A-Z][^*]+)\*(?!\*)", " ".join(text.split()))) <= titles
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if not (page.parent / link).exists()] == []


def test_the_scrape_example_loads_the_rules() -> None:
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
    assert [(DEPLOY / name).exists() for name in config["rule_files"]] == [True]
    assert config["scrape_configs"][0]["static_configs"][0]["targets"]


def test_the_tests_of_the_rules_cover_every_rule() -> None:
    text = (DEPLOY / "alerts.test.yml").read_text(encoding="utf-8")
    assert yaml.safe_load(text)["rule_files"] == ["alerts.yml"]
    assert [rule["alert"] for rule in ALERTS if f'alertname="{rule["alert"]}"' not in text] == []
