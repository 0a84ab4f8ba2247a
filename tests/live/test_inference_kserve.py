"""KServe's clients, unmodified, at a gateway."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.live import deployed, gateways
from tests.live.daemons import Daemons
from tests.live.environments import KSERVE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
CLIENT = Path(__file__).with_name("kserve_client.py")


def test_its_clients_of_both_kinds_are_served(daemons: Daemons, tmp_path: Path) -> None:
    root = tmp_path / "deploy"
    deployed.put(root, "simple", gateways.simple(tmp_path / "simple.onnx"))
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root))
    gateway = gateways.before(daemons, server, ["simple"])
    command = [str(KSERVE.python()), "-I", str(CLIENT), gateway.where, gateways.grpc_of(gateway)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "used\n"), done.stderr[-4000:]
