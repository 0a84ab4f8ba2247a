"""One module: its functions, its imports' functions, and closing it."""

from __future__ import annotations

import re
import weakref
from typing import ClassVar

import pytest

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.module.module import Module, walk


def test_functions_by_name():
    module = Module("testing", {"main": lambda x, y=0: x + y, "other": lambda: 7})
    assert module(1, 2) == module["main"](1, 2) == module.function("main")(1, 2) == 3
    assert module["other"]() == 7
    assert module.functions == ["main", "other"]
    assert repr(module) == "<module testing (main, other)>"


def test_functions_are_looked_up_in_the_imports_in_order():
    deep = Module("testing", {"deep": lambda: "deep", "both": lambda: "deep"})
    first = Module("testing", {"first": lambda: 1}, [deep])
    second = Module("testing", {"both": lambda: "second", "main": lambda: "second"})
    root = Module("testing", {"own": lambda: 0}, [first, second])
    assert root.functions == ["own", "first", "deep", "both", "main"]
    assert (root["deep"](), root["both"](), root()) == ("deep", "deep", "second")
    assert list(walk(root)) == [root, first, deep, second]


def test_an_unknown_function_is_an_error():
    module = Module("testing", {f"f{i}": print for i in range(30)})
    with pytest.raises(RemoteFunctionError, match=r"no function 'g'; it has f0, f1, .*f19, …$"):
        module["g"]
    with pytest.raises(RemoteFunctionError, match="it has none"):
        Module("testing")()


def test_run_takes_and_returns_arrays_by_name():
    inputs = [{"name": "x", "dtype": "int64", "shape": []}, {"name": "y", "dtype": "int64", "shape": []}]
    one = Module("testing", {"main": lambda x, y: x - y}, inputs=inputs)
    assert one.run({"y": 1, "x": 5}) == {"output": 4}
    two = Module("testing", {"main": lambda x, y: (x, y)}, inputs=inputs, outputs=[{"name": "a"}, {"name": "b"}])
    assert two.run({"y": 1, "x": 5}) == {"a": 5, "b": 1}
    assert two.run({"y": 1, "x": 5}, ["b"]) == {"b": 1}
    assert Module("testing", imports=[two]).run({"y": 1, "x": 5}, ["a"]) == {"a": 5}
    sequence = Module("testing", {"main": lambda x, y: [x, y]}, inputs=inputs, outputs=[{"name": "s"}])
    assert sequence.run({"y": 1, "x": 5}) == {"s": [5, 1]}
    with pytest.raises(RemoteArgumentError, match="no output 'c'; it has a, b"):
        two.run({"x": 1, "y": 1}, ["c"])
    with pytest.raises(RemoteArgumentError, match="main takes x, y, and got x, z"):
        two.run({"x": 1, "z": 1})
    with pytest.raises(RemoteArgumentError, match="by place, not by name"):
        Module("testing", {"main": print}).run({})


@pytest.mark.parametrize("inputs", [[1, 2], 3, "x", None], ids=repr)
def test_inputs_without_names_are_refused(inputs):
    module = Module("testing", {"main": print}, inputs=[{"name": "x"}])
    text = rf"^inputs are given by name, such as {{'x': array}}, not as {type(inputs).__name__}; or call the module"
    with pytest.raises(RemoteArgumentError) as caught:
        module.run(inputs)
    assert re.match(text, caught.value.args[0])


def test_outputs_are_names_or_one_name():
    module = Module(
        "testing", {"main": lambda x: (x, 2)}, inputs=[{"name": "x"}], outputs=[{"name": "yy"}, {"name": "z"}]
    )
    assert module.run({"x": 1}, "yy") == module.run({"x": 1}, ("yy",)) == {"yy": 1}
    with pytest.raises(
        RemoteArgumentError, match=r"outputs are given as a list of names, such as .* not as int; leave"
    ):
        module.run({"x": 1}, 3)
    with pytest.raises(RemoteFunctionError, match="no function '3'"):
        module[3]


def test_the_description_for_clients():
    main = Module("testing", {"main": print}, inputs=[{"name": "x"}], outputs=[{"name": "y"}])
    assert Module("group", imports=[main]).describe() == {
        "kind": "group",
        "functions": ["main"],
        "inputs": [{"name": "x"}],
        "outputs": [{"name": "y"}],
    }
    assert Module("empty").describe() == {"kind": "empty", "functions": [], "inputs": [], "outputs": []}


def test_a_dropped_module_is_freed_without_the_garbage_collector():
    class Method(Module):
        METHODS: ClassVar = {"main": "run_it"}

        def run_it(self):
            return 1

    module = Module("testing", imports=[Method("testing")])
    assert (module(), module.functions) == (1, ["main"])
    gone = [weakref.ref(each) for each in walk(module)]
    del module
    assert [each() for each in gone] == [None, None]


def test_closing_ends_the_whole_tree_once():
    class Counted(Module):
        released = 0

        def release(self):
            self.released += 1

    shared = Counted("testing", {"f": print})
    root = Counted("testing", imports=[Counted("testing", imports=[shared]), shared])
    with root:
        pass
    root.close()
    assert [module.released for module in walk(root)] == [1, 1, 1]
    with pytest.raises(RemoteFunctionError, match="was closed"):
        root["f"]
