"""Objects and tars of objects, as TVM's clients upload them, linked into a shared library by the board's compiler."""

from __future__ import annotations

import os

COMPILERS = ("c++", "g++", "clang++", "cc", "gcc", "clang")
"""Any of them links; C++'s come first, because objects made from C++ want its library. ``$CXX`` goes before all."""

LINK_S = 120.0
"""A linker that takes longer hangs."""


def link(path: str) -> str:
    """The shared library made of ``path``: itself, or what the compiler links of an object or a tar of them.

    Raises ValueError for another kind of file, RuntimeError where there is no compiler, or it refuses.
    """
    name = os.path.basename(path)
    if path.endswith((".so", ".dylib")):
        return path
    if path.endswith(".o"):
        objects = [path]
    elif path.endswith(".tar"):
        objects = _unpack(path, path + ".unpacked")
    else:
        raise ValueError(f"{name}: only .o, .tar, .so and .dylib files can be linked")
    _run_linker(name, path + ".so", objects)
    return path + ".so"


def _unpack(path: str, folder: str) -> list[str]:
    """The plain files of a tar, all put into ``folder`` whatever folders they name."""
    import shutil
    import tarfile

    os.makedirs(folder, exist_ok=True)
    unpacked: list[str] = []
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                source = archive.extractfile(member) if member.isfile() else None
                if source is not None:
                    unpacked.append(os.path.join(folder, f"{len(unpacked)}-{os.path.basename(member.name)}"))
                    with open(unpacked[-1], "wb") as target:
                        shutil.copyfileobj(source, target)
    except tarfile.TarError as error:
        raise ValueError(f"{os.path.basename(path)} is no tar file: {error}") from None
    return unpacked


def _run_linker(name: str, target: str, objects: list[str]) -> None:
    import shutil
    import subprocess

    wanted = [os.environ.get("CXX", ""), *COMPILERS]
    compiler = next((found for found in map(shutil.which, filter(None, wanted)) if found), None)
    if compiler is None:
        raise RuntimeError(
            f"{name} has to be linked, and this device has no compiler ({', '.join(COMPILERS)}); "
            "link it on the host and send the .so"
        )
    command = [compiler, "-shared", "-fPIC", "-o", target, *objects]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LINK_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} cannot be linked: {' '.join(done.stderr.split())[-400:]}")
