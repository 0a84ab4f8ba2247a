"""Python's ``ssl``, which a board's Python may lack: to be imported from here, so that this is said in one sentence."""

from __future__ import annotations

from rpcsys.errors import ConfigError
from rpcsys.link.ciphers import no_ssl

__all__ = ["ssl"]

try:
    import ssl
except ImportError:
    raise ConfigError(no_ssl()) from None
