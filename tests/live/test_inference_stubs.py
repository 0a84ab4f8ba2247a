"""The protocol's messages against the stubs that other servers ship, each in an environment of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.device_files import ROOT
from tests.live.environments import KSERVE, MLSERVER, Environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
SCRIPT = Path(__file__).with_name("inference_stubs.py")
#: Newer types of parameters, which both lack.
_NEWER = {"InferParameter.double_param", "InferParameter.uint64_param"}


@pytest.mark.parametrize(
    ("environment", "module", "known"),
    [
        # It has the model's name where the others have the repository's, and no parameters.
        pytest.param(
            KSERVE,
            "kserve.protocol.grpc.grpc_predict_v2_pb2",
            {
                f"RepositoryModel{what}Request.{name}"
                for what in ("Load", "Unload")
                for name in ("model_name", "parameters", "repository_name")
            },
            id="kserve",
        ),
        # Its stream has answers without errors.
        pytest.param(
            MLSERVER,
            "mlserver.grpc.dataplane_pb2",
            {"ModelInferResponse.error_message", "ModelInferResponse.infer_response"},
            id="mlserver",
        ),
    ],
)
def test_messages_are_those_of_the_stubs(environment: Environment, module: str, known: set[str]) -> None:
    command = [str(environment.python()), "-I", str(SCRIPT), module, str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert set(done.stdout.split()) == known | _NEWER
