"""Descriptions of devices from the answers of drivers, which are checked: a driver may write anything."""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Tuple

from rpcsys.errors import UsageError
from rpcsys.wire import device_names
from rpcsys.wire.device_names import MAX_DEVICES

#: Characters of a title, and of a driver's or runtime's version; longer ones are cut.
_TITLE, _VERSION = 96, 48
#: What a device is, where its kind does not say it.
TYPES = ("cpu", "gpu", "accelerator")


class Devices(NamedTuple):
    """The names of a board's devices, `MAX_DEVICES` at most, the CPU first; and their descriptions, in JSON."""

    names: Tuple[str, ...] = (str(device_names.CPU),)
    described: str = "[]"


def describe(answers: Mapping[str, Any], loaders: Callable[[str], Iterable[str]]) -> Devices:
    """The devices by the ``answers`` of kinds, in that order. ``loaders``: of a kind of devices."""
    every = [device for kind, answer in answers.items() for device in _of_kind(kind, answer, list(loaders(kind)))]
    every = every[:MAX_DEVICES]
    return Devices(tuple(device["name"] for device in every), json.dumps(every, separators=(",", ":")))


def _of_kind(kind: str, answer: Any, loaders: List[str]) -> List[Dict[str, Any]]:
    found: Dict[str, Dict[str, Any]] = {}
    for place, said in enumerate(answer if isinstance(answer, list) else ()):
        about = said if isinstance(said, dict) else {}
        try:
            name = str(device_names.parse(f"{kind}:{about.get('number', place)}"))
        except UsageError:
            continue
        memory = about.get("memory")
        found[name] = {
            "name": name,
            "kind": kind,
            "title": _text(about.get("title"), _TITLE),
            "memory": memory if type(memory) is int and 0 <= memory < 1 << 53 else 0,
            "driver": _text(about.get("driver"), _VERSION),
            "runtime": _text(about.get("runtime"), _VERSION),
            "loaders": loaders,
            **({"type": about["type"]} if about.get("type") in TYPES else {}),
        }
    return list(found.values())


def _text(value: Any, most: int) -> str:
    """Printable ASCII of at most so many characters."""
    text = " ".join(value[: 4 * most].split()) if isinstance(value, str) else ""
    return "".join(char if " " <= char <= "~" else "?" for char in text[:most]).rstrip()
