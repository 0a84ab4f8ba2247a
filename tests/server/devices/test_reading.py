"""What the readings of drivers share."""

import pytest

from rpcsys.server.devices import reading
from tests.server.devices import fakes


def test_a_library_that_does_not_load_or_lacks_a_function_is_an_oserror(tmp_path):
    with pytest.raises(OSError, match=r"absent\.so"):
        reading.load(str(tmp_path / "absent.so"))
    with pytest.raises(OSError, match="cuInit"):
        reading.load(fakes.library(tmp_path, "empty.so", "int one;"), "cuInit")


def test_texts_end_at_a_zero():
    assert reading.text(b" a GPU \0rest") == "a GPU"
    assert reading.text(b"\xff") == "\ufffd"


def test_versions_in_one_number():
    assert reading.version(12040, 1000, 10) == "12.4"
    assert reading.version(60032830, 10_000_000, 100_000, 1) == "6.0.32830"
