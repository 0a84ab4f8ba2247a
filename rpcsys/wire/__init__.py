"""The wire protocol: bytes <-> messages, and nothing else (docs/wire.md). Standard library only, no socket, no clock.

Whatever arrives is either a message or a :class:`~rpcsys.errors.ProtocolError`, and every length is checked before
memory is taken for it.
"""
