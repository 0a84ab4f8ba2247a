"""What becomes of requests that several sites are asked for: which site is asked, which grant counts, what is cancelled
and what is given back. Events go in, actions come out: no socket, no clock.

A request has a *part* for each site that it wants. The first grant is its client's; all other parts are withdrawn, and
what one of them brings all the same is given back. A part whose site is cut off waits, and is asked again with its
ticket. A site forgets the clients of a link that has ended, with all that they wait for and have not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rpcsys.wire import checks
from rpcsys.wire.control import Cancel, Release, Request
from rpcsys.wire.sites import join_tickets
from rpcsys.wire.tracker import FAIL, SUCCESS

#: Requests for other sites that wait here: of one connection, and in all.
MAX_OF_CLIENT, MAX_REQUESTS = 4096, 65_536
UNKNOWN = "UnknownKey"
#: The place of a request that no site has.
_NO_PLACE: Mapping[str, Any] = {"event": "queued", "position": 1, "ahead": 0, "eta_s": None, "holders": [], "note": ""}


class PartState(Enum):
    """The state of a part."""

    AWAY = "its site is cut off"
    ASKED = "its site has it"
    WITHDRAWN = "its site is told to drop it, and has not answered"
    OVER = "its site has answered, or knows nothing of it"


class PartEvent(Enum):
    """What changes the state of a part."""

    ASK = "its site can be reached"
    CUT = "its site is cut off"
    WITHDRAW = "it is wanted no longer"
    ANSWER = "its site has answered"


AWAY, ASKED, WITHDRAWN, OVER = PartState
TRANSITIONS: Mapping[PartState, Mapping[PartEvent, PartState]] = {
    AWAY: {PartEvent.ASK: ASKED, PartEvent.WITHDRAW: OVER},
    ASKED: {PartEvent.CUT: AWAY, PartEvent.WITHDRAW: WITHDRAWN, PartEvent.ANSWER: OVER},
    WITHDRAWN: {PartEvent.CUT: OVER, PartEvent.ANSWER: OVER},
    OVER: {},
}


@dataclass(eq=False, slots=True)
class SiteRequest:
    """A request for other sites than the tracker's own. ``id``: None for TVM's clients, which are told no place."""

    client: int  # the number of its client's connection
    id: int | None
    message: Request
    until: float | None = None  # when it has waited long enough, and its sites should have said so
    parts: dict[str, SitePart] = field(default_factory=dict)  # by site
    tickets: dict[str, str] = field(default_factory=dict)  # by site, in the order in which they came

    @property
    def ticket(self) -> str:
        """The tickets of all sites in one, which only grows: its client would take another for a lost place."""
        return join_tickets([*self.tickets.values()])


@dataclass(eq=False, slots=True)
class SitePart:
    """What one site is asked for a request, as question ``number``."""

    number: int
    site: str
    request: SiteRequest
    state: PartState = AWAY
    news: Mapping[str, Any] | None = None  # the site's last `control.Queued`
    refusal: Mapping[str, Any] | None = None

    def move(self, event: PartEvent) -> None:
        """Change the state by an event."""
        self.state = TRANSITIONS[self.state][event]


@dataclass(slots=True)
class Question:
    """A question of a client's about a lease, which that lease's site answers."""

    client: int
    id: int
    site: str


@dataclass(slots=True)
class SiteClient:
    """A client that has asked for other sites. ``awaited``: numbers of questions; ``known_at``: sites that know it."""

    requests: dict[SiteRequest, None] = field(default_factory=dict)
    awaited: dict[int, None] = field(default_factory=dict)
    known_at: dict[str, None] = field(default_factory=dict)


# Actions.


@dataclass(slots=True)
class AskSite:
    """Ask a site for a client; ``message`` has the question's number as its id. ``until``: of a request."""

    site: str
    client: int
    message: Any
    until: float | None = None


@dataclass(slots=True)
class Leave:
    """Tell a site that a client has gone, by message ``number``."""

    site: str
    client: int
    number: int


@dataclass(slots=True)
class Tell:
    """Send a message to a client."""

    client: int
    message: Any


SiteAction = AskSite | Leave | Tell


