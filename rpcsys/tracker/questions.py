"""Questions that are answered from the records, and change nothing."""

from __future__ import annotations

import json

from rpcsys.tracker.entities import Peer
from rpcsys.tracker.events import Action, Send
from rpcsys.tracker.labels import wants_of_key
from rpcsys.tracker.records import Records
from rpcsys.tracker.replies import done, refusal
from rpcsys.tracker.views import deployed, hints, summary, why
from rpcsys.tracker.views.tvm_summary import SummaryText
from rpcsys.wire import control, tracker


class Questions:
    """Answers what clients want to know."""

    def __init__(self, records: Records) -> None:
        self.records = records

    def tvm_summary(self, peer: Peer, message: tracker.TvmSummary) -> list[Action]:
        """What TVM's clients show of a lab."""
        return [Send(peer.conn, json.loads(SummaryText().text(self.records, self.records.now, peer)))]

    def summary(self, peer: Peer, message: control.Summary) -> list[Action]:
        """A page of our summary."""
        found, following = summary.page(self.records, self.records.now, peer, message.after or (0, 0))
        return [done(peer, message.id, summary=found, next=following and list(following))]

    def why(self, peer: Peer, message: control.Why) -> list[Action]:
        """Why somebody waits."""
        request = None if message.request is None else peer.requests.get(message.request)
        key = request.key if request is not None else message.key
        if key is None:
            problem = "say which: a request of this connection that waits, or a key"
            return [refusal(peer, message.id, "BadRequest", problem)]
        if request is None and key not in self.records.queues:
            return [refusal(peer, message.id, "UnknownKey", hints.unknown(self.records, wants_of_key(key)))]
        return [done(peer, message.id, why=why.why(self.records, self.records.now, key, request))]

    def resolve(self, peer: Peer, message: control.Resolve) -> list[Action]:
        """Where a deployed module is served."""
        rows = deployed.rows(self.records, peer, message.name)
        if message.name and not rows:
            return [refusal(peer, message.id, "UnknownKey", hints.unknown_module(self.records, message.name))]
        return [done(peer, message.id, modules=rows)]

    def unsupported(self, peer: Peer, message: control.Ask) -> list[Action]:
        """Something that this tracker does not answer."""
        return [refusal(peer, message.id, "BadRequest", f"this tracker does not support {message.op!r}")]
