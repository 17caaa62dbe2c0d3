"""Where a JSON object or list ends, of a text that comes in pieces. Follows strings and brackets, checks nothing."""

from __future__ import annotations

import re

_OUTSIDE = re.compile(r'["\[\]{}]')
_IN_STRING = re.compile(r'["\\]')


class JsonScan:
    """`depth`: the brackets that are open where the text begins."""

    __slots__ = ("_depth", "_escaped", "_in_string")

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int:
        """The place behind the last closing bracket; -1: it isn't in this piece."""
        place = 0
        while place < len(text):
            if self._escaped:
                self._escaped = False
                place += 1
                continue
            found = (_IN_STRING if self._in_string else _OUTSIDE).search(text, place)
            if found is None:
                return -1
            place = found.end()
            character = found[0]
            if character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = not self._in_string
            elif character in "[{":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return place
        return -1
