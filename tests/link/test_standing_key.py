"""The file of a standing key: made once, for its owner alone, and refused when it is not what it was."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from rpcsys.errors import ConfigError
from rpcsys.link import identity, standing_key
from rpcsys.wire import pinned_keys


def test_it_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "edge.key"
    made = standing_key.read_or_make(str(path), "edge")
    assert path.stat().st_mode & 0o777 == 0o600
    assert standing_key.read_or_make(str(path), "edge") == made
    assert standing_key.match_key(str(path)) == made.match_key.text
    assert made.match_key.pin == made.own.pin
    assert [each.name for each in tmp_path.iterdir()] == ["edge.key"]


def test_a_client_needs_its_first_line_alone(tmp_path: Path) -> None:
    made = standing_key.read_or_make(str(tmp_path / "edge.key"), "edge")
    path = tmp_path / "copied"
    path.touch(0o600)
    path.write_text(f"{made.match_key.text} \n")
    assert standing_key.match_key(str(path)) == made.match_key.text


def test_one_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "edge.key"
    standing_key.read_or_make(str(path), "edge")
    path.chmod(0o640)
    for act in (lambda: standing_key.read_or_make(str(path), "edge"), lambda: standing_key.match_key(str(path))):
        with pytest.raises(ConfigError, match=f"others may read the key {path}: type chmod 600 {path}"):
            act()


def test_what_is_no_such_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "edge.key"
    made = standing_key.read_or_make(str(path), "edge")
    with pytest.raises(ConfigError, match="is of edge, and this server is rpi4: give --key"):
        standing_key.read_or_make(str(path), "rpi4")
    other = identity.new()
    cases = {
        "": "holds no whole key of a server",
        made.match_key.name: "holds no whole key of a server",
        made.text()[:40]: "holds no whole key of a server",
        made.match_key.text: f"{path} is no private key of rpcsys .*: restore it",
        f"{made.match_key.text}\n{other.pem()}": "its two keys do not belong together",
        f"{pinned_keys.new('edge', other.pin).text}\n{made.own.pem()}": "its two keys do not belong together",
    }
    for content, why in cases.items():
        path.write_text(content)
        with pytest.raises(ConfigError, match=why) as refused:
            standing_key.read_or_make(str(path), "edge")
        assert made.match_key.secret not in str(refused.value)
    with pytest.raises(ConfigError, match="No such file"):
        standing_key.read_or_make(str(tmp_path / "none" / "edge.key"), "edge")
    with pytest.raises(ConfigError, match="cannot read the key"):
        standing_key.match_key(str(tmp_path / "none"))


def _make(path: str, queue: multiprocessing.Queue[str]) -> None:
    queue.put(standing_key.read_or_make(path, "edge").match_key.text)


def test_servers_that_make_it_at_once_have_the_same(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    queue: multiprocessing.Queue[str] = context.Queue()
    makers = [context.Process(target=_make, args=(str(tmp_path / "edge.key"), queue)) for _ in range(6)]
    for maker in makers:
        maker.start()
    assert len({queue.get(timeout=20) for _ in makers}) == 1
    for maker in makers:
        maker.join(20)
    assert os.listdir(tmp_path) == ["edge.key"]
