"""The written forms of devices."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from rpcsys.errors import NotSupported, UsageError
from rpcsys.graph import OnnxRuntime, Tvm
from rpcsys.graph._plan import devices
from rpcsys.graph._plan.devices import PlanDevice, parse


class Opened:
    """A session whose server has these capabilities."""

    def __init__(self, **capabilities: Any) -> None:
        self.info = {"capabilities": capabilities}


def test_devices_without_deployments_are_those_that_report_it() -> None:
    given = parse("cpu:0,key:a,key:b,key:old")
    sessions: list[Any] = [None, Opened(deploy=False), Opened(deploy=True), Opened()]
    assert list(devices.without_deployments(given, sessions)) == [given[1]]


@pytest.fixture(autouse=True)
def six_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "available", lambda: {0, 1, 2, 3, 4, 6})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["cpu:0", "cpu:1"], [PlanDevice("cpu:0", (0,)), PlanDevice("cpu:1", (1,))]),
        (["cpu:1-3"], [PlanDevice("cpu:1-3", (1, 2, 3))]),
        (["key:edge"], [PlanDevice("key:edge", key="edge")]),
        (["key:a:b"], [PlanDevice("key:a:b", key="a:b")]),
        (["key:edge@10.0.0.7:9090"], [PlanDevice("key:edge@10.0.0.7:9090", key="edge", address="10.0.0.7:9090")]),
        (["10.0.0.7:9090"], [PlanDevice("10.0.0.7:9090", address="10.0.0.7:9090")]),
        (["[::1]:9090"], [PlanDevice("[::1]:9090", address="[::1]:9090")]),
        (["key:cpu:0"], [PlanDevice("key:cpu:0", key="cpu:0")]),
        (["edge:opencl:0"], [PlanDevice("edge:opencl:0", key="edge", chip="opencl:0", board="edge")]),
        (["edge#2:cpu:0"], [PlanDevice("edge#2:cpu:0", key="edge", chip="cpu:0", board="edge#2")]),
        (["a:b:cuda:1"], [PlanDevice("a:b:cuda:1", key="a:b", chip="cuda:1", board="a:b")]),
        (["key:edge/opencl"], [PlanDevice("key:edge/opencl", key="edge", chip="opencl:0", board="edge")]),
        (["edge:openvino:GPU.0"], [PlanDevice("edge:openvino:GPU.0", key="edge", chip="openvino:GPU.0", board="edge")]),
        (
            ["10.0.0.7:9090/vulkan:0"],
            [PlanDevice("10.0.0.7:9090/vulkan:0", address="10.0.0.7:9090", chip="vulkan:0", board="10.0.0.7:9090")],
        ),
        (["opencl:0"], [PlanDevice("opencl:0", chip="opencl:0")]),
        ("cpu:0, key:edge", [PlanDevice("cpu:0", (0,)), PlanDevice("key:edge", key="edge")]),
        (1, [PlanDevice("cpu:0,1,2,3,4,6", (0, 1, 2, 3, 4, 6))]),
        (2, [PlanDevice("cpu:0-2", (0, 1, 2)), PlanDevice("cpu:3,4,6", (3, 4, 6))]),
        (
            4,
            [
                PlanDevice("cpu:0-1", (0, 1)),
                PlanDevice("cpu:2", (2,)),
                PlanDevice("cpu:3-4", (3, 4)),
                PlanDevice("cpu:6", (6,)),
            ],
        ),
    ],
)
def test_devices_as_they_are_written(given: Any, expected: Sequence[PlanDevice]) -> None:
    assert parse(given) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no device"),
        (0, "cannot be divided into 0"),
        (7, r"has 6 CPU\(s\), which cannot be divided into 7"),
        (["cpu:"], "'cpu:' is no device"),
        (["cpu:x"], "is no device"),
        (["cpu:1-"], "is no device"),
        (["cpu:-1"], "is no device"),
        (["cpu:3-1"], "no range of CPUs"),
        (["cpu:0-99999999"], "is no range of CPUs"),
        (["cpu:5"], "this process has CPUs 0,1,2,3,4,6"),
        (["cpu:0-2", "cpu:2"], "cpu:2: its CPUs belong to a device before it"),
        (["key:"], "is no device"),
        (["key:edge@nowhere"], "is no device"),
        (["edge"], "devices are written cpu:0, cpu:0-3, key:NAME or HOST:PORT"),
        (["host:0"], "is no device"),
        (["cpu:0/opencl:0"], "is no device"),
        (["edge/opencl:0"], "is no device"),
        (["edge:gpu:0"], "is no device"),
        (["opencl:1"], "cannot be planned for opencl:1 of this machine; name it behind a server"),
        (["openvino:CPU"], "cannot be planned for openvino:CPU of this machine"),
        (["edge:cpu:0", "edge:cpu:0"], "edge:cpu:0 is given twice; .* is written NAME#2:cpu:0"),
        ([""], "is no device"),
    ],
)
def test_the_error_for_an_invalid_device_lists_the_forms(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(given)


class Described(Opened):
    """A session whose server describes these devices."""

    def __init__(self, **loaders: list[str]) -> None:
        named = [{"name": f"{kind}:0", "loaders": each} for kind, each in loaders.items()]
        super().__init__(devices=[{"name": "cpu:0", "loaders": ["onnxruntime"]}, *named])


def test_a_chip_is_compiled_for_unless_a_runtime_of_the_board_takes_models() -> None:
    given = parse(["edge:cpu:0", "edge:opencl:0", "edge:cuda:0", "cpu:0"])
    session: Any = Described(opencl=["tvm"], cuda=["tvm", "onnxruntime"])
    targets = [each.target for each in devices.with_targets(given, [session, session, session, None])]
    assert targets[0] == targets[2] == OnnxRuntime()
    assert targets[1] == Tvm({"kind": "opencl", "host": {"kind": "llvm"}})
    assert targets[3] == OnnxRuntime(threads=1, cpus=(0,))


def test_an_opencl_device_that_is_a_cpu_has_its_schedules() -> None:
    session: Any = Opened(devices=[{"name": "opencl:0", "type": "cpu"}, {"name": "opencl:1", "type": "gpu"}])
    one, other = devices.with_targets(parse(["edge:opencl:0", "edge:opencl:1"]), [session, session])
    assert one.target == Tvm({"kind": "opencl", "device": "cpu", "host": {"kind": "llvm"}})
    assert other.target == Tvm({"kind": "opencl", "host": {"kind": "llvm"}})


def test_a_chip_that_the_board_lacks_is_named() -> None:
    (given,) = parse(["edge:vulkan:0"])
    with pytest.raises(NotSupported, match=r"edge:vulkan:0 has no device vulkan:0; it has cpu:0, opencl:0"):
        devices.with_targets([given], [Described(opencl=["tvm"])])  # type: ignore[list-item]
    with pytest.raises(NotSupported, match="its server is of a version that knows the CPU alone"):
        devices.with_targets([given], [Opened()])  # type: ignore[list-item]


def test_chips_of_one_board_share_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def connected(address: str, **_: Any) -> Any:
        asked.append(address)
        return contextlib.nullcontext(object())

    monkeypatch.setattr(devices, "connect", connected)
    over = ["h:1/cpu:0", "h:1/opencl:0", "h:2/cpu:0"]
    with contextlib.ExitStack() as stack:
        first, second, other = devices.open_sessions(parse(over), None, 1.0, stack)
    assert first is second is not other
    assert asked == ["h:1", "h:2"]


def test_devices_of_one_key_or_as_many_cpus_are_alike() -> None:
    kinds = [device.kind for device in parse(["cpu:0", "cpu:1", "cpu:2-3", "key:a", "key:a", "key:b"])]
    assert [kinds.index(kind) for kind in kinds] == [0, 0, 2, 3, 3, 5]