class SitesState:
    """All requests for other sites. ``own``: the tracker's own site, which is never cut off; ``peers``: the others."""

    def __init__(self, own: str, peers: Iterable[str]) -> None:
        self.own = own
        self.sites = (own, *peers)
        self.cut_off: dict[str, None] = dict.fromkeys(self.sites[1:])
        self.requests: dict[SiteRequest, None] = {}
        self.parts: dict[int, SitePart] = {}  # those that are not over, by number
        self._clients: dict[int, SiteClient] = {}
        self._questions: dict[int, Question] = {}
        self._numbers = 0

    # Clients.

    def request(
        self, client: int, message: Request, sites: Iterable[str], tickets: Mapping[str, str],
        *, id: int | None, until: float | None = None,
    ) -> list[SiteAction]:  # fmt: skip
        """Ask ``sites`` for a client. ``tickets``: of an earlier connection, by site."""
        request = SiteRequest(client, id, message, until, tickets={**tickets})
        self.requests[request] = None
        self._client(client).requests[request] = None
        for site in sites:
            part = request.parts[site] = SitePart(self._awaited(client), site, request)
            self.parts[part.number] = part
        asked = [self._ask(part) for part in request.parts.values() if part.site not in self.cut_off]
        return [*asked, *self._tell_place(request)]

    def problem(self, client: int, id: int | None) -> str:
        """Why no more of a client's requests can be taken; "" if one can."""
        known = self._clients.get(client)
        if known is not None and len(known.requests) >= MAX_OF_CLIENT:
            return f"{MAX_OF_CLIENT} requests wait on this connection already"
        if len(self.requests) >= MAX_REQUESTS:
            return f"{MAX_REQUESTS} requests for other sites wait already: try again later"
        return f"id {id} is in use by a request that waits" if id is not None and self.has(client, id) else ""

    def has(self, client: int, id: int) -> bool:
        """Whether a client waits for its request ``id`` here."""
        return self._find(client, id) is not None

    def cancel(self, client: int, message: Cancel) -> list[SiteAction]:
        """Cancel a request that the client has here."""
        request = self._find(client, message.request)
        if request is None:
            return []
        actions = self._refuse(request, "Cancelled", "the request was cancelled")
        return [*actions, Tell(client, {"cancelled": True, "id": message.id, "ok": True})]

    def expired(self, now: float) -> list[SiteAction]:
        """End the requests that have waited for long enough."""
        late = [request for request in self.requests if request.until is not None and now >= request.until]
        return [action for request in late for action in self._refuse(request, "WaitTimeout", _too_late(request))]

    def left(self, client: int) -> list[SiteAction]:
        """The connection of a client has ended: its sites drop what it waits for, and has not used."""
        gone = self._clients.pop(client, None)
        if gone is None:
            return []
        for request in gone.requests:
            del self.requests[request]
        for number in gone.awaited:
            self.parts.pop(number, None)
            self._questions.pop(number, None)
        return [Leave(site, client, self._number()) for site in gone.known_at]

    def about_lease(self, client: int, message: Any, site: str) -> list[SiteAction]:
        """Ask a lease's site what a client asks about it."""
        if site in self.cut_off:
            return [Tell(client, _cannot_reach(message.id, site))]
        number = self._awaited(client)
        self._questions[number] = Question(client, message.id, site)
        return [self._to(site, client, message, number)]

    # Sites.

    def reached(self, site: str) -> list[SiteAction]:
        """A site can be reached: it is asked all that waits for it, the oldest first."""
        self.cut_off.pop(site, None)
        parts = [part for part in self.parts.values() if part.site == site and part.state is AWAY]
        asked = [self._ask(part) for part in parts]
        return [*asked, *(action for part in parts for action in self._tell_place(part.request))]

    def cut(self, site: str) -> list[SiteAction]:
        """A site is cut off: it forgets all of this one's clients."""
        self.cut_off[site] = None
        for client in self._clients.values():
            client.known_at.pop(site, None)
        actions: list[SiteAction] = []
        for part in [part for part in self.parts.values() if part.site == site]:
            part.move(PartEvent.CUT)
            part.news = None
            if part.state is OVER:
                self._forget(part)
            else:
                actions += self._tell_place(part.request)
        for number, question in [*self._questions.items()]:
            if question.site == site:
                self._settle(number)
                actions.append(Tell(question.client, _cannot_reach(question.id, site)))
        return actions

    def queued(self, number: int, event: Mapping[str, Any]) -> list[SiteAction]:
        """A site says which place a request has there."""
        part = self.parts.get(number)
        if part is None or part.state is not ASKED:
            return []
        part.news = event
        if event.get("ticket"):
            part.request.tickets[part.site] = event["ticket"]
        return self._tell_place(part.request)

    def answered(self, number: int, answer: Mapping[str, Any]) -> list[SiteAction]:
        """A site has answered. An answer that nobody waits for changes nothing."""
        question = self._settle(number)
        if question is not None:
            return [Tell(question.client, {**answer, "id": question.id})]
        part = self.parts.get(number)
        if part is None or part.state is AWAY:
            return []
        wanted = part.state is ASKED
        part.move(PartEvent.ANSWER)
        self._forget(part)
        if answer["ok"]:
            return self._granted(part, answer) if wanted else self._give_back(part, answer)
        part.refusal = answer
        return self._refused(part.request) if wanted else []

    # Parts.

    def _ask(self, part: SitePart) -> AskSite:
        part.move(PartEvent.ASK)
        request = part.request
        ticket = request.tickets.get(part.site)
        return self._to(part.site, request.client, request.message, part.number, request.until, ticket)

    def _to(
        self, site: str, client: int, message: Any, number: int, until: float | None = None, ticket: str | None = None
    ) -> AskSite:
        self._client(client).known_at[site] = None
        fields = {**vars(message), "id": number}
        if ticket is not None:
            fields["ticket"] = ticket
        return AskSite(site, client, type(message)(**fields), until)

    def _withdraw(self, request: SiteRequest) -> list[SiteAction]:
        """End a request: its client is told otherwise, and its sites are told to drop what is left of it."""
        del self.requests[request]
        del self._clients[request.client].requests[request]
        actions: list[SiteAction] = []
        for part in request.parts.values():
            if part.state is OVER:
                continue
            part.move(PartEvent.WITHDRAW)
            if part.state is OVER:
                self._forget(part)
            else:
                actions.append(self._to(part.site, request.client, Cancel(0, part.number), self._number()))
        return actions

    def _granted(self, part: SitePart, answer: Mapping[str, Any]) -> list[SiteAction]:
        request = part.request
        if request.id is not None:
            told: Any = {**answer, "id": request.id}
        else:
            lease = answer["leases"][0]
            told = [SUCCESS, [lease["host"], lease["port"], lease["matchkey"]]]
        return [Tell(request.client, told), *self._withdraw(request)]

    def _give_back(self, part: SitePart, answer: Mapping[str, Any]) -> list[SiteAction]:
        """Release what a site has granted when it was wanted no longer."""
        client = part.request.client
        leases = [lease["lease"] for lease in answer["leases"]]
        return [self._to(part.site, client, Release(0, lease), self._number()) for lease in leases]

    def _refused(self, request: SiteRequest) -> list[SiteAction]:
        """Refuse a request once no site can serve it any more, with what each has said."""
        if any(part.state is not OVER for part in request.parts.values()):
            return self._tell_place(request)
        said = {part.site: part.refusal or {} for part in request.parts.values()}
        texts = [str(refusal.get("message", "")) for refusal in said.values()]
        same = len({*texts}) == 1
        text = texts[0] if same else "; ".join(f"{site}: {each}" for site, each in zip(said, texts, strict=True))
        errors = [str(refusal.get("error", "")) for refusal in said.values()]
        return self._refuse(request, next((error for error in errors if error != UNKNOWN), UNKNOWN), text)

    def _refuse(self, request: SiteRequest, error: str, text: str) -> list[SiteAction]:
        if request.id is None:
            told: Any = [FAIL, text]
        else:
            told = {"id": request.id, "ok": False, "error": error, "message": text}
        return [Tell(request.client, told), *self._withdraw(request)]

    def _tell_place(self, request: SiteRequest) -> list[SiteAction]:
        """Tell a client the best place that its request has, and which sites are cut off."""
        asked = [part for part in request.parts.values() if part.state is ASKED]
        found = [part for part in asked if part.news is not None]
        if request.id is None or (asked and not found):
            return []
        notes = [f"site {part.site} cannot be reached" for part in request.parts.values() if part.state is AWAY]
        best: Mapping[str, Any] = _NO_PLACE
        if found:
            first = min(found, key=_standing)
            best = first.news or best
            if best["note"]:
                notes.insert(0, f"{best['note']} (site {first.site})")
        note = "; ".join(notes)[: checks.MAX_TEXT]
        return [Tell(request.client, {**best, "id": request.id, "ticket": request.ticket or None, "note": note})]

    def _client(self, client: int) -> SiteClient:
        return self._clients.get(client) or self._clients.setdefault(client, SiteClient())

    def _find(self, client: int, id: int) -> SiteRequest | None:
        known = self._clients.get(client)
        return next((request for request in known.requests if request.id == id), None) if known else None

    def _forget(self, part: SitePart) -> None:
        del self.parts[part.number], self._clients[part.request.client].awaited[part.number]

    def _settle(self, number: int) -> Question | None:
        question = self._questions.pop(number, None)
        if question is not None:
            del self._clients[question.client].awaited[number]
        return question

    def _awaited(self, client: int) -> int:
        """The number of a question whose answer matters."""
        number = self._number()
        self._client(client).awaited[number] = None
        return number

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers


def _standing(part: SitePart) -> tuple[bool, int]:
    """The order of places: a site where nobody has a device that is wanted has none, and comes last."""
    news = part.news or _NO_PLACE
    return not news["holders"], int(news["ahead"])


def _too_late(request: SiteRequest) -> str:
    cut_off = [f"site {part.site} cannot be reached" for part in request.parts.values() if part.state is AWAY]
    text = f"no device of {request.message.key or 'any key'!r} became free in the time allowed for waiting"
    return "; ".join([text, *cut_off])


def _cannot_reach(id: int, site: str) -> dict[str, Any]:
    text = f"site {site} cannot be reached now: try again, or ask its tracker itself"
    return {"id": id, "ok": False, "error": "BadRequest", "message": text}
