"""What the things of this package that are closed have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self


class Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        """Let go of what it holds. Does nothing the second time."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
