"""The wire protocol: bytes <-> messages, and nothing else. Standard library only.

No socket, no clock, no thread is in here: code that owns a socket feeds what it received and sends what
it is given, so every rule of the protocol can be tested byte by byte. Whatever arrives is either a message
or a :class:`~rpcsys.errors.ProtocolError`, and every length is checked before memory is taken for it.

==============  ===================================================================================
``tracker``     the tracker connection: its frames, strict JSON, TVM's messages, and the way to ours
``control``     our own messages on that connection: requests, leases, what servers tell
``keys``        device keys and match keys
``checks``      what a field of a control message may hold
``handshake``   the opening of a session: who calls, for which key, speaking what
``frames``      the frames of an rpcsys/1 session, and what makes them
``reader``      bytes to such frames
``head``        the JSON head of a frame, parsed and checked
``head_cache``  heads that are sent again and again
``values``      Python values as JSON heads with raw buffers behind them
``tensor``      an array, with numpy or without
``encoding``    arrays in fewer bytes
``dtypes``      the element types an array may have on the wire
``memory``      aligned memory that arrays are received into
==============  ===================================================================================
"""
