"""Kills the daemons that a killed test run leaves.

A run writes ``+PID`` when it starts a daemon, the leader of its own process group, and ``-PID`` when the daemon has
ended. When the pipe ends, because the run has ended or was killed, the reaper kills the groups that are left. It needs
only the standard library: ``python -I -S reaper.py``.
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
