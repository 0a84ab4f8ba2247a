"""``python -m rpcsys.forward``: forward this desk's connections to a lab."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rpcsys.daemon.loop import run_daemon
from rpcsys.forward import config


def main(arguments: Sequence[str] | None = None) -> int:
    """Forward until a signal; the exit status."""
    return run_daemon(config.NAME, config.parse, _serve, arguments)


async def _serve(settings: config.ForwardConfig) -> int:
    from rpcsys.forward import service

    return await service.serve(settings)


if __name__ == "__main__":
    sys.exit(main())
