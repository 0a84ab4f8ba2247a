"""Calls on one session, and what waits for their replies. There is no reader thread: whoever waits for a reply reads.

There are two ways through. A call that nobody is beside holds both locks while it is sent, and the read lock until its
RESULT is here (`Channel.call`). Every other one is sent (`Channel.start`), and waited for (`Channel.wait`): by its own
thread, or by whoever has its future.

One order of locks, which no thread takes the other way round:

1. the send lock (`Channel`): a frame is numbered, registered and written under it
2. the read lock (`Receiver.lock`): frames are read and handed out under it; who waits while another thread reads sleeps
   on a lock of its own
3. the futures' lock (`Channel.futures_lock`): their results are set under it

Who holds the send lock only ever tries the read lock. Who holds the read lock never waits for the send lock: whoever
holds that may wait for somebody to read. Users' functions run in a thread that holds none.
"""

from rpcsys.client.calls.channel import CallFuture, Channel
from rpcsys.client.calls.receiver import PendingCall

__all__ = ["CallFuture", "Channel", "PendingCall"]
