"""Commits changes of a namespace's manifest to disk, with the segments that they name."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence

from services.proposer.fast.library import policy as policy
from services.proposer.fast.library.folder import LibraryFolder
from services.proposer.fast.library.manifest import Manifest, SegmentEntry
from services.proposer.fast.library.state import State
from services.proposer.fast.segments.segment import Segment, SegmentDamaged

log = logging.getLogger(__name__)


class Stopped(Exception):
    """The library is being closed."""


class Outdated(Exception):
    """The manifest has changed meanwhile: what was made from it is deleted."""


class Commits:
    def __init__(self, folder: LibraryFolder, state: State) -> None:
        self._folder, self._state = folder, state
        self._vocabulary = folder.vocabulary.hex()

    def commit(
        self,
        name: str,
        change: Callable[[Manifest], None],
        bring: Sequence[tuple[str, Segment | None]] = (),
    ) -> None:
        """Also writes the use of segments. Segments in `bring` are open from now on."""
        now = self._state.now()
        with self._state.lock:
            space = self._state.spaces.get(name)
            uses = dict(space.uses) if space is not None else {}

        def changed(manifest: Manifest) -> None:
            for entry in manifest.readable():
                if entry.file in uses:
                    policy.add_use(entry, uses[entry.file], now)
            manifest.used_at = max(manifest.used_at, now)
            change(manifest)

        try:
            manifest = self._folder.commit(name, changed, [file for file, _ in bring])
        except Exception:
            self.throw_away(bring)
            raise
        with self._state.lock:
            self._state.set_manifest(name, manifest)
            space = self._state.spaces[name]
            space.told_at = now
            for file, tokens in uses.items():
                space.uses[file] = space.uses.get(file, 0.0) - tokens
                if space.uses[file] <= 0:
                    del space.uses[file]
            for file, segment in bring:
                if segment is not None and space.wanted:
                    space.open[file] = segment
                    self._state.has_changed(space)
                elif segment is not None:
                    self._state.closing.append(segment)

    def build(self, texts: Sequence[array[int]], space: str) -> tuple[str, Segment]:
        file = self._folder.new_name("segment")
        return file, Segment.build(texts, self._folder.building / file, self._vocabulary, space)

    def throw_away(self, made: Sequence[tuple[str, Segment | None]]) -> None:
        for file, segment in made:
            if segment is not None:
                segment.close()
            (self._folder.building / file).unlink(missing_ok=True)

    def opened(self, space: str, file: str) -> Segment | None:
        """None when it is gone, or damaged: then it is removed from the manifest. OSError: it may work later."""
        try:
            return Segment.open(self._folder.path(space, file), self._vocabulary, space)
        except (SegmentDamaged, FileNotFoundError) as error:
            # Another process may have merged it.
            if file in self._folder.read(space).files():
                log.error("a segment of namespace %s is lost: %s", space, error)
                with self._state.lock:
                    self._state.counts.damaged += 1
                self.commit(space, lambda manifest: without(manifest, {file}, "its file was damaged"))
            return None


def entry_of(file: str, segment: Segment, now: float) -> SegmentEntry:
    return SegmentEntry(file, segment.tokens, segment.texts, segment.held_bytes(), now)


def without(manifest: Manifest, files: set[str], message: str) -> None:
    manifest.segments = [entry for entry in manifest.segments if entry.file not in files]
    for corpus in manifest.corpora.values():
        if corpus.ready is not None and corpus.ready.file in files:
            corpus.ready, corpus.message = None, message


def pieces(texts: Sequence[array[int]], most: int) -> Iterator[list[array[int]]]:
    """Of at most `most` tokens each; longer texts are cut."""
    piece: list[array[int]] = []
    room = most
    for text in texts:
        begin = 0
        while begin < len(text):
            # A text that fits into the next piece isn't cut.
            if room < len(text) - begin <= most:
                room = 0
            if not room:
                yield piece
                piece, room = [], most
            some = text[begin : begin + room]
            piece.append(some)
            begin, room = begin + len(some), room - len(some)
    if piece:
        yield piece
