"""Calls both ways: results, errors, and that nothing is left behind."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest

from rpcsys.errors import NativeError
from rpcsys.ffi import functions
from rpcsys.ffi.module import Library
from rpcsys.ffi.objects import Object
from tests.native import bare

pytestmark = pytest.mark.usefixtures("tvm_ffi")


def test_calls(native: Library) -> None:
    assert native.function("add")(2, 3) == 5
    assert native.function("add")(0.5, 1.0) == 1.5


def test_an_error_says_kind_and_message(native: Library) -> None:
    with pytest.raises(NativeError, match="two numbers of one type") as caught:
        native.function("add")(2, 3.0)
    assert caught.value.kind == "ValueError"
    with pytest.raises(NativeError, match=r"silent failed with status -1"):
        native.function("silent")()


def test_an_exception_of_pythons_comes_through_native_code() -> None:
    def deep():
        raise LookupError("nothing there")

    with pytest.raises(NativeError, match="nothing there") as caught:
        functions.wrap(deep)()
    assert caught.value.kind == "LookupError"
    assert "in deep" in caught.value.backtrace
    inner = functions.wrap(deep)
    outer = functions.wrap(lambda value: inner() or value)
    with pytest.raises(NativeError, match="nothing there") as caught:
        outer(1)
    assert caught.value.kind == "LookupError"


def test_a_wrong_number_of_arguments_is_an_error() -> None:
    with pytest.raises(NativeError, match="positional argument"):
        functions.wrap(lambda: None)(1)


def test_a_global_function_is_registered_and_replaced() -> None:
    functions.register("rpcsys.test.one", lambda: 1)
    assert functions.get_global("rpcsys.test.one")() == 1
    functions.register("rpcsys.test.one", lambda: 2)
    assert functions.get_global("rpcsys.test.one")() == 2
    functions.get_global("ffi.FunctionRemoveGlobal")("rpcsys.test.one")
    with pytest.raises(NativeError, match=r"rpcsys\.test\.one"):
        functions.get_global("rpcsys.test.one")


def test_closures_cross() -> None:
    add_to = functions.wrap(lambda left: lambda right: left + right)
    assert add_to(10)(5) == 15
    assert functions.wrap(lambda function, value: function(value))(lambda value: value * 2, 21) == 42


def test_a_function_is_let_go_when_nobody_has_it() -> None:
    class Callable:
        def __call__(self):
            return None

    value = Callable()
    gone = weakref.ref(value)
    gc.collect()
    before = functions.held()
    native = functions.wrap(value)
    del value
    gc.collect()
    assert gone() is not None
    assert functions.held() == before + 1
    assert native.references == 1
    del native
    gc.collect()
    assert gone() is None
    assert functions.held() == before


def test_references_are_counted() -> None:
    made = functions.get_global("ffi.Array").raw(1, 2, 3)
    assert type(made) is Object
    assert made.references == 1
    kept = functions.wrap(lambda value: value)
    kept.raw(made)
    assert made.references == 1
    again = kept.raw(made)
    assert made.references == 1  # a tuple was made of it on the way
    assert again.references == 1


def test_calls_from_other_threads(native: Library) -> None:
    add, failed = native.function("add"), []

    def work(number: int) -> None:
        for index in range(300):
            if add(number, index) != number + index:
                failed.append((number, index))
            with pytest.raises(NativeError, match="one type"):
                add(number, 0.5)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


LEAK = """
import array, gc, os, sys
from rpcsys.errors import NativeError
from rpcsys.ffi import functions, library, tensors
from rpcsys.ffi.module import Library
library.use(sys.argv[1])
native = Library(sys.argv[2]) if library.api() else None
x, y = (array.array("f", bytes(4 * 1024)) for _ in range(2))
echo, describe, add = functions.wrap(lambda value: value), native.function("describe"), native.function("add")
out = array.array("q", bytes(128))
fail = functions.wrap(lambda: 1 / 0)

def work(count):
    for index in range(count):
        describe(x, out)
        echo("a string that needs an object of its own")
        echo(b"bytes that need an object of their own")
        if not index % 10:
            echo((x, [1, "two"], {"three": y}))
            echo(x).data
            echo(lambda: None)
            for bad in (fail, lambda: add(1, 2.0)):
                try:
                    bad()
                except NativeError:
                    pass

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

work(5000)
before = resident()
work(100_000)
print(resident() - before, tensors.lent(), functions.held())
"""


@pytest.mark.slow
def test_no_leak_in_100_000_calls(board, functions_so, tvm_libraries, record_property) -> None:
    grown, lent, held = map(int, bare(board, LEAK, tvm_libraries, functions_so).split())
    record_property("bytes grown in 100,000 rounds", grown)
    assert lent == 0
    assert held == 2  # the two that the script itself keeps
    assert grown < 1 << 20
