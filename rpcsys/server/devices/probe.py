"""The process that asks one driver, and writes its answer as JSON: ``{"found": …}`` or ``{"error": …}``."""

from __future__ import annotations

import importlib
import json
import os
from typing import Any, Dict, NoReturn

from rpcsys.errors import NativeError
from rpcsys.server.sandbox import launch, processes


def main(settings: Dict[str, Any]) -> NoReturn:
    """Call ``settings``' function of a module of this package, and write what it returns."""
    processes.die_with_parent(settings["parent"])
    find = getattr(importlib.import_module("rpcsys.server.devices." + settings["module"]), settings["function"])
    try:
        answer = {"found": find(*settings["arguments"])}
    except (OSError, NativeError) as error:
        answer = {"error": str(error)}
    data = json.dumps(answer).encode()
    while data:
        data = data[os.write(launch.HANDED, data) :]
    os._exit(0)  # a driver may hang in what it does at the end of its process
