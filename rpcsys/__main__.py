"""Entry point of the ``rpcsys`` command. Its errors are one line on standard error, never a traceback."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (the process's own by default); the exit status."""
    if sys.version_info < (3, 10):  # noqa: UP036 - pip installs the wheel on a board's older Python too
        sys.stderr.write(
            "rpcsys: error: this command needs Python 3.10 or later; a board's server is started with: "
            "python3 -m rpcsys.server\n"
        )
        return 2
    from rpcsys.cli.commands import run_group

    return run_group(argv)


if __name__ == "__main__":
    sys.exit(main())
