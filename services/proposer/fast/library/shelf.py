"""Open segments, and those that are still read. Readers use addresses: a removed segment stays mapped until it is
released. The caller holds a lock."""

from __future__ import annotations

from dataclasses import dataclass, field

from services.proposer.fast.library.manifest import Manifest
from services.proposer.fast.segments.segment import Segment


@dataclass(slots=True, eq=False)
class Space:
    """A namespace as this process knows it. `wanted`: its segments were asked for, so they are opened."""

    manifest: Manifest = field(default_factory=Manifest)
    wanted: bool = False
    version: int = 0
    open: dict[str, Segment] = field(default_factory=dict)
    # Tokens accepted from a file since the manifest was written.
    uses: dict[str, float] = field(default_factory=dict)
    # Tickets of seals: the last one given, and the last one that is in segments.
    asked: int = 0
    sealed: int = 0
    # When its use was written down.
    told_at: float = 0.0

    def missing(self) -> list[str]:
        """Files that are wanted and not open."""
        if not self.wanted:
            return []
        return [entry.file for entry in self.manifest.readable() if entry.file not in self.open]


class Shelf:
    def __init__(self) -> None:
        self._given: dict[int, tuple[Space, str, Segment]] = {}
        # Removed ones that are still read.
        self._retired: set[int] = set()

    def give(self, space: Space, file: str) -> Segment:
        segment = space.open[file]
        self._given[id(segment)] = (space, file, segment)
        return segment

    def take_back(self, segment: Segment) -> bool:
        """Whether it can be closed now."""
        self._given.pop(id(segment), None)
        retired = id(segment) in self._retired
        self._retired.discard(id(segment))
        return retired

    def used(self, segment: Segment, tokens: float) -> None:
        given = self._given.get(id(segment))
        if given is not None and id(segment) not in self._retired:
            space, file, _ = given
            space.uses[file] = space.uses.get(file, 0.0) + tokens

    def drop(self, space: Space, files: set[str]) -> list[Segment]:
        """Removes them; returns those that can be closed."""
        free = []
        for file in files:
            space.uses.pop(file, None)
            segment = space.open.pop(file, None)
            if segment is None:
                continue
            if id(segment) in self._given:
                self._retired.add(id(segment))
            else:
                free.append(segment)
        return free

    def readers(self) -> int:
        return len(self._given)

    def close(self) -> None:
        """Closes all that are left; none is read any more."""
        for _, _, segment in self._given.values():
            segment.close()
        self._given.clear()
        self._retired.clear()
