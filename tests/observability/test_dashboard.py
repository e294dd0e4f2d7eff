"""The dashboard asks only for what is exported, by labels that there are, and shows all of it."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from legato.ipc.messages import EngineStats
from legato.observability.metrics import Metrics

DASHBOARD = Path(__file__).parents[2] / "deploy/grafana/legato.json"
_SELECTOR = re.compile(r"\b(legato_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r'(\w+)=~?"([^"]*)"')

Exported = dict[str, dict[str, set[str]]]  # series -> label -> its values


@pytest.fixture(scope="module")
def exported() -> Exported:
    metrics = Metrics({"m": EngineStats})
    metrics.rejected("m", "queue_full")
    found: Exported = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def queries(node: Any) -> Iterator[str]:
    """Every expression of PromQL, and the queries that fill the variables."""
    if isinstance(node, dict):
        yield from (node[key] for key in ("expr", "query") if isinstance(node.get(key), str))
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from queries(child)


def unknown(query: str, exported: Exported) -> list[str]:
    """Series, labels and values that a query names and nothing exports."""
    found = []
    for name, selector in _SELECTOR.findall(query):
        labels = exported.get(name)
        if labels is None:
            found.append(name)
            continue
        found += [
            f"{name}{{{label}={value}}}"
            for label, value in _LABEL.findall(selector)
            if label not in labels or not (value.startswith("$") or value in labels[label])
        ]
    return found


def asked() -> list[str]:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [query for query in queries(dashboard) if "legato_" in query]


def test_every_series_and_label_of_a_query_is_exported(exported: Exported) -> None:
    assert len(asked()) > 20
    assert [name for query in asked() for name in unknown(query, exported)] == []


def test_every_measurement_is_shown(exported: Exported) -> None:
    shown = {name.removesuffix("_bucket") for query in asked() for name, _ in _SELECTOR.findall(query)}
    measured = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported if name.startswith("legato_")}
    assert measured - shown == set()


@pytest.mark.parametrize(
    "query",
    [
        "rate(legato_request_total[5m])",
        'legato_num_requests_running{model="m"}',
        'legato_time_to_first_token_seconds_bucket{le="1.9"}',
    ],
)
def test_query_that_would_find_nothing_is_seen(query: str, exported: Exported) -> None:
    assert len(unknown(query, exported)) == 1


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (place["x"] + column, place["y"] + line)
        for place in (panel["gridPos"] for panel in panels)
        for column in range(place["w"])
        for line in range(place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(column for column, _ in cells) < 24
