# The optional C library, of native/*.c. `rpcsys.stream` chooses whether it is used.

from collections.abc import Callable, Sequence, Sized
from types import TracebackType
from typing import Any

from typing_extensions import Self

from rpcsys.wire.frames import Buffer, FrameTemplate
from rpcsys.wire.frames import Frame as PythonFrame
from rpcsys.wire.head import ParsedHead
from rpcsys.wire.limits import Limits

INTERFACE: int

def drop_idle_memory() -> None: ...

class Block:
    def __len__(self) -> int: ...

class Frame:
    kind: int
    flags: int
    deadline_ms: int
    call_id: int
    parsed: ParsedHead
    buffers: Sequence[Any]  # memoryviews
    def buffer(self, index: int) -> Block: ...

class Lock:
    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool: ...
    def release(self) -> None: ...
    def locked(self) -> bool: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

class Stream:
    fd: int
    last_id: int
    unread: int
    missing: int
    torn: bool
    late: BaseException | None
    sending: Sequence[Buffer] | None
    sent: int
    def __new__(
        cls,
        fd: int,
        limits: Limits,
        parse: Callable[[bytes], ParsedHead],
        ended: type[Exception],
        frame_type: type[Frame],
        tunnel: tuple[object, ...] = ...,
    ) -> Self: ...
    @property
    def held(self) -> bool: ...
    @property
    def moved(self) -> int: ...
    def tail(self) -> bytes: ...
    def next_id(self) -> int: ...
    def settle(self) -> None: ...
    def receive(self, flags: int = 0, most: int = 0) -> PythonFrame | None: ...
    def next(self) -> PythonFrame | None: ...
    def skip(self, kind: int) -> tuple[int, bytes]: ...
    def send(
        self,
        pieces: Sequence[Buffer],
        on_full: Callable[[], None] | None = None,
        patient: bool = False,
        begun: Callable[[], None] | None = None,
    ) -> None: ...

class Exchange:
    def __new__(
        cls,
        stream: Stream,
        send_lock: Lock,
        read_lock: Lock,
        templates: dict[Any, FrameTemplate],
        idle: tuple[Sized, ...],
        sleepers: Sized,
        wake: Callable[[], None],
        on_full: Callable[[], None],
        take_over: Callable[[int, Frame | None, BaseException | None, bool], Frame],
    ) -> Self: ...
    def encode(self, about: tuple[Any, ...], rows: list[tuple[Any, ...]]) -> tuple[bytes, int] | None: ...

class FunctionBase:
    def _bind(self, exchange: Exchange | None, about: tuple[Any, ...]) -> None: ...
    def __call__(self, *args: Any, **options: Any) -> Any: ...

class CallLoop:
    call: Frame
    turn: int
    asleep: bool
    reading: bool
    def __new__(
        cls,
        stream: Stream,
        send_lock: Lock,
        read_lock: Lock,
        templates: dict[Any, FrameTemplate],
        waiting: tuple[Sized, ...],
        held: list[bytes],
        quick: set[str],
        idle: Frame,
        wake: Callable[[], None],
        nudge: Callable[[], None],
        finish: Callable[[Frame, Any, BaseException | None, int], None],
        flush: Callable[[], None],
        on_full: Callable[[], None],
    ) -> Self: ...
    def receive(self) -> Frame | None: ...
