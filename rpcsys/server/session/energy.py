"""Energy of timed calls, by the meters that Linux shows: counters of joules, and power that is sampled meanwhile.

- RAPL: ``/sys/class/powercap/intel-rapl:*``, ``energy_uj`` in microjoules, from 0 again behind ``max_energy_range_uj``
  (Documentation/power/powercap/powercap.rst). Linux lets root alone read it since 5.10.
- hwmon: ``energyN_input`` in microjoules, ``powerN_input`` and ``powerN_average`` in microwatts, ``inN_input`` in
  millivolts and ``currN_input`` in milliamperes, ``…_label`` (Documentation/hwmon/sysfs-interface.rst). An INA2xx whose
  driver shows no power has the product of the two.
- IIO: ``in_powerN_raw`` times ``in_powerN_scale``, in milliwatts (Documentation/ABI/testing/sysfs-bus-iio).

A file that cannot be read is no meter. A thread samples power, only where there is such a meter, and sleeps between two
samples: each takes some 20 us. Counters are read before and after the timed calls.
"""

from __future__ import annotations

import contextlib
import functools
import glob
import itertools
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

SHORTEST_S = 0.05  # of timed calls: RAPL counts about once a millisecond, and an INA226 converts in 1 to 140 ms
EVERY_S = 0.05  # between two samples of power
#: Labels of meters of all that a board takes in (NVIDIA's boards have these two), and RAPL's of the whole platform.
_WHOLE = re.compile(r"VDD_IN|POM_5V_IN|VIN|psys|total( power)?", re.IGNORECASE)


class Scope(IntEnum):
    """What a meter measures; the first kind that a board has makes its ``joules``."""

    BOARD = 0  # all that it takes in
    PACKAGE = 1  # processors and their memory
    COUNTER = 2
    POWER = 3


class Meter(NamedTuple):
    """A meter: the product of the numbers in its files, times ``scale``, is joules, or watts."""

    name: str
    scope: Scope
    files: tuple[str, ...]
    scale: float
    power: bool = False
    range_j: float = math.inf  # at which a counter begins again


