"""The files of candidates: what identifies them, and what is linked."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rpcsys.errors import UsageError
from rpcsys.module import elf
from rpcsys.tvm import artefact
from rpcsys.tvm.artefact import Artefact, linked

PLAIN = "int __tvm_ffi_main(void) { return 7; }"
TVMS = "void TVMFFIErrorSetRaisedFromCStr(void); int __tvm_ffi_main(void) { TVMFFIErrorSetRaisedFromCStr(); return 0; }"
MATHS = "double exp(double); double __tvm_ffi_main(double x) { return exp(x); }"
CPLUSPLUS = 'extern "C" int *__tvm_ffi_main() { return new int(7); }'


def compiled(source: str, language: str = "c") -> bytes:
    """An object file."""
    with tempfile.NamedTemporaryFile(suffix=".o") as made:
        command = ["c++", "-c", "-fPIC", "-x", language, "-o", made.name, "-"]
        subprocess.run(command, input=source.encode(), check=True)
        return Path(made.name).read_bytes()


def tar_of(path: Path, *objects: bytes, mtime: int = 0, prefix: str = "lib") -> Artefact:
    with tarfile.open(path, "w") as archive:
        for number, code in enumerate(objects):
            member = tarfile.TarInfo(f"{prefix}{number}.o")
            member.size, member.mtime = len(code), mtime
            archive.addfile(member, io.BytesIO(code))
    return Artefact(str(path))


def needs(code: bytes, folder: Path) -> set[str]:
    (folder / "made.so").write_bytes(code)
    return set(elf.read(str(folder / "made.so")).needed)


def test_a_library_is_sent_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "candidate.so").write_bytes(b"the library")
    assert Artefact(str(tmp_path / "candidate.so")).code == b"the library"


@pytest.mark.parametrize("source", [PLAIN, TVMS, MATHS])
@pytest.mark.parametrize("linker", [True, False])
def test_objects_are_linked_with_a_compiler_and_without(
    source: str, linker: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not linker:
        monkeypatch.setattr(artefact, "_linked_alone", lambda made, paths: False)
    code = tar_of(tmp_path / "candidate.tar", compiled(source)).code
    assert ("libm.so.6" in needs(code, tmp_path)) == (source == MATHS)
    assert "__tvm_ffi_main" in elf.read(str(tmp_path / "made.so")).symbols


def test_objects_of_other_languages_take_a_compiler(tmp_path: Path) -> None:
    code = tar_of(tmp_path / "candidate.tar", compiled(CPLUSPLUS, "c++")).code
    assert any(name.startswith("libstdc++") for name in needs(code, tmp_path))


def test_an_object_alone_is_linked_too_and_ahead(tmp_path: Path) -> None:
    (tmp_path / "candidate.o").write_bytes(compiled(PLAIN))
    candidate = Artefact(str(tmp_path / "candidate.o"))
    with ThreadPoolExecutor(1) as pool:
        candidate.prepare(pool)
        candidate.prepare(pool)
    (tmp_path / "candidate.o").unlink()
    assert candidate.code[:4] == b"\x7fELF"


def test_a_closed_pool_is_no_error(tmp_path: Path) -> None:
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    candidate = tar_of(tmp_path / "candidate.tar", compiled(PLAIN))
    candidate.prepare(pool)
    assert candidate.code


def test_times_and_names_do_not_identify_a_candidate_but_its_code_does(tmp_path: Path) -> None:
    one, other = compiled(PLAIN), compiled(MATHS)
    first = tar_of(tmp_path / "a.tar", one, other).digest
    assert tar_of(tmp_path / "b.tar", other, one, mtime=1_000_000, prefix="x/y").digest == first
    assert tar_of(tmp_path / "c.tar", one).digest != first
    (tmp_path / "a.so").write_bytes(one)
    (tmp_path / "a.o").write_bytes(one)
    assert len({Artefact(str(tmp_path / name)).digest for name in ("a.so", "a.o", "c.tar")}) == 3


@pytest.mark.parametrize("name", ["none.so", "none.tar", "none.o"])
def test_a_file_that_is_missing_is_one_line(name: str, tmp_path: Path) -> None:
    for read in (lambda each: each.digest, lambda each: each.code):
        with pytest.raises(UsageError, match=f"the candidate .*{name} cannot be read"):
            read(Artefact(str(tmp_path / name)))


def test_what_cannot_be_linked_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "candidate.tar").write_bytes(b"no tar")
    with pytest.raises(UsageError, match="cannot be read"):
        _ = Artefact(str(tmp_path / "candidate.tar")).code
    with pytest.raises(UsageError, match="has no object files"):
        linked([])
    with pytest.raises(UsageError, match="something else than object files"):
        linked([b"text"])
    header = bytearray(compiled(PLAIN)[:64])
    with pytest.raises(UsageError, match="the candidate cannot be linked: "):
        linked([bytes(header)])
    header[18] = 243  # RISC-V, for which no toolchain file is here
    with pytest.raises(UsageError, match=r"riscv|apt-get"):
        linked([bytes(header)])
    with tarfile.open(tmp_path / "large.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("lib.o"))
    monkeypatch.setattr(artefact, "MAX_BYTES", -1)
    with pytest.raises(UsageError, match="of object files"):
        _ = Artefact(str(tmp_path / "large.tar")).digest


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="there is no compiler for aarch64")
def test_objects_for_another_machine_are_linked_by_its_toolchain(tmp_path: Path) -> None:
    command = ["aarch64-linux-gnu-gcc", "-c", "-fPIC", "-x", "c", "-o", str(tmp_path / "a.o"), "-"]
    subprocess.run(command, input=PLAIN.encode(), check=True)
    (tmp_path / "a.so").write_bytes(Artefact(str(tmp_path / "a.o")).code)
    assert elf.read(str(tmp_path / "a.so")).machine == "aarch64"
