"""Checks of a device's capabilities, before it is sent a model, a function or an encoded array.

The modules in a library are read from its file, for any machine.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Callable, Collection, Dict, Iterator, List, Set, Tuple

from rpcsys.errors import ModelError, NotSupported, RemoteFunctionError, UsageError
from rpcsys.module.formats import FORMATS, how_to_install, suffix

if TYPE_CHECKING:
    from rpcsys.client.files import Source
    from rpcsys.module.container import Container

VERSION = "{}.{}".format(*sys.version_info[:2])
#: The prefix of our own kinds; TVM's runtime has none of them.
_OURS = "rpcsys."
_PYTHON, _LIBRARY = "rpcsys.python", "rpcsys.library"


def check_loadable(source: Source, name: str, capabilities: Dict[str, Any]) -> None:
    """Raise `ModelError` if a device with these capabilities cannot load ``source``, called ``name`` there.

    Capabilities that an older server does not report are not checked.
    """
    loads = capabilities.get("loads")
    if isinstance(loads, list) and not name.endswith(tuple(loads)):
        known = ", ".join(loads) or "no models (is onnxruntime installed there?)"
        ending = suffix(name)
        how = f"; {how_to_install(FORMATS[ending].kind)}" if ending else ". See session.info['capabilities']"
        raise ModelError(f"this device cannot load {name!r}; it loads {known}{how}")
    if name.endswith(".so") and isinstance(capabilities.get("kinds"), list):
        _check_library(_opened(source, name), name, capabilities)


def device(name: str, capabilities: Dict[str, Any]) -> Tuple[str, ...]:
    """The arguments that name a device of a board; none for "". Raises `UsageError`, `NotSupported`."""
    if not name:
        return ()
    from rpcsys.wire.device_names import parse

    if "devices" not in capabilities:
        raise NotSupported(f"this server is of a version that knows no {name}; update rpcsys there")
    return (str(parse(name)),)


def how(device_name: str, threads: int, capabilities: Dict[str, Any]) -> Tuple[Any, ...]:
    """The arguments of session.load_module behind the file's name: none, or a device ("" for the model's own), and
    behind that a number of threads. Raises `UsageError`, `NotSupported`.
    """
    where = device(device_name, capabilities)
    if type(threads) is int and not threads:
        return where
    from rpcsys.wire.device_names import check_threads

    check_threads(threads)
    if capabilities.get("threads") is not True:
        raise NotSupported("this server is of a version that sets no number of threads; update rpcsys there")
    return (*(where or ("",)), threads)


def devices(hello: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The devices that a HELLO describes; those of an older server by name alone."""
    told = hello.get("capabilities")
    described = told.get("devices") if isinstance(told, dict) else None
    names = hello.get("devices")
    found = described or [{"name": name} for name in (names if isinstance(names, list) else ())]
    return [each for each in found if isinstance(each, dict) and "name" in each] if isinstance(found, list) else []


def _opened(source: Source, name: str) -> Container:
    from rpcsys.module import container
    from rpcsys.module.elf import ElfError
    from rpcsys.module.layout import FormatError

    try:
        if isinstance(source, (str, os.PathLike)):
            return container.read(os.fspath(source))
        return container.parse(bytes(source))
    except (ElfError, FormatError) as error:
        raise ModelError(f"{name} {error}; copy or build it again") from None


def _check_library(library: Container, name: str, capabilities: Dict[str, Any]) -> None:
    inner = list(_carried(library))
    target = capabilities.get("target")
    for called, machine, bits in [(name, library.elf.machine, library.elf.bits), *(each[:3] for each in inner)]:
        if isinstance(target, list) and len(target) == 2 and target != [machine, bits]:
            raise ModelError(
                f"{called} is built for {machine} ({bits} bits), and the device is "
                "{} ({} bits); build it for the device".format(*target)
            )
    # TVM's runtime no longer loads its older layout.
    own = {**capabilities, "tvm_runtime": capabilities.get("tvm_runtime") is True and not library.older}
    root = library.records[0].kind
    missing = {*_missing({record.kind for record in library.records}, own, root)}
    missing.update(kind for each in inner for kind in _missing(each[3], capabilities))
    if missing:
        hint = (
            " (Python functions: only where the server was started with --allow-pickle)" if _PYTHON in missing else ""
        )
        more = ", and what TVM's runtime there knows" if own["tvm_runtime"] else ""
        more += "".join(f"; {how}" for how in map(how_to_install, sorted(missing)) if how)
        raise ModelError(
            f"{name} holds {', '.join(sorted(missing))}, which this device cannot load{hint}; "
            f"it loads {', '.join(capabilities['kinds'])}{more}"
        )


def _carried(library: Container) -> Iterator[Tuple[str, str, int, Set[str]]]:
    """The libraries inside: name, machine, bits, and the kinds of the modules in them."""
    from rpcsys.module import packed
    from rpcsys.module.layout import FormatError

    for record in library.records:
        if record.kind == _LIBRARY and record.data is not None:
            try:
                about, _ = packed.unpack(record.data)
                yield str(about["name"]), str(about["machine"]), int(about["bits"]), set(about["kinds"])
            except (FormatError, KeyError, TypeError, ValueError):
                continue  # the device reports a broken one


def _missing(kinds: Set[str], capabilities: Dict[str, Any], root: str = "") -> Iterator[str]:
    """The kinds that the device cannot load.

    Its TVM runtime may have those that it has not itself: all if it has none of them, or if the root is one of TVM's.
    """
    known = set(capabilities["kinds"])
    by_tvm = capabilities.get("tvm_runtime") is True and (root not in known or not known & (kinds - {"_lib"}))
    for kind in kinds:
        if kind not in known and (kind.startswith(_OURS) or not by_tvm):
            yield kind


def pickled(function: Callable[..., Any], capabilities: Dict[str, Any]) -> bytes:
    """``function``, pickled for a device with these capabilities.

    Raises `RemoteFunctionError` where the device cannot run it, `UsageError` where it cannot be pickled.
    """
    if capabilities.get("pickle") is not True:
        raise RemoteFunctionError(
            "this server runs no functions of its clients; start it with --allow-pickle if they may"
        )
    theirs = capabilities.get("python")
    if theirs != VERSION:
        made = "a function runs in the minor version it was made with"
        raise RemoteFunctionError(f"the device has Python {theirs} and this is Python {VERSION}: {made}")
    if capabilities.get("cloudpickle") is not True:
        raise RemoteFunctionError("the device has no cloudpickle; there: python3 -m pip install cloudpickle")
    try:
        import cloudpickle
    except ImportError:
        raise UsageError("session.run needs cloudpickle here, too: python -m pip install cloudpickle") from None
    try:
        blob: bytes = cloudpickle.dumps(function)
    except Exception as error:  # noqa: BLE001 - any object in a closure may refuse to be pickled
        raise UsageError(f"{function!r} cannot be sent: {error}") from None
    return blob


def check_encodings(hello: Dict[str, Any], hows: Collection[str], address: Tuple[str, int]) -> None:
    """Raise `NotSupported` where a server lacks one of the encodings ``hows``."""
    known = hello.get("capabilities", {}).get("encodings")
    missing = {word for how in hows for word in how.split("+")}.difference(known or ())
    if missing:
        where, hint = "{}:{}".format(*address), "there: pip install 'rpcsys[zstd]' (with numpy), or encode otherwise"
        raise NotSupported(f"the server at {where} cannot decode {', '.join(sorted(missing))}; {hint}")
