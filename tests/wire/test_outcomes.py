"""How a lease ends, in one word."""

from __future__ import annotations

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.wire import control
from rpcsys.wire.outcomes import OUTCOMES, UNUSED

ENDED = {"op": "lease_ended", "id": 1, "lease": "k:1", "epoch": 1}


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_each_outcome_is_accepted(outcome: str) -> None:
    assert control.LeaseEnded.from_json({**ENDED, "outcome": outcome}).outcome == outcome


def test_another_word_is_refused() -> None:
    with pytest.raises(ProtocolError, match=UNUSED):
        control.LeaseEnded.from_json({**ENDED, "outcome": "over"})
