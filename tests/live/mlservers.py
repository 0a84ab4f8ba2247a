"""MLServer, another inference server, with models from ONNX files; its processes are the daemons of a test."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_until
from tests.live.environments import MLSERVER

RUNTIME = Path(__file__).with_name("mlserver_runtime.py")


def write_repository(folder: Path, models: Mapping[str, Path], http_port: int, grpc_port: int) -> None:
    """Write what ``mlserver start`` reads, in a new folder: settings, the runtime, and the models from ONNX files."""
    folder.mkdir()
    shutil.copy(RUNTIME, folder)
    settings = {
        "host": "127.0.0.1",
        "http_port": http_port,
        "grpc_port": grpc_port,
        "grpc_max_message_length": 1 << 29,
        "metrics_endpoint": None,
        "parallel_workers": 0,  # models are in its own process, where they are quickest
        "debug": False,  # no line for each call
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    for name, path in models.items():
        place = folder / name
        place.mkdir()
        shutil.copy(path, place / "model.onnx")
        parameters = {"uri": "./model.onnx", "version": "v1"}
        model = {"name": name, "implementation": f"{RUNTIME.stem}.OnnxModel", "parameters": parameters}
        (place / "model-settings.json").write_text(json.dumps(model))


def program(folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command that serves a repository, in its folder, and what its environment needs."""
    return [str(MLSERVER.python().with_name("mlserver")), "start", "."], {"PYTHONPATH": str(folder)}


def is_ready(http_port: int) -> bool:
    """Whether all models are loaded."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http_port}/v2/health/ready", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


class MLServer:
    """An MLServer at two ports that it keeps when it is started again."""

    def __init__(self, daemons: Daemons, folder: Path, models: Mapping[str, Path]) -> None:
        self._daemons = daemons
        self._folder = folder
        self._daemon: Daemon | None = None
        self.http_port, self.grpc_port = free_port(), free_port()
        write_repository(folder, models, self.http_port, self.grpc_port)

    def http(self, name: str) -> str:
        """The URL of a model."""
        return f"http://127.0.0.1:{self.http_port}/v2/models/{name}"

    def grpc(self, name: str) -> str:
        return f"grpc://127.0.0.1:{self.grpc_port}/{name}"

    def start(self) -> None:
        """Start it; returns when its models are ready."""
        command, environment = program(self._folder)
        self._daemon = self._daemons.launch("mlserver", command, cwd=self._folder, env=environment)
        wait_until(self._ready, START_S, "MLServer serves its models")

    def _ready(self) -> bool:
        assert self._daemon is not None
        assert self._daemon.running(), self._daemon.stderr()
        return is_ready(self.http_port)

    def kill(self) -> None:
        """Kill all its processes at once."""
        assert self._daemon is not None
        self._daemon.destroy()
