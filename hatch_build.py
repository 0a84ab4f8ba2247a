"""Builds the optional library ``rpcsys.speedups`` from native/ into the wheel, where there is a C compiler.

RPCSYS_SPEEDUPS=0 leaves it out, =1 makes a failure an error, =FILE takes a library that is compiled already
(``make wheels``). CC, CPPFLAGS, CFLAGS and LDFLAGS have their usual meanings. An editable installation gets the library
in the tree.
"""

from __future__ import annotations

import os
import shlex
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging import tags

#: Headers from 3.11 on declare a limited API with buffers. The library then serves every CPython from 3.9 on, since 3.9
#: and 3.10 export these functions, too.
LIMITED = (3, 11)
STABLE = ".abi3.so"
#: Processors as ELF files number them (e_machine).
PROCESSORS = {40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


class Missing(Exception):
    """There is no library; ``args[0]`` says why."""


class Speedups(BuildHookInterface[Any]):
    """The hook that hatchling calls before it writes a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        self._work = Path(tempfile.mkdtemp(prefix="rpcsys-speedups-"))
        wanted = os.environ.get("RPCSYS_SPEEDUPS", "")
        package = Path(self.root) / "rpcsys"
        if version == "editable":
            for old in package.glob("speedups.*.so"):
                old.unlink()
        if wanted == "0":
            return
        try:
            if wanted in ("", "1"):
                library, tag = self._compiled()
            else:
                tag = f"cp39-abi3-linux_{_processor(Path(wanted))}"
                library = Path(shutil.copy(wanted, self._work / f"speedups{STABLE}"))
        except Missing as missing:
            if wanted:
                shutil.rmtree(self._work)
                raise SystemExit(f"rpcsys.speedups: {missing}") from None
            self.app.display_warning(f"rpcsys is built without its speedups: {missing}")
            return
        if version == "editable":
            partial = shutil.copy(library, package / "speedups.partial")
            os.replace(partial, package / library.name)  # in one step: processes may have it loaded
        else:
            build_data.update(pure_python=False, tag=tag)
            build_data["force_include"][str(library)] = f"rpcsys/{library.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._work)

    def _compiled(self) -> tuple[Path, str]:
        """Compile the library for this Python: its path, and the wheel's tag."""
        if sys.implementation.name != "cpython" or sys.version_info < (3, 9) or "t" in sys.abiflags:
            raise Missing("they are for CPython from 3.9 on, with its interpreter lock")
        native = Path(self.root) / "native"
        limited = sys.version_info >= LIMITED
        library = self._work / f"speedups{STABLE if limited else sysconfig.get_config_var('EXT_SUFFIX')}"
        compiler = _words("CC", "cc")
        command = [*compiler, "@flags", *_words("CPPFLAGS", ""), *_words("CFLAGS", "-s")]
        command += [f"-I{sysconfig.get_path('include')}", *sorted(file.name for file in native.glob("*.c"))]
        command += [*_words("LDFLAGS", ""), "-o", str(library)]
        try:
            done = subprocess.run(command, cwd=native, capture_output=True, text=True, check=False)
        except OSError as error:
            raise Missing(f"{compiler[0]}: {error.strerror}") from None
        if done.returncode:
            raise Missing(next((line for line in done.stderr.splitlines() if "error" in line), f"{compiler[0]} failed"))
        python = "cp{}{}".format(*sys.version_info[:2])
        platform = next(tag for tag in tags.platform_tags() if tag.startswith("linux_"))
        return library, f"cp39-abi3-{platform}" if limited else f"{python}-{python}-{platform}"


def _words(variable: str, usual: str) -> list[str]:
    return shlex.split(os.environ.get(variable, usual))


def _processor(library: Path) -> str:
    """The processor that a library is for."""
    try:
        (number,) = struct.unpack_from("<H", library.read_bytes(), 18)
        return PROCESSORS[number]
    except OSError as error:
        raise Missing(f"RPCSYS_SPEEDUPS={library}: {error.strerror}") from None
    except (KeyError, struct.error):
        raise Missing(f"RPCSYS_SPEEDUPS={library} is no library for a processor that is known here") from None
