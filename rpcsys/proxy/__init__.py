"""The proxy: servers that clients cannot reach dial out to it, clients connect to it, and it joins their streams.

It reads no byte of a session. :mod:`rpcsys.proxy.state` decides which streams are joined, :mod:`rpcsys.proxy.service`
has the sockets, :mod:`rpcsys.daemon.relay` moves bytes.
"""

from rpcsys import need_host

need_host(__name__)
