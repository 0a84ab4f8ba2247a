"""The tracker: one queue of requests for each key, matched with the servers that are free.

``state`` decides: an event comes in (:mod:`rpcsys.tracker.events`), actions come out, and no socket, clock or
chance is in it, so a day in a lab can be replayed. ``service`` owns the sockets and carries the actions out.
``records`` is what is remembered, ``views`` what others are shown of it.
"""
