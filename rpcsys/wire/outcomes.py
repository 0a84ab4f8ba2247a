"""How a lease ends, in one word. Apart from the messages: a server without a tracker does not load those."""

#: Its client closed it; the client's connection was lost; the time limit passed; the session exceeded its memory limit;
#: the session's process died; no session was opened; the tracker ended it.
OUTCOMES = ("closed", "lost", "timeout", "memory", "crashed", "unused", "ended")
#: `End.reason` for a client that closed before it opened a session. The server drops the match key; a session that
#: was opened with it meanwhile continues.
UNUSED = "unused"
