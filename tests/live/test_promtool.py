"""Prometheus's own tool reads what our daemons serve, and the alert rules, without a complaint."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.request
from pathlib import Path

import pytest

import rpcsys
from tests.live import deployed
from tests.live.daemons import ROOT, Daemons, free_port

ENDS_S = 60.0


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("no promtool here: it is in Debian's package prometheus")
    return found


def test_metrics_have_no_complaint(daemons: Daemons, promtool: str, tmp_path: Path) -> None:
    file = deployed.onnx_model(tmp_path / "scale.onnx", 2.0)
    pages = [free_port() for _ in range(4)]
    tracker = daemons.tracker("--http-port", str(pages[0]), "--state-dir", str(daemons.folder / "state"))
    proxy = daemons.proxy("--http-port", str(pages[1]), "--tracker", tracker.where)
    daemons.server("board", "--preload", "none", "--http-port", str(pages[2]), tracker=tracker)
    daemons.gateway("--http-port", str(pages[3]), "--tracker", tracker.where, "--pool", f"scale=board:{file}")
    with rpcsys.connect_tracker(tracker.address) as link:
        link.request("board", wait_timeout=ENDS_S).close()
    with pytest.raises(rpcsys.errors.RpcsysError):
        rpcsys.connect(*proxy.address, key="nobody", timeout=1)
    for port in pages:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=ENDS_S) as reply:
            text = reply.read()
        assert b"\n# HELP rpcsys_" in b"\n" + text
        # Nothing is absent while it is empty: each described metric has a value.
        described = re.findall(rb"^# HELP ((?:rpcsys|nv)_\S+)", text, re.MULTILINE)
        assert [name for name in described if not re.search(rb"^%s\S* \S" % name, text, re.MULTILINE)] == []
        command = [promtool, "check", "metrics"]
        done = subprocess.run(command, input=text, capture_output=True, timeout=ENDS_S, check=False)
        complaints = [line for line in done.stderr.splitlines() if not line.startswith(b"nv_")]  # named by Triton
        assert (done.stdout, complaints) == (b"", [])
        assert done.returncode == 0 or b"\nnv_" in b"\n" + done.stderr


def test_the_alert_rules_are_valid(promtool: str) -> None:
    rules = ROOT / "docs" / "monitoring" / "prometheus-rules.yml"
    command = [promtool, "check", "rules", str(rules)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


#: An alert: series by name that raise it, series that do not, and the minute at which Prometheus is asked.
ALERTS = {
    "BoardSlow": ({"slow_servers": "0x3 1x30"}, {"slow_servers": "0x3 1x5 0x30"}, "20m"),
    "NobodyLeads": ({"leading": "0x20"}, {"leading": "1x20"}, "2m"),
    "EngineSilent": ({"engine_up": "0x20"}, {"engine_up": "1x20"}, "2m"),
    "ReplicaBehind": ({"behind_seconds": "61x20"}, {"behind_seconds": "59x20"}, "0m"),
    "ReplicaMissing": ({"replicas": "3x5 2x20"}, {"replicas": "2x5 3x20"}, "12m"),
    "LeaderChangesOften": ({"failovers_total": "0 2 4 6x20"}, {"failovers_total": "0 0 1 1x20"}, "10m"),
    "EngineFillsUp": (
        {"engine_bytes": "51x20", "engine_quota_bytes": "100x20"},
        {"engine_bytes": "51x20", "engine_quota_bytes": "0x20"},  # etcd does not say
        "15m",
    ),
    "SiteCutOff": ({"site_reached": "0x20"}, {"site_reached": "0x3 1x20"}, "6m"),
}


@pytest.mark.parametrize("alert", ALERTS)
def test_alerts_are_raised_when_they_should_be(alert: str, promtool: str, tmp_path: Path) -> None:
    raising, quiet, at = ALERTS[alert]
    for series, raised in ((raising, True), (quiet, False)):
        expr = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)'
        test = {
            "interval": "1m",
            "input_series": [
                {"series": f'rpcsys_tracker_{name}{{job="rpcsys-tracker",instance="a",replica="b"}}', "values": values}
                for name, values in series.items()
            ],
            "promql_expr_test": [
                {"expr": expr, "eval_time": at, "exp_samples": [{"labels": "{}", "value": int(raised)}]}
            ],
        }
        file = tmp_path / f"{raised}.yml"
        rules = ROOT / "docs" / "monitoring" / "prometheus-rules.yml"
        file.write_text(json.dumps({"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [test]}))
        done = subprocess.run(
            [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=ENDS_S, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
