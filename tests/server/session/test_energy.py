"""Energy of calls, by meters in a folder with Linux's files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpcsys.server.session import energy, timing
from rpcsys.server.session.energy import EnergyCount, Meter, Scope, found

RAPL = "sys/class/powercap/intel-rapl:"


@pytest.fixture(autouse=True)
def no_meters_known() -> Iterator[None]:
    found.cache_clear()
    yield
    found.cache_clear()


def write(root: Path, **files: object) -> str:
    """Write files below ``root``; each name is a path with ``__`` for a slash."""
    for name, value in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{value}\n")
    return str(root)


def rapl(root: Path, zone: str, name: str, uj: int, range_uj: int = 262_143_328_850) -> Path:
    folder = root / f"{RAPL}{zone}"
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in (("name", name), ("energy_uj", uj), ("max_energy_range_uj", range_uj)):
        (folder / file).write_text(f"{value}\n")
    return folder / "energy_uj"


def hwmon(root: Path, number: int, name: str, **channels: object) -> Path:
    folder = root / f"sys/class/hwmon/hwmon{number}"
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in {"name": name, **channels}.items():
        (folder / file).write_text(f"{value}\n")
    return folder


def counted(root: Path, calls: int, meanwhile: Callable[[], object], lasts_s: float = 0.06) -> dict[str, Any]:
    with EnergyCount(found(str(root))) as count:
        count.begin()
        time.sleep(lasts_s)
        meanwhile()
        count.end(calls)
    return count.report()


def test_a_counter_of_joules(tmp_path: Path) -> None:
    package, dram = rapl(tmp_path, "0", "package-0", 1_000_000), rapl(tmp_path, "0:2", "dram", 0)
    rapl(tmp_path, "0:0", "core", 7)

    def spend() -> None:
        package.write_text("5000000\n")
        dram.write_text("1000000\n")

    report = counted(tmp_path, 4, spend)
    assert report["meters"] == {"rapl:0:package-0": pytest.approx(1.0), "rapl:0:2:dram": pytest.approx(0.25)}
    assert report["joules"] == pytest.approx(1.25)
    assert report["meter"] == "rapl:0:package-0, rapl:0:2:dram"


def test_a_counter_that_begins_again(tmp_path: Path) -> None:
    package = rapl(tmp_path, "0", "package-0", 9_000_000, range_uj=10_000_000)
    assert counted(tmp_path, 1, lambda: package.write_text("1000000\n"))["joules"] == pytest.approx(2.0)


def test_a_counter_without_a_range_that_goes_back_tells_nothing(tmp_path: Path) -> None:
    folder = hwmon(tmp_path, 0, "chip", energy1_input=5)
    assert counted(tmp_path, 1, lambda: (folder / "energy1_input").write_text("1\n")) == {}


def test_the_platforms_meter_comes_before_its_parts(tmp_path: Path) -> None:
    package, psys = rapl(tmp_path, "0", "package-0", 0), rapl(tmp_path, "1", "psys", 0)

    def spend() -> None:
        package.write_text("1000000\n")
        psys.write_text("3000000\n")

    report = counted(tmp_path, 1, spend)
    assert (report["meter"], report["joules"]) == ("rapl:1:psys", pytest.approx(3.0))
    assert report["meters"]["rapl:0:package-0"] == pytest.approx(1.0)


def test_sockets_are_counted_without_their_cores(tmp_path: Path) -> None:
    labels = {"energy1_label": "Ecore000", "energy2_label": "Esocket0"}
    folder = hwmon(tmp_path, 0, "amd_energy", energy1_input=0, energy2_input=0, **labels)

    def spend() -> None:
        for name in ("energy1_input", "energy2_input"):
            (folder / name).write_text("2000000\n")

    assert counted(tmp_path, 2, spend)["meters"] == {"amd_energy:Esocket0": pytest.approx(1.0)}


def power_of(root: Path, lasts_s: float = 0.4) -> dict[str, Any]:
    """The report of two calls of so many seconds in all."""
    return counted(root, 2, lambda: None, lasts_s)


def test_power_is_sampled_while_calls_are_timed(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "ina226", power1_input=2_000_000, curr1_input=400, in1_input=5000)
    report = power_of(tmp_path)
    assert report["meter"] == "ina226:power1"
    assert report["joules"] == pytest.approx(0.4, rel=0.5)  # 2 W for 0.2 s; a busy machine sleeps longer
    assert report["joules"] >= 0.4


def test_an_ina3221_has_no_power_and_its_inputs_meter_is_the_boards(tmp_path: Path) -> None:
    labels = {"in1_label": "VDD_IN", "in2_label": "VDD_CPU"}
    hwmon(tmp_path, 0, "ina3221", in1_input=5000, curr1_input=1000, in2_input=1000, curr2_input=1000, **labels)
    report = power_of(tmp_path)
    assert report["meter"] == "ina3221:VDD_IN"
    assert report["meters"]["ina3221:VDD_IN"] == pytest.approx(5 * report["meters"]["ina3221:VDD_CPU"])


def test_power_through_iio_is_in_milliwatts(tmp_path: Path) -> None:
    device = "sys__bus__iio__devices__iio:device0__"
    write(tmp_path, **{f"{device}name": "ina219", f"{device}in_power2_raw": 100, f"{device}in_power2_scale": 20})
    (meter,) = found(str(tmp_path))
    assert (meter.name, meter.scale, meter.scope) == ("ina219:in_power2", pytest.approx(0.02), Scope.POWER)
    assert power_of(tmp_path)["joules"] >= 0.4  # 2 W for 0.2 s


def test_two_chips_of_one_name(tmp_path: Path) -> None:
    for number in (0, 1):
        hwmon(tmp_path, number, "ina226", power1_input=1_000_000)
    report = power_of(tmp_path)
    assert [*report["meters"]] == ["ina226:power1", "ina226:power1 (2)"]
    assert report["joules"] == pytest.approx(sum(report["meters"].values()))


def test_an_average_is_taken_where_there_is_no_input(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "amdgpu", power1_average=3_000_000, power2_average=1, power2_input=2, power2_label="PPT")
    assert {meter.name: os.path.basename(meter.files[0]) for meter in found(str(tmp_path))} == {
        "amdgpu:power1": "power1_average",
        "amdgpu:PPT": "power2_input",
    }


def test_what_cannot_be_read_is_no_meter(tmp_path: Path) -> None:
    rapl(tmp_path, "0", "package-0", 0).unlink()
    hwmon(tmp_path, 0, "chip", power1_input="N/A", energy1_input="nan")
    assert found(str(tmp_path)) == ()
    assert counted(tmp_path, 1, lambda: None) == {}
    missing = Meter("gone", Scope.COUNTER, (str(tmp_path / "gone"),), 1.0)
    with EnergyCount([missing]) as count:
        count.begin()
        count.end(1)
    assert count.report() == {}


def test_a_meter_that_breaks_meanwhile_tells_nothing(tmp_path: Path) -> None:
    package = rapl(tmp_path, "0", "package-0", 0)
    assert counted(tmp_path, 1, lambda: package.write_text("broken\n")) == {}


def test_short_calls_have_no_energy_and_no_thread_runs_without_a_meter_of_power(tmp_path: Path) -> None:
    package = rapl(tmp_path, "0", "package-0", 0)
    before = threading.active_count()
    with EnergyCount(found(str(tmp_path))) as count:
        assert threading.active_count() == before
        count.begin()
        package.write_text("1000\n")
        count.end(1)
    assert count.report() == {}


def test_the_sampler_ends_with_the_count(tmp_path: Path) -> None:
    hwmon(tmp_path, 0, "ina226", power1_input=1_000_000)
    with EnergyCount(found(str(tmp_path))):
        assert any(thread.name == "rpcsys-meter" for thread in threading.enumerate())
    assert not any(thread.name == "rpcsys-meter" for thread in threading.enumerate())
    with pytest.raises(RuntimeError, match="a call"), EnergyCount(found(str(tmp_path))):
        raise RuntimeError("a call failed")
    assert not any(thread.name == "rpcsys-meter" for thread in threading.enumerate())


def test_a_measurement_tells_its_energy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = rapl(tmp_path, "0", "package-0", 0)
    monkeypatch.setattr(timing, "EnergyCount", lambda: EnergyCount(found(str(tmp_path))))
    spent = [0]

    def call() -> None:
        time.sleep(0.01)
        spent[0] += 3000
        package.write_text(f"{spent[0]}\n")

    answer = timing.measure(call, {"number": 4, "repeat": 2})
    assert answer["joules"] == pytest.approx(0.003)  # the first call, which is not timed, is not counted
    assert answer["meter"] == "rapl:0:package-0"


def test_this_machines_meters_are_looked_for() -> None:
    assert all(meter.files for meter in energy.found())
    assert "results" in timing.measure(lambda: None, {"number": 1})
