"""Starting a process of the server's own: a fresh interpreter, or a copy of this process.

With the same flags and ``sys.path`` (out of a zip file, too), and never more descriptors than it needs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from typing import Any

HANDED = 3  # the descriptor at which the new process finds its socket
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from importlib import import_module; import_module(sys.argv.pop(1)).main(json.loads(sys.argv.pop(1)))"
)


def start(
    module: str, settings: dict[str, object], descriptor: int, name: str, *, leader: bool = False, printing: int = 2
) -> int:
    """Run ``module.main(settings)`` in a fresh interpreter; its process number.

    ``descriptor`` becomes number 3 there. What it prints goes to ``printing``: standard output is for the ready line.
    A ``leader`` has a process group of its own, out of a terminal's Ctrl-C. Raises OSError.
    """
    source = os.dup(descriptor) if descriptor == HANDED else descriptor  # at its place it would stay close-on-exec
    paths = [os.path.abspath(path) for path in sys.path]
    arguments = [sys.executable, *flags(), "-c", _START, json.dumps(paths), module, json.dumps(settings), name]
    group: dict[str, Any] = {"setpgroup": 0} if leader else {}
    try:
        return os.posix_spawn(
            sys.executable,
            arguments,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, printing, 1),
                (os.POSIX_SPAWN_DUP2, printing, 2),
                (os.POSIX_SPAWN_DUP2, source, HANDED),
            ],
            setsigmask=(),
            setsigdef=(signal.SIGTERM, signal.SIGINT, signal.SIGPIPE),
            **group,
        )
    finally:
        if source != descriptor:
            os.close(source)


def copy(module: str, settings: dict[str, object], descriptor: int, printing: int) -> int:
    """Run ``module.main(settings)``, which never returns, in a copy of this process; its process number.

    As :func:`start` otherwise, and a leader. What this process has imported is shared, which on a small board is a
    quarter of the memory of all. Only for a process of one thread. The copy never lets go of Python's objects for this
    process's descriptors: no finaliser can close a number that has come to mean another file. Raises OSError.
    """
    sys.stdout.flush()
    freeze()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        os.setpgid(0, 0)
        for target, source in ((1, printing), (2, printing), (HANDED, descriptor)):
            os.dup2(source, target)
        os.closerange(HANDED + 1, os.sysconf("SC_OPEN_MAX"))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        importlib.import_module(module).main(settings)
    finally:
        os._exit(1)


def freeze() -> None:
    """Have the collector leave all objects alone from now on: in a copy, each that it visits costs a page."""
    gc.collect()
    gc.freeze()


def flags() -> list[str]:
    """The flags of this interpreter that decide what can be imported."""
    flags = sys.flags
    known = {
        "-I": flags.isolated,
        "-E": flags.ignore_environment and not flags.isolated,
        "-s": flags.no_user_site and not flags.isolated,
        "-S": flags.no_site,
        "-B": flags.dont_write_bytecode,
    }
    return [flag for flag, wanted in known.items() if wanted]
