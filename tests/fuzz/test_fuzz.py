"""The fuzzer itself: it reaches what it means to reach, finds what is there, and can show it again."""

from __future__ import annotations

import random
import re

import pytest

from fuzz import runner
from fuzz.__main__ import main
from fuzz.mutations import damage
from fuzz.runner import Finding, make, run, try_one
from fuzz.targets import TARGETS, Target

INPUTS = 400


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_parser_keeps_its_word(target):
    found = list(run([target], 1.0, first_seed=0))
    assert [result for result in found if isinstance(result, Finding)] == []
    assert found[-1] > 50


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_seeds_are_valid_and_stay_valid_when_sealed(target):
    for number, seed in enumerate(target.seeds):
        target.feed(seed, random.Random(number))
        if target.seal is not None and seed.count(seed[:4]) == 1:
            target.feed(target.seal(seed), random.Random(number))


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_inputs_get_past_the_first_check(target):
    """Fuzzing that is always refused for the same reason shows nothing."""
    reasons, accepted = set(), 0
    for seed in range(INPUTS):
        data, rng = make(target, seed)
        try:
            target.feed(data, rng)
            accepted += 1
        except target.documented as error:
            reasons.add(re.sub(r"\d+|'.*'|\".*\"", "", str(error))[:40])
    assert 5 < accepted < INPUTS
    assert len(reasons) >= 3


def broken(data, rng):
    if data.startswith(b"GOOD") and len(data) > 8 and data[5] > 0x7F:
        raise IndexError("found me")


BROKEN = Target("broken", [b"GOOD and long enough"], broken)


def test_a_broken_parser_is_found_and_shown_again(monkeypatch, capsys):
    findings = [found for seed in range(3000) if (found := try_one(BROKEN, seed)) is not None]
    assert findings
    assert "found me" in findings[0].problem
    again = try_one(BROKEN, findings[0].seed)
    assert again is not None
    assert again.data == findings[0].data
    monkeypatch.setattr("fuzz.__main__.TARGETS", (BROKEN,))
    monkeypatch.setattr("fuzz.__main__._NAMES", ["broken"])
    seed = findings[0].seed
    assert main(["--seconds", "20", "--seed", str(seed)]) == 1
    assert f"again: python -m fuzz --once --target broken --seed {seed}" in capsys.readouterr().out


def test_a_leak_is_found(monkeypatch):
    sizes = iter(range(0, 1 << 40, 200 << 20))
    monkeypatch.setattr(runner, "resident", lambda: next(sizes))
    found = list(run([Target("quiet", [b"x"], lambda data, rng: None)], 60, first_seed=0))
    assert "memory grew" in found[0].problem


def test_a_quiet_run_says_so(capsys):
    assert main(["--seconds", "0.2", "--seed", "5", "--target", "answer"]) == 0
    assert re.fullmatch(r"\d+ inputs from seed 5 on: no findings\n", capsys.readouterr().out)


def test_the_same_seed_makes_the_same_input():
    for target in TARGETS:
        assert [make(target, seed)[0] for seed in range(20)] == [make(target, seed)[0] for seed in range(20)]


def test_damage_is_bounded():
    rng = random.Random(0)
    data = b"x" * 50
    for _ in range(300):
        data = damage(data, [b"y" * 5000], rng) or b"x"
        assert len(data) <= 1 << 17
