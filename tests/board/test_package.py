"""Archives for boards."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from rpcsys.board import package
from rpcsys.board.facts import BoardFacts, Python
from rpcsys.board.inventory import Entry
from rpcsys.board.package import Packer
from rpcsys.errors import RpcsysError, UsageError
from rpcsys.pack import build

PI = BoardFacts(machine="aarch64", system="Linux")
PYTHON = Python("python3", (3, 9), 64, "glibc-2.31")
ENTRY = Entry("pi", "pi@pi")


def warn(text: str) -> None:
    raise AssertionError(text)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> package.Package:
    """An archive with Python only, for aarch64."""
    return package.read(build.pack("aarch64-linux-gnu", tmp_path_factory.mktemp("a") / "a.tar.gz").path)


@pytest.mark.slow
def test_one_archive_for_boards_that_are_alike(plain: package.Package, tmp_path: Path) -> None:
    packer = Packer(tmp_path, None, warn)
    first = packer.package(ENTRY, PI, PYTHON, "pi")
    assert packer.package(replace(ENTRY, name="other"), PI, PYTHON, "pi") is first
    assert len(list(tmp_path.iterdir())) == 1
    assert (first.target, first.machine, first.native) == ("aarch64-linux-gnu", "aarch64", False)
    assert first.needs > first.size + 2 * first.unpacked
    assert (first.name, first.digest) == (plain.name, plain.digest)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("libraries", "asks"),
    [
        ("", {"folder": None, "from_wheels": False}),
        (package.WHEELS, {"folder": None, "from_wheels": True}),
        ("/build", {"folder": Path("/build"), "from_wheels": False}),
    ],
)
def test_libraries_must_fit_the_boards_glibc(
    libraries: str, asks: dict[str, object], plain: package.Package, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, object]] = []

    def pack(target: str, output: Path, **options: object) -> build.Packed:
        asked.append({"target": target, **options})
        output.write_bytes(plain.path.read_bytes())
        return build.Packed(output, {}, 1, ("mind the licence",))

    warned: list[str] = []
    monkeypatch.setattr(build, "pack", pack)
    entry = replace(ENTRY, libraries=libraries, drivers=("/npu.so",))
    Packer(tmp_path, None, warned.append).package(entry, PI, PYTHON, "pi")
    wanted = {"target": "aarch64-linux-gnu", "drivers": [Path("/npu.so")], "glibc": "2.31"}
    assert asked == [{**wanted, **asks}]
    assert warned == ["mind the licence"]


def test_an_archive_without_libraries_fits_every_board(plain: package.Package, tmp_path: Path) -> None:
    given = Packer(tmp_path, plain.path, warn)
    assert given.package(ENTRY, PI._replace(machine="mips"), PYTHON, "pi") == plain


@pytest.fixture
def native(plain: package.Package) -> package.Package:
    return replace(plain, native=True, glibc="2.27")


def test_an_archive_with_unloadable_libraries_is_refused(native: package.Package) -> None:
    package.check(native, PI, PYTHON, "pi")
    package.check(native, PI, PYTHON._replace(libc="-"), "pi")
    for board, python, message in (
        (PI, PYTHON._replace(libc="glibc-2.19"), "needs glibc 2.27, and pi has 2.19"),
        (PI, PYTHON._replace(bits=32), "is for aarch64-linux-gnu, and pi is aarch64 with 32 bits"),
        (PI._replace(machine="riscv64"), PYTHON, "and pi is riscv64"),
    ):
        with pytest.raises(RpcsysError) as caught:
            package.check(native, board, python, "pi")
        assert message in str(caught.value)


def tarred(name: str, content: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a tar file",
        tarred("x", b""),
        tarred("rpcsys-device/manifest.json", b"{"),
        tarred("rpcsys-device/manifest.json", b"[]"),
        tarred("rpcsys-device/manifest.json", b"{}")[:-20],
        tarred("rpcsys-device/manifest.json/", b""),
    ],
    ids=["empty", "text", "another", "no-json", "a-list", "cut-off", "a-folder"],
)
def test_other_archives_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(content)
    with pytest.raises(UsageError, match=r"a\.tar\.gz is no device runtime"):
        package.read(tmp_path / "a.tar.gz")


def test_a_missing_archive_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        package.read(tmp_path / "a.tar.gz")
