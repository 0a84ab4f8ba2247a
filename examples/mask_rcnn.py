"""A network with the structure of Mask R-CNN: a ResNet-50 with a feature pyramid, proposals, a box and a mask head.

After He et al., arXiv:1703.06870, and Lin et al., arXiv:1612.03144, with ONNX operators only (RoiAlign,
NonMaxSuppression) and random weights: its results mean nothing; its tensors and its work are those of the real network.
For fixed shapes up to the last step, the number of proposals is constant, each proposal gets a mask, and boxes are
refined in the same way for all classes. Normalisation is folded into the convolutions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rpcsys.errors import UsageError

#: The cut between backbone and heads, for `rpcsys.graph.split`: each proposal's features and box cross it.
CUT = ("roi_features", "proposals")
CLASSES = 80
_BLOCKS = (3, 4, 6, 3)  # ResNet-50: the bottlenecks of its four parts
_ANCHORS = 3  # per cell, with the ratios of width to height 1:2, 1:1 and 2:1
_CANDIDATES = 1000  # the best anchors, for the first suppression
_ROI, _MASK = 7, 28  # the cells along a side of a proposal's features and of its mask
_IMAGE_MEAN, _IMAGE_SPREAD = 114.0, 58.0
_WORST_RATIO = math.log(1000 / 16)  # the log of the largest ratio of a refined box's side to its anchor's


@dataclass
class _Builder:
    """Collects nodes and weights; each method returns the name of its output."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    _shared: dict[str, tuple[str, str]] = field(default_factory=dict)

    def op(self, kind: str, *inputs: str, name: str = "", outputs: int = 1, **attributes: Any) -> Any:
        made = name or f"{kind.lower()}_{len(self.nodes)}"
        names = [made] + [f"{made}.{i}" for i in range(1, outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=f"n_{made}", **attributes))
        return made if outputs == 1 else names

    def constant(self, values: Any, dtype: Any = np.float32) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype), name))
        return name

    def random(self, shape: Sequence[int], gain: float) -> str:
        """Random weights that keep the variance through a layer and its Relu, times ``gain``."""
        spread = np.float32(gain * math.sqrt(2.0 / math.prod(shape[1:])))
        return self.constant(self.rng.standard_normal(shape, dtype=np.float32) * spread)

    def conv(
        self, x: str, inner: int, outer: int, size: int, *, stride: int = 1, gain: float = 1.0, shared: str = ""
    ) -> str:
        """A convolution with a bias; convolutions with the same name ``shared`` share their weights."""
        if not shared or shared not in self._shared:
            made = self.random((outer, inner, size, size), gain), self.constant(np.zeros(outer))
            if shared:
                self._shared[shared] = made
        weight, bias = self._shared[shared] if shared else made
        edge = size // 2
        return str(self.op("Conv", x, weight, bias, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[edge] * 4))

    def dense(self, x: str, inner: int, outer: int, gain: float = 1.0) -> str:
        return str(self.op("Gemm", x, self.random((outer, inner), gain), self.constant(np.zeros(outer)), transB=1))

    def relu(self, x: str) -> str:
        return str(self.op("Relu", x))

    def reshape(self, x: str, *shape: int) -> str:
        return str(self.op("Reshape", x, self.constant(shape, np.int64)))

    def cut(self, x: str, start: int, end: int, axis: int = -1) -> str:
        bounds = [self.constant([bound], np.int64) for bound in (start, end, axis)]
        return str(self.op("Slice", x, *bounds))


def mask_rcnn(size: int = 512, proposals: int = 84, width: float = 1.0, seed: int = 0) -> onnx.ModelProto:
    """The network for one image of ``size`` by ``size`` (a multiple of 64), with seeded random weights.

    Its input ``image`` is uint8 ``[1, 3, size, size]``. Its outputs, D objects of at most 100: ``boxes``
    float32 ``[D, 4]`` (x1, y1, x2, y2 in pixels), ``labels`` int64 ``[D]``, ``scores`` float32 ``[D]``, ``masks``
    float32 ``[D, 28, 28]``. ``width`` scales its channels, and so its work, for tests. `CUT` divides it between
    backbone and heads.

    Raises
    ------
    UsageError : ``size`` is not a multiple of 64
    """
    if size < 64 or size % 64:
        raise UsageError(f"an image's size is a multiple of 64, not {size}")
    build = _Builder(np.random.default_rng(seed))
    channels = max(8, int(256 * width))
    pyramid = _pyramid(build, _backbone(build, width), channels)
    boxes = _proposals(build, pyramid, channels, size, proposals)
    features = _roi_features(build, pyramid[:4], boxes, size)
    _heads(build, features, boxes, channels, size, proposals, max(16, int(1024 * width)))
    free = [("boxes", 4), ("labels",), ("scores",), ("masks", _MASK, _MASK)]
    graph = helper.make_graph(
        build.nodes,
        "mask_rcnn",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, [1, 3, size, size])],
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT64 if name == "labels" else TensorProto.FLOAT, ["objects", *shape]
            )
            for name, *shape in free
        ],
        build.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return model


