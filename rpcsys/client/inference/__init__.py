"""A model on an inference server, called by its URL with arrays. It speaks the Open Inference Protocol.

`http` and `grpc` carry the tensors; a URL's scheme chooses, and only that file is imported.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from rpcsys import errors
from rpcsys.client.inference.urls import InferenceUrl
from rpcsys.errors import ProtocolError, RemoteArgumentError, ValueNotSupported
from rpcsys.wire import encoding
from rpcsys.wire.dtypes import count
from rpcsys.wire.encoding import Encoded
from rpcsys.wire.inference import DATATYPES, NAMES, InferenceError, InferTensor, pack_bytes, to_values
from rpcsys.wire.tensor import Tensor, as_array, as_tensor

Specs = Sequence[Dict[str, Any]]  # tensors: name, and where they are known dtype and shape


class InferenceModel:
    """A model on one server, connected. For any number of threads.

    ``inputs`` and ``outputs`` have the names of what `call` takes and gives; where there are none, the server's
    description counts. Raises `ConnectError`, `Busy`, and the errors of `call`.
    """

    def __init__(self, url: InferenceUrl, inputs: Specs, outputs: Specs, seconds: float) -> None:
        self._url = url
        self._lost = False
        if url.scheme.startswith("http"):
            from rpcsys.client.inference.http import HttpModel as Carrier
        else:
            from rpcsys.client.inference.grpc import GrpcModel as Carrier  # type: ignore[assignment]
        self._carrier = Carrier(url, seconds)
        try:
            said = ([], []) if inputs and outputs else self._described(self._carrier.metadata())
        except BaseException:
            self.close()
            raise
        self.inputs, self.outputs = inputs or said[0], outputs or said[1]

    def call(self, *args: Any, deadline_s: Optional[float] = None) -> Any:
        """Run the model with arrays for its inputs, in their order. Its outputs: one array, or a tuple of several.

        Raises `Busy`, `DeadlineExceeded`, `RemoteArgumentError`, `RemoteFunctionError`, `RemoteError`, `SessionLost`,
        `ProtocolError`, and `ValueNotSupported` for an argument that has no form in the protocol.
        """
        if len(args) != len(self.inputs):
            raise RemoteArgumentError(f"{self._url.text} takes {len(self.inputs)} inputs, not {len(args)}")
        sent: List[InferTensor] = []
        for spec, arg in zip(self.inputs, args):
            sent += _tensors(spec["name"], arg)
        names = [spec["name"] for spec in self.outputs]
        try:
            came = {tensor.name: tensor for tensor in self._carrier.infer(sent, names, deadline_s)}
            results = [_array(came[spec["name"]], spec) for spec in self.outputs]
        except errors.SessionLost:
            self._lost = True
            raise
        except InferenceError as error:
            raise ProtocolError(f"{self._url.text}: {error}") from None
        except KeyError as error:
            raise ProtocolError(f"{self._url.text} answers without its output {error}") from None
        return results[0] if len(results) == 1 else tuple(results)

    def close(self) -> None:
        """End its connections, and the calls on them: but where one connection was lost, the others' calls go on."""
        self._carrier.close(not self._lost)

    def _described(self, value: Any) -> Tuple[List[Dict[str, Any]], List[Dict[str, Any]]]:
        """Inputs and outputs from the server's description of the model. Raises `ProtocolError`."""
        try:
            inputs, outputs = ([_spec(tensor) for tensor in value[name]] for name in ("inputs", "outputs"))
        except (AttributeError, KeyError, TypeError):
            how = "name them: module.remote(URL, inputs=…, outputs=…)"
            raise ProtocolError(f"{self._url.text}: the server does not say its inputs and outputs; {how}") from None
        return inputs, outputs


def _spec(tensor: Any) -> Dict[str, Any]:
    shape = [extent if type(extent) is int and extent >= 0 else None for extent in tensor["shape"]]
    return {"name": errors.printable(tensor["name"]), "dtype": DATATYPES[tensor["datatype"]], "shape": shape}


def _tensors(name: str, value: Any) -> List[InferTensor]:
    """An argument as the protocol's tensor; one in int8 as two, the second its scale. Raises `ValueNotSupported`."""
    if isinstance(value, Encoded):
        coded, shape = memoryview(value.data), tuple(value.shape)
        if value.how == "float16":
            return [InferTensor(name, "FP16", shape, coded)]
        return [InferTensor(name, "INT8", shape, coded[8:]), InferTensor(f"{name}.scale", "FP64", (1,), coded[:8])]
    tensor = as_tensor(value)
    if tensor is None or tensor.dtype not in NAMES:
        what = f"a {type(value).__name__}" if tensor is None else f"an array of {tensor.dtype}"
        raise ValueNotSupported(f"input {name!r} is {what}, and inference servers take arrays of numbers or text")
    data: Any = tensor.data if tensor.dtype != "strings" else pack_bytes(map(str.encode, tensor.data))
    return [InferTensor(name, NAMES[tensor.dtype], tensor.shape, data)]


def _array(tensor: InferTensor, spec: Mapping[str, Any]) -> Any:
    """The array of an output, of its declared rank and type; its memory is its own, and can be written."""
    _, datatype, shape, data = tensor
    dtype, shape = DATATYPES[datatype], _ranked(shape, spec.get("shape"))
    if dtype == "strings":
        elements = to_values(datatype, data, tensor.name)
        if len(elements) != count(shape):
            raise InferenceError(f"output {tensor.name!r} has {len(elements)} elements, which its shape does not have")
        return as_array(Tensor(dtype, shape, elements))
    data = memoryview(data)
    made = Tensor(dtype, shape, memoryview(bytearray(data)) if data.readonly else data)
    if dtype == "float16" and spec.get("dtype") in encoding.FLOATING[1:]:
        made = encoding.decode(Encoded(dtype, spec["dtype"], shape, made.data))
    array = as_array(made)
    return array if isinstance(array, Tensor) or array.flags.aligned else array.copy()


def _ranked(shape: Tuple[int, ...], declared: Optional[Sequence[Any]]) -> Tuple[int, ...]:
    """``shape`` in the declared rank, if it has as many elements in that: some servers give [n] back as [n, 1]."""
    if declared is None or len(declared) == len(shape):
        return shape
    fixed = [extent if type(extent) is int and extent >= 0 else 0 for extent in declared]
    known, elements = count([extent or 1 for extent in fixed]), count(shape)
    if fixed.count(0) > 1 or elements % known or (0 not in fixed and elements != known):
        return shape
    return tuple(extent or elements // known for extent in fixed)
