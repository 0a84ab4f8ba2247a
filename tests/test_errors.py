"""The type of a device's error, and sentences of errors."""

from __future__ import annotations

import pytest

from rpcsys import errors


@pytest.mark.parametrize("name", ["RemoteError", "RemoteArgumentError", "ModelError", "Busy"])
def test_the_name_of_an_error_of_the_device_is_its_class_by_default(name: str) -> None:
    error = getattr(errors, name)("no weights")
    assert (error.type, str(error)) == (name, f"{name}: no weights")


def test_an_error_of_the_device_may_have_the_name_it_has_there() -> None:
    error = errors.RemoteError("3", type="KeyError", remote_traceback="line 1\n")
    assert str(error) == "KeyError: 3\n\nTraceback on the device:\nline 1"
    assert errors.one_line(error) == "3"


def test_one_name_is_and_several_are() -> None:
    assert errors.there_are([]) == "there is none"
    assert errors.there_are(["a"]) == "there is a"
    assert errors.there_are(iter("ab")) == "there are a, b"


@pytest.mark.parametrize(
    "error", [errors.RemoteError(""), errors.NativeError(""), errors.FrameError("", frame=1, stage="s")], ids=repr
)
def test_each_public_attribute_is_in_the_docstring(error: errors.RpcsysError) -> None:
    assert vars(error)
    for name in vars(error):
        assert f"\n    {name} : " in (type(error).__doc__ or "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h"), (172799, "48 h"), (172800, "2 days"), (1e6, "12 days")],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert errors.span(seconds) == text
