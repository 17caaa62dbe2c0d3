"""Corpora of one namespace: texts that a caller brings for drafts to come from."""

from __future__ import annotations

from collections.abc import Sequence

from services.api.messages import CorpusCard
from services.proposer.store.library import Library


class NamespaceCorpora:
    def __init__(self, library: Library, key: str) -> None:
        self._library, self._key = library, key

    def add(self, name: str, part: int, texts: Sequence[Sequence[int]], last: bool) -> None:
        """A part of a corpus; parts come in order, from 0. CorpusRefused: nothing has changed."""
        self._library.add_corpus(self._key, name, part, texts, last)

    def remove(self, name: str) -> None:
        """Unknown names are fine."""
        self._library.remove_corpus(self._key, name)

    def list(self) -> list[CorpusCard]:
        return self._library.corpora(self._key)