class _OpenMeter:
    """A meter whose files are open: a reading is one system call for each."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter
        self.joules = 0.0
        self.known = True  # whether all its readings were possible
        self.samples: list[float] = []
        self._files = [open(path, "rb", buffering=0) for path in meter.files]  # noqa: SIM115 - closed by `close`
        self._before: float | None = None

    def read(self) -> float | None:
        """Joules or watts; None where it cannot be read."""
        value = self.meter.scale
        try:
            for file in self._files:
                value *= float(os.pread(file.fileno(), 64, 0))
        except (OSError, ValueError):
            return None
        return value if math.isfinite(value) else None

    def begin(self) -> None:
        self._before = self.read()

    def end(self) -> None:
        after = self.read()
        spent = None if self._before is None or after is None else after - self._before
        if spent is not None and spent < 0:
            spent += self.meter.range_j
        if spent is None or not 0 <= spent < math.inf:
            self.known = False
        else:
            self.joules += spent

    def of_call(self, calls: int, seconds: float) -> float | None:
        """Joules of one of ``calls`` that took ``seconds`` in all; None where the meter does not tell."""
        if self.meter.power:
            return sum(self.samples) / len(self.samples) * seconds / calls if self.samples else None
        return self.joules / calls if self.known else None

    def close(self) -> None:
        for file in self._files:
            file.close()


class EnergyCount:
    """Counts the energy between each `begin` and `end`; a context in which a thread may sample power.

    ``meters``: by default those that this board has.
    """

    def __init__(self, meters: Sequence[Meter] | None = None) -> None:
        self._open: list[_OpenMeter] = []
        for meter in found() if meters is None else meters:
            with contextlib.suppress(OSError):
                self._open.append(_OpenMeter(meter))
        self._counters = [each for each in self._open if not each.meter.power]
        self._sampled = [each for each in self._open if each.meter.power]
        self._calls, self._seconds, self._begun = 0, 0.0, 0.0
        self._timing, self._over = False, threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="rpcsys-meter", daemon=True)

    def __enter__(self) -> EnergyCount:
        if self._sampled:
            self._sampler.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._over.set()
        if self._sampled:
            self._sampler.join()
        for each in self._open:
            each.close()

    def begin(self) -> None:
        """Timed calls begin."""
        for counter in self._counters:
            counter.begin()
        self._begun, self._timing = time.perf_counter(), True

    def end(self, calls: int) -> None:
        """So many timed calls have ended."""
        self._timing = False
        self._seconds += time.perf_counter() - self._begun
        self._calls += calls
        for counter in self._counters:
            counter.end()

    def report(self) -> dict[str, Any]:
        """``joules`` of one call, by ``meter``, and by each of the ``meters``; {} where nothing tells.

        ``joules`` is the sum of the meters of the widest `Scope` that the board has; those of other scopes may measure
        a part of it again. Nothing tells of calls that took less than `SHORTEST_S` in all.
        """
        if self._seconds < SHORTEST_S:
            return {}
        told = [(each.meter, each.of_call(self._calls, self._seconds)) for each in self._open]
        known = {meter: joules for meter, joules in told if joules is not None}
        widest = min((meter.scope for meter in known), default=None)
        chosen = [meter for meter in known if meter.scope is widest]
        if not chosen:
            return {}
        names = ", ".join(meter.name for meter in chosen)
        by_name = {meter.name: joules for meter, joules in known.items()}
        return {"joules": sum(known[meter] for meter in chosen), "meter": names, "meters": by_name}

    def _sample(self) -> None:
        while not self._over.wait(EVERY_S):
            values = [each.read() for each in self._sampled] if self._timing else []
            if self._timing:  # still: else a part of the reading was of something else
                for each, watts in zip(self._sampled, values):
                    if watts is not None:
                        each.samples.append(watts)


@functools.lru_cache(maxsize=1)
def found(root: str = "/") -> tuple[Meter, ...]:
    """The meters of this board that can be read now, each under a name of its own; looked for once in a process."""
    named: dict[str, Meter] = {}
    for meter in filter(_readable, (*_rapl(root), *_hwmon(root), *_iio(root))):
        names = itertools.chain([meter.name], (f"{meter.name} ({number})" for number in itertools.count(2)))
        name = next(each for each in names if each not in named)
        named[name] = meter._replace(name=name)
    return tuple(named.values())


def _readable(meter: Meter) -> bool:
    try:
        opened = _OpenMeter(meter)
    except OSError:
        return False
    value = opened.read()
    opened.close()
    return value is not None


def _rapl(root: str) -> Iterator[Meter]:
    """Packages, their memory, and the platform; cores and graphics are parts of their package."""
    for folder in _glob(root, "sys/class/powercap/intel-rapl:*"):
        name = _text(folder, "name")
        if name.startswith("package") or name in ("dram", "psys"):
            scope = Scope.BOARD if name == "psys" else Scope.PACKAGE
            range_uj = _number(_text(folder, "max_energy_range_uj")) or math.inf
            zone = os.path.basename(folder).partition(":")[2]
            yield Meter(f"rapl:{zone}:{name}", scope, (f"{folder}/energy_uj",), 1e-6, range_j=range_uj * 1e-6)


def _hwmon(root: str) -> Iterator[Meter]:
    for folder in _glob(root, "sys/class/hwmon/hwmon*"):
        chip = _text(folder, "name") or os.path.basename(folder)
        energies = {each: _text(folder, f"{each}_label") for each in _channels(folder, "energy", "input")}
        sockets = {each: label for each, label in energies.items() if label.startswith("Esocket")}
        for each, label in (sockets or energies).items():  # amd_energy counts each core, too
            yield Meter(f"{chip}:{label or each}", Scope.COUNTER, (f"{folder}/{each}_input",), 1e-6)
        powers = dict.fromkeys(_channels(folder, "power", "average"), "average")
        powers.update(dict.fromkeys(_channels(folder, "power", "input"), "input"))
        for each, what in powers.items():
            yield _power(chip, each, _text(folder, f"{each}_label"), (f"{folder}/{each}_{what}",), 1e-6)
        if not powers and chip.startswith("ina"):
            for each in _channels(folder, "curr", "input"):
                voltage = each.replace("curr", "in")
                label = _text(folder, f"{each}_label") or _text(folder, f"{voltage}_label")
                files = f"{folder}/{each}_input", f"{folder}/{voltage}_input"
                yield _power(chip, each, label, files, 1e-6)


def _iio(root: str) -> Iterator[Meter]:
    for folder in _glob(root, "sys/bus/iio/devices/iio:device*"):
        chip = _text(folder, "name") or os.path.basename(folder)
        for raw in _glob(folder, "in_power*_raw"):
            each = os.path.basename(raw)[: -len("_raw")]
            scale = _number(_text(folder, f"{each}_scale")) or _number(_text(folder, "in_power_scale")) or 1.0
            yield _power(chip, each, _text(folder, f"{each}_label"), (raw,), scale * 1e-3)


def _power(chip: str, channel: str, label: str, files: tuple[str, ...], scale: float) -> Meter:
    scope = Scope.BOARD if _WHOLE.fullmatch(label) else Scope.POWER
    return Meter(f"{chip}:{label or channel}", scope, files, scale, power=True)


def _channels(folder: str, kind: str, what: str) -> list[str]:
    """The channels of a chip with such a file: ``["power1"]`` for ``power1_input``."""
    return [os.path.basename(path)[: -len(what) - 1] for path in _glob(folder, f"{kind}[0-9]*_{what}")]


def _glob(root: str, pattern: str) -> list[str]:
    return sorted(glob.glob(os.path.join(glob.escape(root), pattern)))


def _text(folder: str, name: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError), open(os.path.join(folder, name)) as stream:
        return stream.read(256).strip()
    return ""


def _number(text: str) -> float | None:
    with contextlib.suppress(ValueError):
        value = float(text)
        return value if math.isfinite(value) and value > 0 else None
    return None
