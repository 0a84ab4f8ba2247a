"""The paths that a server's sessions need, and those that they must not see."""

from __future__ import annotations

import os
import sys

from rpcsys.server.canary.setting import BUILTIN
from rpcsys.server.config import ServerConfig


def needed(config: ServerConfig) -> list[str]:
    """Paths that a session needs, and that its own mounts must not hide."""
    libraries = None
    if config.tvm == "ctypes":
        from rpcsys.ffi import library

        libraries = library.find(config.tvm_library)
    return [
        *sys.path,
        os.path.dirname(os.path.dirname(os.path.dirname(__file__))),  # this package: its parent may be closed to users
        sys.prefix,
        sys.base_prefix,
        *config.load_library,
        config.tvm_library or "",
        *(path for path in libraries or () if path),  # also where the folder holds links to them
        config.cache or "",
        config.deploy or "",
        "" if config.canary is None or config.canary.model == BUILTIN else config.canary.model,
    ]


def secrets(config: ServerConfig, need: list[str]) -> list[str]:
    """The files and folders of this server's secrets; no folder with something that sessions ``need``."""
    found = [config.standing_key] if config.standing_key else []
    if config.lab:
        from rpcsys.link import credential

        state = os.environ.get("STATE_DIRECTORY", "").partition(":")[0]
        folders = [os.path.dirname(config.lab), os.path.dirname(credential.folder()), *([state] if state else [])]
        own = [path for path in folders if not _holds(path, need)]
        found += own if folders[0] in own else [config.lab, *own]  # a renewed credential replaces its file
    return sorted({*map(os.path.realpath, found)})


def _holds(folder: str, paths: list[str]) -> bool:
    real = os.path.realpath(folder)
    return any(os.path.commonpath((real, os.path.realpath(path))) == real for path in paths if path)
