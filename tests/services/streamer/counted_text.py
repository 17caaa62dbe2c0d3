"""A text that counts the characters which its methods read or copy, so that a test sees work that grows with the square
of a text without measuring time. What is joined, or searched by an expression, isn't counted."""

from __future__ import annotations

from typing import Any


class Counted(str):
    __slots__ = ("work",)

    def __new__(cls, text: str, work: list[int]) -> Counted:
        made = super().__new__(cls, text)
        made.work = work
        return made

    def _counted(self, text: str, read: int) -> Counted:
        self.work[0] += read
        return Counted(text, self.work)

    def __add__(self, other: str) -> Counted:
        return self._counted(str(self) + str(other), len(self) + len(other))

    def __radd__(self, other: str) -> Counted:
        return self._counted(str(other) + str(self), len(self) + len(other))

    def __getitem__(self, key: Any) -> Counted:
        found = str.__getitem__(self, key)
        return self._counted(found, len(found))

    def lstrip(self, *given: Any) -> Counted:
        return self._counted(str.lstrip(self, *given), len(self))

    def rstrip(self, *given: Any) -> Counted:
        return self._counted(str.rstrip(self, *given), len(self))

    def strip(self, *given: Any) -> Counted:
        return self._counted(str.strip(self, *given), len(self))

    def find(self, *given: Any) -> int:
        self.work[0] += len(self)
        return str.find(self, *given)

    def isspace(self) -> bool:
        self.work[0] += len(self)
        return str.isspace(self)

    def startswith(self, *given: Any) -> bool:
        self.work[0] += len(given[0])
        return str.startswith(self, *given)

    def endswith(self, *given: Any) -> bool:
        self.work[0] += len(given[0])
        return str.endswith(self, *given)


def work_of(pieces: list[str], feed: Any) -> int:
    """Characters read or copied while `feed` takes the pieces."""
    work = [0]
    for piece in pieces:
        feed(Counted(piece, work))
    return work[0]
