"""Calls on one session, and what waits for their replies. There is no reader thread: whoever waits for a reply reads.

The order of locks: the send lock (`Channel`), under which a frame is numbered, registered and written; the read lock
(`Receiver.lock`), under which frames are read and handed out; the futures' lock. Who holds the send lock only ever tries
the read lock, and who holds that never waits for the send lock. Users' functions run in a thread that holds none.
"""

from rpcsys.client.calls.channel import CallFuture, Channel
from rpcsys.client.calls.receiver import PendingCall

__all__ = ["CallFuture", "Channel", "PendingCall"]
