from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from rpcsys.cli.commands import group
from rpcsys.cli.options import PORT, CommandGroup, FilePath, Number, check_file, check_key, tracker_address
from rpcsys.errors import ConfigError, UsageError
from tests.cli.conftest import Command


def groups(command: click.Command, *words: str) -> Iterator[tuple[tuple[str, ...], click.Group]]:
    """The groups that do nothing without a command."""
    if isinstance(command, click.Group) and not command.invoke_without_command:
        yield words, command
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from groups(below, *words, name)


@pytest.mark.parametrize("words", [words for words, _ in groups(group)], ids=" ".join)
def test_a_group_needs_a_command(words: tuple[str, ...], rpcsys: Command) -> None:
    done = rpcsys(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"Usage: {' '.join(('rpcsys', *words))} [OPTIONS] COMMAND")


def test_a_group_completes_without_arguments() -> None:
    assert all(isinstance(each, CommandGroup) for _, each in groups(group))
    context = group.make_context("rpcsys", [], resilient_parsing=True)
    assert {item.value for item in group.shell_complete(context, "tr")} == {"tracker"}


def test_the_trackers_address_is_the_flags_or_the_environments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPCSYS_TRACKER_HOST", "lab")
    monkeypatch.setenv("RPCSYS_TRACKER_PORT", "7")
    assert tracker_address(None) == ("lab", 7)
    assert tracker_address("[::1]:8") == ("::1", 8)
    assert tracker_address("other", PORT) == ("other", 9190)
    with pytest.raises(ConfigError):
        tracker_address("other")


def test_a_files_name_is_not_empty() -> None:
    assert FilePath().convert("a.onnx", None, None) == Path("a.onnx")
    with pytest.raises(click.BadParameter, match="the name is empty"):
        FilePath().convert("", None, None)


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "-1", "many"])
def test_a_number_is_finite_and_in_its_range(text: str) -> None:
    assert Number(0).convert("1.5", None, None) == 1.5
    with pytest.raises(click.BadParameter):
        Number(0).convert(text, None, None)


def test_a_file_and_a_key_are_checked(tmp_path: Path) -> None:
    (tmp_path / "m").touch()
    check_file(tmp_path / "m", "model")
    check_key("rpi4")
    with pytest.raises(UsageError, match="is a folder; give the path of a model"):
        check_file(tmp_path, "model")
    with pytest.raises(UsageError, match=r"no such model: .*; check the path"):
        check_file(tmp_path / "n", "model")
    with pytest.raises(ConfigError, match="--key 'a b': a key has no space"):
        check_key("a b")
    pinned = "edge:t1-" + "1f" * 32
    check_key(pinned)
    with pytest.raises(UsageError, match=r"visible to everybody on this machine .*--key-file FILE") as refused:
        check_key(f"{pinned}-{'5c' * 16}")
    assert "5c5c" not in str(refused.value)
