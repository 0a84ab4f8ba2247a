"""The history of canaries on the page."""

from __future__ import annotations

import json

from rpcsys.tracker.views import speeds
from rpcsys.tracker.views.speeds import POINTS
from tests.tracker.test_canaries import SLOW_S, Lab
from tests.tracker.transcripts import Scene


def test_a_board_with_its_points():
    scene = Scene()
    lab = Lab(scene)
    for name in ("young", "well", "slow"):
        lab.add(name, port=9000 + len(name))
        lab.run(name, times={"young": 3, "well": 800, "slow": 100}[name])
    lab.run("slow", SLOW_S, 40)
    found = speeds.speeds(scene.state.records, scene.now)
    json.dumps(found, allow_nan=False)
    assert [*found["boards"]] == ["slow", "well", "young"]
    slow, well, young = found["boards"].values()
    assert (young["seconds"], young["points"], young["promise"], young["runs"]) == (None, [], None, 3)
    assert len(well["points"]) <= POINTS
    assert all(abs(percent) < 0.01 and not was for _, percent, was in well["points"])
    assert slow["points"][-1][1:] == [3.0, 1]
    assert slow["reason"].startswith("its canary takes 3.0% longer")
    assert well["promise"] == 6


def test_boards_that_have_left_are_not_shown():
    scene = Scene()
    lab = Lab(scene)
    scene.leave(lab.add())
    assert speeds.speeds(scene.state.records, scene.now)["boards"] == {}
