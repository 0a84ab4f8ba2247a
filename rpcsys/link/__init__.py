"""A link to the tracker, over a socket; used by all that have one. Standard library only, no asyncio.

``Link`` is the connection (:mod:`rpcsys.link.link`); beside it stand what daemons and clients share: addresses
and their defaults, connections on their way, pauses between tries, the settings of sockets that carry small messages,
and what keeps a connection to a peer that takes nothing.
"""

from rpcsys.link.address import DEFAULT_TRACKER, address_text, parse_address, tracker_defaults
from rpcsys.link.dialling import Dialling
from rpcsys.link.keepalive import KEEPALIVE_S, keep_alive
from rpcsys.link.link import CAPABILITIES, Closeable, Link, error_of
from rpcsys.link.tcp import acknowledge_at_once, drain_and_close, tune, tune_connected

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
