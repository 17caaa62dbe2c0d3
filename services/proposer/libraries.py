"""The libraries of a process, one for each vocabulary: token ids differ between vocabularies. A library is opened
in a thread; nothing waits for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future

from services.proposer.names import vocabulary_of
from services.proposer.store.library import Library, Stats

log = logging.getLogger(__name__)

# A mesh has one; more appear when its model is replaced.
MAX_VOCABULARIES = 4


class Libraries:
    """`open_library` makes the library of a vocabulary, in `opener`; without an opener, while the caller waits."""

    def __init__(self, open_library: Callable[[str], Library], opener: Executor | None = None) -> None:
        self._open_library, self._opener = open_library, opener
        # None: it could not be opened.
        self._libraries: dict[str, Library | None] = {}
        self._opening: dict[str, Future[Library]] = {}

    def of(self, key: str) -> Library | None:
        """The library of a namespace; None while it is being opened, or when it can't be."""
        vocabulary = vocabulary_of(key)
        self._begin_to_open(vocabulary)
        return self._libraries.get(vocabulary)

    def is_opening(self, key: str) -> bool:
        return vocabulary_of(key) in self._opening

    def finished(self) -> list[str]:
        """Vocabularies whose library has been opened since the last call, or could not be."""
        finished = [vocabulary for vocabulary, opening in self._opening.items() if opening.done()]
        for vocabulary in finished:
            self._libraries[vocabulary] = _unless_refused(self._opening.pop(vocabulary).result)
        return finished

    def wait(self) -> None:
        """Wait until all libraries that are being opened are open."""
        for opening in self._opening.values():
            opening.exception()

    def stats(self) -> Iterator[Stats]:
        return (library.stats() for library in self._libraries.values() if library is not None)

    def close(self) -> None:
        if self._opener is not None:
            self._opener.shutdown()
        for library in self._libraries.values():
            if library is not None:
                library.close()

    def _begin_to_open(self, vocabulary: str) -> None:
        known = self._libraries.keys() | self._opening.keys()
        if vocabulary in known or len(known) >= MAX_VOCABULARIES:
            return
        if self._opener is None:
            self._libraries[vocabulary] = _unless_refused(lambda: self._open_library(vocabulary))
        else:
            self._opening[vocabulary] = self._opener.submit(self._open_library, vocabulary)


def _unless_refused(opened: Callable[[], Library]) -> Library | None:
    try:
        return opened()
    except OSError as error:
        log.error("the library can't be opened, what is learned will be lost at exit: %s (see --store-dir)", error)
        return None
