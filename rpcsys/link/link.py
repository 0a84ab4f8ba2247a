"""A client's or a server's connection to the tracker. A link is for one thread at a time.

Its core does not block, for loops on `selectors`; its blocking methods are for clients. It works with TVM's tracker,
too (``Link.ours``). Of several addresses it finds the one that leads (:mod:`rpcsys.link.trackers`).
"""

from __future__ import annotations

import collections
import math
import time
from typing import TYPE_CHECKING, Any, Callable, Deque, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from rpcsys.errors import Cancelled, ProtocolError, RpcsysError, TrackerLost, Unauthorized
from rpcsys.link import credential as credentials
from rpcsys.link.address import Addresses, parse_tracker
from rpcsys.link.connection import TrackerConnection, error_of
from rpcsys.link.credential import Credential
from rpcsys.wire import tracker

if TYPE_CHECKING:
    from typing_extensions import Self

    from rpcsys.link.trackers import LeaderConnection, Trackers

CAPABILITIES = ("session/1",)
#: Messages kept for `Link.receive` while `Link.ask` waits for its answer, each at most a frame: late ones of a
#: cancelled request.
MAX_UNREAD = 64

Address = Union[str, Tuple[str, int], "Trackers"]


def shared(address: Tuple[str, int]) -> Union[Tuple[str, int], Trackers]:
    """What links to the same tracker have in common, for their owner: of several addresses, what is known of them."""
    if not isinstance(address, Addresses):
        return address
    from rpcsys.link.trackers import Trackers  # for a list alone: memory of a board

    return Trackers(address.all)


