"""What a test needs of a lab: the marker ``board`` says it, and the option ``--boards``."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Dict, Iterable, List, Optional

import pytest

#: In place of a key: every server of rpcsys has this label.
ANY_BOARD = {"cores": ">=0"}
#: Fixtures of boards that one test has, and those that several tests share.
NARROW = ("board", "boards", "tvm_remote")
WIDE = {"module_board": "module", "session_board": "session"}
#: The keys of ``--boards``, None without the option.
KEYS = pytest.StashKey[Optional[List[str]]]()


@dataclass(frozen=True)
class BoardNeed:
    """The arguments of ``@pytest.mark.board``: those of `Tracker.request`, by the same names."""

    key: Optional[str] = None
    labels: Dict[str, str] = field(default_factory=dict)
    count: int = 1  # of the fixture ``boards``
    session_timeout: Optional[float] = None
    priority: float = 1
    wait_for_key: bool = False


def need_of(node: Any) -> BoardNeed:
    """What the closest marker of a test, or of a module, says. Fails the test where it cannot be understood."""
    marker = node.get_closest_marker("board")
    if marker is None:
        return BoardNeed()
    try:
        return BoardNeed(*marker.args, **marker.kwargs)
    except TypeError:
        names = ", ".join(each.name for each in fields(BoardNeed))
        pytest.fail(f"@pytest.mark.board takes {names}, and nothing else", pytrace=False)


def split_keys(text: str) -> List[str]:
    """The keys of ``--boards KEY,KEY``, each once. Raises `pytest.UsageError` if there is none."""
    keys = list(dict.fromkeys(key.strip() for key in text.split(",") if key.strip()))
    if not keys:
        raise pytest.UsageError(f"--boards {text!r}: give keys with commas between, or all")
    return keys


def lab_keys(words: Iterable[str]) -> Dict[str, int]:
    """The setting ``rpcsys_lab``, words as ``rpi4=2``: numbers of servers by key. Raises `pytest.UsageError`."""
    servers = {}
    for word in words:
        key, _, count = word.partition("=")
        if not key or not (count or "1").isdecimal() or not int(count or 1):
            raise pytest.UsageError(f"rpcsys_lab: {word!r} is no KEY=COUNT, such as rpi4=2")
        servers[key] = int(count or 1)
    return servers


def parametrize(metafunc: pytest.Metafunc) -> None:
    """Have a test run once for each key of ``--boards``, unless its marker names a key."""
    used = [name for name in (*NARROW, *WIDE) if name in metafunc.fixturenames]
    _refuse_lost_marker(metafunc, used)
    keys = metafunc.config.stash[KEYS]
    if not used or keys is None:
        return
    narrow = any(name in NARROW for name in used)
    if narrow and need_of(metafunc.definition).key is not None:
        return
    scopes = [WIDE[name] for name in used if name in WIDE]
    scope: Any = max(scopes, key=("module", "session").index, default="function")
    metafunc.parametrize("board_key", keys, indirect=True, ids=keys, scope=scope)


def _refuse_lost_marker(metafunc: pytest.Metafunc, used: List[str]) -> None:
    """Fail the collection of a test whose own marker its shared board would not see."""
    wide = [name for name in used if name in WIDE]
    if not wide or len(wide) < len(used):
        return
    for node, _ in metafunc.definition.iter_markers_with_node("board"):
        if not isinstance(node, pytest.Module):
            pytest.fail(
                f"{metafunc.definition.name}: {wide[0]} is shared, so that its marker is the module's: write "
                "pytestmark = pytest.mark.board(...), or use the fixture board",
                pytrace=False,
            )
