"""Pin this process to a core, tie its life to its parent's, and become another program.

::

    python -m benchmarks.launch --core 1 --parent 4711 -- python -m benchmarks.worker …

A process of its own instead of ``preexec_fn``: nothing of Python runs between fork and exec. What is
set here survives the exec: the affinity, and PR_SET_PDEATHSIG (``prctl(2)``; Linux only, elsewhere the
end of standard input has to do). The signal is SIGTERM: a server that has processes of its own can
end them first.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Have the kernel end this process when ``parent`` ends; end at once if it already has."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that asked for this one is gone")


def pin(core: int) -> None:
    """Run on this core only, where the system can do that."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    die_with(arguments.parent)
    pin(arguments.core)
    os.execvp(arguments.command[0], arguments.command)


if __name__ == "__main__":
    main()
