"""``python -m rpcsys.tracker``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rpcsys.daemon.loop import run_daemon
from rpcsys.tracker import config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a tracker and return its exit status."""
    return run_daemon(config.NAME, config.parse, _serve, arguments)


async def _serve(settings: config.TrackerConfig) -> int:
    from rpcsys.tracker import serving

    return await serving.serve(settings)


if __name__ == "__main__":
    sys.exit(main())
