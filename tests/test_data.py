"""The project's folders that are not Python packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys import data


@pytest.mark.parametrize("name", ["packaging", "systemd"])
def test_a_folder_is_found_in_a_checkout(name):
    assert data.folder(name).is_dir()


def test_a_folder_is_found_in_a_wheel(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "_HERE", tmp_path / "rpcsys")
    assert data.folder("systemd") == tmp_path / "systemd"
    inside = tmp_path / "rpcsys" / "_data" / "systemd"
    inside.mkdir(parents=True)
    assert data.folder("systemd") == inside
    assert isinstance(inside, Path)
