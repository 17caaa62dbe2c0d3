"""Pages that other workers have asked for: which of them are there, in the order of the text.

    names    [page][page][page][page][page]
              sent  └ held ────┘     └ not computed yet: looked for after each step, while its sequence runs
                    next             seen

A page is held from the moment it is found until it has been read, so that nothing evicts it meanwhile; if sequences
that run need it, it goes all the same, and the loan ends there: the other worker computes what it doesn't get.

A worker that reads pages where they lie (direct.py) is told their numbers, and says when it has read them. Whether they
were held all the time is seen from a number that changes when held pages are taken away: `stamp`, then and now.

Used from the thread that computes, between steps. Knows no sockets. Owner of what a loan holds is its number, negative:
what is held for the sequence of that number is released when that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from services.worker.running.runner import PageMemory
from services.worker.scheduling.prefix import Sharing


@dataclass(frozen=True, slots=True)
class Lent:
    """Pages in order, from index `first` on: the frames of each, or the numbers of those to be read where they lie,
    which were held at `stamp`. `done`: there will be no more."""

    first: int
    pages: list[list[bytes]]
    done: bool
    places: list[int] = field(default_factory=list)
    stamp: int = 0


Back = Callable[[Lent], None]


@dataclass(slots=True)
class _Loan:
    names: list[bytes]
    # Whether its sequence may still compute some.
    computing: bool
    # Whether its pages are read where they lie.
    direct: bool = False
    next: int = 0
    seen: int = 0
    # How many pages are wanted now, and who wants them.
    wanted: int = 0
    back: Back | None = None


class Lending:
    def __init__(self, sharing: Sharing, memory: PageMemory) -> None:
        self._cache, self._held = sharing.cache, sharing.held
        self._memory = memory
        self._loans: dict[int, _Loan] = {}

    def __bool__(self) -> bool:
        return bool(self._loans)

    def begin(self, loan: int, names: list[bytes], computing: bool, direct: bool = False) -> None:
        """`loan` is the number of the stream of its sequence, with `computing`, or of none."""
        assert loan not in self._loans, "a stream is one loan"
        self._loans[loan] = _Loan(names, computing, direct)

    def ask(self, loan: int, most: int, back: Back) -> None:
        """`back` is called once, with at most that many pages, as soon as there is one or none will come."""
        found = self._loans.get(loan)
        if found is None:
            back(Lent(0, [], True))
            return
        found.wanted, found.back = most, back
        self._look(loan, found)

    @property
    def stamp(self) -> int:
        """Another number than before: pages that were held then may hold other texts by now. From any thread."""
        return self._held.releases

    def were_read(self, loan: int, pages: list[int]) -> None:
        """They needn't be held for it any more."""
        for page in pages:
            self._held.release_one(-loan, page)

    def sequence_ended(self, loan: int) -> None:
        """It has computed what it will; `look` follows."""
        if (found := self._loans.get(loan)) is not None:
            found.computing = False

    def look(self) -> None:
        """After a step, or the end of a sequence."""
        for loan, found in list(self._loans.items()):
            self._look(loan, found)

    def close(self, loan: int) -> None:
        if self._loans.pop(loan, None) is not None:
            self._held.release(-loan)

    def _look(self, loan: int, found: _Loan) -> None:
        while found.seen < len(found.names) and (page := self._cache.page(found.names[found.seen])) is not None:
            self._held.hold(-loan, page)
            found.seen += 1
        if found.back is None:
            return
        first = found.next
        pages, places = ([], self._place(loan, found)) if found.direct else (self._read(loan, found), [])
        gone = found.next - first < min(found.wanted, found.seen - first)
        done = gone or found.next == len(found.names) or (found.next == found.seen and not found.computing)
        if pages or places or done:
            back, found.back = found.back, None
            back(Lent(first, pages, done, places, self.stamp if found.direct else 0))

    def _read(self, loan: int, found: _Loan) -> list[list[bytes]]:
        pages: list[int] = []
        while len(pages) < found.wanted and found.next < found.seen:
            page = self._cache.page(found.names[found.next])
            if page is None:
                break
            pages.append(page)
            found.next += 1
        # At once: where ranks have parts of them, that is one exchange.
        read = self._memory.read(pages) if pages else []
        for page in pages:
            self._held.release_one(-loan, page)
        return read

    def _place(self, loan: int, found: _Loan) -> list[int]:
        places: list[int] = []
        while len(places) < found.wanted and found.next < found.seen:
            page = self._cache.page(found.names[found.next])
            if page is None:
                break
            if not self._held.holds(-loan, page):
                self._held.hold(-loan, page)
            places.append(page)
            found.next += 1
        return places
