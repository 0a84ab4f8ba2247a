"""The tracker: one queue of requests for each key, matched with free servers.

``state`` turns events into actions, without sockets, clocks or random numbers, so events can be replayed.
``service`` has the sockets, ``records`` the data, and ``views`` renders the data for clients, pages and Prometheus.
"""

from rpcsys import need_host

need_host(__name__)
