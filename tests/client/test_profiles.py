"""Profiles as a client has them: rows, tables and traces; and what a device may answer."""

from __future__ import annotations

import json
import threading
import zlib
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.client import profiles
from rpcsys.client.profiles import OperatorProfile, unpacked
from rpcsys.errors import Cancelled, NotSupported, ProtocolError, RemoteArgumentError, RemoteFunctionError, UsageError
from rpcsys.module.profiler import OperatorRun
from rpcsys.server.session import profiling as server
from tests.client.test_remote import A, B, model, model_file  # noqa: F401 - fixtures
from tests.live import deployed
from tests.shown_html import shown

#: Two calls of 100 us: a loop of 60 us with a matmul of 20 us inside it, twice; and an operator without a name.
FOUND = {
    "runtime": "onnxruntime", "plain_s": 9e-5, "calls": [[0, 100], [200, 100]],
    "operators": [["loop", "Loop", "CPU", ""], ["dense", "MatMul", "CPU", "float[2]"], ["", "Relu", "", ""]],
    "runs": [
        [1, 0, 5, 10, 20], [1, 0, 5, 30, 20], [0, 0, 5, 5, 60], [2, 0, 6, 70, 10],
        [1, 1, 5, 210, 20], [1, 1, 5, 230, 20], [0, 1, 5, 205, 60], [2, 1, 6, 270, 10],
    ],
}  # fmt: skip


def packed(found: Any) -> bytes:
    return zlib.compress(json.dumps(found).encode())


@pytest.fixture
def found() -> OperatorProfile:
    return OperatorProfile(unpacked(packed(FOUND)))


def test_rows_have_the_times_of_operators_without_those_inside_them(found: OperatorProfile) -> None:
    rows = [(row.name, row.calls, round(row.total_s * 1e6, 3), round(row.share, 3)) for row in found.rows]
    assert rows == [("dense", 4, 80, 0.4), ("loop", 2, 40, 0.2), ("", 2, 20, 0.1)]
    assert found.rows[0].mean_s == pytest.approx(40e-6)
    assert found.calls_s == pytest.approx((1e-4, 1e-4))
    assert (found.mean_s, found.plain_s) == pytest.approx((1e-4, 9e-5))
    assert found.outside_s == pytest.approx(30e-6)
    assert [(row.type, row.calls) for row in found.by_type()] == [("MatMul", 4), ("Loop", 2), ("Relu", 2)]


def test_operators_one_behind_the_other_keep_their_times_however_these_are_rounded() -> None:
    operators = [OperatorRun(f"{place}", "MatMul", "", "", 1, place * 1.0063, 1.0063) for place in range(100)]
    answer = server.packed("here", [(place * 1e-3 + 3.7e-9, place * 1e-3 + 2e-4) for place in range(9)], 1.0,
                           [operators] * 9)  # fmt: skip
    found = OperatorProfile(unpacked(answer))
    assert sum(row.total_s for row in found.rows) == pytest.approx(9 * 100 * 1.0063e-6, rel=0.01)


def test_a_table_for_people(found: OperatorProfile) -> None:
    assert str(found).splitlines() == [
        "OPERATOR  TYPE    A CALL    SHARE  RUNS  BY   INPUTS",
        "dense     MatMul  0.040 ms  40.0%  2     CPU  float[2]",
        "loop      Loop    0.020 ms  20.0%  1     CPU  -",
        "-         Relu    0.010 ms  10.0%  1     -    -",
        "outside operators: 0.030 ms, 30.0%",
        "a call: 0.100 ms in onnxruntime, mean of 2 (0.090 ms without the profiler)",
    ]
    heads, first, more, *_ = found.table(top=1, by="type").splitlines()
    assert (heads.split()[0], first.split()[0], more) == ("TYPE", "MatMul", "(2 more: 0.030 ms, 30.0%)")
    with pytest.raises(UsageError, match="by 'op' or by 'type'"):
        found.table(by="name")


def test_a_notebook_shows_the_operators(found: OperatorProfile) -> None:
    cells = shown(found).cells
    assert cells[:3] == ["profile", "OPERATOR", "TYPE"]
    assert cells[8:15] == ["dense", "MatMul", "0.040 ms", "40.0%", "2", "CPU", "float[2]"]
    assert cells[-2:] == str(found).splitlines()[-2:]


def test_texts_of_a_device_have_no_control_characters() -> None:
    long = "\x1b[2J" + "x" * 100
    changed = {**FOUND, "runtime": long, "operators": [[long, "a\nb", "", ""], *FOUND["operators"][1:]]}
    profile = OperatorProfile(unpacked(packed(changed)))
    table = profile.table()
    assert "\x1b" not in table + profile.runtime
    assert max(map(len, [profile.runtime, *table.splitlines()])) < 200
    assert len(table.splitlines()) == 6
    assert "…" in table


def test_figures_for_programs(found: OperatorProfile) -> None:
    said = json.loads(json.dumps(found.to_json()))
    assert said["operators"][0]["name"] == "dense"
    assert said["mean_s"] == pytest.approx(sum(row["mean_s"] for row in said["operators"]) + said["outside_s"])


def test_a_trace_has_a_row_of_calls_and_one_for_each_thread(found: OperatorProfile, tmp_path: Path) -> None:
    found.save_trace(tmp_path / "trace.json")
    check_trace(json.loads((tmp_path / "trace.json").read_text()), found)
    with pytest.raises(UsageError, match="cannot be written: No such file"):
        found.save_trace(tmp_path / "none" / "trace.json")


