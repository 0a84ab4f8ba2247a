"""How the tensors of an offloaded stage are encoded: by the wire, or by a pair of functions or modules.

The wire applies the encodings that have a name (`rpcsys.wire.encoding`). A pair becomes two stages, exported like any
other: one encodes on the side that makes a tensor, the other decodes on the side that takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rpcsys.errors import UsageError, there_are
from rpcsys.graph._build.targets import Coder, Remote
from rpcsys.graph._ir.stage import Signature, TensorSpec
from rpcsys.module import Module, graph, python
from rpcsys.module.kinds.graph import Stage
from rpcsys.module.kinds.remote import check_decodable, ways
from rpcsys.module.kinds.remote import remote as remote_module


class CoderPair(NamedTuple):
    """The function or module that encodes a tensor, and the one that decodes it."""

    encode: Module
    decode: Module


class Codec:
    """How the tensors of an offloaded stage cross between device and server.

    Raises `UsageError` for a tensor that the stage does not have, and for an invalid encoding.
    """

    def __init__(self, remote: Remote, signature: Signature) -> None:
        self._remote, self._signature = remote, signature
        tensors = [*signature.inputs, *signature.outputs]
        given = remote.encode
        words = given if isinstance(given, str) else {n: how for n, how in given.items() if isinstance(how, str)}
        #: By tensor name: the encoding that the wire applies, and the pair that encodes it.
        self.ways = ways(words, tensors)
        self.pairs = {} if isinstance(given, str) else _pairs(given, {value["name"] for value in tensors})
        #: Whether the part's own model decodes: an inference server has nothing else that does.
        self.in_model = remote.is_url
        if self.in_model:
            self._check_decodable()

    def _check_decodable(self) -> None:
        """Give outputs, and scalars, the one encoding that they have in a model."""
        for name in self.pairs:
            raise UsageError(f"an inference server has no function to decode {name!r}: encode it as float16 or int8")
        check_decodable(self.ways)
        outputs = [value["name"] for value in self._signature.outputs]
        scalars = [value["name"] for value in self._signature.inputs if value.get("shape") == []]
        for name in {*outputs, *scalars} & self.ways.keys():
            self.ways[name] = "float16"

    @property
    def crossing(self) -> Signature:
        """The tensors that cross. One that a pair encodes has another name, and a type that only the pair knows."""
        return Signature(*([self._crossing(value) for value in values] for values in self._signature))

    def _crossing(self, value: TensorSpec) -> TensorSpec:
        return {"name": f"{value['name']}.encoded"} if value["name"] in self.pairs else value

    def remote(self, name: str, fallback: Module | None) -> Module:
        """The call to the server; ``fallback``, the stage itself, runs while there is none."""
        inputs, outputs = self.crossing
        crossing = {"inputs": inputs, "outputs": outputs, "encode": self.ways}
        here = None if fallback is None else self.there(name, fallback)
        return remote_module(**{**vars(self._remote), **crossing, "fallback": here})

    def here(self, name: str, module: Module) -> list[Stage]:
        """The device's stages: ``module``, which takes and gives encoded tensors, and this side's half of each pair."""
        (inputs, outputs), prefix = self._signature, f"{name}: "
        middle = stage_entry(name, module, self.crossing)
        return [*self._halves("encode", inputs, prefix), middle, *self._halves("decode", outputs, prefix)]

    def there(self, name: str, module: Module) -> Module:
        """The server's side: ``module``, the stage itself, wrapped so that it takes and gives encoded tensors."""
        if not self.pairs:
            return module
        inputs, outputs = self._signature
        middle = stage_entry(name, module, self._signature)
        return graph([*self._halves("decode", inputs), middle, *self._halves("encode", outputs)], *self.crossing)

    def _halves(self, half: str, values: list[TensorSpec], prefix: str = "") -> Iterator[Stage]:
        for value in values:
            name, crossing = value["name"], self._crossing(value)["name"]
            if name in self.pairs:
                takes, gives = (name, crossing) if half == "encode" else (crossing, name)
                yield Stage(f"{prefix}{half} {name}", getattr(self.pairs[name], half), [takes], [gives])


def stage_entry(name: str, module: Module, signature: Signature, device: str = "") -> Stage:
    """The stage of a graph module that runs ``module``, on ``device`` if one is named."""
    inputs, outputs = ([value["name"] for value in values] for values in signature)
    return Stage(name, module, inputs, outputs, device=device)


def _pairs(given: Mapping[str, Any], known: set[str]) -> dict[str, CoderPair]:
    pairs = {}
    for name, how in given.items():
        if isinstance(how, str):
            continue
        if name not in known:
            raise UsageError(f"there is no tensor {name!r} to encode; {there_are(sorted(known))}")
        if not isinstance(how, tuple) or len(how) != 2 or not all(map(callable, how)):
            raise UsageError(f"{name!r} needs the name of an encoding, or a pair of functions or modules")
        pairs[name] = CoderPair(*map(_module, how))
    return pairs


def _module(coder: Coder) -> Module:
    return coder if isinstance(coder, Module) else python({"main": coder})
