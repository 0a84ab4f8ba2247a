"""TVM's schedules for OpenCL devices that are CPUs: ``Tvm({"kind": "opencl", "device": "cpu"})``.

TVM's own schedules for OpenCL suit GPUs: neighbouring work items read neighbouring numbers, and a CPU that runs one
work item after the other reads memory in strides. Importing this file does not import TVM.
"""

from __future__ import annotations

from typing import Any

_CONVOLUTION = "relax.nn.conv2d"
_REDUCE = 2  # tirx.IterVar.CommReduce
_LANES = (16, 8, 4)  # of OpenCL's vectors
#: Outputs of a work item, whose sums stay in registers: of one row, in all.
_WIDE, _TILE = 256, 384
_NARROW = 32  # outputs of a row where a work item has several rows: each weight is then read once for all of them


def pipeline(target: Any) -> Any:
    """The Relax pipeline for a target of TVM: the name of TVM's default, or one with these schedules."""
    if target.kind.name != "opencl" or target.attrs.get("device") != "cpu":
        return "default"
    import tvm
    from tvm.relax.backend import gpu_generic as gpu
    from tvm.s_tir import dlight

    legalize = tvm.relax.transform.LegalizeOps({_CONVOLUTION: _convolution})
    _, *fuse, default = gpu.legalize_passes(target)
    passes = [
        *gpu.library_dispatch_passes(target), legalize, *fuse, dlight.ApplyDefaultSchedule(Products()), default,
        *gpu.dataflow_lower_passes(target), *gpu.finalize_passes(target),
    ]  # fmt: skip

    def run(program: Any, _context: Any) -> Any:
        with target:
            return tvm.transform.Sequential(passes)(program)

    return tvm.transform.module_pass(run, opt_level=0)


