"""schemathesis at a gateway, with the description of the protocol: as it is, and with names that the gateway knows."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.live.daemons import ROOT, Daemons
from tests.live.environments import SCHEMATHESIS
from tests.live.gateways import Served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DESCRIPTION = ROOT / "docs" / "open-inference.yaml"
#: What is said of all answers. Whether a request is accepted depends on the model, which the description leaves open.
CHECKS = (
    *("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance"),
    *("response_schema_conformance", "unsupported_method", "allow_header_conformance"),
)
RUN_S = 600.0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("inference")
    daemons = Daemons(folder)
    yield Served(daemons, folder, "--shared-memory")
    daemons.stop()


@pytest.fixture(scope="module")
def description() -> Any:
    return yaml.safe_load(DESCRIPTION.read_text())


def without_findings(served: Served, description: Any, folder: Path, examples: int) -> None:
    path = folder / "description.json"
    path.write_text(json.dumps(description))
    command = [
        *(str(SCHEMATHESIS.python().with_name("schemathesis")), "run", str(path), "--url", f"http://{served.http}"),
        *("--checks", ",".join(CHECKS), "--max-examples", str(examples), "--seed", "18", "--request-timeout", "30"),
        *("--phases", "examples,coverage,fuzzing", "--suppress-health-check", "all", "--no-color"),
    ]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]
    assert served.gateway.running()
    assert "Traceback" not in served.gateway.stderr()


def test_no_answer_is_another_than_described(served: Served, description: Any, tmp_path: Path) -> None:
    without_findings(served, description, tmp_path, examples=30)


def test_no_answer_of_a_known_model_is_another_than_described(served: Served, description: Any, tmp_path: Path) -> None:
    known = copy.deepcopy(description)
    parts = known["components"]
    parts["parameters"]["Model"]["schema"] = {"type": "string", "enum": ["simple", "every", "fp32"]}
    parts["parameters"]["Version"]["schema"] = {"type": "string", "enum": ["1"]}
    given = parts["schemas"]["InferRequest"]["properties"]
    given["inputs"]["items"]["properties"]["name"]["enum"] = ["INPUT0", "INPUT1", "FP32", "INT64", "BYTES"]
    given["outputs"]["items"]["properties"]["name"]["enum"] = ["OUTPUT0", "same_FP32"]
    without_findings(served, known, tmp_path, examples=150)


def test_every_path_that_can_be_read_answers(served: Served, description: Any) -> None:
    import urllib.request

    plain = [path for path, item in description["paths"].items() if "get" in item]
    assert len(plain) > 10
    for path in plain:
        url = f"http://{served.http}{path.replace('{model}', 'simple').replace('{version}', '1')}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            assert answer.status == 200
            assert json.load(answer) is not None
