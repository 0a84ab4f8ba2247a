"""Functions our server offers to the benchmarks; it is started with ``--import`` of this module.

Imported on the device: the standard library alone, and numpy if it is there.
"""

from benchmarks.peers.memory import array
from rpcsys.server import register

_sources = {}


@register("bench.nothing")
def nothing():
    """A null call."""


@register("bench.sink")
def sink(x):
    """Take an array and drop it."""


@register("bench.source")
def source(size):
    """An array of ``size`` bytes, always the same one."""
    if size not in _sources:
        _sources[size] = array(size)
    return _sources[size]
