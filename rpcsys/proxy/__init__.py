"""The proxy: servers that cannot be reached dial out to it, clients come in, and it joins their streams.

It never looks inside a session. :mod:`rpcsys.proxy.state` decides who meets whom, :mod:`rpcsys.proxy.service` has the
sockets, :mod:`rpcsys.proxy.relay` moves bytes.
"""
