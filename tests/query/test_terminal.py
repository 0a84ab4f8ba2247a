"""How commands run and print."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
import time

import click
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import Interrupted, ProtocolError, RpcsysError, UsageError
from rpcsys.query import terminal
from rpcsys.query.terminal import (
    MAX_WIDTH,
    array_text,
    megabytes,
    print_indented,
    print_json,
    print_pairs,
    print_rows,
    print_table,
    run_command,
    say,
    span,
    value_text,
    who,
    with_options,
)
from rpcsys.wire.tensor import Tensor
from tests.test_layers import PACKAGE


def ran(error: BaseException | None) -> int:
    """The status of a command that raises an error."""

    @click.command()
    def command() -> None:
        if error is not None:
            raise error

    return run_command(command, "name", [])


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (None, 0, ""),
        (RpcsysError("two\nlines"), 1, "name: error: two lines\n"),
        (click.UsageError("no\nsuch option."), 2, "name: error: no such option (see name --help)\n"),
        (OSError(errno.ENOENT, "gone", "a\nfile"), 1, "name: error: a\\nfile: gone\n"),
        (OSError(errno.ENOTCONN, "no way"), 1, "name: error: no way\n"),
        (
            OSError(errno.ENOSPC, "full"),
            1,
            "name: error: the output cannot be written: full; free some space, or write it elsewhere\n",
        ),
        (click.ClickException("no"), 1, "name: error: no\n"),
        (KeyboardInterrupt(), 130, "name: interrupted\n"),
        (KeyboardInterrupt("the session is lost"), 130, "name: interrupted\n"),
        (Interrupted("m may still go live"), 130, "name: interrupted: m may still go live\n"),
        (click.exceptions.Exit(5), 5, ""),
    ],
)
def test_every_error_is_one_line_and_a_status(error, status, told, capsys) -> None:
    assert ran(error) == status
    assert capsys.readouterr().err.strip("\n") == told.strip("\n")


def test_characters_that_the_terminal_lacks_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))

    @click.command()
    def command() -> None:
        sys.stdout.write("straße")

    assert run_command(command, "name", []) == 0
    assert written.getvalue() == rb"stra\xdfe"


def test_no_work_ends_for_what_standard_error_cannot_take(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    @click.command()
    def command() -> None:
        for _ in range(2):
            click.echo("loading", err=True)
        click.echo("type: ", err=True, nl=False)  # which is written as it is flushed
        click.echo("result")

    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert run_command(command, "name", []) == 0
        assert ran(UsageError("no")) == 2
        full.flush()  # as the interpreter does at its end
    assert capsys.readouterr().out == "result\n"


def test_options_keep_their_order() -> None:
    @click.command()
    @with_options(click.option("--one"), click.option("--two"))
    def command(one: str, two: str) -> None:
        pass

    assert [option.name for option in command.params] == ["one", "two"]


def test_rows_are_a_table_or_lines_of_json(capsys) -> None:
    items = [{"a": 1, "b": "x"}, {"a": 20, "b": "y\x1b"}]
    print_rows(items, {"A": "a", "both": lambda item: f"{item['a']}{item['b']}"})
    assert capsys.readouterr().out == "A   both\n1   1x\n20  20y\\x1b\n"
    print_rows(items, {}, as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == items


@given(st.lists(st.lists(st.text(max_size=5), min_size=2, max_size=2), max_size=5))
def test_a_table_has_no_control_characters(rows) -> None:
    out = io.StringIO()
    original, sys.stdout = sys.stdout, out
    try:
        print_table(("one", "two"), rows)
        say("\x1b[2J")
    finally:
        sys.stdout = original
    assert out.getvalue().replace("\n", "").isprintable()
    assert out.getvalue().count("\n") == len(rows) + 2


def test_one_long_cell_does_not_widen_every_row(capsys) -> None:
    print_table(("a", "b"), [("x" * 1000, "1"), ("y", "2")])
    assert len(capsys.readouterr().out.splitlines()[2]) < MAX_WIDTH + 10


def test_a_number_that_json_lacks_is_an_error() -> None:
    with pytest.raises(ProtocolError, match="what the lab answers has no form in JSON"):
        print_json(float("nan"))


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.46, "2.5s"), (200, "3m20s"), (7260, "2h01m"), (26 * 3600, "1d02h"), (59.99, "60.0s")]
)
def test_durations_as_text(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_user_is_printed_with_the_address() -> None:
    assert [who("ann", "10.0.0.5"), who("10.0.0.5", "10.0.0.5"), who("ann", "")] == ["ann@10.0.0.5", "10.0.0.5", "ann"]


def test_names_and_values_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("a", "1"), ("long name", "2")])
    assert capsys.readouterr().out == "  a          1\n  long name  2\n"


def test_indented_text_keeps_its_blank_lines(capsys: pytest.CaptureFixture[str]) -> None:
    print_indented("\none\n\ntwo   \n")
    assert capsys.readouterr().out == "  one\n\n  two\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array([[1.0, 3.0]], "float32"), "float32 [1, 2]  min 1  mean 2  max 3"),
        (np.array(7), "int64 []  min 7  mean 7  max 7"),
        (np.zeros((0, 3)), "float64 [0, 3]"),
        (np.array([True]), "bool [1]"),
    ],
)
def test_an_array_is_described_in_one_line(value: np.ndarray, text: str) -> None:
    assert array_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.array(["ja", "nein"]), "strings [2]  ja, nein"),
        (np.array(list("abcdef"), dtype=object), "strings [6]  a, b, c, d, …"),
        (np.float32([1, 3]), "float32 [2]  min 1  mean 2  max 3"),
        ([{3: 0.5, 5: 0.25}], "list of 1  {3: 0.5, 5: 0.25}"),
        ([np.zeros(2, bool)] * 6, "list of 6  bool [2], bool [2], bool [2], bool [2], …"),
        ({i: i for i in range(6)}, "{0: 0, 1: 1, 2: 2, 3: 3, …}"),
        (Tensor("bfloat16", (2,), bytearray(4)), "bfloat16 [2]"),
        ([], "list of 0"),
        (None, "None"),
    ],
)
def test_any_output_is_described_in_one_line(value: object, text: str) -> None:
    assert value_text(value) == text


def test_bytes_are_printed_in_megabytes() -> None:
    assert megabytes(102_500_000) == "102.5 MB"


@pytest.mark.parametrize(("python", "shell"), terminal._ADVICE)
def test_pythons_advice_is_not_given_at_a_shell(python, shell):
    assert terminal.at_a_shell(f"it failed{python}.") == f"it failed{shell}."


def test_the_advice_that_is_replaced_is_in_the_code():
    code = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if path.name != "terminal.py")
    for python, _ in terminal._ADVICE:
        assert all(part in code for part in python.split("Check the key")), python


def test_sigterm_ends_a_command_as_ctrl_c_does(capsys):
    cleaned = []

    @click.command()
    def waits():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleaned.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    assert run_command(waits, "waits", []) == 143
    assert cleaned == [signal.SIG_DFL]  # a second one kills
    assert signal.getsignal(signal.SIGTERM) == before
    assert capsys.readouterr().err.endswith("waits: terminated\n")


def test_one_is_singular() -> None:
    assert [terminal.counted(count, "client") for count in (0, 1, 2)] == ["0 clients", "1 client", "2 clients"]
