"""Links to the tracker, and what daemons and clients share: addresses, connecting without blocking, backoff, and the
settings of sockets. Standard library only, no asyncio.
"""
