"""Device keys and match keys.

A **match key** is ``KEY:RANDOM`` and is the right to one session. TVM makes the random part from a float, its C++
server from six digits, which may collide; ours are 128 bits from the operating system.
"""

from __future__ import annotations

import functools
import os

# What hmac.compare_digest is; importing hmac would load OpenSSL, 3.5 MB of a board's memory.
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
    """Whether ``text`` may name a kind of device."""
    return isinstance(text, str) and _is_key(text)


@functools.lru_cache(maxsize=1024)
def _is_key(text: str) -> bool:
    # Remembered because the same few keys come with every request and every offer.
    return 0 < len(text) <= MAX_KEY and text.isprintable() and _NOT_IN_KEYS.isdisjoint(text)


def is_match_key(text: object) -> bool:
    """Whether ``text`` may be a match key; the form of its random part is the server's own business."""
    # Of white space only the blank is printable.
    return isinstance(text, str) and 0 < len(text) <= MAX_MATCH_KEY and text.isprintable() and " " not in text


def new_match_key(key: str) -> str:
    """A fresh match key for ``key``: 128 bits from the operating system, as 32 hexadecimal digits."""
    return f"{key}:{os.urandom(16).hex()}"


def split_match_key(match_key: str) -> tuple[str, str]:
    """The key and the random part. The key may hold colons itself, so the last one splits.

    Raises `ProtocolError` (there is no colon).
    """
    key, colon, random_part = match_key.rpartition(":")
    if not colon:
        raise ProtocolError(f"the match key {match_key!r} has no colon")
    return key, random_part


def same(left: str, right: str) -> bool:
    """Constant-time comparison of two secrets."""
    return _compare_digest(left.encode("utf-8", "surrogatepass"), right.encode("utf-8", "surrogatepass"))


def served_keys(info_key: str) -> tuple[str, ...]:
    """The keys behind the name a server reports itself by.

    ``server:rpi4`` serves ``rpi4``; TVM's proxy says ``server:proxy[rpi4,rpi3]`` and serves both. Anything
    else serves nothing: TVM lets a client report any name.
    """
    if not info_key.startswith(SERVER_PREFIX):
        return ()
    name = info_key[len(SERVER_PREFIX) :]
    if name.startswith(_PROXY_PREFIX) and name.endswith("]"):
        return tuple(key for key in name[len(_PROXY_PREFIX) : -1].split(",") if is_key(key))
    return (name,) if is_key(name) else ()
