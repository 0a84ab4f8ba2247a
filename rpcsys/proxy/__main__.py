"""``python -m rpcsys.proxy``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rpcsys import serve
from rpcsys.daemon import loop
from rpcsys.proxy import config, service


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a proxy; its exit status."""
    return serve.run(lambda: _run(arguments), config.NAME)


def _run(arguments: Sequence[str] | None) -> int:
    chosen = config.parse(arguments)
    serve.setup_logging(config.NAME, silent=chosen.silent, form=chosen.log_format)
    return loop.run(service.serve(chosen))


if __name__ == "__main__":
    sys.exit(main())
