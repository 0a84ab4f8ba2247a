"""A client's side of a candidate's measurement."""

from __future__ import annotations

import pytest

from rpcsys.client import candidates
from rpcsys.errors import NotSupported, ProtocolError, RemoteError
from tests.device import Device


def test_an_older_server_is_named_in_one_line() -> None:
    with Device() as device, device.session() as session:
        del session.info["capabilities"]["candidates"]
        with pytest.raises(NotSupported, match=r"measures no candidates; update rpcsys there$"):
            candidates.submit(session, b"", "main", [], {}, deadline_s=1)


def test_the_errors_of_a_candidate_are_the_futures() -> None:
    with Device() as device, device.session() as session:
        future = candidates.submit(session, b"no library", "main", [("int8", (1,))], {}, deadline_s=20)
        with pytest.raises(RemoteError, match="the candidate is not an ELF shared library"):
            future.result()


@pytest.mark.parametrize("answer", [None, [], {}, {"results": 3}, {"results": ["x"]}, {"results": [float("nan")]}])
def test_an_answer_without_figures_is_the_devices_fault(answer: object) -> None:
    with pytest.raises(ProtocolError, match="what the device says of a candidate makes no sense"):
        candidates.results(answer)


def test_figures_are_seconds() -> None:
    assert candidates.results({"results": [1.5, 2]}) == [1.5, 2]
