"""The device functions of the benchmarks, for ``--import`` of our server.

It needs only the standard library, and uses numpy if it is installed.
"""

from benchmarks.peers.memory import array
from rpcsys.server import register

_sources = {}


@register("bench.nothing")
def nothing(*_):
    """A null call."""


@register("bench.sink")
def sink(x):
    """Receive an array and drop it."""


@register("bench.source")
def source(size):
    """An array of ``size`` bytes, always the same one."""
    if size not in _sources:
        _sources[size] = array(size)
    return _sources[size]
