"""The process of `tests.device.Device`. Standard library only, Python 3.8 and later, as on a bare board.

``device_process.py OPTIONS`` is one session's process. ``device_process.py --fork FD`` forks one for each message
on the socket, as a zygote does; a message is options, with the child's standard output and error and a listener.
"""

import gc
import importlib.abc
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
from pathlib import Path

FORKS = sys.argv[1] == "--fork"
options = {"hide": []} if FORKS else json.loads(sys.argv[1])


class Hidden(importlib.abc.MetaPathFinder):
    """Packages that this device does not have."""

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in options["hide"]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


sys.meta_path.insert(0, Hidden())
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rpcsys import stream  # noqa: E402 - found only now
from rpcsys.module import placement  # noqa: E402
from rpcsys.module.kinds.graph import GraphStage, graph  # noqa: E402
from rpcsys.module.module import Module, running_call  # noqa: E402
from rpcsys.server.sandbox.messages import Job  # noqa: E402
from rpcsys.server.session import watchdog  # noqa: E402
from rpcsys.server.session.registry import register  # noqa: E402
from rpcsys.server.session.session import serve  # noqa: E402
from rpcsys.wire import handshake  # noqa: E402

dropped = []


class Kept:
    """A callable that records when it is freed."""

    def __init__(self, name):
        self.name = name

    def __call__(self, *args):
        return self.name, list(args)

    def __del__(self):
        dropped.append(self.name)


class Mute(Exception):
    def __str__(self):
        raise ValueError


@register("test.kept")
def _kept(name):
    return Kept(name)


@register("test.dropped")
def _dropped():
    return sorted(dropped)


@register("test.counter")
def _counter(count):
    def more(by):
        nonlocal count
        count += by
        return count

    return {"add": more, "name": "counter"}


@register("test.fill")
def _fill(target, byte):
    view = memoryview(getattr(target, "data", target)).cast("B")
    before = bytes(view)
    view[:] = bytes([byte]) * len(view)
    return before


@register("test.fill_many")
def _fill_many(targets, last):
    for number, target in enumerate([*targets["list"], targets["one"], last]):
        memoryview(getattr(target, "data", target)).cast("B")[:] = bytes([number]) * 4


@register("test.types")
def _types(*args):
    return [type(arg).__module__ + "." + type(arg).__name__ for arg in args]


@register("test.gate")
def _gate(path):
    while not os.path.exists(path):
        time.sleep(0.0002)


@register("test.divide")
def divide(one, other):
    return one / other


@register("test.division_errors")
def _division_errors():
    return sum(isinstance(each, ZeroDivisionError) for each in gc.get_objects())


@register("test.exit")
def _exit(code):
    sys.exit(code)


@register("test.interrupt")
def _interrupt():
    raise KeyboardInterrupt


@register("test.mute")
def _mute():
    raise Mute


@register("test.endless")
def _endless():
    return _endless()


kept_arrays = []


@register("test.keep")
def _keep(array):
    kept_arrays.append(array)


@register("test.kept_arrays")
def _kept_arrays():
    return [bytes(memoryview(array).cast("B")) for array in kept_arrays]


class ChipArray(placement.DeviceArray):
    """A number in the memory of a simulated chip."""

    dtype, shape, nbytes = "float64", (), 8

    def __init__(self, device, value):
        self.device, self.value = device, value

    def to_host(self):
        return self.value


class Chip(Module):
    """A simulated chip: its functions take a while, and give arrays in its memory."""

    def __init__(self, device):
        functions = {"main": self._main, "deaf": self._deaf, "fail": self._fail, "exit": sys.exit}
        super().__init__("chip", functions)
        self.device = device

    def _main(self, value, seconds=0.0):
        stopped = threading.Event()
        with running_call.stopped_by(stopped.set):
            if stopped.wait(seconds):
                raise RuntimeError("stopped")
        return self._result(value)

    def _deaf(self, value, seconds):
        time.sleep(seconds)
        return self._result(value)

    def _fail(self, value):
        raise RuntimeError(f"{self.device} failed on {value}")

    def _result(self, value):
        given = value.to_host() if isinstance(value, ChipArray) else value
        return ChipArray(self.device, given + 1) if self.device else given + 1


