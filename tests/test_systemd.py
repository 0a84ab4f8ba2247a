"""The units: verified by systemd, and hardened."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rpcsys import data
from rpcsys.gateway import config as gateway_config
from rpcsys.proxy import config as proxy_config
from rpcsys.server import config as server_config
from rpcsys.tracker import config as tracker_config

UNITS = data.folder("systemd")
NAMES = ["rpcsys-tracker.service", "rpcsys-proxy.service", "rpcsys-gateway.service", "rpcsys-server@.service"]
EXPOSED_AT_MOST = 30
"""Tenths of systemd-analyze's exposure level, which is at most 10."""


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    assert shutil.which("systemd-analyze"), "systemd-analyze reads the units; type: apt-get install systemd"
    command = ["systemd-analyze", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def setting(name: str, key: str) -> str:
    """The unit's last value of ``key`` in [Service]."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNITS / name)
    return parser["Service"][key]


def seconds(name: str, key: str) -> float:
    return float(setting(name, key))


@pytest.mark.parametrize("name", NAMES)
def test_systemd_verifies_the_units(name: str, tmp_path: Path) -> None:
    # The unit's program is not installed here: replace it with one that is.
    unit = tmp_path / name.replace("@.", "@rpi4.")
    program = setting(name, "ExecStart").split()[0]
    text = (UNITS / name).read_text(encoding="utf-8")
    unit.write_text(text.replace(f"ExecStart={program}", f"ExecStart={sys.executable}"), encoding="utf-8")
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_reports_a_wrong_value(tmp_path: Path) -> None:
    unit = tmp_path / "rpcsys-tracker.service"
    text = (UNITS / unit.name).read_text(encoding="utf-8")
    unit.write_text(text.replace("Restart=on-failure", "Restart=perhaps"), encoding="utf-8")
    assert "perhaps" in analyze("verify", "--man=no", str(unit)).stderr


@pytest.mark.parametrize("name", NAMES[:3])
def test_those_that_serve_no_sessions_are_hardened(name: str) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSED_AT_MOST}", str(UNITS / name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout


def test_the_stop_timeout_is_longer_than_the_grace() -> None:
    assert seconds("rpcsys-proxy.service", "TimeoutStopSec") > proxy_config.ProxyConfig.grace
    assert seconds("rpcsys-gateway.service", "TimeoutStopSec") > gateway_config.GatewayConfig.grace
    grace = server_config.parse(["--key", "rpi4"]).grace_s
    assert seconds("rpcsys-server@.service", "TimeoutStopSec") > grace


def flags(name: str) -> list[str]:
    (line,) = [line for line in (UNITS / name).read_text().splitlines() if not line.startswith("#")]
    return line.partition("=")[2].split()


def test_the_sample_flags_are_valid() -> None:
    assert tracker_config.parse(flags("tracker.environment")).port == 9190
    replica = re.search("^#   (--replicate .*)$", (UNITS / "tracker.environment").read_text(), re.MULTILINE)
    assert tracker_config.parse([*replica[1].split(), "--state-dir", "d"]).advertise == "lab-1"
    assert proxy_config.parse(flags("proxy.environment")).tracker == ("127.0.0.1", 9190)
    gateway = gateway_config.parse(flags("gateway.environment"))
    assert (gateway.tracker, gateway.port, gateway.grpc_port) == (("127.0.0.1", 9190), 8000, 8001)
    lines = (UNITS / "rpcsys-server.flags").read_text().splitlines()
    server = server_config.parse([line for line in lines if not line.startswith("#")])
    assert (server.key, server.tracker) == ("rpi4", ("lab-host", 9190))


@pytest.mark.parametrize(("name", "sample"), [(NAMES[0], "tracker"), (NAMES[1], "proxy"), (NAMES[2], "gateway")])
def test_the_units_read_the_samples(name: str, sample: str) -> None:
    assert setting(name, "EnvironmentFile") == f"-/etc/rpcsys/{sample}.environment"
    assert f"${sample.upper()}_FLAGS" in setting(name, "ExecStart")
    assert f"\n{sample.upper()}_FLAGS=" in (UNITS / f"{sample}.environment").read_text()
