"""The tracker: one queue of requests for each key, matched with the servers that are free.

``state`` decides about ``events`` and has no socket, clock or chance, so a day in a lab can be replayed; ``service``
owns the sockets; ``records`` is what is remembered, ``views`` what others are shown of it.
"""
