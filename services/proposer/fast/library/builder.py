"""Makes segments of learned text and of corpora, merges them, and evicts what is too much. Runs in a thread of the
library. A segment counts once a manifest names it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress

from services.proposer.fast.library import policy as policy
from services.proposer.fast.library.commits import Commits, Outdated, Stopped, entry_of, pieces, without
from services.proposer.fast.library.corpora_builder import CorpusBuilder
from services.proposer.fast.library.folder import LibraryFolder, Stamp
from services.proposer.fast.library.manifest import Manifest, SegmentEntry
from services.proposer.fast.library.state import Batch, State
from services.proposer.fast.segments.segment import Segment, merge

log = logging.getLogger(__name__)

# How often the use of segments is written to disk.
_TELL_USE = 60.0  # seconds
_TRIES = 3


class Builder:
    def __init__(self, folder: LibraryFolder, state: State, stopped: Callable[[], bool]) -> None:
        self._folder, self._state, self._stopped = folder, state, stopped
        self._commits = Commits(folder, state)
        self._corpora = CorpusBuilder(folder, state, self._commits, self._go_on)
        self.keep_uploads = self._corpora.keep_uploads
        self._stamps: dict[str, Stamp] = {}

    # What others have done --------------------------------------------------------------------------------

    def look(self) -> None:
        """Reads manifests that have changed."""
        stamps = self._folder.stamps()
        damaged = self._folder.damaged
        for space, stamp in stamps.items():
            if self._stamps.get(space) != stamp:
                manifest = self._folder.read(space)
                with self._state.lock:
                    self._state.set_manifest(space, manifest)
        with self._state.lock:
            self._state.counts.damaged += self._folder.damaged - damaged
            for space in set(self._stamps) - set(stamps):
                self._state.dropped_space(space)
        self._stamps = stamps

    def open(self) -> None:
        """Opens segments that were asked for."""
        with self._state.lock:
            missing = [(name, file) for name, space in self._state.spaces.items() for file in space.missing()]
        for name, file in missing:
            segment = self._commits.opened(name, file)
            with self._state.lock:
                space = self._state.spaces.get(name)
                if segment is not None and space is not None and file in space.missing():
                    space.open[file] = segment
                    self._state.has_changed(space)
                elif segment is not None:
                    self._state.closing.append(segment)

    def close_unread(self) -> None:
        with self._state.lock:
            closing, self._state.closing = self._state.closing, []
        for segment in closing:
            segment.close()

    # What was learned -------------------------------------------------------------------------------------

    def seal(self) -> None:
        while not self._stopped():
            with self._state.lock:
                batch = self._state.batches[0] if self._state.batches else None
            if batch is None:
                return
            try:
                self._seal(batch)
            except OSError:
                # The disk may be full: learned texts wait in memory, within their bound.
                raise
            except Exception:
                batch.failures += 1
                if batch.failures < _TRIES:
                    raise
                log.exception("learned text of namespace %s can't become a segment and is lost", batch.space)
                with self._state.lock:
                    self._state.counts.failures += 1
                    self._sealed(batch)

    def _seal(self, batch: Batch) -> None:
        made: list[tuple[str, Segment]] = []
        try:
            for texts in pieces([text.tokens for text in batch.texts], self._state.bounds.largest_segment):
                made.append(self._commits.build(texts, batch.space))
        except Exception:
            self._commits.throw_away(made)
            raise
        now = self._state.now()

        def change(manifest: Manifest) -> None:
            manifest.segments += [entry_of(name, segment, now) for name, segment in made]
            manifest.covered[self._folder.instance] = batch.below

        self._commits.commit(batch.space, change, made)
        with self._state.lock:
            self._state.counts.seals += 1
            self._sealed(batch)

    def _sealed(self, batch: Batch) -> None:
        self._state.batches.remove(batch)
        self._state.learning.gone(batch.texts)
        space = self._state.spaces.get(batch.space)
        if space is not None:
            space.sealed = batch.ticket

    # Merging and evicting ---------------------------------------------------------------------------------

    def compact(self) -> None:
        """Merges and evicts, one process at a time. Changes meanwhile are seen the next time."""
        with self._state.lock:
            if not self._state.changed and not self._corpora.waiting():
                return
        with self._folder.compacting() as ours:
            if not ours:
                return
            self._corpora.build()
            while self._state.changed and not self._stopped():
                with self._state.lock:
                    name = next(iter(self._state.changed))
                    space = self._state.spaces.get(name)
                    entries = policy.to_merge(space.manifest, self._state.bounds) if space is not None else []
                if entries:
                    self._merge(name, entries)
                    # The other steps of `work` come in between.
                    return
                if space is not None:
                    self._evict(name, policy.too_much(space.manifest, self._state.bounds, self._state.now()))
                with self._state.lock:
                    self._state.changed.discard(name)
            self._make_room()

    def _merge(self, name: str, entries: list[SegmentEntry]) -> None:
        files = [entry.file for entry in entries]
        sources: list[Segment] = []
        opened: list[Segment] = []
        try:
            for file in files:
                with self._state.lock:
                    known = self._state.spaces.get(name)
                    segment = known.open.get(file) if known is not None else None
                if segment is None:
                    segment = self._commits.opened(name, file)
                    if segment is None:
                        self.look()
                        return
                    opened.append(segment)
                sources.append(segment)
            file = self._folder.new_name("segment")
            made = [(file, merge(sources, self._folder.building / file, lambda *_: self._go_on()))]
        finally:
            for segment in opened:
                segment.close()

        def change(manifest: Manifest) -> None:
            merged = [entry for entry in manifest.segments if entry.file in files]
            if len(merged) < len(files):
                raise Outdated
            segment = made[0][1]
            entry = policy.merged_entry(merged, file, segment.tokens, segment.held_bytes(), self._state.now())
            manifest.segments = [one for one in manifest.segments if one.file not in files] + [entry]

        with suppress(Outdated):
            self._commits.commit(name, change, made)
            with self._state.lock:
                self._state.counts.merges += 1

    def _go_on(self) -> None:
        if self._stopped():
            raise Stopped

    def _evict(self, name: str, entries: Sequence[SegmentEntry]) -> None:
        if not entries:
            return
        gone = {entry.file for entry in entries}
        self._commits.commit(name, lambda manifest: without(manifest, gone, ""))
        with self._state.lock:
            self._state.counts.evicted_segments += len(entries)
            self._state.counts.evicted_tokens += sum(entry.tokens for entry in entries)

    def _make_room(self) -> None:
        """Namespaces beyond the bound are dropped, then segments are evicted until the bytes are within theirs."""
        with self._state.lock:
            manifests = {name: space.manifest for name, space in self._state.spaces.items()}
        for name in policy.namespaces_to_drop(manifests, self._state.bounds.max_namespaces):
            self._drop_space(name, manifests.pop(name))
        total = sum(manifest.bytes() + policy.SPACE_BYTES for manifest in manifests.values())
        total += self._folder.journal_bytes()
        for name, entry in policy.to_make_room(manifests, total - self._state.bounds.max_bytes, self._state.now()):
            manifest = manifests[name]
            if manifest.entries() == [entry]:
                self._drop_space(name, manifest)
            else:
                self._evict(name, [entry])
                manifests[name] = _but(manifest, entry)

    def _drop_space(self, name: str, manifest: Manifest) -> None:
        log.info("namespace %s is dropped with %d learned tokens: the store is full", name, manifest.tokens())
        self._folder.drop(name)
        with self._state.lock:
            self._state.dropped_space(name)
            self._state.counts.evicted_namespaces += 1
            self._state.counts.evicted_segments += len(manifest.segments)
            self._state.counts.evicted_tokens += manifest.tokens()

    # Manifests --------------------------------------------------------------------------------------------

    def tell_all_use(self) -> None:
        self.tell_use(at_once=True)

    def tell_use(self, at_once: bool = False) -> None:
        """Writes the use of segments to disk, for all processes and the next start."""
        now = self._state.now()
        with self._state.lock:
            spaces = [
                name
                for name, space in self._state.spaces.items()
                if space.uses and space.manifest.entries() and (at_once or now - space.told_at >= _TELL_USE)
            ]
        for name in spaces:
            self._commits.commit(name, lambda manifest: None)


def _but(manifest: Manifest, gone: SegmentEntry) -> Manifest:
    return Manifest([entry for entry in manifest.segments if entry.file != gone.file], manifest.corpora)
