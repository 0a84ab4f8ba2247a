"""Which of onnxruntime's execution providers runs a model on a device."""

from __future__ import annotations

from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence

from rpcsys.errors import UsageError
from rpcsys.wire.device_names import CPU, OPENVINO, parse

#: Kind of device -> the providers for it, the first one that onnxruntime has is used; and the provider's option that
#: takes the device's number or OpenVINO's name, if it has one.
_PROVIDERS: Mapping[str, Mapping[str, str]] = {
    "cuda": {"CUDAExecutionProvider": "device_id"},
    "rocm": {"ROCMExecutionProvider": "device_id", "MIGraphXExecutionProvider": "device_id"},
    "npu": {"QNNExecutionProvider": "", "VitisAIExecutionProvider": ""},
    OPENVINO: {"OpenVINOExecutionProvider": "device_type"},
}
#: Kinds of devices with arrays in their memory -> onnxruntime's name of that memory.
MEMORIES = {"cuda": "cuda"}
_CPU = "CPUExecutionProvider"


class Provider(NamedTuple):
    """An execution provider, and its options."""

    name: str
    options: Dict[str, str]


def checked(device: Any) -> str:
    """The device in its one form, "" for the CPU. Raises ValueError for a text that names none."""
    try:
        name = parse(device)
    except UsageError as error:
        raise ValueError(str(error)) from None
    return "" if name == CPU else str(name)


def find(device: str, available: Sequence[str]) -> Optional[Provider]:
    """The provider for ``device`` among the ``available`` ones; None if there is none."""
    name = parse(device)
    for provider, option in _PROVIDERS.get(name.kind, {}).items():
        if provider in available:
            return Provider(provider, {option: name.number} if option else {})
    return None


def complaint(device: str, available: Sequence[str]) -> str:
    """Why none of ``available`` runs models on ``device``, to follow a model's name; empty if one does."""
    if not device or find(device, available) is not None:
        return ""
    kind = parse(device).kind
    known = _PROVIDERS.get(kind)
    if known is None:
        return f"is for {device}, and onnxruntime runs no models there; compile it for that with TVM (tvm:{kind})"
    what = f"is for {device}, which needs {' or '.join(known)}"
    if kind == OPENVINO:
        return f"{what} of onnxruntime, or the package openvino; type: python3 -m pip install openvino"
    return f"{what}, and onnxruntime here has {', '.join(available)}"


def listed(options: Mapping[str, Any], available: Sequence[str]) -> Sequence[Any]:
    """The providers to open a model with, as onnxruntime takes them."""
    if not options.get("device"):
        return list(options.get("providers", [_CPU]))
    chosen = find(options["device"], available)
    assert chosen is not None, "complaint() was asked before"
    return [tuple(chosen), _CPU]
