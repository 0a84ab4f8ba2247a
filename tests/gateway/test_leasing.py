"""One lease of a pool: a session that is handed over, or an error and nothing left."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.errors import ModelError, WaitTimeout
from rpcsys.gateway import leasing
from rpcsys.gateway.settings import LeasedPool

POOL = LeasedPool("rpi4", "m.onnx", {})
STREAM = object()


class Lab:
    """A tracker and its one session, which notes what is done with them."""

    def __init__(self, request: Any = None, load: Any = 1) -> None:
        self._request = request
        self._load = load
        self.done: list[str] = []
        self._channel = self

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.done.append("tracker closed")

    def request(self, key: str, wait_timeout: float, on_queued: Any) -> Lab:
        assert (key, wait_timeout) == ("rpi4", leasing.WAIT_S)
        on_queued({"position": 1})
        if self._request is not None:
            raise self._request
        return self

    def load_module(self, file: str) -> Any:
        assert file == "m.onnx"
        if isinstance(self._load, Exception):
            raise self._load
        return type("Model", (), {"_id": self._load})

    def hand_over(self) -> object:
        return STREAM

    def close(self) -> None:
        self.done.append("session closed")


def lease(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(leasing, "connect_tracker", lambda address: lab)
    return leasing.lease(("lab", 9190), POOL)


def test_a_leased_session_is_handed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    assert lease(lab, monkeypatch) == (STREAM, None)
    assert lab.done == ["tracker closed"]


def test_without_a_device_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(request=WaitTimeout("no device became free within 60 s"))
    with pytest.raises(WaitTimeout):
        lease(lab, monkeypatch)
    assert lab.done == ["tracker closed"]


@pytest.mark.parametrize("load", [ModelError("it has no onnxruntime"), 2])
def test_a_device_that_cannot_load_the_model_is_given_back(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab(load=load)
    with pytest.raises(ModelError):
        lease(lab, monkeypatch)
    assert lab.done == ["tracker closed", "session closed"]
