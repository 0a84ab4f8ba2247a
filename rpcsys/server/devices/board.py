"""What this board's files tell of its devices and drivers; nothing is loaded, and no process started."""

from __future__ import annotations

import glob
import importlib.util
import os
import re
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Tuple

from rpcsys.ffi import library
from rpcsys.server import capabilities

#: Kinds of devices -> their driver's library, without its version.
DRIVERS: Mapping[str, str] = {
    "cuda": "libcuda.so", "rocm": "libamdhip64.so", "opencl": "libOpenCL.so", "vulkan": "libvulkan.so",
    "openvino": "libopenvino_c.so",
}  # fmt: skip
_LIBRARY = re.compile(rb"(lib(?:cuda|amdhip64|OpenCL|vulkan|openvino_c)\.so)\.[0-9]+(?=[\0\n]|$)")
NPU = "npu"
#: Kinds -> onnxruntime's providers for them, each a library beside its own.
_PROVIDERS: Mapping[str, FrozenSet[str]] = {
    "cuda": frozenset(["cuda"]), "rocm": frozenset(["rocm", "migraphx"]), "openvino": frozenset(["openvino"]),
    "npu": frozenset(["qnn", "vitisai"]),
}  # fmt: skip
#: Packages that run models of their own formats -> their names, and the kinds of devices that they use.
_RUNTIMES: Mapping[str, Tuple[str, FrozenSet[str]]] = {
    "openvino": ("openvino", frozenset(["cpu", "openvino"])),
    "ai_edge_litert": ("litert", frozenset(["cpu"])),
    "iree.runtime": ("iree", frozenset(["cpu", "cuda", "rocm", "vulkan"])),
    "executorch": ("executorch", frozenset(["cpu"])),
}
_CACHE = "/etc/ld.so.cache"
_FOLDERS = ("/lib", "/usr/lib", "/usr/local/lib", "/lib64", "/usr/lib64")  # of a system without this cache
_ACCEL = "/sys/class/accel"
_MAX_READ = 1 << 20  # bytes of the cache: four thousand libraries take a third of that


def drivers() -> Dict[str, str]:
    """The kinds whose driver's library is there -> its name, or its path where the loader does not know it."""
    names = {match.group(1).decode(): match.group().decode() for match in _LIBRARY.finditer(_known())}
    found = {kind: names[name] for kind, name in DRIVERS.items() if name in names}
    own = _package("openvino")
    paths = sorted(glob.glob(os.path.join(glob.escape(own), "libs", "libopenvino_c.so*"))) if own else ()
    return {**found, **({"openvino": paths[-1]} if paths else {})}


def _known() -> bytes:
    """The names of the libraries that the loader finds; a version of more than one number is a link's target."""
    folders = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]
    data = b""
    try:
        with open(_CACHE, "rb") as file:
            data = file.read(_MAX_READ)
    except OSError:
        folders += _FOLDERS
    for folder in folders:
        try:
            data += b"\n" + b"\n".join(os.listdir(os.fsencode(folder)))
        except OSError:
            continue
    return data


def cpu() -> Dict[str, Any]:
    """The board's CPU."""
    name = re.search(r"^model name\s*:\s*(.*)$", _read("/proc/cpuinfo"), re.MULTILINE)
    title = name.group(1) if name else os.uname().machine
    return {"title": title, "memory": capabilities.memory()}


def npus() -> List[Dict[str, Any]]:
    """The devices of Linux's subsystem for accelerators, by the names of their drivers."""
    found = []
    for path in sorted(glob.glob(f"{_ACCEL}/accel[0-9]*"), key=lambda path: (len(path), path))[:64]:
        driver = os.path.basename(os.path.realpath(path + "/device/driver"))
        version = _read(path + "/device/driver/module/version").strip()
        ids = [_read(f"{path}/device/{name}").strip() for name in ("vendor", "device")]
        found.append(
            {"title": " ".join(filter(None, [driver, *ids])), "driver": version, "number": path[len(_ACCEL) + 6 :]}
        )
    return found


def loaders(kind: str, tvm: FrozenSet[str]) -> Iterator[str]:
    """What can use devices of a kind here. ``tvm``: the kinds of devices that TVM's runtime in a session has."""
    if kind in tvm or (kind == "cpu" and library.has_runtime()):
        yield "tvm"
    if capabilities.installed("onnxruntime") and (kind == "cpu" or _PROVIDERS.get(kind, frozenset()) & _providers()):
        yield "onnxruntime"
    for package, (name, kinds) in _RUNTIMES.items():
        if kind in kinds and capabilities.installed(package):
            yield name


def _providers() -> FrozenSet[str]:
    """The providers of onnxruntime that are libraries of their own."""
    start = "libonnxruntime_providers_"
    folder = _package("onnxruntime")
    paths = glob.glob(os.path.join(glob.escape(folder), "capi", start + "*.so")) if folder else ()
    return frozenset(os.path.basename(path)[len(start) : -len(".so")] for path in paths)


def _package(name: str) -> Optional[str]:
    """The folder of an installed package; it is not imported."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    return next(iter(spec.submodule_search_locations or ()), None) if spec else None


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read(4096).decode("utf-8", "replace")
    except OSError:
        return ""
