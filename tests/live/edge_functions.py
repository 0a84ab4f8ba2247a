"""What an edge server is told to import in tests: the last part of a network, kept there."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import rpcsys.server

#: Read when the server starts: a session does not see the machine's temporary files.
_MODEL = Path(os.environ["EDGE_MODEL"]).read_bytes()


@functools.lru_cache(maxsize=1)
def _model() -> Any:
    from rpcsys.module import onnx_module

    return onnx_module(_MODEL, level="basic", threads=1)


@rpcsys.server.register("edge.head")
def head(features: Any) -> Any:
    return _model()(features)
