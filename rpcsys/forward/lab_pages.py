"""The pages of the lab's tracker on this desk: each is asked for over a link of the desk's own.

They are for programs of this user. A page of another site, which a browser of this user shows, is refused by the names
that the browser sends along.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rpcsys.daemon.guard import PageRequest, Refusal
from rpcsys.daemon.http import Content, NoPage, Page
from rpcsys.errors import ProtocolError, RpcsysError, one_line
from rpcsys.link.link import Link
from rpcsys.link.web_guard import foreign
from rpcsys.wire import page_body
from rpcsys.wire.membership import ReadPage

ANSWER_S = 15.0  # longest wait for a page
IDLE_S = 60.0  # a link that nobody needs is closed
_STATUS = {"UnknownPage": 404, "Forbidden": 403}

_Asked = asyncio.Future[dict[str, Any]]


async def guard(asked: PageRequest) -> Refusal | None:
    """Why a request is refused; None if it is answered."""
    why = foreign(asked.address, asked.host, asked.origin)
    return Refusal(403, why) if why else None


class LabPages(Mapping[str, Page]):
    """A page for every path: the tracker knows which there are. To be made in the event loop.

    ``open_link()`` connects to the tracker, and may raise `RpcsysError`.
    """

    def __init__(self, open_link: Callable[[], Link]) -> None:
        self._open_link = open_link
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._waiting: deque[tuple[str, _Asked]] = deque()  # until the link is there
        self._asked: dict[int, _Asked] = {}
        self._used = 0.0

    def __getitem__(self, path: str) -> Page:
        return lambda: self._page(path)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0

    async def _page(self, path: str) -> Content:
        """Ask for a page. Raises `NoPage`."""
        asked: _Asked = self._loop.create_future()
        self._waiting.append((path, asked))
        self.advance()
        try:
            answer = await asyncio.wait_for(asked, ANSWER_S)
            if answer.get("ok") is not True:
                raise NoPage(_STATUS.get(str(answer.get("error")), 502), str(answer.get("message"))[:1000])
            return str(answer.get("kind")), page_body.unpack(str(answer.get("body")))
        except asyncio.TimeoutError:
            raise NoPage(504, f"the lab's tracker has not answered for {ANSWER_S:g} s") from None
        except RpcsysError as error:
            raise NoPage(502, one_line(error)) from None

    def advance(self) -> None:
        """Handle what the tracker has sent. To be called regularly, too."""
        try:
            if self._link is None and self._waiting:
                self._link = self._open_link()
                self._loop.add_reader(self._link.fileno(), self.advance)
            if self._link is not None:
                self._take(self._link)
        except RpcsysError as error:
            self._close(error)

    def _take(self, link: Link) -> None:
        for message in link.advance():
            asked = self._asked.pop(message.get("id", -1), None) if type(message) is dict else None
            if asked is not None and not asked.done():
                asked.set_result(message)
        while link.ready and self._waiting:
            path, asked = self._waiting.popleft()
            number = link.next_id()
            self._asked[number] = asked
            link.send(ReadPage(number, path))
            self._used = self._loop.time()
        if link.ready and self._loop.time() - self._used > IDLE_S:
            self.close()

    def _close(self, error: RpcsysError) -> None:
        """Close the link; what is not answered has failed."""
        failed = [*self._asked.values(), *(asked for _, asked in self._waiting)]
        self._asked.clear()
        self._waiting.clear()
        if self._link is not None:
            self._loop.remove_reader(self._link.fileno())
            self._link.close()
            self._link = None
        for asked in failed:
            if not asked.done():
                asked.set_exception(error)

    def close(self) -> None:
        """Close the link."""
        self._close(ProtocolError("the link was closed"))
