"""The packager reads the same list as the tests."""

from __future__ import annotations

from rpcsys.pack import tier
from tests.device_files import device_files


def test_is_the_list_that_the_tests_read() -> None:
    assert sorted(tier.files()) == sorted(map(str, device_files()))
    assert "rpcsys/module/toolchain.py" not in tier.files()
