"""Makes match keys, each with the private key of its session (hexadecimal), if that is to be encrypted."""

from __future__ import annotations

from rpcsys.wire import keys, pinned_keys


def plain(key: str) -> tuple[str, str]:
    """A match key of a session in the clear."""
    return keys.new_match_key(key), ""


def pinned(key: str) -> tuple[str, str]:
    """A match key of an encrypted session. Takes 0.1 ms where OpenSSL can be reached, else a few."""
    from rpcsys.link import identity

    own = identity.new()
    return pinned_keys.new(key, own.pin).text, own.seed.hex()


def front(key: str) -> tuple[pinned_keys.PinnedMatchKey, str]:
    """The public name of all encrypted connections for deployed modules while a server runs, and their private key."""
    from rpcsys.link import identity

    own = identity.new()
    return pinned_keys.PinnedMatchKey(key, own.pin, ""), own.seed.hex()
