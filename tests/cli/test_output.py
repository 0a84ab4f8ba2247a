from __future__ import annotations

import numpy as np
import pytest

from rpcsys.cli import output


def test_rows_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    output.rows([("a", "1"), ("long name", "2")])
    assert capsys.readouterr().out == "  a          1\n  long name  2\n"


def test_indented_keeps_blank_lines_blank(capsys: pytest.CaptureFixture[str]) -> None:
    output.indented("\none\n\ntwo   \n")
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
def test_an_array_in_a_line(value: np.ndarray, text: str) -> None:
    assert output.array(value) == text


def test_progress_goes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("loading") as advance:
        for done in range(0, 11, 5):
            advance(done, 10)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "loading" in captured.err


def test_megabytes() -> None:
    assert output.megabytes(102_500_000) == "102.5 MB"
