"""The formats of model files: which kind of module each becomes, and which packages that needs on the device."""

from __future__ import annotations

from typing import Dict, NamedTuple, Tuple


class Format(NamedTuple):
    """What loads the files of one ending."""

    kind: str
    packages: Tuple[str, ...]  # that are imported
    install: str  # what pip installs for them


#: Ending of a file -> its format. A library (``.so``) is none of these: it holds modules of any kind.
FORMATS: Dict[str, Format] = {
    ".onnx": Format("rpcsys.onnx", ("numpy", "onnxruntime"), "onnxruntime"),
    ".tflite": Format("rpcsys.litert", ("numpy", "ai_edge_litert"), "ai-edge-litert"),
    ".xml": Format("rpcsys.openvino", ("numpy", "openvino"), "openvino"),
    ".vmfb": Format("rpcsys.iree", ("numpy", "iree.runtime"), "iree-base-runtime"),
    ".pte": Format("rpcsys.executorch", ("numpy", "torch", "executorch"), "executorch"),
}
_INSTALLS = {each.kind: each.install for each in FORMATS.values()}


def suffix(name: str) -> str:
    """The ending of a file's name if it is one of `FORMATS`, else ""."""
    return next(filter(name.endswith, FORMATS), "")


def how_to_install(kind: str) -> str:
    """What to type where modules of this kind cannot be loaded; "" for a kind that needs no package of `FORMATS`."""
    package = _INSTALLS.get(kind)
    return f"package {package} is not on the board: python3 -m pip install {package} there" if package else ""
