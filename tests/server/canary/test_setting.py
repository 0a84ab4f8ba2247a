"""The flag ``--canary``."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ConfigError
from rpcsys.server.canary import setting
from rpcsys.server.canary.setting import BUILTIN, CanaryChoice


@pytest.mark.parametrize(
    ("text", "canary"),
    [
        ("", None),
        ("builtin", CanaryChoice(BUILTIN, None)),
        ("builtin:5ms", CanaryChoice(BUILTIN, 0.005)),
        (":5ms", CanaryChoice(BUILTIN, 0.005)),
        ("builtin:1.5s", CanaryChoice(BUILTIN, 1.5)),
        ("builtin:250us", CanaryChoice(BUILTIN, 0.00025)),
    ],
)
def test_a_canary_and_its_limit(text, canary):
    found = setting.parse(text)
    assert (found is None) == (canary is None)
    if canary is not None:
        assert found.model == canary.model
        assert found.limit_s == (None if canary.limit_s is None else pytest.approx(canary.limit_s))


def test_a_model_is_a_file_whatever_colons_its_path_has(tmp_path, monkeypatch):
    folder = tmp_path / "a:b"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(b"")
    monkeypatch.chdir(folder)
    assert setting.parse("model.onnx:5ms") == CanaryChoice(str(folder / "model.onnx"), pytest.approx(0.005))
    assert setting.parse(str(folder / "model.onnx")) == CanaryChoice(str(folder / "model.onnx"), None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("no-such.onnx", "there is no file no-such.onnx"),
        ("builtin:5", "there is no file builtin:5"),
        ("builtin:0ms", "a limit of 0"),
        (__file__, "its name ends in .onnx or .so"),
    ],
)
def test_what_cannot_be_a_canary_is_refused_in_one_line(text, why):
    with pytest.raises(ConfigError, match=why) as refused:
        setting.parse(text)
    assert "\n" not in str(refused.value)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40))
def test_any_text_is_a_canary_or_refused(text):
    try:
        found = setting.parse(text)
    except ConfigError:
        return
    assert found is None or found.limit_s is None or found.limit_s > 0
