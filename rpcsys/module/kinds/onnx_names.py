"""An ONNX model by other names: on the host, with the package onnx.

What is renamed: tensors, in the bodies of If, Loop and Scan and in the model's own functions, too; those functions, which
are operators of its own. What goes: names of nodes and graphs, documentation, metadata, who made it. Operators of the
standard keep their names, or nobody could run them.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, Tuple

import onnx

Rename = Callable[[str], str]
Operator = Tuple[str, str, str]


def renamed(proto: bytes, rename: Rename) -> bytes:
    """A serialised ModelProto with ``rename`` applied to the name of every tensor."""
    model = onnx.load_from_string(proto)
    operators = _own_operators(model)
    domains = _own_domains(model, operators)
    for field in ("producer_name", "producer_version", "domain", "doc_string", "metadata_props", "training_info"):
        model.ClearField(field)
    for function in model.functions:
        function.name = operators[_key(function)]
        for field in ("input", "output"):
            _rename_all(getattr(function, field), rename)
        _clean(function)
        for value in function.value_info:
            _rename_value(value, rename)
        _rename_nodes(function.node, rename, operators, domains)
        _rename_domains(function, domains)
        function.domain = domains.get(function.domain, function.domain)
    _rename_domains(model, domains)
    _rename_graph(model.graph, rename, operators, domains)
    return bytes(model.SerializeToString(deterministic=True))


def _key(function: Any) -> Operator:
    return function.domain, function.name, getattr(function, "overload", "")


def _own_operators(model: Any) -> Dict[Operator, str]:
    """The model's own functions and their new names."""
    return {_key(function): f"f{number}" for number, function in enumerate(model.functions)}


def _own_domains(model: Any, operators: Dict[Operator, str]) -> Dict[str, str]:
    """The domains in which there are the model's own functions alone, and their new names."""
    nodes = list(_nodes(model.graph.node))
    for function in model.functions:
        nodes += _nodes(function.node)
    others = {node.domain for node in nodes if _operator(node) not in operators}
    own = sorted({domain for domain, _, _ in operators} - others)
    return {domain: f"d{number}" for number, domain in enumerate(own)}


def _operator(node: Any) -> Operator:
    return node.domain, node.op_type, getattr(node, "overload", "")


def _nodes(nodes: Any) -> Iterator[Any]:
    """These and those in their bodies."""
    for node in nodes:
        yield node
        for graph in _bodies(node):
            yield from _nodes(graph.node)


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def _rename_graph(graph: Any, rename: Rename, operators: Dict[Operator, str], domains: Dict[str, str]) -> None:
    _clean(graph)
    graph.name = "g"  # the checker wants one
    for value in (*graph.input, *graph.output, *graph.value_info):
        _rename_value(value, rename)
    for tensor in graph.initializer:
        _rename_tensor(tensor, rename)
    for sparse in graph.sparse_initializer:
        _rename_tensor(sparse.values, rename)
        _rename_tensor(sparse.indices, rename)
    for note in graph.quantization_annotation:
        note.tensor_name = rename(note.tensor_name)
        for pair in note.quant_parameter_tensor_names:
            pair.value = rename(pair.value)
    _rename_nodes(graph.node, rename, operators, domains)


def _rename_nodes(nodes: Any, rename: Rename, operators: Dict[Operator, str], domains: Dict[str, str]) -> None:
    for node in nodes:
        node.op_type = operators.get(_operator(node), node.op_type)
        node.domain = domains.get(node.domain, node.domain)
        _clean(node)
        for field in ("name", "device_configurations"):
            _clear(node, field)
        _rename_all(node.input, rename)
        _rename_all(node.output, rename)
        for attribute in node.attribute:
            attribute.ClearField("doc_string")
            for tensor in (attribute.t, *attribute.tensors):
                _forget_tensor(tensor)
        for graph in _bodies(node):
            _rename_graph(graph, rename, operators, domains)


def _rename_value(value: Any, rename: Rename) -> None:
    value.name = rename(value.name)
    _clean(value)


def _rename_tensor(tensor: Any, rename: Rename) -> None:
    name = rename(tensor.name)
    _clean(tensor)
    tensor.name = name


def _forget_tensor(tensor: Any) -> None:
    """A constant in an attribute needs no name."""
    if tensor.ByteSize():
        _clean(tensor)
        tensor.ClearField("name")


def _rename_all(names: Any, rename: Rename) -> None:
    names[:] = [rename(name) for name in names]


def _rename_domains(owner: Any, domains: Dict[str, str]) -> None:
    for imported in owner.opset_import:
        imported.domain = domains.get(imported.domain, imported.domain)


def _clean(message: Any) -> None:
    for field in ("doc_string", "metadata_props"):
        _clear(message, field)


def _clear(message: Any, field: str) -> None:
    """Empty a field that this version of onnx may not have."""
    if field in message.DESCRIPTOR.fields_by_name:
        message.ClearField(field)
