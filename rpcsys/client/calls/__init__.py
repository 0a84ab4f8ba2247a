"""Calls on one session, and the wait for their replies. No thread is reserved for reading: the thread that waits reads.

The order of locks: the turn (`Channel`), held by the one call that waits for space in the window; the send lock
(`Channel`), under which a frame is numbered, registered and sent; the read lock (`Receiver.lock`), under which frames
are read and dispatched; the futures' lock. A thread with the send lock only tries the read lock, and a thread with the
read lock never waits for the send lock. Users' functions run without any lock.
"""

from rpcsys.client.calls.channel import Channel
from rpcsys.client.calls.future import CallFuture
from rpcsys.client.calls.receiver import PendingCall

__all__ = ["CallFuture", "Channel", "PendingCall"]
