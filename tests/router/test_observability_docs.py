"""docs/operations.md and docs/grafana.json speak of the metrics that there are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import Metric

from hypic.config import ServerConfig
from hypic.router.dispatcher import Dispatcher
from hypic.router.service import Service

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "operations.md").read_text()
DASHBOARD: dict[str, Any] = json.loads((DOCS / "grafana.json").read_text())

SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",), "info": ("_info",)}

OF_PROMETHEUS = {"le"}
"""Labels that Prometheus itself gives."""


def no_model(max_tokens: int) -> Any:
    raise AssertionError("no worker is there to ask for the model")


def families() -> dict[str, Metric]:
    registry = Service(Dispatcher([], []), no_model, ServerConfig()).metrics.registry
    return {metric.name: metric for metric in registry.collect() if metric.name.startswith("hypic:")}


def labels_of(service: Service) -> dict[str, tuple[str, ...]]:
    """Label names of each family, also of those without a sample."""
    collectors = service.metrics.registry._collector_to_names
    found = {c._name: tuple(c._labelnames) for c in collectors if hasattr(c, "_labelnames")}
    for family in service.worker_metrics.collect():
        found[family.name] = tuple(getattr(family, "_labelnames", ()))
    return {name: labels for name, labels in found.items() if name.startswith("hypic:")}


def rows() -> Iterator[str]:
    """The table, as it has to be."""
    service = Service(Dispatcher([], []), no_model, ServerConfig())
    labels = labels_of(service)
    for name, family in families().items():
        shown = name + {"counter": "_total", "info": "_info"}.get(family.type, "")
        named = ", ".join(f"`{label}`" for label in labels[name])
        yield f"| `{shown}` | {family.type} | {named} | {family.documentation} |"


def test_the_table_of_metrics_is_the_registry() -> None:
    written = [line for line in PAGE.splitlines() if line.startswith("| `hypic:")]
    assert written == list(rows()), "write the table anew: the rows that are expected stand in this message"


def expressions(panel: Any) -> Iterator[str]:
    if isinstance(panel, dict):
        if "expr" in panel:
            yield panel["expr"]
        for value in panel.values():
            yield from expressions(value)
    elif isinstance(panel, list):
        for value in panel:
            yield from expressions(value)


def series() -> set[str]:
    return {name + suffix for name, family in families().items() for suffix in SUFFIXES[family.type]}


def unknown_in(expression: str) -> set[str]:
    """What an expression asks for that is not there."""
    labels = labels_of(Service(Dispatcher([], []), no_model, ServerConfig()))
    known = {label for names in labels.values() for label in names} | OF_PROMETHEUS
    asked = set(re.findall(r"([a-z_]+)\s*(?:=~|!=|!~|=)\s*\"", expression))
    for group in re.findall(r"\bby\s*\(([^)]*)\)", expression):
        asked |= {label.strip() for label in group.split(",")}
    return (set(re.findall(r"hypic:[a-z0-9_]+", expression)) - series()) | (asked - known)


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    found = list(expressions(DASHBOARD["panels"]))
    assert len(found) > 20
    assert all("hypic:" in expression for expression in found)
    assert {expression: unknown_in(expression) for expression in found if unknown_in(expression)} == {}
    assert unknown_in('sum(rate(hypic:no_such_total{frob="a"}[5m])) by (knob)') == {
        "hypic:no_such_total",
        "frob",
        "knob",
    }


def test_alerts_ask_for_metrics_that_there_are() -> None:
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE, re.DOTALL)
    found = re.findall(r"expr: (.*)", rules)
    assert len(found) >= 6
    assert {expression: unknown_in(expression) for expression in found if unknown_in(expression)} == {}