class Closeable:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Release the resources. A second call does nothing."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Link(Closeable):
    """One connection to a tracker at ``"host:port"`` or ``(host, port)``, or through the ``proxy`` there.

    Of ``"host:port,host:port"``, or of `Addresses`, the link is with the one that leads; an owner of several links
    makes them of one `shared`. Register its ``fileno()``, call `advance` when that is ready, at ``due`` and also
    regularly, and handle the messages that it returns; or use `open`, `receive`, `ask` and `command`, which block.
    ``user``: the user's name, which nobody checks; ``timeout``: seconds until the tracker must have answered the hello.
    ``credential``: for the tracker's lab; without one, this machine's for the address is used, if it has one
    (`rpcsys.link.credential.for_tracker`). With a credential everything is said inside TLS, to the holder of one of its
    pins. ``joining``: what the hello has in place of the credential's token, such as an invitation and the hash of the
    new token's secret.

    ``follows``: whether there are several addresses.
    """

    def __init__(
        self,
        address: Address,
        *,
        user: Optional[str] = None,
        capabilities: Sequence[str] = CAPABILITIES,
        timeout: float = 5.0,
        proxy: bool = False,
        credential: Optional[Credential] = None,
        joining: Optional[Mapping[str, Any]] = None,
    ) -> None:
        if isinstance(address, str):
            address = parse_tracker(address)
        hello: Dict[str, Any] = {
            "user": user,
            "capabilities": capabilities,
            "joining": joining,
            "credential": credential,
        }
        self._connection: Union[TrackerConnection, LeaderConnection]
        self.follows = isinstance(address, Addresses) or not isinstance(address, tuple)
        if isinstance(address, tuple) and not isinstance(address, Addresses):
            where = address[0], int(address[1])
            self._connection = TrackerConnection(where, timeout=timeout, proxy=proxy, **hello)
        else:
            from rpcsys.link.trackers import LeaderConnection, Trackers

            known = Trackers(address.all, keeps=False) if isinstance(address, Addresses) else address
            self._connection = LeaderConnection(known, timeout=timeout, **hello)
        self._expires = time.monotonic() + timeout
        self._inbox: Deque[Any] = collections.deque()
        self._closed = False
        self._hung_up = False

    @classmethod
    def open(
        cls,
        address: Address,
        *,
        timeout: float = 5.0,
        user: Optional[str] = None,
        credential: Optional[Credential] = None,
        joining: Optional[Mapping[str, Any]] = None,
    ) -> Link:
        """Connect, and wait for the answer to the hello, and until a new token is known that it asks for.

        Raises TrackerUnreachable: no tracker answered within ``timeout`` seconds; `Unauthorized`, `Forbidden`: it does
        not serve this machine; `WrongPin`, `NoTls`: it is not the credential's; `ConfigError`: a credential is damaged.
        """
        link = cls(address, user=user, timeout=timeout, credential=credential, joining=joining)
        try:
            while not link.ready or (link._connection.main.renews and time.monotonic() < link._expires):
                link._pump(link._expires)
        except Unauthorized:
            link.close()
            now = link.credential and credentials.again(link.credential)
            if now == link.credential:
                raise
            return cls.open(address, timeout=timeout, user=user, credential=now)  # another process has renewed it
        except BaseException:
            link.close()
            raise
        return link

    @property
    def ready(self) -> bool:
        """Whether the hello is answered: then messages can be sent."""
        return self._connection.ready and not self._closed

    @property
    def address(self) -> Tuple[str, int]:
        """The tracker's address: of several, the one that leads, or that is tried now."""
        return self._connection.main.address

    @property
    def ours(self) -> Optional[bool]:
        """Whether the tracker is rpcsys's; None until the hello is answered."""
        return self._connection.main.ours

    @property
    def tracker(self) -> Dict[str, Any]:
        """The answer to the hello, from the tracker or from a proxy without one."""
        return self._connection.main.welcome

    @property
    def received(self) -> int:
        """The bytes received."""
        return self._connection.main.received

    @property
    def credential(self) -> Optional[Credential]:
        """The credential in use; None outside of a lab."""
        return self._connection.main.credential

    @property
    def by_spare(self) -> bool:
        """Whether a lab's tracker has proved itself by the second of its pins."""
        return self._connection.main.by_spare

    @property
    def at_once(self) -> bool:
        """Whether its owner connects again without a pause: another replica leads now, or none did in time."""
        return self._connection.at_once

    @property
    def due(self) -> float:
        """When `advance` is to be called at the latest, by the monotonic clock."""
        return self._connection.due

    def fileno(self) -> int:
        """A descriptor that is readable when `advance` has something to do. It never changes."""
        return self._connection.fileno()

    def advance(self) -> List[Any]:
        """Do what is possible without blocking; return the messages that have arrived, as plain JSON.

        Raises TrackerUnreachable: the tracker cannot be reached, or did not answer in time; TrackerLost: the
        connection ended; ProtocolError: the tracker violated the protocol.
        """
        self._step()
        messages = list(self._inbox)
        self._inbox.clear()
        return messages

    def send(self, message: Any) -> None:
        """Queue a message (typed, or plain JSON) and send what can be sent at once.

        Raises TrackerLost: the link is closed, not ready, or the tracker has stopped reading.
        """
        if not self.ready:
            raise TrackerLost(f"the link to the tracker {self._connection.main.place} is not open")
        try:
            self._connection.send(tracker.encode(message))
        except TrackerLost:
            self._check_not_cancelled()
            raise

    def close(self) -> None:
        """Close the connection, and with it its offers and requests at the tracker. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._connection.close()

    def hang_up(self) -> None:
        """End the connection, from any thread: the thread that uses the link gets `Cancelled`, at once if it waits."""
        self._hung_up = True
        self._connection.hang_up()

    # Blocking methods.

    def receive(self, timeout: Optional[float]) -> Any:
        """Wait for the next message, as plain JSON; ``timeout`` in seconds, None: until the connection ends.

        Raises TimeoutError: no message came in time; TrackerLost, ProtocolError: as `advance`.
        """
        return self._await(lambda message: True, timeout)

    def ask(
        self,
        op: str,
        *,
        timeout: Optional[float],
        on_event: Optional[Callable[[Dict[str, Any]], None]] = None,
        **fields: Any,
    ) -> Dict[str, Any]:
        """Ask our tracker and wait for its final answer. ``on_event`` is called with each event before that.

        Other messages stay for `receive`.

        Raises TrackerError: the tracker refused (`UnknownKey`, `WaitTimeout`, `Cancelled` where it names one of them);
        TrackerLost: it did not answer within ``timeout`` seconds, or the connection ended.
        """
        number = self.next_id()
        self.send(dict(fields, op=op, id=number))

        def is_answer(message: Any) -> Optional[bool]:
            if type(message) is not dict or message.get("id") != number or "op" in message:
                return False
            if "event" not in message:
                return True
            if on_event is not None:
                on_event(message)
            return None

        try:
            answer: Dict[str, Any] = self._await(is_answer, timeout)
        except TimeoutError:
            raise TrackerLost(
                f"the tracker {self._connection.main.place} did not answer {op} within {timeout or 0:g} s"
            ) from None
        if answer.get("ok") is not True:
            raise error_of(answer)
        return answer

    def command(self, frame: Sequence[Any], *, timeout: Optional[float]) -> Any:
        """Send one of TVM's commands and wait for its reply, as plain JSON. One command at a time.

        Raises TimeoutError: no reply within ``timeout`` seconds; TrackerLost: the connection ended.
        """
        self.send(list(frame))
        return self._await(lambda message: type(message) is not dict, timeout)

    def next_id(self) -> int:
        """A new id for a question."""
        return self._connection.main.next_id()

    def _await(self, wanted: Callable[[Any], Optional[bool]], timeout: Optional[float]) -> Any:
        """The first message for which ``wanted`` is true. Those with False are kept, those with None are dropped."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        others: List[Any] = []
        late = False
        try:
            while True:
                while self._inbox:
                    message = self._inbox.popleft()
                    verdict = wanted(message)
                    if verdict:
                        return message
                    if verdict is False:
                        others.append(message)
                    if len(others) > MAX_UNREAD:
                        raise ProtocolError(f"the tracker sent {len(others)} messages and no answer")
                if late:
                    raise TimeoutError(f"no message from the tracker within {timeout or 0:g} s")
                self._pump(until)
                late = time.monotonic() >= until
        finally:
            self._inbox.extendleft(reversed(others))

    def _pump(self, until: float = math.inf) -> None:
        """Wait until there is something to do, at most until ``until``, and do it."""
        until = min(until, self._connection.due)
        if not self._closed:
            self._connection.wait(None if until == math.inf else max(0.0, until - time.monotonic()))
        self._step()

    def _step(self) -> None:
        self._check_not_cancelled()
        if self._closed:
            raise TrackerLost(f"the link to the tracker {self._connection.main.place} is closed")
        try:
            self._inbox += self._connection.advance()
        except RpcsysError:
            self._check_not_cancelled()
            raise

    def _check_not_cancelled(self) -> None:
        if self._hung_up:
            raise Cancelled("the request was cancelled")
