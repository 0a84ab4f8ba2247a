"""A module for ``--import`` of an edge server: it runs the last stage of a network."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import rpcsys.server

#: Read at the server's start: a session does not see the machine's temporary files.
_MODEL = Path(os.environ["EDGE_MODEL"]).read_bytes()


@functools.lru_cache(maxsize=1)
def _model() -> Any:
    from rpcsys.module import onnx_module

    return onnx_module(_MODEL, level="basic", threads=1)


@rpcsys.server.register("edge.head")
def head(features: Any) -> Any:
    return _model()(features)
