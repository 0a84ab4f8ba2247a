"""The rules and the dashboard under docs/ use existing metrics."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import promql_parser
import pytest
import yaml

from rpcsys.data import folder
from rpcsys.server.supervisor.http import HELP
from rpcsys.tracker.replicas.metrics import ReplicaCounts, ReplicaMetrics
from rpcsys.tracker.views.metrics import FrameCounts, Metrics, SiteCounts
from tests.device_files import ROOT
from tests.tracker.transcripts import Scene

DOCS = ROOT / "docs" / "monitoring"
RULES = DOCS / "prometheus-rules.yml"
BOARD = DOCS / "grafana-dashboard.json"
SUFFIXES = ("_bucket", "_sum", "_count", "_total")


def expressions() -> Iterator[str]:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])
    board = json.loads(BOARD.read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
    yield from (variable["query"] for variable in board["templating"]["list"])


def known() -> set[str]:
    """The names of all metrics: the tracker's from its collector, the server's from its table."""
    scene = Scene()
    counts = FrameCounts({}, frames_in=0, frames_out=0, sites=SiteCounts({"paris": False}))
    tracker = Metrics(scene.state.records, lambda: scene.now, counts, lambda: None, lambda: True)
    names = {f"rpcsys_server_{name}" for name in HELP}
    names |= {metric.name for metric in tracker.collect()}
    names |= {metric.name for metric in ReplicaMetrics(ReplicaCounts(), lambda: None).collect()}
    assert "rpcsys_tracker_pending" in names
    return names


def test_every_used_metric_exists() -> None:
    used = {name for expr in expressions() for name in re.findall(r"\brpcsys_\w+", expr)}
    assert len(used) > 10
    names = known()
    for name in used:
        base = next((name.removesuffix(end) for end in SUFFIXES if name.endswith(end)), name)
        assert name in names or base in names, name


def test_prometheus_parses_the_expressions() -> None:
    """With Prometheus's own parser; Grafana's variables are replaced."""
    for expr in expressions():
        if not expr.startswith("label_values("):  # Grafana's own
            promql_parser.parse(expr.replace("$__rate_interval", "5m").replace("$key", ".*"))


def test_every_metric_is_described() -> None:
    text = (ROOT / "docs" / "monitoring.md").read_text()
    for name in known():
        short = "…" + name.removeprefix("rpcsys_tracker").removeprefix("rpcsys_server")
        assert name in text or short in text, name


def test_each_rule_has_its_fields() -> None:
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        assert {"name", "rules"} <= set(group)
        for rule in group["rules"]:
            assert "record" in rule or {"alert", "labels", "annotations"} <= set(rule), rule
            assert rule["expr"].count("(") == rule["expr"].count(")"), rule


def test_the_dashboards_panels_do_not_overlap() -> None:
    board = json.loads(BOARD.read_text())
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


@pytest.mark.parametrize("path", [RULES, BOARD])
def test_the_files_have_no_tabs(path) -> None:
    assert "\t" not in path.read_text()


def test_the_page_has_one_port_everywhere() -> None:
    files = [
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("systemd/*"),
        ROOT / "packaging" / "Containerfile",
        ROOT / "README.md",
    ]
    texts = [path.read_text(encoding="utf-8") for path in files if path.is_file()]
    ports = {port for text in texts for port in re.findall(r"(?i)(?<!--)tracker.*--http-port[\", ]+(\d+)", text)}
    ports |= {port for text in texts for port in re.findall(r"(?:TRACKER|tracker\.lab):(\d+)[/\"]", text)}
    assert ports == {"8190"}


def test_rules_and_dashboard_are_where_the_document_says() -> None:
    assert RULES.is_file()
    assert folder("docs/monitoring") == DOCS
