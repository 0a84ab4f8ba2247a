"""The arrays that candidates are called with: their values, and which of them are kept."""

from __future__ import annotations

import struct

import pytest

from rpcsys.errors import RemoteArgumentError
from rpcsys.module.placement import HOST
from rpcsys.server.session import candidate_arguments as arguments
from rpcsys.server.session.candidate_arguments import Arguments, Spec, pattern, specs_of

FLOAT = Spec("float32", (100, 100))


def test_each_argument_is_an_array_of_its_own() -> None:
    sets = Arguments().sets([FLOAT, FLOAT, Spec("int8", (3,))], HOST, 2)
    assert [[array.dtype for array in each] for each in sets] == [["float32", "float32", "int8"]] * 2
    assert len({id(array.data.obj) for each in sets for array in each}) == 6


def test_a_candidate_without_arguments_has_empty_sets() -> None:
    assert Arguments().sets([], HOST, 3) == [[], [], []]


def test_values_are_from_one_to_ten_and_not_all_the_same() -> None:
    [[array]] = Arguments().sets([FLOAT], HOST, 1)
    values = struct.unpack("10000f", array.data)
    assert all(1 <= value <= 10 for value in values)
    assert len(set(values)) > 4000


def test_what_a_candidate_wrote_is_gone_for_the_next_one_in_the_same_memory() -> None:
    kept = Arguments()
    [[first]] = kept.sets([FLOAT], HOST, 1)
    before = bytes(first.data)
    first.data[:] = bytes(len(first.data))
    [[second]] = kept.sets([FLOAT], HOST, 1)
    assert second is first
    assert bytes(second.data) == before


def test_arrays_of_earlier_candidates_are_dropped_beyond_the_limit() -> None:
    kept = Arguments(kept_bytes=FLOAT.nbytes)
    kept.sets([FLOAT], HOST, 1)
    kept.sets([Spec("float32", (50, 200))], HOST, 1)
    kept.sets([Spec("int8", (7,))], HOST, 1)
    assert [spec.shape for _, spec, _ in kept._kept] == [(50, 200), (7,)]


@pytest.mark.parametrize(
    ("dtype", "code"),
    [("float16", "e"), ("float64", "d"), ("int8", "b"), ("uint16", "H"), ("int32", "i"), ("int64", "q")],
)
def test_every_type_has_values(dtype: str, code: str) -> None:
    values = struct.unpack(f"<{len(pattern(dtype)) // struct.calcsize(code)}{code}", pattern(dtype))
    assert all(1 <= value <= 10 for value in values)


def test_types_that_struct_does_not_know_have_values_too() -> None:
    upper = pattern("bfloat16")
    assert all(1 <= struct.unpack("<f", b"\0\0" + upper[start : start + 2])[0] <= 10 for start in range(0, 200, 2))
    assert set(pattern("bool")) == {0, 1}
    assert len(pattern("complex64")) == len(pattern("float32"))
    assert len(pattern("float8_e4m3fn")) == len(pattern("uint8"))


@pytest.mark.parametrize(
    "given",
    [3, [], ["float32"], ["float32", 3], ["float32", [-1]], ["float32", [1.5]], ["float32", [True]], ["nope", [1]],
     ["float32", [1 << 40, 1 << 40]], ["U5", [2]], [3, [1]], ["float32", [1] * 33], None],
)  # fmt: skip
def test_what_is_no_array_is_refused(given: object) -> None:
    with pytest.raises(RemoteArgumentError, match=r"^RemoteArgumentError: (an argument of a candidate|there are no)"):
        specs_of([given], 1)


def test_the_number_of_arrays_is_limited() -> None:
    with pytest.raises(RemoteArgumentError, match="at most 4096 arrays"):
        specs_of([["int8", [1]]] * 5, arguments.MAX_ARRAYS // 4)
