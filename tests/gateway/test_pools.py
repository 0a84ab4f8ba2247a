"""Models on leased devices: when one is leased, and when it is given back."""

from __future__ import annotations

import pytest

from rpcsys.gateway.actions import GiveBackDevice, LeaseDevice
from rpcsys.gateway.settings import LeasedPool
from rpcsys.wire.inference import InferenceError
from tests.gateway.transcripts import ECHO, GatewayTranscript, head

POOL = LeasedPool("rpi4", "m.onnx", {"kind": "rpcsys.onnx", **ECHO}, most=2, idle_s=60)


@pytest.fixture
def transcript() -> GatewayTranscript:
    return GatewayTranscript(pools={"m": POOL})


def test_a_pool_is_ready_without_a_lease(transcript: GatewayTranscript) -> None:
    transcript.list([])
    (view,) = transcript.state.views()
    assert (view.name, view.state, view.version, view.platform, view.target) == (
        *("m", "READY", "1", "onnxruntime_onnx", 1),
    )
    transcript.wait(1000)
    transcript.list([])
    assert transcript.log == []


def test_the_first_call_leases_a_device(transcript: GatewayTranscript) -> None:
    transcript.submit(1)
    assert transcript.took(LeaseDevice) == [LeaseDevice(1, "m", POOL)]
    transcript.wait(30)  # for a free device
    assert not transcript.outcomes[1]
    transcript.open_all()
    (frame,) = transcript.frames.values()
    assert head(frame)["f"] == [0, "main"]  # as the call was made for
    transcript.answer_all()
    assert transcript.body(1) == b"\1"


def test_more_calls_lease_more_devices(transcript: GatewayTranscript) -> None:
    for label in range(9):
        transcript.submit(label)
    assert len(transcript.opening) == 2
    transcript.open_all()
    assert [len(transcript.on(number)) for number in transcript.open] == [2, 2]
    assert transcript.state.leases == transcript.state.replicas == 2
    transcript.answer_all()
    assert all(transcript.body(label) == bytes([label]) for label in range(9))
    assert len(transcript.took(LeaseDevice)) == 2


def test_few_calls_lease_one_device(transcript: GatewayTranscript) -> None:
    transcript.submit(1)
    transcript.submit(2)
    transcript.open_all()
    for label in range(3, 10):
        transcript.answer(next(iter(transcript.frames)))
        transcript.submit(label)
    assert len(transcript.took(LeaseDevice)) == 1


def test_a_lost_device_is_leased_anew(transcript: GatewayTranscript) -> None:
    transcript.submit(1)
    (number,) = transcript.open_all()
    transcript.lose(number)
    assert len(transcript.opening) == 1
    transcript.wait(20)
    transcript.open_all()
    transcript.answer_all()
    assert transcript.body(1) == b"\1"


def test_calls_end_when_no_device_can_be_leased(transcript: GatewayTranscript) -> None:
    transcript.submit(1)
    transcript.submit(2)
    transcript.lose(1, "no device became free within 60 s")
    why = "no device of 'rpi4' for 'm': no device became free within 60 s"
    assert transcript.error(1) == transcript.error(2) == (503, why)
    assert not transcript.opening
    transcript.submit(3)  # tries again
    assert len(transcript.opening) == 1


def test_the_calls_of_one_device_go_on_when_there_is_no_second(transcript: GatewayTranscript) -> None:
    for label in range(5):
        transcript.submit(label)
    first, second = transcript.opening
    transcript.open[first] = "m"
    del transcript.opening[first]
    transcript.apply(transcript.state.opened(first, None, transcript.now))
    transcript.lose(second, "none is free")
    transcript.answer_all()
    assert all(transcript.body(label) == bytes([label]) for label in range(5))
    assert len(transcript.took(LeaseDevice)) == 2
    for label in range(10, 15):
        transcript.submit(label)
    assert not transcript.opening  # not at once
    transcript.wait(6)
    transcript.submit(15)
    assert len(transcript.opening) == 1


def test_devices_are_given_back_when_idle(transcript: GatewayTranscript) -> None:
    transcript.submit(1)
    (number,) = transcript.open_all()
    transcript.wait(100)
    assert not transcript.took(GiveBackDevice)  # a call is under way
    transcript.answer_all()
    transcript.wait(59)
    transcript.submit(2)
    transcript.answer_all()
    transcript.wait(59)
    assert not transcript.took(GiveBackDevice)
    transcript.wait(2)
    assert transcript.took(GiveBackDevice) == [GiveBackDevice(number)]
    assert transcript.state.idle
    transcript.submit(3)
    transcript.open_all()
    transcript.answer_all()
    assert transcript.body(3) == b"\3"


def test_a_device_that_comes_too_late_is_given_back(transcript: GatewayTranscript) -> None:
    transcript.submit(1)
    transcript.give_up(1)
    (number,) = transcript.open_all()
    transcript.wait(61)
    assert transcript.took(GiveBackDevice) == [GiveBackDevice(number)]


def test_an_unloaded_pool_gives_its_devices_back() -> None:
    transcript = GatewayTranscript(pools={"m": POOL}, control=True)
    transcript.submit(1)
    transcript.open_all()
    for label in range(2, 7):
        transcript.submit(label)
    assert len(transcript.opening) == 1
    transcript.apply(transcript.state.unload("m", transcript.now))
    assert not transcript.opening
    transcript.answer_all()
    assert transcript.body(1) == b"\1"
    assert transcript.error(5) == (503, "'m' was unloaded")
    assert not transcript.open
    with pytest.raises(InferenceError, match="unloaded"):
        transcript.submit(9)
    transcript.calls.pop(9)
    transcript.outcomes.pop(9)
    transcript.state.load("m")
    transcript.submit(10)
    assert len(transcript.opening) == 1