# ------------------------------------------------------------------ backbone


def _backbone(build: _Builder, width: float) -> list[tuple[str, int]]:
    """The outputs of the ResNet's four parts, with their channels: 1/4, 1/8, 1/16 and 1/32 of the image."""
    image = build.op("Cast", "image", to=TensorProto.FLOAT)
    image = build.op("Sub", image, build.constant(_IMAGE_MEAN))
    image = build.op("Div", image, build.constant(_IMAGE_SPREAD))
    base = max(4, int(64 * width))
    x = build.relu(build.conv(image, 3, base, 7, stride=2))
    x = build.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    inner, outputs = base, []
    for part, blocks in enumerate(_BLOCKS):
        middle = base << part
        for block in range(blocks):
            x = _bottleneck(build, x, inner, middle, 2 if part and not block else 1)
            inner = middle * 4
        outputs.append((x, inner))
    return outputs


def _bottleneck(build: _Builder, x: str, inner: int, middle: int, stride: int) -> str:
    outer = middle * 4
    y = build.relu(build.conv(x, inner, middle, 1))
    y = build.relu(build.conv(y, middle, middle, 3, stride=stride))
    # A gain below one: the residual sums would otherwise grow with every block.
    y = build.conv(y, middle, outer, 1, gain=0.4)
    skip = x if inner == outer else build.conv(x, inner, outer, 1, stride=stride, gain=0.8)
    return build.relu(build.op("Add", y, skip))


def _pyramid(build: _Builder, parts: list[tuple[str, int]], channels: int) -> list[str]:
    """P2 to P6: the parts with equal channels, each plus the upsampled coarser level."""
    merged = ""
    levels: list[str] = []
    scales = build.constant([1, 1, 2, 2])
    for x, inner in reversed(parts):
        lateral = build.conv(x, inner, channels, 1, gain=0.7)
        if merged:
            finer = build.op("Resize", merged, "", scales, mode="nearest")
            merged = build.op("Add", lateral, finer)
        else:
            merged = lateral
        levels.insert(0, build.conv(merged, channels, channels, 3, gain=0.1))
    return [*levels, build.op("MaxPool", levels[-1], kernel_shape=[1, 1], strides=[2, 2])]


# ------------------------------------------------------------------ proposals


def _proposals(build: _Builder, pyramid: list[str], channels: int, size: int, count: int) -> str:
    """``[count, 4]``: the best refined anchors after non-maximum suppression."""
    scores, deltas, anchors = [], [], []
    for level, x in enumerate(pyramid):
        cells = size >> (level + 2)
        x = build.relu(build.conv(x, channels, channels, 3, shared="rpn"))
        score = build.conv(x, channels, _ANCHORS, 1, shared="rpn.score")
        delta = build.conv(x, channels, _ANCHORS * 4, 1, gain=0.3, shared="rpn.delta")
        scores.append(build.reshape(build.op("Transpose", score, perm=[0, 2, 3, 1]), -1))
        deltas.append(build.reshape(build.op("Transpose", delta, perm=[0, 2, 3, 1]), -1, 4))
        anchors.append(_anchors(cells, size / cells))
    every = np.concatenate(anchors)
    best = build.constant([min(_CANDIDATES, len(every))], np.int64)
    score, index = build.op("TopK", build.op("Concat", *scores, axis=0), best, outputs=2)
    delta = build.op("Gather", build.op("Concat", *deltas, axis=0), index)
    anchor = build.op("Gather", build.constant(every), index)
    boxes = _refined(build, anchor, delta, size)
    kept = build.op(
        "NonMaxSuppression",
        build.op("Unsqueeze", boxes, build.constant([0], np.int64)),
        build.reshape(score, 1, 1, -1),
        build.constant([count], np.int64),
        build.constant([0.7]),
    )
    # If fewer remain, the best anchors fill up: the number of proposals is constant.
    chosen = build.op(
        "Concat", build.reshape(build.cut(kept, 2, 3), -1), build.constant(range(count), np.int64), axis=0
    )
    chosen = build.reshape(build.cut(chosen, 0, count, axis=0), count)
    return str(build.op("Gather", boxes, chosen, name="proposals"))


def _anchors(cells: int, stride: float) -> np.ndarray[Any, Any]:
    """``[cells * cells * 3, 4]`` boxes around the middle of each cell, eight cells wide."""
    middle = (np.arange(cells) + 0.5) * stride
    y, x = np.meshgrid(middle, middle, indexing="ij")
    half = [(4 * stride * ratio**0.5, 4 * stride / ratio**0.5) for ratio in (0.5, 1.0, 2.0)]
    boxes = [np.stack([x - w, y - h, x + w, y + h], axis=-1) for w, h in half]
    return np.stack(boxes, axis=2).reshape(-1, 4).astype(np.float32)