@register("test.chip")
def _chip(device):
    return Chip(device)


@register("test.chips")
def _chips(*devices):
    """A graph with a stage on each of these devices; each takes as many seconds as the graph is told."""
    stages = []
    for number, device in enumerate(devices):
        stage = Module("stage", {"main": Chip(device)._main})
        stage.device = device
        names = [f"x{number}", "seconds"], [f"x{number + 1}"]
        stages.append(GraphStage(f"stage{number}", stage, *names))
    made = graph(stages, [{"name": "x0"}, {"name": "seconds"}], [{"name": f"x{len(devices)}"}])
    made.link()
    return made


@register("test.fork")
def _fork():
    child = os.fork()
    if not child:
        os._exit(7)
    return os.WEXITSTATUS(os.waitpid(child, 0)[1])


@register("test.unsendable")
def _unsendable():
    return [1, object()]


@register("test.named")
def _named(first, second):
    import collections

    return collections.namedtuple("Pair", "first second")(first, second)  # noqa: PYI024


@register("test.file_limit")
def _file_limit(size):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


@register("test.zeros")
def _zeros(size):
    return memoryview(bytearray(size))


@register("test.transposed")
def _transposed(array, wanted):
    return array.T if wanted else array


@register("test.most_moved")
def _most_moved(size):
    watchdog.MOST_MOVED = size


@register("test.sleep")
def _sleep(seconds):
    Path("running").touch()
    time.sleep(seconds)


@register("test.stoppable")
def _stoppable(seconds):
    """Sleeps until it is stopped, and then raises."""
    stopped = threading.Event()
    with running_call.stopped_by(stopped.set):
        Path("running").touch()
        if stopped.wait(seconds):
            raise RuntimeError("stopped")


@register("test.compute")
def _compute(seconds):
    """Computes for ``seconds``, and releases the interpreter only now and then."""
    Path("running").touch()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(10000))


def greeted(listener):
    """The only connection, after its greeting."""
    sock, _ = listener.accept()
    listener.close()
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    reader = handshake.OpeningReader()
    while reader.needed:
        data = sock.recv(reader.needed)
        if not data:
            os._exit(0)
        reader.receive(data)
    return sock


def forked(control):
    """Returns in each child, with its options; the parent exits at the end of ``control``."""
    while True:
        data, fds, _, _ = socket.recv_fds(control, 1 << 20, 3)
        if not data:
            os._exit(0)
        child = os.fork()
        if not child:
            return _begun(control, json.loads(data), *fds)
        pidfd = os.pidfd_open(child)
        socket.send_fds(control, [b"%d" % child], [pidfd])
        for fd in (pidfd, *fds):
            os.close(fd)
        _reap()


def _begun(control, asked, stdout, stderr, listener):
    control.close()
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.close(stdout)
    os.close(stderr)
    os.environ.clear()
    os.environ.update(asked["environ"])
    return {**asked, "fd": listener}


def _reap():
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def main(options):
    stream.SPEEDUPS = options["speedups"] and stream.speedups is not None
    sock = greeted(socket.socket(fileno=options["fd"]))
    os.chdir(options["workdir"])
    ours = handshake.Options(session=handshake.SESSION)
    job = Job(
        kind="rpcsys/1",
        reply=handshake.encode_greeting(handshake.Greeting(handshake.SERVER, "key", ours)),
        workdir=options["workdir"],
        key="key",
        peer="test",
        limit_s=options["limit_s"],
        options=options["job"],
        matchkey=options.get("matchkey", ""),
        seed=options.get("seed", ""),
    )
    outcome = serve(sock, job, lambda told: print(json.dumps(told), flush=True))
    print(json.dumps({"served": outcome}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    if FORKS:
        options = forked(socket.socket(fileno=int(sys.argv[2])))
    main(options)