def check_trace(trace: Any, found: OperatorProfile) -> None:
    """Assert that viewers take the trace: named rows, events in order, those of a row apart or one inside the other."""
    events = trace["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    spans = [event for event in events if event["ph"] == "X"]
    assert {event["ph"] for event in events} == {"M", "X"}
    assert {event["tid"] for event in spans} == set(rows)
    assert rows[0] == "calls"
    assert len([event for event in spans if event["tid"] == 0]) == len(found.calls_s)
    assert len(spans) == len(found.calls_s) + sum(row.calls for row in found.rows)
    for row in rows:
        around: list[float] = []
        before = 0.0
        for event in (event for event in spans if event["tid"] == row):
            begin, end = event["ts"], event["ts"] + event["dur"]
            assert before <= begin <= end
            before = begin
            while around and around[-1] <= begin + 0.02:  # rounded to hundredths
                around.pop()
            assert not around or end <= around[-1] + 1.1  # onnxruntime has whole microseconds
            around.append(end)


# ------------------------------------------------------------------ a device's answer

BROKEN = [
    *(None, 5, "text", b"", b"nonsense", packed(FOUND)[:-5], packed([]), packed({**FOUND, "calls": []})),
    packed({name: value for name, value in FOUND.items() if name != "plain_s"}),
    packed({**FOUND, "plain_s": -1}),
    packed({**FOUND, "calls": [[0]]}),
    packed({**FOUND, "runs": [FOUND["runs"][0]] * 200_001}),
    packed({**FOUND, "calls": [[0, -1]]}),
    packed({**FOUND, "calls": [[0, 1e308], [0, 1e308]]}),
    packed({**FOUND, "plain_s": 1e308}),
    packed({**FOUND, "operators": [["a", "b"]]}),
    *(packed({**FOUND, "runs": [row]}) for row in ([], [3, 0, 5, 0, 1], [0, 2, 5, 0, 1], [0.0, 0, 5, 0, 1])),
    *(
        packed({**FOUND, "runs": [row]})
        for row in ([0, 0, 5.5, 0, 1], [0, 0, 5, 0, -1], [0, 0, 5, 0], [-1, 0, 5, 0, 1])
    ),
]


@pytest.mark.parametrize("answer", BROKEN)
def test_an_invalid_answer_is_refused(answer: Any) -> None:
    with pytest.raises(ProtocolError, match="profile"):
        unpacked(answer)


def test_an_answer_that_is_too_large_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MAX_BYTES", 1000)
    with pytest.raises(ProtocolError, match="broken, or larger than"):
        unpacked(packed({**FOUND, "more": "x" * 1000}))


def test_an_answer_of_very_many_lists_takes_no_memory() -> None:
    with pytest.raises(ProtocolError, match="too many rows"):
        unpacked(packed({**FOUND, "runs": [[]] * 1_000_000}))


numbers = st.integers(-2, 5) | st.floats(-1, 10) | st.none()


@given(st.fixed_dictionaries({
    **{name: st.just(FOUND[name]) for name in ("runtime", "plain_s", "operators")},
    "calls": st.lists(st.lists(numbers, max_size=3), max_size=3) | st.just(FOUND["calls"]),
    "runs": st.lists(st.lists(numbers, min_size=4, max_size=6), max_size=8),
}))  # fmt: skip
def test_any_answer_is_refused_or_shown(answer: Any) -> None:
    try:
        found = OperatorProfile(unpacked(packed(answer)))
    except ProtocolError:
        return
    assert found.table().count("\n") >= 2
    assert min((row.total_s for row in found.rows), default=0.0) >= 0
    json.dumps(found.trace())


# ------------------------------------------------------------------ a device


def test_a_model_of_a_session(shared: Any, model: Any) -> None:  # noqa: F811
    found = model.profile(A, shared.array(B), runs=3)
    assert len(found.calls_s) == 3
    assert {row.type for row in found.rows} == {"Add"}
    assert [row.calls for row in found.rows] == [3, 3]


def test_errors_of_a_device(shared: Any, model: Any) -> None:  # noqa: F811
    with pytest.raises(RemoteArgumentError, match="takes 2 input"):
        model.profile(A)
    with pytest.raises(RemoteArgumentError, match="runs must be a whole number from 1 to 1000"):
        model.profile(A, B, runs=0)
    with pytest.raises(RemoteFunctionError, match="no function 'none'"):
        model.profile(A, B, name="none")
    np.testing.assert_array_equal(model(A, B)[0], A + B)


def test_an_older_server_is_named(session: Any, model_file: Path) -> None:  # noqa: F811
    loaded = session.load_module(model_file)
    del session.info["capabilities"]["profile"]
    with pytest.raises(NotSupported, match="profiles no models; update rpcsys there"):
        loaded.profile(A, B)


def test_an_interrupted_profile_leaves_no_file(device: Any, session: Any, tmp_path: Path) -> None:
    loop = session.load_module(deployed.endless_model(tmp_path / "loop.onnx"))
    future = profiles.submit(loop, [np.int64(1 << 62)], "main", 1, 0)
    threading.Timer(0.5, future.cancel).start()
    with pytest.raises((Cancelled, CancelledError)):
        future.result(timeout=20)
    assert int(loop(np.int64(11))) == 11  # the session goes on
    assert [path.name for path in device.workdir.iterdir()] == ["loop.onnx"]
    assert loop.profile(np.int64(11), runs=1).rows
