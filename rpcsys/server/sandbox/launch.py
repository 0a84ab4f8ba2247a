"""Starts the server's other processes: in a fresh interpreter, or as a copy of this process.

The new process has the same flags and ``sys.path`` (also inside a zip file), and only the descriptors that it needs.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from typing import Any

HANDED = 3  # the number of the new process's socket
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from importlib import import_module; import_module(sys.argv.pop(1)).main(json.loads(sys.argv.pop(1)))"
)


#: Signals that end a process, whatever the server ignores: `nohup` and a script's ``&`` start it with some ignored.
#: Programs of sessions would inherit that.
_DEFAULT = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
#: A shell that waits for a line on descriptor 4, and becomes the program that its arguments name.
_WAITING = ["/bin/sh", "-c", 'read -r _ <&4 && exec "$@" 4<&-', "sh"]


def start(
    module: str, settings: dict[str, object], descriptor: int, name: str, *, leader: bool = False, printing: int = 2,
    when: int = -1,
) -> int:  # fmt: skip
    """Run ``module.main(settings)`` in a fresh interpreter; return its PID. Raises OSError.

    ``descriptor`` becomes number 3 there. Its output goes to ``printing``, since standard output has the ready line.
    A ``leader`` has its own process group, which a terminal's Ctrl-C does not reach. ``when``: a pipe from which the
    new process reads a line first, without taking an interpreter's memory; it ends when the pipe does.
    """
    source = os.dup(descriptor) if descriptor == HANDED else descriptor  # dup2 to the same number keeps close-on-exec
    paths = [os.path.abspath(path) for path in sys.path]
    arguments = [sys.executable, *flags(), "-c", _START, json.dumps(paths), module, json.dumps(settings), name]
    group: dict[str, Any] = {"setpgroup": 0} if leader else {}
    waiting = [] if when < 0 else [(os.POSIX_SPAWN_DUP2, when, HANDED + 1)]
    if waiting:
        arguments = [*_WAITING, *arguments]
    try:
        return os.posix_spawn(
            arguments[0],
            arguments,
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, printing, 1),
                (os.POSIX_SPAWN_DUP2, printing, 2),
                (os.POSIX_SPAWN_DUP2, source, HANDED),
                *waiting,
            ],
            setsigmask=(),
            setsigdef=(*_DEFAULT, signal.SIGPIPE),
            **group,
        )
    finally:
        if source != descriptor:
            os.close(source)


def copy(module: str, settings: dict[str, object], descriptor: int, printing: int) -> int:
    """Run ``module.main(settings)``, which never returns, in a fork of this process; return its PID. Raises OSError.

    Otherwise as :func:`start` with ``leader``. Shared imports save a quarter of all memory on a small board. Only for a
    process with one thread. The copy keeps this process's objects for descriptors alive: a finaliser could otherwise
    close a number that another file has by then.
    """
    sys.stdout.flush()
    freeze()
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.set_wakeup_fd(-1)
        for number in (*_DEFAULT, signal.SIGUSR1):
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
    """Exclude all present objects from garbage collection: in a forked copy, visiting one copies its page."""
    gc.collect()
    gc.freeze()


def flags() -> list[str]:
    """This interpreter's flags that affect imports."""
    flags = sys.flags
    known = {
        "-I": flags.isolated,
        "-E": flags.ignore_environment and not flags.isolated,
        "-s": flags.no_user_site and not flags.isolated,
        "-S": flags.no_site,
        "-B": flags.dont_write_bytecode,
    }
    return [flag for flag, wanted in known.items() if wanted]
