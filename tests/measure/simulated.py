"""Turns of two subjects on a simulated board, with noise of several kinds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rpcsys.measure import schedule
from rpcsys.measure.judge import Blocks, Floats, Judgement, Rules, judge

BLOCKS_PER_S, BLOCKS_PER_ROUND = 40, 8


def lognormal(rng: np.random.Generator, turns: int) -> Floats:
    return rng.normal(0, 0.05, turns)


def drift(rng: np.random.Generator, turns: int) -> Floats:
    """A warm-up, and a board that grows hot."""
    place = np.arange(turns) / turns
    return rng.normal(0, 0.02, turns) + 0.5 * np.exp(-8 * place) + 0.2 * place


def bursts(rng: np.random.Generator, turns: int) -> Floats:
    """Other processes, for some time each."""
    busy = np.convolve(rng.random(turns) < 0.01, np.ones(40))[:turns] > 0
    return rng.normal(0, 0.02, turns) + busy * rng.exponential(0.7, turns)


def bimodal(rng: np.random.Generator, turns: int) -> Floats:
    """A CPU with two frequencies."""
    return rng.normal(0, 0.01, turns) + 0.35 * (np.cumsum(rng.random(turns) < 0.02) % 2)


def autocorrelated(rng: np.random.Generator, turns: int) -> Floats:
    from scipy import signal

    return np.asarray(signal.lfilter([1], [1, -0.95], rng.normal(0, 0.03, turns)))


def heavy_tailed(rng: np.random.Generator, turns: int) -> Floats:
    return 0.02 * np.abs(rng.standard_cauchy(turns)).clip(0, 100)


Noise = Callable[[np.random.Generator, int], Floats]
KINDS: tuple[Noise, ...] = (lognormal, drift, bursts, bimodal, autocorrelated, heavy_tailed)


def blocks(noise: Noise, rng: np.random.Generator, seconds: float, change: float = 0.0, loads: float = 0.0) -> Blocks:
    """So many seconds of blocks; the second subject's time is changed by ``change``, each loading's by ``loads``."""
    count = int(seconds * BLOCKS_PER_S)
    rounds = np.arange(count) // BLOCKS_PER_ROUND
    times = np.exp(noise(rng, 2 * count)).reshape(count, 2)
    swapped = rng.random(count) < 0.5
    times[swapped] = times[swapped][:, ::-1]
    times *= np.exp(loads * rng.standard_normal((rounds[-1] + 1, 2)))[rounds]
    times[:, 1] *= 1 + change
    return Blocks(times, np.zeros(times.shape, bool), rounds)


def judged(all_blocks: Blocks, least: float, limit_s: float) -> tuple[Judgement, float]:
    """What `judge` says at last, and after how many seconds, when it looks as `compare` does."""
    planned = schedule.looks(limit_s)
    rules = Rules(least, 0.95, len(planned))
    for until in planned:
        count = int(until * BLOCKS_PER_S)
        seen = Blocks(*(each[:count] for each in (all_blocks.seconds, all_blocks.disturbed, all_blocks.rounds)))
        found = judge([seen.differences(1)], rules, until == planned[-1])
        if found.settled:
            break
    return found, until
