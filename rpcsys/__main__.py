"""Entry points of the ``rpcsys`` and ``query_tracker`` commands.

pip installs them on a board's older Python, too. There they print one line with the Python that they need, so this file
uses Python 3.8 and the standard library only. Errors are one line on standard error, never a traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

_NEEDED = (3, 10)


def main(argv: Sequence[str] | None = None) -> int:
    """Run ``rpcsys`` with the arguments ``argv`` (the process's own by default); the exit status."""
    if _too_old("rpcsys"):
        return 2
    from rpcsys.link import ciphers

    ciphers.prefer_fast()
    from rpcsys.cli.commands import run_group

    return run_group(argv)


def query_tracker() -> int:
    """Run ``query_tracker`` with the process's own arguments; the exit status."""
    if _too_old("query_tracker"):
        return 2
    from rpcsys.query.__main__ import main as query

    return query()


def _too_old(command: str) -> bool:
    if sys.version_info >= _NEEDED:
        return False
    sys.stderr.write(
        "{}: error: this command needs Python {}.{} or later; a board's server is started with: "
        "python3 -m rpcsys.server\n".format(command, *_NEEDED)
    )
    return True


if __name__ == "__main__":
    sys.exit(main())
