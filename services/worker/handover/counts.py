"""What a worker has handed over and been handed, for metrics, and how fast. Written from the event loop."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

# Weight of the newest measurement.
_NEW = 0.2
# Smaller steps say little about how long a prompt takes.
_PROMPT_ROWS = 32
# Where fetching doesn't pay, one of this many requests fetches all the same, to see if it pays now.
_PROBE_EVERY = 64
# A page that is fetched takes other work of both workers, too: it has to be this much faster than computing.
MARGIN = 0.8


@dataclass(slots=True)
class Counts:
    """`ends` of fetches: complete, partial (the other worker was lost, or had no more), full (no room here), none
    (it was asked only for what it has, and had nothing)."""

    lent_pages: int = 0
    lent_bytes: int = 0
    fetched_pages: int = 0
    fetched_bytes: int = 0
    # Of these, read where they lay (page_transport nixl).
    read_pages: int = 0
    # From the request for pages to the last one, the other worker's computing and waiting included.
    fetch_seconds: float = 0.0
    # Pages that another worker was to compute and that didn't come.
    recomputed_pages: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class Rates:
    """Seconds that a token takes to compute and to fetch, as measured; 0: unknown."""

    def __init__(self) -> None:
        self.computing = 0.0
        self.fetching = 0.0
        self._declined = 0

    def computed(self, rows: int, seconds: float) -> None:
        """A step. Called from the thread that computes."""
        if rows >= _PROMPT_ROWS and seconds > 0.0:
            self.computing = _mixed(self.computing, seconds / rows)

    def fetched(self, tokens: int, seconds: float) -> None:
        """Pages that were there already."""
        if tokens:
            self.fetching = _mixed(self.fetching, seconds / tokens)

    def fetching_pays(self) -> bool:
        """Asked once for each request. As long as one of the two is unknown it is tried, and later now and then."""
        if not self.computing or not self.fetching or self.fetching < MARGIN * self.computing:
            return True
        self._declined += 1
        return self._declined % _PROBE_EVERY == 0


def _mixed(old: float, new: float) -> float:
    return new if not old else old + _NEW * (new - old)