def _refined(build: _Builder, boxes: str, deltas: str, size: int) -> str:
    """Boxes moved by (dx, dy) times their size, scaled by exp(dw, dh), and clipped to the image."""
    low, high = build.cut(boxes, 0, 2), build.cut(boxes, 2, 4)
    extent = build.op("Sub", high, low)
    middle = build.op("Mul", build.op("Add", low, high), build.constant(0.5))
    middle = build.op("Add", middle, build.op("Mul", build.cut(deltas, 0, 2), extent))
    ratio = build.op("Clip", build.cut(deltas, 2, 4), "", build.constant(_WORST_RATIO))
    half = build.op("Mul", build.op("Mul", build.op("Exp", ratio), extent), build.constant(0.5))
    corners = build.op("Concat", build.op("Sub", middle, half), build.op("Add", middle, half), axis=-1)
    return str(build.op("Clip", corners, build.constant(0.0), build.constant(float(size))))


def _roi_features(build: _Builder, pyramid: list[str], boxes: str, size: int) -> str:
    """``[N, channels, 7, 7]``: each proposal's features, from the level that fits its extent (equation 1 of the
    pyramid's paper: P4 for 224 pixels, one level for each factor of two).
    """
    extent = build.op("Sub", build.cut(boxes, 2, 4), build.cut(boxes, 0, 2))
    area = build.op("Mul", build.cut(extent, 0, 1), build.cut(extent, 1, 2))
    octave = build.op("Div", build.op("Log", build.op("Max", area, build.constant(1.0))), build.constant(math.log(4)))
    level = build.op("Floor", build.op("Add", octave, build.constant(4 - math.log2(224))))
    level = build.reshape(build.op("Clip", level, build.constant(2.0), build.constant(5.0)), -1, 1, 1, 1)
    batch = build.op("Mul", build.op("Shape", boxes, end=1), build.constant([0], np.int64))
    batch = build.op("Expand", batch, build.op("Shape", boxes, end=1))
    found = []
    for place, x in enumerate(pyramid):
        sampled = build.op(
            "RoiAlign",
            x,
            boxes,
            batch,
            output_height=_ROI,
            output_width=_ROI,
            sampling_ratio=2,
            spatial_scale=1 / (4 << place),
        )
        fits = build.op("Equal", level, build.constant(place + 2.0))
        found.append(build.op("Where", fits, sampled, build.constant(0.0)))
    return str(build.op("Sum", *found, name="roi_features"))


# ------------------------------------------------------------------ heads


def _heads(build: _Builder, features: str, boxes: str, channels: int, size: int, count: int, hidden: int) -> None:
    """The class, refined box and mask of each proposal, after non-maximum suppression."""
    x = build.op("Flatten", features)
    x = build.relu(build.dense(x, channels * _ROI * _ROI, hidden))
    x = build.relu(build.dense(x, hidden, hidden))
    classes = build.op("Softmax", build.dense(x, hidden, CLASSES + 1, gain=2.0), axis=-1)
    scores = build.op("Transpose", build.cut(classes, 1, CLASSES + 1), perm=[1, 0])  # class 0 is the background
    refined = _refined(build, boxes, build.dense(x, hidden, 4, gain=0.1), size)
    kept = build.op(
        "NonMaxSuppression",
        build.op("Unsqueeze", refined, build.constant([0], np.int64)),
        build.reshape(scores, 1, CLASSES, count),
        build.constant([2], np.int64),
        build.constant([0.5]),
        build.constant([0.05]),
    )
    kept = build.cut(kept, 0, 100, axis=0)
    label, place = build.reshape(build.cut(kept, 1, 2), -1), build.reshape(build.cut(kept, 2, 3), -1)
    where = build.cut(kept, 1, 3)
    build.op("Gather", refined, place, name="boxes")
    build.op("Identity", label, name="labels")
    build.op("GatherND", scores, where, name="scores")
    masks = build.op("Transpose", _masks(build, features, channels), perm=[1, 0, 2, 3])
    build.op("GatherND", masks, where, name="masks")


def _masks(build: _Builder, features: str, channels: int) -> str:
    """``[N, 80, 28, 28]``: for each class, the cells of a proposal that belong to the object."""
    x = build.op("Resize", features, "", build.constant([1, 1, 2, 2]), mode="nearest")
    for _ in range(4):
        x = build.relu(build.conv(x, channels, channels, 3))
    weight = build.random((channels, channels, 2, 2), 1.0)
    x = build.relu(build.op("ConvTranspose", x, weight, kernel_shape=[2, 2], strides=[2, 2]))
    return str(build.op("Sigmoid", build.conv(x, channels, CLASSES, 1)))
