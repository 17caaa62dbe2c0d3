"""State shared by the parts of a library, its lock, and counters. The disk is never touched while the lock is held."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from services.proposer.fast.library.corpora import Uploads
from services.proposer.fast.library.manifest import Manifest
from services.proposer.fast.library.policy import Bounds
from services.proposer.fast.library.shelf import Shelf, Space
from services.proposer.fast.library.texts import Learning, OtherTexts, Text
from services.proposer.fast.segments.segment import Segment


@dataclass(slots=True)
class Batch:
    """Texts of a namespace that become a segment; all of its with numbers below `below`."""

    space: str
    texts: list[Text]
    below: int
    ticket: int
    failures: int = 0


@dataclass(slots=True)
class Counts:
    evicted_segments: int = 0
    evicted_tokens: int = 0
    evicted_namespaces: int = 0
    damaged: int = 0
    failures: int = 0
    seals: int = 0
    merges: int = 0


@dataclass(slots=True)
class State:
    bounds: Bounds
    # Of the day, in seconds: it goes into files.
    now: Callable[[], float]
    learning: Learning
    uploads: Uploads
    lock: threading.Lock = field(default_factory=threading.Lock)
    shelf: Shelf = field(default_factory=Shelf)
    spaces: dict[str, Space] = field(default_factory=dict)
    # Texts in the journals of other processes.
    others: dict[str, OtherTexts] = field(default_factory=dict)
    batches: deque[Batch] = field(default_factory=deque)
    # Corpora to be removed, and the progress of those being built.
    removals: list[tuple[str, str]] = field(default_factory=list)
    progress: dict[tuple[str, str], float] = field(default_factory=dict)
    # Segments to be closed.
    closing: list[Segment] = field(default_factory=list)
    # Namespaces to be looked at by the next compaction.
    changed: set[str] = field(default_factory=set)
    counts: Counts = field(default_factory=Counts)
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def seal(self, space: str) -> int:
        """Cuts what was learned; it is in segments once `sealed` has reached the ticket returned."""
        texts, below = self.learning.cut(space)
        known = self.spaces.get(space)
        if not texts:
            return known.asked if known else 0
        known = known or self.spaces.setdefault(space, Space())
        known.asked += 1
        self.batches.append(Batch(space, texts, below, known.asked))
        return known.asked

    def set_manifest(self, space: str, manifest: Manifest) -> None:
        """The manifest on disk is this one now."""
        known = self.spaces.setdefault(space, Space())
        if manifest.files() != known.manifest.files():
            self.has_changed(known)
            self.changed.add(space)
        known.manifest = manifest
        live = {entry.file for entry in manifest.readable()}
        self.closing += self.shelf.drop(known, set(known.open) - live)

    def has_changed(self, space: Space) -> None:
        """No version is used twice, even if a namespace is dropped and comes again."""
        space.version = next(self._versions)

    def dropped_space(self, space: str) -> None:
        """Its manifest is gone. A seal that was asked for is still finished."""
        known = self.spaces.get(space)
        if known is None or (not known.manifest.entries() and known.asked > known.sealed):
            return
        self.set_manifest(space, Manifest())
        if known.asked == known.sealed:
            del self.spaces[space]

    def recent(self, space: str) -> Iterator[Text]:
        """Texts in no segment yet: others' first, then this process's, oldest first."""
        known = self.spaces.get(space)
        covered = known.manifest.covered if known else {}
        taken = {origin for theirs in self.others.values() for origin in theirs.origins}
        taken |= {text.origin for text in self._mine(space) if text.origin}
        for instance, theirs in self.others.items():
            for number, text in theirs.spaces.get(space, {}).items():
                if number >= covered.get(instance, 0) and (instance, number) not in taken:
                    yield text
        yield from self._mine(space)

    def _mine(self, space: str) -> Iterator[Text]:
        for batch in self.batches:
            if batch.space == space:
                yield from batch.texts
        yield from self.learning.spaces.get(space, {}).values()
