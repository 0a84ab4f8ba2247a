from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys.cli import inputs
from rpcsys.errors import UsageError


def test_random_inputs_follow_the_specification_and_the_seed() -> None:
    specs = [
        {"name": "x", "dtype": "float16", "shape": ["batch", 3, None]},
        {"name": "n", "dtype": "int64", "shape": []},
        {"name": "b", "dtype": "bool", "shape": [4]},
    ]
    first, again, other = (inputs.random(specs, seed) for seed in (5, 5, 6))
    assert {name: (value.dtype.name, value.shape) for name, value in first.items()} == {
        "x": ("float16", (1, 3, 1)),
        "n": ("int64", ()),
        "b": ("bool", (4,)),
    }
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["x"], other["x"])


def test_a_type_without_random_values_asks_for_a_file() -> None:
    with pytest.raises(UsageError, match=r"input 'words' is of type strings: give the inputs as an \.npz"):
        inputs.random([{"name": "words", "dtype": "strings", "shape": [2]}])


@pytest.mark.parametrize(
    "spec", [{"name": "x"}, {"name": "x", "dtype": "float32"}, {"name": "x", "shape": [1]}]
)
def test_an_input_of_which_nothing_is_known_asks_for_a_file(spec: dict[str, object]) -> None:
    with pytest.raises(
        UsageError, match=r"does not say what array input 'x' is: give the inputs as an \.npz"
    ):
        inputs.random([spec])


def test_load_gives_every_array_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", a=np.arange(3), b=np.zeros((2, 2), "float32"))
    loaded = inputs.load(tmp_path / "in.npz")
    assert loaded["a"].tolist() == [0, 1, 2]
    assert loaded["b"].dtype == np.float32


def test_load_explains_what_is_no_npz_of_plain_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    np.savez(tmp_path / "object.npz", a=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("not an archive", encoding="utf-8")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "object.npz").read_bytes()[:60])
    (tmp_path / "empty.npz").write_bytes(b"")
    for name, says in [
        ("one.npy", "holds one array"),
        ("object.npz", "no .npz file of plain arrays"),
        ("text.npz", "no .npz file of plain arrays"),
        ("cut.npz", "no .npz file of plain arrays"),
        ("empty.npz", "no .npz file of plain arrays"),
        ("nowhere.npz", "cannot read .*nowhere.npz: No such file"),
    ]:
        with pytest.raises(UsageError, match=says):
            inputs.load(tmp_path / name)
