"""``python -m rpcsys.server``: serve this device."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence

from rpcsys import logs, serve
from rpcsys.errors import ConfigError
from rpcsys.link import ciphers
from rpcsys.server import config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the device server; the exit status (0 stopped, 2 usage, 3 no free port)."""
    ciphers.prefer_fast()
    return serve.run(lambda: _main(sys.argv[1:] if arguments is None else arguments), config.NAME)


def _main(arguments: Sequence[str]) -> int:
    if "--self-test" in arguments:
        config.parser().parse_args(list(arguments))  # a mistyped flag ends it here
        # Not a static import: rpcsys.selftest imports the client, which this package may not import.
        run: Callable[[Sequence[str]], int] = importlib.import_module("rpcsys.selftest").run
        return run(arguments)
    settings = config.parse(arguments)
    if not sys.platform.startswith("linux"):
        raise ConfigError("the device server needs Linux; the client and the tools run here too")
    from rpcsys.server.supervisor.service import DeviceServer

    logs.setup(config.NAME, silent=settings.silent, form=settings.log_format)
    return DeviceServer(settings).run()


if __name__ == "__main__":
    sys.exit(main())
