"""What a shared library asks of its board: versions of the C and C++ libraries, and where it looks for others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from rpcsys.errors import ConfigError, UsageError
from rpcsys.module import elf

Version = tuple[int, ...]

_NAME = re.compile(r"(GLIBC|GLIBCXX)_(\d+(?:\.\d+)*)\Z")


class Needs(NamedTuple):
    """What one library needs.

    Attributes
    ----------
    machine, bits : as in `rpcsys.module.elf.Elf`
    glibc, glibcxx : the newest symbol version of the C and the C++ library that it uses; empty for none
    needed : names of the libraries that must be there
    runpath : where they are looked for, beside the usual places; empty for nowhere else
    symbols : whether it still has the symbols that only debuggers read
    """

    machine: str
    bits: int
    glibc: Version
    glibcxx: Version
    needed: tuple[str, ...]
    runpath: str
    symbols: bool


def parse(text: str) -> Version:
    """``"2.27"`` as numbers. Raises ConfigError."""
    if not re.fullmatch(r"\d+(\.\d+){1,2}", text):
        raise ConfigError(f"--glibc {text}: a version looks like 2.27")
    return _numbers(text)


def show(version: Version) -> str:
    """As `parse` takes it."""
    return ".".join(map(str, version))


def read(path: Path) -> Needs:
    """What the shared library at ``path`` needs. Raises UsageError for what is none, or is broken."""
    try:
        from elftools.common.exceptions import ELFError
        from elftools.elf.elffile import ELFFile
    except ImportError:
        raise UsageError("there is no pyelftools here; type: python -m pip install 'rpcsys[pack]'") from None
    try:
        own = elf.read(str(path))  # checks every place and size first
        with path.open("rb") as stream:
            return _read(own, ELFFile(stream))
    except elf.ElfError as error:
        raise UsageError(f"{path} {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ELFError, AttributeError, KeyError, ValueError) as error:
        raise UsageError(f"{path} is a broken ELF file: {error}") from None


def _read(own: elf.Elf, file: Any) -> Needs:
    used = [
        auxiliary.name
        for section in file.iter_sections("SHT_GNU_verneed")
        for _, auxiliaries in section.iter_versions()
        for auxiliary in auxiliaries
    ]
    tags = [tag for section in file.iter_sections("SHT_DYNAMIC") for tag in section.iter_tags()]
    paths = [tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH"]
    paths += [tag.rpath for tag in tags if tag.entry.d_tag == "DT_RPATH"]
    return Needs(
        machine=own.machine,
        bits=own.bits,
        glibc=_newest(used, "GLIBC"),
        glibcxx=_newest(used, "GLIBCXX"),
        needed=tuple(own.needed),
        runpath=":".join(paths),
        symbols=file.get_section_by_name(".symtab") is not None,
    )


def _newest(used: list[str], family: str) -> Version:
    found = (_NAME.match(name) for name in used)
    return max((_numbers(match[2]) for match in found if match and match[1] == family), default=())


def _numbers(text: str) -> Version:
    return tuple(map(int, text.split(".")))
