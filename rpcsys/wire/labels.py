"""Labels: which of them are versions, how many there may be, and what a request can say about one."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Tuple

from rpcsys.errors import UsageError
from rpcsys.wire import checks

#: The labels that servers detect and that are compared as versions, in the order in which tables have them.
VERSIONS = (
    "python", "numpy", "onnxruntime", "tvm", "tvm_ffi", "libc", "kernel", "driver",
    "openvino", "litert", "iree", "executorch",
)  # fmt: skip
#: What compares a device's value with the wanted one. Longer ones first, so that ``>=`` is not read as ``>``.
OPERATORS = ("<=", ">=", "!=", "==", "=", "<", ">")

#: The most labels that the keeper of a server gives it. The others are left for those that it detects, 17 today.
MAX_GIVEN = 24
#: The most labels of a server. With all of them its row of the summary still fits a frame of 1 MiB.
MAX_LABELS = 44
#: The most labels of a request, and the most comparisons: the tracker makes them for each free device, in 1 us each.
MAX_WANTED = 16

_EXAMPLE = {"arch": "aarch64", "cores": ">=4"}


def operator_of(text: str) -> Tuple[str, str]:
    """The operator at the beginning of a wanted value, "" for none, and the text behind it."""
    operator = next(filter(text.startswith, OPERATORS), "")
    return operator, text[len(operator) :].strip() if operator else text


def of_request(labels: Any) -> Dict[str, str]:
    """A copy of a request's labels; None is none. Raises UsageError: no mapping, or a name or a value is no text."""
    if not labels:
        return {}
    if not isinstance(labels, Mapping):
        raise UsageError(f"labels is {checks.shown(labels)}, and no dict: write labels={_EXAMPLE}")
    for label, value in labels.items():
        if not _is_text(label):
            raise UsageError(f"labels: {checks.shown(label)} is no name of a label: write labels={_EXAMPLE}")
        if not _is_text(value):
            number = type(value) in (int, float)
            instead = (
                f"labels={{{label!r}: '{value}'}}" if number else f"at most {checks.MAX_TEXT} printable characters"
            )
            raise UsageError(f"labels: the value of {label!r} is {checks.shown(value)}, and no text: write {instead}")
    return dict(labels)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= checks.MAX_TEXT and value.isprintable()


def shown(label: str, wanted: str) -> str:
    """A wanted label for people: ``arch=aarch64``, ``onnxruntime>=1.22,<2``."""
    return label + wanted if operator_of(wanted)[0] else f"{label}={wanted}"
