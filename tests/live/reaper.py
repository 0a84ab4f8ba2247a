"""Kills what a killed test run leaves behind.

A run writes ``+PID`` when it starts a daemon (each the leader of a process group of its own) and
``-PID`` once the daemon is gone. When the pipe ends, because the run is over or was killed with -9,
the groups still noted are killed. Runs with the standard library alone: ``python -I -S reaper.py``.
"""

import os
import signal
import sys

LINE_BYTES = 64


def main() -> None:
    leaders = set()
    # readline, not iteration: a line counts as soon as it is written
    for line in iter(lambda: sys.stdin.readline(LINE_BYTES), ""):
        pid = int(line[1:])
        (leaders.add if line[0] == "+" else leaders.discard)(pid)
    for pid in leaders:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


if __name__ == "__main__":
    main()
