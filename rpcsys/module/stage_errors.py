"""Errors of a graph's stages: which stage failed is the beginning of the message, on every way to a client."""

from __future__ import annotations

from typing import Iterable


def name(error: BaseException, stage: str) -> None:
    """Put the stage's name before the error's message; an error without a text stays as it is."""
    if error.args and isinstance(error.args[0], str):
        error.args = (_before(stage) + error.args[0], *error.args[1:])


def failing(error: BaseException, stages: Iterable[str]) -> str:
    """The one of ``stages`` that failed; "" if the error names none of them."""
    text = str(error.args[0]) if error.args else ""
    return next((stage for stage in stages if text.startswith(_before(stage))), "")


def _before(stage: str) -> str:
    return f"stage {stage!r}: "
