"""How TVM's clients reach a tracker: the ways of :class:`tests.live.daemons.Daemons`."""

from __future__ import annotations

import os

import pytest

OPEN = "open"  # in the clear; the tracker has no lab
ALLOWED = "allowed"  # in the clear; the keeper of its closed lab has allowed their network
CONNECTED = "connected"  # behind `rpcsys connect`; in the clear they may do nothing
#: Whether tests serve closed labs that could do without.
SECURE = bool(os.environ.get("RPCSYS_TEST_SECURE"))
DEFAULT = ALLOWED if SECURE else OPEN

_OTHERS = [pytest.param(way, marks=pytest.mark.slow) for way in (ALLOWED, CONNECTED) if way != DEFAULT]
#: Runs a test each way, all but the default slowly.
every_way = pytest.mark.parametrize("way", [DEFAULT, *_OTHERS], scope="module")
