"""Networks written in Relax, their weights random, and the patterns that mark two regions of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.dpl import is_op, wildcard

Make = Callable[["_Network", Any], Any]


class _Network:
    """A builder whose weights come from a seed for each region, and from seed 0 outside of them."""

    def __init__(self) -> None:
        self.builder = relax.BlockBuilder()
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> Any:
        fan = max(1, int(np.prod(shape[1:])))
        return relax.const((self.random.standard_normal(shape) / np.sqrt(fan)).astype("f4"))

    def conv(self, x: Any, inputs: int, outputs: int, stride: int = 1) -> Any:
        weight = self.weight(outputs, inputs, 3, 3)
        return self.builder.emit(relax.op.nn.conv2d(x, weight, strides=stride, padding=1))

    def relu(self, x: Any) -> Any:
        return self.builder.emit(relax.op.nn.relu(x))

    def dense(self, x: Any, inputs: int, outputs: int) -> Any:
        product = self.builder.emit(relax.op.matmul(x, self.weight(inputs, outputs)))
        return self.builder.emit(relax.op.add(product, self.weight(outputs)))

    def built(self, shape: Sequence[Any], make: Make) -> Any:
        x = relax.Var("x", relax.TensorType(shape, "float32"))
        with self.builder.function("main", [x]):
            with self.builder.dataflow():
                y = self.builder.emit_output(make(self, x))
            self.builder.emit_func_output(y)
        return self.builder.get()


def resnet(seeds: Sequence[int] = (1, 2)) -> Any:
    """Two residual blocks, whose weights come from ``seeds``, each behind a convolution: 1x3x32x32 to 1x10."""

    def make(net: _Network, x: Any) -> Any:
        x = net.relu(net.conv(x, 3, 8, stride=2))
        for seed, channels in zip(seeds, (8, 16), strict=True):
            if channels == 16:
                x = net.relu(net.conv(x, 8, 16, stride=2))
            outside, net.random = net.random, np.random.default_rng(seed)
            y = net.conv(net.relu(net.conv(x, channels, channels)), channels, channels)
            x = net.relu(net.builder.emit(relax.op.add(y, x)))
            net.random = outside
        pooled = net.builder.emit(relax.op.nn.adaptive_avg_pool2d(x, (1, 1)))
        return net.dense(net.builder.emit(relax.op.reshape(pooled, (1, 16))), 16, 10)

    return _Network().built((1, 3, 32, 32), make)


def mlp(seeds: Sequence[int] = (1, 2)) -> Any:
    """Two hidden layers, whose weights come from ``seeds``, between others: any number of rows of 64 to 10 each."""

    def make(net: _Network, x: Any) -> Any:
        for seed in seeds:
            x = net.builder.emit(relax.op.tanh(net.dense(x, 64, 64)))
            outside, net.random = net.random, np.random.default_rng(seed)
            x = net.relu(net.dense(x, 64, 64))
            net.random = outside
        return net.dense(x, 64, 10)

    return _Network().built((tvm.tirx.Var("n", "int64"), 64), make)


def _conv(x: Any) -> Any:
    return is_op("relax.nn.conv2d")(x, wildcard())


def block() -> Any:
    """The pattern of a residual block."""
    x = wildcard()
    relu = is_op("relax.nn.relu")
    return relu(is_op("relax.add")(_conv(relu(_conv(x))), x))


def hidden() -> Any:
    """The pattern of a hidden layer."""
    return is_op("relax.nn.relu")(is_op("relax.add")(is_op("relax.matmul")(wildcard(), wildcard()), wildcard()))


def chain(*operators: Any, shape: tuple = (2, 3)) -> Any:
    """A module of these operators, one after another."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32"))
    with builder.function("main", [x]):
        value: Any = x
        with builder.dataflow():
            for operator in operators:
                value = builder.emit(operator(value))
            value = builder.emit_output(value)
        builder.emit_func_output(value)
    return builder.get()


def whole(mod: Any, *inputs: np.ndarray) -> Any:
    """What TVM's virtual machine makes of a module that is not divided."""
    machine = relax.VirtualMachine(tvm.compile(mod, target="llvm"), tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, inputs)).numpy()
