"""Marks regions of a Relax module by TVM's own passes, and takes it apart: the device's part, and each region."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

from rpcsys.errors import UsageError
from rpcsys.graph._ir.stage import Signature, TensorSpec

CODEGEN = "rpcsys"
_PREFIX = CODEGEN + "."
_UNNAMED = "region"  # what a region is called whose patterns are names of operators


class RelaxRegion(NamedTuple):
    """A marked function of a Relax module."""

    name: str  # its pattern's, with a number if several regions have it
    symbol: str  # the name of the function that TVM's code calls
    function: Any
    signature: Signature

    @property
    def program(self) -> Any:
        """The region as a Relax module of its own, its constants inside; ``main`` runs it."""
        function = self.function.without_attr("Codegen").with_attr("global_symbol", "main")
        passes = [relax.transform.LambdaLift(), relax.transform.InlinePrivateFunctions()]
        return tvm.ir.transform.Sequential(passes)(tvm.IRModule({"main": function}))


def marked(mod: Any, patterns: Sequence[Any], merge: bool) -> Any:
    """``mod`` with a function of its own for each match of ``patterns``; neighbours are one function with ``merge``."""
    fusions = [_fusion(pattern) for pattern in patterns]
    passes = [relax.transform.ConvertToDataflow()]
    if fusions:
        passes.append(relax.transform.FuseOpsByPattern(fusions, annotate_codegen=not merge))
    if fusions and merge:
        _check_mergeable(mod)
        passes.append(relax.transform.MergeCompositeFunctions())
    return tvm.ir.transform.Sequential(passes)(mod)


def _check_mergeable(mod: Any) -> None:
    """Raise `UsageError` for a module on which TVM's MergeCompositeFunctions fails."""
    names = sorted(v.name_hint for v, function in mod.functions.items() if isinstance(function, relax.Function))
    if names != ["main"]:
        text = f"TVM merges neighbours where main is the only function, and there are {', '.join(names)}"
        raise UsageError(f"{text}; give merge=False: each match is then a region")


def _fusion(pattern: Any) -> Any:
    if isinstance(pattern, str):
        return relax.transform.FusionPattern(_PREFIX + _UNNAMED, _operator(pattern))
    if isinstance(pattern, relax.transform.FusionPattern):
        given = (pattern.name, pattern.pattern, pattern.annotation_patterns, pattern.check, pattern.attrs_getter)
    elif isinstance(pattern, tuple) and pattern and isinstance(pattern[0], str):
        given = pattern
    else:
        raise UsageError(
            f"{pattern!r} is no pattern: give an operator's name, or (name, pattern[, annotations, check])"
        )
    name, *rest = given
    return relax.transform.FusionPattern(_PREFIX + name.removeprefix(_PREFIX), *rest)


def _operator(name: str) -> Any:
    full = "relax." + name.removeprefix("relax.")
    try:
        count = tvm.ir.Op.get(full).num_inputs
    except AttributeError:
        raise UsageError(f"Relax has no operator {name!r}; give names such as 'nn.conv2d' or 'matmul'") from None
    return is_op(full)(*(wildcard() for _ in range(count)))


def regions_of(mod: Any) -> list[RelaxRegion]:
    """The marked functions of a module, in the order in which they are first called. Raises `UsageError`."""
    found = {variable.name_hint: function for variable, function in mod.functions.items() if _is_marked(function)}
    functions = [found[name] for name in _called(mod, found)]
    names = _numbered([_pattern(function) for function in functions])
    return [
        RelaxRegion(name, str(function.attrs["global_symbol"]), function, _signature(function, name))
        for name, function in zip(names, functions, strict=True)
    ]


def device_part(mod: Any) -> Any:
    """The module without its marked functions: it calls them by their symbols, and has none of their constants."""
    rest = [variable.name_hint for variable, function in mod.functions.items() if not _is_marked(function)]
    # TVM asks for the code of the marked functions. There is none: the imports of its library have the functions.
    tvm_ffi.register_global_func(f"relax.ext.{CODEGEN}", lambda functions, options, constants: [], override=True)
    return relax.transform.RunCodegen(entry_functions=rest)(mod).without_attr("const_name_to_constant")


def _is_marked(function: Any) -> bool:
    return isinstance(function, relax.Function) and bool(function.attrs) and function.attrs.get("Codegen") == CODEGEN


def _called(mod: Any, names: Iterable[str]) -> list[str]:
    order: dict[str, None] = {}

    def visit(node: Any) -> None:
        if isinstance(node, relax.Call) and isinstance(node.op, relax.GlobalVar) and node.op.name_hint in names:
            order[node.op.name_hint] = None

    for _, function in sorted(mod.functions_items(), key=lambda item: str(item[0].name_hint)):
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return list(order)


def _pattern(function: Any) -> str:
    """The name of the first pattern that matched in a region."""
    bindings = (binding.value for block in function.body.blocks for binding in block.bindings)
    composites = (str(each.attrs["Composite"]) for each in bindings if isinstance(each, relax.Function) and each.attrs)
    return next(composites, _UNNAMED).removeprefix(_PREFIX)


def _numbered(names: Sequence[str]) -> list[str]:
    """The names, each that occurs more than once with a number."""
    uses, seen = Counter(names), Counter[str]()
    made = []
    for name in names:
        made.append(f"{name}{seen[name]}" if uses[name] > 1 else name)
        seen[name] += 1
    return made


def signatures(mod: Any) -> dict[str, Signature]:
    """The functions of a module that others call: name -> tensors, none where it takes or gives anything else."""
    found = {}
    for variable, function in mod.functions.items():
        if isinstance(function, relax.Function) and function.attrs and "global_symbol" in function.attrs:
            try:
                found[variable.name_hint] = _signature(function, variable.name_hint)
            except UsageError:
                found[variable.name_hint] = Signature([], [])
    return found


def _signature(function: Any, name: str) -> Signature:
    result = function.ret_ty
    types = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    several = isinstance(result, relax.TupleType)
    given = [f"output{place}" if several else "output" for place in range(len(types))]
    names = _distinct([*(str(param.name) for param in function.params), *given])
    inputs = [_tensor(next(names), param.ty, name) for param in function.params]
    return Signature(inputs, [_tensor(next(names), each, name) for each in types])


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, with an underscore where an earlier one is the same."""
    seen: set[str] = set()
    for name in names:
        while name in seen:
            name += "_"
        seen.add(name)
        yield name


def _tensor(name: str, kind: Any, whose: str) -> TensorSpec:
    if not isinstance(kind, relax.TensorType):
        raise UsageError(f"{whose} takes or gives {kind}, and only tensors cross to a server; choose other patterns")
    described: TensorSpec = {"name": name, "dtype": str(kind.dtype)}
    if isinstance(kind.shape, relax.ShapeExpr):
        described["shape"] = [_extent(extent) for extent in kind.shape]
    return described


def _extent(extent: Any) -> int | str | None:
    if isinstance(extent, tvm.tirx.IntImm):
        return int(extent)
    return str(extent.name) if isinstance(extent, tvm.tirx.Var) else None
