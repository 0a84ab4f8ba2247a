"""Toolchain files read by Python: their contents, missing parts, and that CMake finds the same compilers."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from rpcsys import data
from rpcsys.errors import ConfigError, UsageError
from rpcsys.module import elf, toolchain

CMAKE = Path(sysconfig.get_path("scripts")) / "cmake"
CROSS = ("aarch64-linux-gnu", "arm-linux-gnueabihf", "riscv64-linux-gnu")
MACHINES = {
    "aarch64-linux-gnu": ("aarch64", 64),
    "arm-linux-gnueabihf": ("arm", 32),
    "riscv64-linux-gnu": ("riscv", 64),
    "x86_64-linux-gnu": ("x86_64", 64),
}


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RPCSYS_TOOLCHAIN_ROOT", "RPCSYS_SYSROOT"):
        monkeypatch.delenv(name, raising=False)


def vendor(root: Path, triple: str, name: str) -> Path:
    """A vendor's toolchain: Debian's programs with other names in a separate folder."""
    (root / "bin").mkdir(parents=True)
    for tool in ("gcc", "g++", "strip"):
        (root / "bin" / f"{name}-{tool}").symlink_to(shutil.which(f"{triple}-{tool}"))
    return root


def test_names_are_the_files() -> None:
    assert set(toolchain.names()) == set(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_builds_a_library_for_its_target(name: str, tmp_path: Path) -> None:
    found = toolchain.find(name)
    (tmp_path / "f.cc").write_text('extern "C" int f() { return 1; }')
    library = tmp_path / "f.so"
    build = ["-shared", "-fPIC", "-o", str(library), str(tmp_path / "f.cc")]
    subprocess.run([*found.command(cxx=True), *build], check=True)
    subprocess.run([found.strip, str(library)], check=True)
    read = elf.read(str(library))
    assert (read.machine, read.bits) == MACHINES[name] == (found.machine, found.bits)
    assert (found.machine, found.bits) == (read.machine, read.bits)
    assert toolchain.target(name) == (name, *MACHINES[name])


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("vendors", [False, True], ids=["debian", "vendor"])
def test_cmake_finds_the_same_compilers(name: str, vendors: bool, tmp_path: Path) -> None:
    script = tmp_path / "say.cmake"
    script.write_text(
        f'include("{data.folder("toolchains")}/{name}.cmake")\n'
        "foreach(v CMAKE_C_COMPILER CMAKE_CXX_COMPILER CMAKE_C_FLAGS_INIT CMAKE_SYSROOT)\n"
        '  string(STRIP "${${v}}" text)\n  message("${text}")\nendforeach()\n'
    )
    options: dict[str, Path] = {}
    if vendors:
        root = vendor(tmp_path / "vendor", name, name.replace("-linux", "-none-linux"))
        options = {"root": root, "sysroot": root}
    found = toolchain.find(name, **options)
    flags = [f"-DRPCSYS_{'TOOLCHAIN_ROOT' if key == 'root' else 'SYSROOT'}={path}" for key, path in options.items()]
    told = "-DCMAKE_HOST_SYSTEM_PROCESSOR=x86_64"
    done = subprocess.run([CMAKE, told, *flags, "-P", script], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == [found.cc, found.cxx, " ".join(found.flags), found.sysroot or ""]
    assert (Path(found.strip).is_relative_to(tmp_path)) == vendors


def test_a_missing_compiler_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="sudo apt-get install gcc-arm-linux-gnueabihf g\\+\\+-arm-linux-gnueabihf"):
        toolchain.find("arm-linux-gnueabihf")


def test_cmake_names_the_package_too(tmp_path: Path) -> None:
    script = data.folder("toolchains") / "riscv64-linux-gnu.cmake"
    done = subprocess.run([CMAKE, "-P", script], capture_output=True, text=True, env={"PATH": "/nowhere"}, check=False)
    assert done.returncode != 0
    assert "apt-get install gcc-riscv64-linux-gnu g++-riscv64-linux-gnu" in " ".join(done.stderr.split())


def test_this_machines_target_needs_no_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for tool in ("gcc", "g++", "strip"):
        (tmp_path / tool).symlink_to(shutil.which(tool))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    assert toolchain.find("x86_64-linux-gnu").cc == str(tmp_path / "gcc")


def test_the_environment_names_a_vendors_toolchain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = vendor(tmp_path / "vendor", "aarch64-linux-gnu", "aarch64-poky-linux")
    monkeypatch.setenv("RPCSYS_TOOLCHAIN_ROOT", str(root))
    assert toolchain.find("aarch64-linux-gnu").cc == str(root / "bin" / "aarch64-poky-linux-gcc")


def test_a_users_own_toolchain_file(tmp_path: Path) -> None:
    file = tmp_path / "board.cmake"
    file.write_text(
        "# set(CMAKE_C_COMPILER nowhere)\n"
        "set(BASE ${CMAKE_CURRENT_LIST_DIR}/sdk)\n"
        "SET( CMAKE_SYSTEM_PROCESSOR arm64 )\n"
        "set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)\n"
        'set(CMAKE_SYSROOT "${BASE}/sysroot" CACHE PATH "where")\n'
        'set(CMAKE_C_FLAGS_INIT "-O2 -mcpu=cortex-a72")\n'
    )
    found = toolchain.find(file)
    assert (found.name, found.machine, found.bits) == ("board", "aarch64", 64)
    assert Path(found.cxx).name == "aarch64-linux-gnu-g++"
    assert Path(found.strip).name == "aarch64-linux-gnu-strip"
    assert found.command()[1:] == ["-O2", "-mcpu=cortex-a72", f"--sysroot={tmp_path}/sdk/sysroot"]


def test_a_toolchain_file_that_includes_one_of_rpcsys(tmp_path: Path) -> None:
    root = vendor(tmp_path / "vendor", "aarch64-linux-gnu", "aarch64-linux-gnu")
    file = tmp_path / "mine.cmake"
    ours = data.folder("toolchains") / "aarch64-linux-gnu.cmake"
    file.write_text(f'set(RPCSYS_TOOLCHAIN_ROOT "{root}")\nset(RPCSYS_FLAGS -O3)\ninclude({ours})\n')
    found = toolchain.find(str(file))
    assert found.cc == str(root / "bin" / "aarch64-linux-gnu-gcc")
    assert found.flags == ("-O3",)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no target"),
        ("set(CMAKE_SYSTEM_PROCESSOR z80)", "z80 is no processor that is known"),
        ("set(CMAKE_SYSTEM_PROCESSOR aarch64)", "names no compiler"),
        ("set(CMAKE_SYSTEM_PROCESSOR arm)\nset(CMAKE_C_COMPILER no-such-gcc)", "there is no no-such-gcc here"),
        ("include(${CMAKE_CURRENT_LIST_DIR}/elsewhere.cmake)", "cannot read the toolchain file"),
        ("include(bad.cmake)", "names no target"),
        ('set(A "unclosed)', "cannot be read"),
        ("set(A it's)", "cannot be read"),
    ],
)
def test_an_incomplete_toolchain_file_is_refused(text: str, complaint: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.cmake"
    file.write_text(text)
    with pytest.raises(UsageError, match=complaint):
        toolchain.find(file)


@pytest.mark.parametrize(("wanted", "complaint"), [("z80", "aarch64-linux-gnu"), ("no.cmake", "there is no")])
def test_an_unknown_target_is_refused(wanted: str, complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        toolchain.find(wanted)


def test_an_invalid_root_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="above the compilers' bin folder"):
        toolchain.find("aarch64-linux-gnu", root=tmp_path)
    with pytest.raises(ConfigError, match="there is no folder"):
        toolchain.find("aarch64-linux-gnu", sysroot=tmp_path / "nowhere")
