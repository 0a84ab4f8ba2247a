"""Links to the tracker, and what daemons and clients share: addresses, connecting without blocking, backoff, and the
settings of sockets. Standard library only, no asyncio.
"""

from rpcsys.link.address import DEFAULT_TRACKER, address_text, parse_address, tracker_defaults
from rpcsys.link.dialling import Dialling
from rpcsys.link.link import CAPABILITIES, Closeable, Link, error_of
from rpcsys.link.tcp import KEEPALIVE_S, acknowledge_at_once, drain_and_close, keep_alive, tune, tune_connected

__all__ = [
    "CAPABILITIES",
    "Closeable",
    "DEFAULT_TRACKER",
    "KEEPALIVE_S",
    "Dialling",
    "Link",
    "acknowledge_at_once",
    "address_text",
    "drain_and_close",
    "keep_alive",
    "error_of",
    "parse_address",
    "tracker_defaults",
    "tune",
    "tune_connected",
]
