"""A stage, or a segment of several, on leased boards: ``main`` runs there (`rpcsys.graph._build.leased_board`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from rpcsys import client
from rpcsys.graph._build.leased_board import LeasedBoards
from rpcsys.graph._build.stage_library import StageLibrary
from rpcsys.graph._ir.stage import TensorSpec
from rpcsys.module import Module


class LeasedModule(Module):
    """A library on a leased board: ``main`` runs there. Several threads may call it.

    `lease` or the first call leases the board; `close` leaves it. The module cannot be exported.
    """

    METHODS: ClassVar[dict[str, str]] = {"main": "_main"}

    def __init__(
        self, library: StageLibrary, boards: LeasedBoards, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec],
        number: int = 0,
    ) -> None:  # fmt: skip
        super().__init__("leased", inputs=inputs, outputs=outputs)
        self.library, self._boards = library, boards
        if library not in boards.libraries:
            boards.libraries.append(library)
        self.board = boards.member(number)

    @property
    def session(self) -> client.Session | None:
        """The session with the board that is leased now, if any."""
        return self.board.session

    def replica(self, number: int) -> LeasedModule:
        """A module of the same stages on another board; one board for all that share this one."""
        return LeasedModule(self.library, self._boards, self.inputs, self.outputs, number)

    def lease(self) -> None:
        """Lease the board and load the stages on it, unless done. Raises as `Tracker.request` and `load_module` do."""
        self.board.lease()

    def release(self) -> None:
        super().release()
        self.board.leave()

    def _main(self, *args: Any) -> Any:
        return self.board.call(self.library, *args)
