"""``rpcsys gateway``: serves the models of a lab by the Open Inference Protocol, over HTTP and gRPC.

:mod:`rpcsys.gateway.state` decides which call goes where; :mod:`rpcsys.gateway.service` has the sockets.
"""

from rpcsys import need_host

need_host(__name__)
