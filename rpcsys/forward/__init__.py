"""``rpcsys connect``: lets programs on this desk that speak no TLS, such as TVM's client, use a lab.

One local port takes connections of tracker and sessions. :mod:`rpcsys.forward.state` knows what was leased and decides,
:mod:`rpcsys.forward.service` has the sockets.
"""

from rpcsys import need_host

need_host(__name__)
