"""Renames the tensors of an ONNX model: on the host, with the package onnx.

It renames tensors, also in the bodies of If, Loop and Scan, and the model's own functions, which are its own operators.
It removes names of nodes and graphs, documentation, metadata and the producer. Standard operators keep their names.
"""

from __future__ import annotations

from typing import Any, Callable, Iterator, Tuple

import onnx

Rename = Callable[[str], str]
Operator = Tuple[str, str, str]


def renamed(proto: bytes, rename: Rename) -> bytes:
    """A serialised ModelProto with ``rename`` applied to the name of every tensor."""
    model = onnx.load_from_string(proto)
    _Renaming(model, rename).apply(model)
    return bytes(model.SerializeToString(deterministic=True))


class _Renaming:
    """New names for a model's tensors, for its own functions, and for the domains of only such functions."""

    def __init__(self, model: Any, rename: Rename) -> None:
        self._rename = rename
        self._operators = {_key(function, function.name): f"f{n}" for n, function in enumerate(model.functions)}
        nodes = [node for owner in (model.graph, *model.functions) for node in _nodes(owner.node)]
        others = {node.domain for node in nodes if _key(node, node.op_type) not in self._operators}
        own = sorted({domain for domain, _, _ in self._operators} - others)
        self._domains = {domain: f"d{n}" for n, domain in enumerate(own)}

    def apply(self, model: Any) -> None:
        _clear(model, "producer_name", "producer_version", "domain", "training_info")
        for function in model.functions:
            function.name = self._operators[_key(function, function.name)]
            self._texts(function.input, function.output)
            self._values(function.value_info)
            self._owner(function)
            self._nodes(function.node)
            function.domain = self._domain(function.domain)
        self._owner(model)
        self._graph(model.graph)

    def _owner(self, owner: Any) -> None:
        _clear(owner)
        for imported in owner.opset_import:
            imported.domain = self._domain(imported.domain)

    def _domain(self, domain: str) -> str:
        return self._domains.get(domain, domain)

    def _graph(self, graph: Any) -> None:
        _clear(graph)
        graph.name = "g"  # onnx's checker requires one
        self._values((*graph.input, *graph.output, *graph.value_info, *graph.initializer))
        self._values(part for sparse in graph.sparse_initializer for part in (sparse.values, sparse.indices))
        for note in graph.quantization_annotation:
            note.tensor_name = self._rename(note.tensor_name)
            for pair in note.quant_parameter_tensor_names:
                pair.value = self._rename(pair.value)
        self._nodes(graph.node)

    def _nodes(self, nodes: Any) -> None:
        for node in nodes:
            node.op_type = self._operators.get(_key(node, node.op_type), node.op_type)
            node.domain = self._domain(node.domain)
            _clear(node, "name", "device_configurations")
            self._texts(node.input, node.output)
            for attribute in node.attribute:
                attribute.ClearField("doc_string")
                for tensor in (attribute.t, *attribute.tensors):
                    if tensor.ByteSize():  # otherwise reading the field would create it
                        _clear(tensor, "name")
            for graph in _bodies(node):
                self._graph(graph)

    def _values(self, values: Any) -> None:
        for value in values:
            _clear(value)
            value.name = self._rename(value.name)

    def _texts(self, *fields: Any) -> None:
        for names in fields:
            names[:] = [self._rename(name) for name in names]


def _key(owner: Any, name: str) -> Operator:
    """The identity of an operator: of a function, or of a node that calls one."""
    return owner.domain, name, getattr(owner, "overload", "")


def _nodes(nodes: Any) -> Iterator[Any]:
    """These nodes and those in their bodies."""
    for node in nodes:
        yield node
        for graph in _bodies(node):
            yield from _nodes(graph.node)


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _clear(message: Any, *fields: str) -> None:
    """Clear these fields, and always documentation and metadata, if this version of onnx has them."""
    for field in ("doc_string", "metadata_props", *fields):
        if field in message.DESCRIPTOR.fields_by_name:
            message.ClearField(field)