def _convolution(builder: Any, call: Any) -> Any:
    """A convolution as a product: its weights, which are constants, with the channels of outputs last."""
    import tvm
    from tvm import te, topi

    data, weights = call.args
    attrs = call.attrs
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if layouts != ("NCHW", "OIHW", "NCHW") or not _static(data) or not _static(weights):
        return tvm.ir.Op.get(_CONVOLUTION).get_attr("FLegalize")(builder, call)
    groups = int(attrs.groups)
    parts = (attrs.strides, attrs.dilation, attrs.padding)
    stride, dilation, padding = ([int(each) for each in part] for part in parts)
    outputs, inputs, height, width = (int(each) for each in weights.ty.shape)
    each = outputs // groups

    def last(weights: Any) -> Any:
        split = topi.reshape(weights, (groups, each, inputs, height, width))
        return topi.transpose(split, (0, 2, 3, 4, 1))

    def convolved(data: Any, weights: Any) -> Any:
        top, left, bottom, right = padding
        if any(padding):
            data = topi.nn.pad(data, (0, 0, top, left), (0, 0, bottom, right), name="padded")
        batch, _, rows, columns = data.shape
        rows = (rows - dilation[0] * (height - 1) - 1) // stride[0] + 1
        columns = (columns - dilation[1] * (width - 1) - 1) // stride[1] + 1
        c, y, x = (te.reduce_axis((0, extent), name) for extent, name in ((inputs, "c"), (height, "y"), (width, "x")))
        sums = te.compute(
            (batch, groups, rows, columns, each),
            lambda n, g, i, j, f: te.sum(
                data[n, g * inputs + c, i * stride[0] + y * dilation[0], j * stride[1] + x * dilation[1]]
                * weights[g, c, y, x, f],
                axis=[c, y, x],
            ),
            name="products",
        )
        shape = (batch, outputs, rows, columns)
        return te.compute(shape, lambda n, f, i, j: sums[n, f // each, i, j, f % each], name="channels_first")

    return builder.call_te(convolved, data, builder.emit(builder.call_te(last, weights)))


def _static(value: Any) -> bool:
    """Whether a tensor of float32 has a known shape."""
    shape = value.ty.shape
    return str(value.ty.dtype) == "float32" and shape is not None and all(hasattr(each, "value") for each in shape)


class Products:
    """A rule of dlight: one sum of products, whose last axis of outputs is contiguous, and elementwise functions.

    A work item has a tile of outputs: vectors of the last axis, of several rows where there are. It reads each weight
    once, in vectors, and keeps its sums in registers.
    """

    def apply(self, function: Any, _target: Any, _tunable: bool) -> Any:
        """The schedule; None for a function that is another one."""
        from tvm import s_tir

        schedule = s_tir.Schedule(function)
        sums = [block for block in _blocks(schedule) if _reduces(schedule, block)]
        if len(sums) != 1 or not _is_product(schedule, sums[0]) or not _extents(schedule, sums[0]):
            return None
        name = schedule.get(sums[0]).name_hint
        _inline(schedule, name)
        consumers = schedule.get_consumers(sums[0])
        if len(consumers) > 1 or not (tile := _tile(_extents(schedule, sums[0]), _spatial(schedule, sums[0]))):
            return None
        fused = {name, *(schedule.get(block).name_hint for block in consumers)}
        for block in _blocks(schedule):
            if schedule.get(block).name_hint not in fused:
                _elementwise(schedule, block)
        _product(schedule, sums[0], consumers, *tile)
        return schedule


def _blocks(schedule: Any) -> list[Any]:
    return list(schedule.get_child_blocks(schedule.get_sblock("root")))


def _spatial(schedule: Any, block: Any) -> int:
    """The number of a block's axes of outputs; 0 where they do not come first, or loops are none of its axes."""
    kinds = [int(each.iter_type) == _REDUCE for each in schedule.get(block).iter_vars]
    return kinds.count(False) if kinds == sorted(kinds) and len(kinds) == len(schedule.get_loops(block)) else 0


def _reduces(schedule: Any, block: Any) -> bool:
    return any(int(each.iter_type) == _REDUCE for each in schedule.get(block).iter_vars)


def _is_product(schedule: Any, block: Any) -> bool:
    """Whether a block adds products of numbers."""
    value: Any = getattr(schedule.get(block).body, "value", None)
    return _named(value, "Add") and _named(value.b, "Mul") and str(value.ty.dtype) == "float32"


def _named(value: Any, *names: str) -> bool:
    return type(value).__name__ in names


def _extents(schedule: Any, block: Any) -> list[int]:
    """The extents of a block's loops; empty where one is symbolic."""
    extents = [schedule.get(loop).extent for loop in schedule.get_loops(block)]
    return [int(each) for each in extents] if all(hasattr(each, "value") for each in extents) else []


def _inline(schedule: Any, name: str) -> None:
    """Merge elementwise blocks into those that read them; a padding stays, lest each product tests its place."""
    from tvm import s_tir

    for block in _blocks(schedule):
        value = getattr(schedule.get(block).body, "value", None)
        if schedule.get(block).name_hint == name or _named(value, "Select", "Call"):
            continue
        try:
            schedule.compute_inline(block)
        except s_tir.ScheduleError:
            continue  # its values are outputs


def _tile(extents: list[int], spatial: int) -> tuple[int, int, int] | None:
    """Rows and outputs of a row in a work item, and the lanes of its vectors; None where no vector fits."""
    if spatial == 0:
        return None
    rows, width = (extents[spatial - 2] if spatial > 1 else 1), extents[spatial - 1]
    lanes = next((lanes for lanes in _LANES if width % lanes == 0), 0)
    if not lanes:
        return None
    wide = _divisor(width // lanes, (_WIDE if rows == 1 else _NARROW) // lanes) * lanes
    return _divisor(rows, _TILE // wide), wide, lanes


def _divisor(number: int, most: int) -> int:
    """The largest divisor that is at most so large."""
    return next(each for each in range(min(number, most), 0, -1) if number % each == 0)


def _product(schedule: Any, block: Any, consumers: list[Any], rows: int, wide: int, lanes: int) -> None:
    spatial = _spatial(schedule, block)
    if consumers:
        schedule.set_scope(block, 0, "local")
        after = consumers[0]
    else:
        after = schedule.cache_write(block, 0, "local")
    loops = schedule.get_loops(block)
    outer, last, reduce = list(loops[: spatial - 1]), loops[spatial - 1], loops[spatial:]
    inner = []
    if outer:
        first, row = schedule.split(outer.pop(), [None, rows])
        outer.append(first)
        inner.append(row)
    columns, vectors, lane = schedule.split(last, [None, wide // lanes, lanes])
    schedule.reorder(*outer, columns, *reduce, *inner, vectors, lane)
    # Work items of the same columns are neighbours: they read the same weights.
    schedule.reorder(columns, *outer)
    item = schedule.fuse(columns, *outer)
    schedule.bind(item, "blockIdx.x")
    schedule.reverse_compute_at(after, item)
    for each in (*inner, vectors):
        schedule.unroll(each)
    schedule.vectorize(lane)
    start = schedule.decompose_reduction(block, reduce[0])
    for each in (start, after):
        own = schedule.get_loops(each)[1:]
        if each is start:
            *own, lane = own
            schedule.vectorize(lane)
        else:
            *own, wide_loop = own
            vectors, lane = schedule.split(wide_loop, [None, lanes])
            schedule.vectorize(lane)
            own.append(vectors)
        for loop in own:
            schedule.unroll(loop)


def _elementwise(schedule: Any, block: Any) -> None:
    """A loop over the last axis for each work item."""
    loops = list(schedule.get_loops(block))
    item = schedule.fuse(*loops[:-1]) if len(loops) > 1 else schedule.split(loops[0], [None, 1])[0]
    schedule.bind(item, "blockIdx.x")
