"""The wire protocol: bytes <-> messages, and nothing else (docs/wire.md). Standard library only, no socket, no clock.

Received bytes become a message or raise :class:`~rpcsys.errors.ProtocolError`. Every length is checked before memory
is taken for it.
"""
