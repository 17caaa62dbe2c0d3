"""How one text writes what stands between the parts of JSON. A grammar leaves the white space open, and with it the
tokens; a model writes them alike from field to field: what followed a comma is likely to follow the next one.

    "age": 23, "town":        behind `,` came ` "`, behind `:` came ` ` and ` "`, behind a name `":`

Knows tokens by their bytes, and no grammar: whether a guess may follow is asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

_BEFORE = b",:{[}]"  # white space may follow tokens that end so
_WHITE = b" \t\r\n"
_OPENS = b'"{['  # may stand in one token with the white space before it


class Spaces:
    __slots__ = ("_behind", "_bytes_of")

    def __init__(self, bytes_of: Callable[[int], bytes]) -> None:
        self._bytes_of = bytes_of
        # By what stood before: the tokens that followed it, the longest first.
        self._behind: dict[bytes, list[int]] = {}

    def saw(self, token: int, following: int) -> None:
        before = self._before(token)
        if following not in (known := self._behind.get(before, [])) and self._may_follow(before, following):
            self._behind[before] = sorted([*known, following], key=lambda each: -len(self._bytes_of(each)))

    def missed(self, token: int, guess: int) -> None:
        """Something else followed."""
        before = self._before(token)
        self._behind[before] = [each for each in self._behind.get(before, ()) if each != guess]

    def behind(self, token: int) -> list[int]:
        return self._behind.get(self._before(token), [])

    def _before(self, token: int) -> bytes:
        """The mark that a token ends with, or all of it if it is white space; b"": neither."""
        text = self._bytes_of(token)
        if not text.strip(_WHITE):
            return text
        return text[-1:] if text[-1] in _BEFORE else b""

    def _may_follow(self, before: bytes, token: int) -> bool:
        text = self._bytes_of(token)
        if not before:
            return text.strip(_WHITE) == b'":'
        return text[:1].isspace() and not text.strip(_WHITE).strip(_OPENS)
