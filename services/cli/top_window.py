"""Counts of drafts in the last seconds, from the totals of one look at the mesh after another. Pure: no clock."""

from __future__ import annotations

from collections import deque
from typing import Any

Body = dict[str, Any]
Key = tuple[str, int, str]  # instance, pid, source
WINDOW = 10.0  # s
MOST_LOOKS = 256
COUNTS = ("drafted", "accepted")


class Window:
    def __init__(self, seconds: float = WINDOW) -> None:
        self._seconds = seconds
        self._looks: deque[tuple[float, dict[Key, Body]]] = deque(maxlen=MOST_LOOKS)

    def add(self, body: Body, now: float) -> Body:
        """The body with counts of the window as `drafted_lately` and `accepted_lately`. Until there is an earlier look
        they are the server's own, of about two seconds."""
        totals = {key: source for member in body["members"] for key, source in _sources(member)}
        while len(self._looks) > 1 and now - self._looks[1][0] >= self._seconds:
            self._looks.popleft()
        earlier = self._looks[0][1] if self._looks else None
        self._looks.append((now, totals))
        if earlier is None:
            return body
        members = body["members"]
        grown = [[_grown(*each, earlier) for each in _sources(member)] for member in members]
        return {**body, "members": [{**member, "sources": own} for member, own in zip(members, grown, strict=True)]}


def _sources(member: Body) -> list[tuple[Key, Body]]:
    # A restarted process counts from 0 and has another pid.
    return [((member["instance"], member["pid"], source["name"]), source) for source in member["sources"]]


def _grown(key: Key, source: Body, earlier: dict[Key, Body]) -> Body:
    before = earlier.get(key, dict.fromkeys(COUNTS, 0))
    return {**source, **{f"{name}_lately": max(0, source[name] - before[name]) for name in COUNTS}}
