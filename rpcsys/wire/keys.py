"""Device keys and match keys.

A **match key** is ``KEY:RANDOM`` and is the right to one session. TVM makes the random part from a float, its C++
server from six digits, which may collide; ours are 128 bits from the operating system.
"""

from __future__ import annotations

import functools
import os

# The same function as hmac.compare_digest. Importing hmac would load OpenSSL: 3.5 MB of a board's memory.
from _operator import _compare_digest

from rpcsys.errors import ProtocolError

#: Characters of a key. A greeting carries key, match part and options in 4096 bytes, and summaries repeat it.
MAX_KEY = 255
#: Characters of a match key: a key, a colon, and at most 128 for a random part (ours takes 32, TVM's about 20).
MAX_MATCH_KEY = MAX_KEY + 129
SERVER_PREFIX = "server:"
_PROXY_PREFIX = "proxy["
#: A greeting is split at white space, and TVM's proxy lists its keys as ``proxy[K1,K2]``. A key may hold colons.
_NOT_IN_KEYS = frozenset(" ,[]")


def is_key(text: object) -> bool:
    """Whether ``text`` is a valid device key."""
    return isinstance(text, str) and _is_key(text)


@functools.lru_cache(maxsize=1024)
def _is_key(text: str) -> bool:
    # Cached: every request and every offer has one of the same few keys.
    return 0 < len(text) <= MAX_KEY and text.isprintable() and _NOT_IN_KEYS.isdisjoint(text)


def is_match_key(text: object) -> bool:
    """Whether ``text`` is a valid match key. Each server chooses the form of the random part."""
    # The space is the only printable white space.
    return isinstance(text, str) and 0 < len(text) <= MAX_MATCH_KEY and text.isprintable() and " " not in text


def new_match_key(key: str) -> str:
    """A fresh match key for ``key``: 128 bits from the operating system, as 32 hexadecimal digits."""
    return f"{key}:{os.urandom(16).hex()}"


def split_match_key(match_key: str) -> tuple[str, str]:
    """The key and the random part, split at the last colon: a key may contain colons.

    Raises `ProtocolError` where there is no colon.
    """
    key, colon, random_part = match_key.rpartition(":")
    if not colon:
        raise ProtocolError("a match key without a colon")
    return key, random_part


def same(left: str, right: str) -> bool:
    """Constant-time comparison of two secrets."""
    return _compare_digest(left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass"))


def served_keys(info_key: str) -> tuple[str, ...]:
    """The keys of a server that reports the name ``info_key``.

    ``server:rpi4`` serves ``rpi4``; TVM's proxy reports ``server:proxy[rpi4,rpi3]`` and serves both. Any other name
    serves no key: TVM lets a client report any name.
    """
    if not info_key.startswith(SERVER_PREFIX):
        return ()
    name = info_key[len(SERVER_PREFIX) :]
    if name.startswith(_PROXY_PREFIX) and name.endswith("]"):
        return tuple(key for key in name[len(_PROXY_PREFIX) : -1].split(",") if is_key(key))
    return (name,) if is_key(name) else ()
