"""The flag ``--canary [MODEL[:LIMIT]]``: which work is timed, and above which time the board is ill at once."""

from __future__ import annotations

import os
import re
from typing import NamedTuple, Optional

from rpcsys.errors import ConfigError

BUILTIN = "builtin"
_LIMIT = re.compile(r"(?P<model>.*):(?P<number>[0-9]{1,9}(?:\.[0-9]{1,9})?)(?P<unit>us|ms|s)\Z", re.DOTALL)
_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class CanaryChoice(NamedTuple):
    """``model``: the path of a file, or `BUILTIN`; ``limit_s``: the longest time of one call, None for any."""

    model: str
    limit_s: Optional[float]


def parse(text: str) -> Optional[CanaryChoice]:
    """The canary that the flag names; None for none. Raises `ConfigError`: there is no such file, or no such limit."""
    if not text:
        return None
    match = _LIMIT.match(text)
    model = match["model"] if match else text
    limit_s = float(match["number"]) * _UNITS_S[match["unit"]] if match else None
    if limit_s == 0:
        raise ConfigError(f"--canary {text}: a limit of 0 is above no time; write one like 5ms")
    if model in ("", BUILTIN):
        return CanaryChoice(BUILTIN, limit_s)
    if not os.path.isfile(model):
        how = f"give a model (.onnx or .so), with a limit like MODEL:5ms, or {BUILTIN}"
        raise ConfigError(f"--canary {text}: there is no file {model}; {how}")
    if not model.endswith((".onnx", ".so")):
        raise ConfigError(f"--canary {model}: no model that can be loaded: its name ends in .onnx or .so")
    return CanaryChoice(os.path.abspath(model), limit_s)
