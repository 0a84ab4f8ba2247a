"""The last day by key, as averages of ten minutes."""

from types import SimpleNamespace

from rpcsys.tracker.views.utilisation import MAX_KEYS, STEP_S, STEPS, Utilisation

START = 1_700_000_400  # ten minutes begin here


def records(**keys):
    """Records with, by key, slots, leases and requests."""
    peers = {number: SimpleNamespace(slots=slots) for number, (slots, _, _) in enumerate(keys.values())}
    queues = {
        key: SimpleNamespace(servers={number: None}, leases=range(leased), waiting=range(waiting))
        for number, (key, (_, leased, waiting)) in enumerate(keys.items())
    }
    return SimpleNamespace(peers=peers, queues=queues)


def test_samples_become_averages():
    utilisation = Utilisation()
    utilisation.sample(records(rpi4=(4, 1, 0)), START)
    utilisation.sample(records(rpi4=(4, 2, 3), gpu=(1, 0, 0)), START + 5)
    assert utilisation.rows(START + 6) == [(START, "rpi4", 2, 4.0, 1.5, 1.5), (START, "gpu", 1, 1.0, 0.0, 0.0)]
    day = utilisation.day(START + 6)
    assert (day["begin"], day["step_s"]) == (START, STEP_S)
    assert day["keys"]["rpi4"] == [[4.0, 1.5, 1.5]]


def test_a_young_labs_day_begins_with_its_first_sample():
    utilisation = Utilisation()
    assert utilisation.day(START) == {"begin": START, "step_s": STEP_S, "keys": {}}
    utilisation.sample(records(), START - STEP_S)
    utilisation.sample(records(rpi4=(4, 1, 0)), START)
    utilisation.sample(records(gpu=(1, 0, 0)), START + 3 * STEP_S)
    day = utilisation.day(START + 3 * STEP_S + 7)
    assert day["begin"] == START
    assert day["keys"] == {"rpi4": [[4.0, 1.0, 0.0], None, None, None], "gpu": [None] * 3 + [[1.0, 0.0, 0.0]]}
    later = utilisation.day(START + (STEPS + 2) * STEP_S)
    assert (later["begin"], list(later["keys"])) == (START + 3 * STEP_S, ["gpu"])


def test_averages_survive_a_restart():
    utilisation, again = Utilisation(), Utilisation()
    for second in range(0, 3000, 5):
        utilisation.sample(records(rpi4=(4, second % 3, 1)), START + second)
        if second % 600 == 595:
            again.add(utilisation.rows(START + second))
    assert again.day(START + 2999) == utilisation.day(START + 2999)
    again.sample(records(rpi4=(4, 4, 4)), START + 2999)
    ((_, _, looks, *_),) = again.rows(START + 2999)
    assert looks == 121


def test_one_day_is_kept():
    utilisation = Utilisation()
    for step in range(STEPS + 10):
        utilisation.sample(records(rpi4=(1, 1, 0)), START + step * STEP_S)
    assert len(utilisation._steps) == STEPS
    assert None not in utilisation.day(START + (STEPS + 9) * STEP_S)["keys"]["rpi4"]


def test_sampled_keys_are_bounded():
    utilisation = Utilisation()
    for number in range(3):
        utilisation.sample(records(**{f"k{number}-{n}": (1, 0, 0) for n in range(MAX_KEYS)}), START)
    assert len(utilisation.day(START)["keys"]) == MAX_KEYS
