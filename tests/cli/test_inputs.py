from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys.cli import inputs
from rpcsys.errors import UsageError


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
