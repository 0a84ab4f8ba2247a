"""A graph created from parts that are kept apart: its JSON, the library of its stages, its weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rpcsys.errors import UsageError
from rpcsys.module.kinds import graph as kind
from rpcsys.module.loading import load_module
from rpcsys.module.module import Module

PathLike = str | os.PathLike[str]


def create(
    json: PathLike,
    library: Module | Sequence[Module] | PathLike,
    params: Module | Mapping[str, Any] | PathLike | None = None,
) -> kind.GraphModule:
    """A graph module from its parts.

    ``json`` : what `GraphModule.save_graph_json` wrote, as text or as the path of the file
    ``library`` : the modules of its stages, or one that imports them; or the path of the library it was exported as
    ``params`` : weights by name, or a module of kind ``rpcsys.params``; or the path of the library it was exported as

    Raises `UsageError` for parts that are not there or do not fit together, `ModelError` for one that cannot be loaded.
    """
    if isinstance(library, (str, os.PathLike)):
        library = load_module(library)
    if isinstance(params, (str, os.PathLike)):
        params = load_module(params)
    return kind.create(_text(json), library, params)


def _text(json: PathLike) -> str:
    if isinstance(json, str) and json.lstrip().startswith("{"):
        return json
    try:
        return Path(json).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{os.fspath(json)} cannot be read: {why}") from None
