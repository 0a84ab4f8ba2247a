"""Match keys: those of encrypted sessions belong to their private keys."""

from __future__ import annotations

from rpcsys.link import identity
from rpcsys.server.supervisor import session_keys
from rpcsys.wire import keys, pinned_keys


def test_a_plain_one_has_no_private_key() -> None:
    match_key, seed = session_keys.plain("rpi4")
    assert keys.split_match_key(match_key)[0] == "rpi4"
    assert pinned_keys.parse(match_key) is None
    assert seed == ""


def test_a_pinned_one_has_its_own() -> None:
    made = [session_keys.pinned("rpi4") for _ in range(2)]
    parts = [pinned_keys.parse(match_key) for match_key, _ in made]
    for found, (match_key, seed) in zip(parts, made, strict=True):
        assert found is not None
        assert keys.is_match_key(match_key)
        assert found.key == "rpi4"
        assert found.pin == identity.from_seed(bytes.fromhex(seed)).pin
    assert len({found.secret for found in parts if found}) == len({seed for _, seed in made}) == 2


def test_the_front_has_a_public_name_and_its_private_key() -> None:
    name, seed = session_keys.front("rpi4")
    assert name.text == f"rpi4:t1-{identity.from_seed(bytes.fromhex(seed)).pin}"
