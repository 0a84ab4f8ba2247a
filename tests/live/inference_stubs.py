"""Run in another project's environment: the protocol's tables against the stubs that it ships.

Prints what is different: a field that the stubs lack or name otherwise, as ``message.field``.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from typing import Any

sys.path.insert(0, sys.argv[2])

from rpcsys.wire.inference import InferTensor
from rpcsys.wire.inference_messages import (
    raw_prefix,
    request_from_message,
    request_to_message,
    response_from_message,
    response_head,
    split_request,
)
from rpcsys.wire.inference_tables import INFERENCE, METHODS
from rpcsys.wire.protobuf import MessageTable

TENSORS = [InferTensor("x", "INT16", (2,), b"abcd"), InferTensor("s", "BYTES", (1,), b"\1\0\0\0a")]


def differences(table: MessageTable, theirs: Any) -> Iterator[str]:
    for field in table.by_number.values():
        their = theirs.fields_by_number.get(field.number)
        if their is None or their.name != field.name:
            yield f"{theirs.name}.{field.name}"
        elif isinstance(field.type, MessageTable):
            yield from differences(field.type, their.message_type)
        elif field.type.name not in ("view", "enum"):
            assert getattr(their, f"TYPE_{field.type.name.upper()}") == their.type, field.name


def exchange(stubs: Any) -> None:
    """Ours is read by them, and theirs by us."""
    message = b"".join(request_to_message("m", "3", TENSORS, ["y"], "7", {"timeout": 5}))
    request = stubs.ModelInferRequest.FromString(message)
    assert list(request.raw_input_contents) == [tensor.data for tensor in TENSORS]
    assert request.parameters["timeout"].int64_param == 5
    head, raw = split_request(request.SerializeToString())
    ours = request_from_message(head, [len(view) for view in raw])
    assert [tensor[:3] for tensor in ours.inputs] == [tensor[:3] for tensor in TENSORS]
    assert (ours.id, ours.timeout_us, ours.outputs[0].name) == ("7", 5, "y")
    pieces = [response_head("m", "3", TENSORS, "7")]
    for tensor in TENSORS:
        pieces += (raw_prefix(len(tensor.data)), tensor.data)
    answer = stubs.ModelInferResponse.FromString(b"".join(pieces))
    assert list(answer.raw_output_contents) == [tensor.data for tensor in TENSORS]
    assert response_from_message(answer.SerializeToString()) == TENSORS


def main() -> None:
    stubs = importlib.import_module(sys.argv[1])
    found: set[str] = set()
    for method in stubs.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods:
        request, response = METHODS[INFERENCE + method.name]
        found.update(differences(request, method.input_type))
        found.update(differences(response, method.output_type))
    exchange(stubs)
    print(*sorted(found))


if __name__ == "__main__":
    main()
