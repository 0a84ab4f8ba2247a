"""``python -m rpcsys.proxy``: run a proxy."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rpcsys.daemon.loop import run_daemon
from rpcsys.proxy import config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy; its exit status."""
    return run_daemon(config.NAME, config.parse, _serve, arguments)


async def _serve(settings: config.ProxyConfig) -> int:
    from rpcsys.proxy import service

    return await service.serve(settings)


if __name__ == "__main__":
    sys.exit(main())
