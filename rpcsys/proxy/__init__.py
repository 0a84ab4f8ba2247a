"""The proxy: servers that cannot be reached dial out to it, clients come in, and it joins their streams.

Nothing a session says is looked at. What is decided (who meets whom, who waits for how long, what the tracker is told)
is plain code in :mod:`rpcsys.proxy.state`; :mod:`rpcsys.proxy.service` owns the sockets, and
:mod:`rpcsys.proxy.relay` moves bytes. A WebSocket is turned into an ordinary stream at the door
(:mod:`rpcsys.proxy.web`), so nothing behind it knows of two kinds.
"""
