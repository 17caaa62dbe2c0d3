"""What the parts of a library share: its lock, counters, and the namespaces with their open segments. The disk is never
touched while the lock is held. A segment stays mapped as long as somebody has it.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from services.proposer.segments.segment import Segment
from services.proposer.store.files import StoredFile
from services.proposer.store.learning import Learning
from services.proposer.store.policy import Bounds
from services.proposer.store.uploads import Uploads


@dataclass(slots=True, eq=False)
class Space:
    """A namespace as this process knows it. `wanted`: its segments were asked for, so they are opened."""

    files: list[StoredFile] = field(default_factory=list)
    wanted: bool = False
    version: int = 0
    open: dict[str, Segment] = field(default_factory=dict)

    def missing(self) -> list[StoredFile]:
        """Wanted and not open."""
        return [
            each for each in self.files
            if self.wanted and each.role in ("learned", "ready") and each.file not in self.open
        ]  # fmt: skip


@dataclass(slots=True)
class StoreCounts:
    evicted_tokens: int = 0
    # Files; the database counts its own.
    damaged: int = 0
    seals: int = 0
    merges: int = 0


@dataclass(slots=True)
class StoreState:
    bounds: Bounds
    # Of the day, in seconds: it goes into files.
    now: Callable[[], float]
    learning: Learning
    uploads: Uploads
    lock: threading.Lock = field(default_factory=threading.Lock)
    spaces: dict[str, Space] = field(default_factory=dict)
    # Namespaces to be sealed, with the number of the first text of this process that isn't to be (None: all are); and
    # those to be looked at by the next compaction.
    to_seal: dict[str, int | None] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    # Corpora to be removed, and the progress of those being built.
    removals: list[tuple[str, str]] = field(default_factory=list)
    progress: dict[tuple[str, str], float] = field(default_factory=dict)
    # Segments that were given back: a thread drops them, as it takes a while to unmap one.
    released: list[Segment] = field(default_factory=list)
    counts: StoreCounts = field(default_factory=StoreCounts)
    _versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def see(self, files: dict[str, list[StoredFile]]) -> None:
        """These are all there are."""
        for name in [*files, *(name for name in self.spaces if name not in files)]:
            space, now = self.spaces.setdefault(name, Space()), files.get(name, [])
            if space.files == now:
                continue
            if {each.file for each in space.files} != {each.file for each in now}:
                self.has_changed(space)
                self.changed.add(name)
            space.files = now
            for file in space.open.keys() - {each.file for each in now}:
                self.released.append(space.open.pop(file))
            if not now:
                del self.spaces[name]

    def has_changed(self, space: Space) -> None:
        """No version is used twice, even if a namespace is dropped and comes again."""
        space.version = next(self._versions)

    def has_opened(self, segment: Segment) -> None:
        space = self.spaces.get(segment.namespace)
        if space is not None and segment.path.name in {each.file for each in space.missing()}:
            space.open[segment.path.name] = segment
            self.has_changed(space)
