"""Pin this process to a core, end it with its parent, and execute another program.

::

    python -m benchmarks.launch --core 1 --parent 4711 -- python -m benchmarks.worker …

A separate process replaces ``preexec_fn``: no Python code runs between fork and exec. The affinity and
PR_SET_PDEATHSIG survive the exec (``prctl(2)``; Linux only; on other systems the end of standard input ends the
process). The signal is SIGTERM: a server can end its own processes first.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWNET = 0x40000000


def die_with(parent: int) -> None:
    """Let the kernel end this process when ``parent`` ends; exit at once if it has ended already."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the process that asked for this one is gone")


def pin(core: int) -> None:
    """Run on this core only, if the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def leave_network() -> None:
    """Move this process into a network namespace of its own. Raises PermissionError without root."""
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise PermissionError(ctypes.get_errno(), "a network namespace of its own takes root")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--own-network", action="store_true")
    parser.add_argument("--core", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("command", nargs="+")
    arguments = parser.parse_args()
    die_with(arguments.parent)
    pin(arguments.core)
    if arguments.own_network:
        leave_network()
    os.execvp(arguments.command[0], arguments.command)


if __name__ == "__main__":
    main()
