"""Makes segments of what was learned and of corpora, merges them, and lets go of what is too much. Runs in a thread
that has time: Library calls `work` again and again. What it has made counts once a manifest says so."""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

from services.proposer.suffix_store import library_policy as policy
from services.proposer.suffix_store import library_source as source
from services.proposer.suffix_store.library_corpora import Upload
from services.proposer.suffix_store.library_folder import LibraryFolder, Stamp
from services.proposer.suffix_store.library_manifest import CorpusEntry, Manifest, SegmentEntry
from services.proposer.suffix_store.library_shelf import Space
from services.proposer.suffix_store.library_state import Batch, State
from services.proposer.suffix_store.segment import Segment, SegmentDamaged, merge

log = logging.getLogger(__name__)

# How often what was used is written down.
_TELL_USE = 60.0  # seconds
_TRIES = 3


class Stopped(Exception):
    """Nobody waits for this any more."""


class _Outdated(Exception):
    """The manifest has changed meanwhile: what was made of it is thrown away."""


class Builder:
    def __init__(self, folder: LibraryFolder, state: State, stopped: Callable[[], bool]) -> None:
        self._folder, self._state, self._stopped = folder, state, stopped
        self._vocabulary = folder.vocabulary.hex()
        self._stamps: dict[str, Stamp] = {}

    # What others have done --------------------------------------------------------------------------------

    def look(self) -> None:
        """Manifests that have changed."""
        stamps = self._folder.stamps()
        damaged = self._folder.damaged
        for space, stamp in stamps.items():
            if self._stamps.get(space) != stamp:
                manifest = self._folder.read(space)
                with self._state.lock:
                    self._state.told_manifest(space, manifest)
        with self._state.lock:
            self._state.counts.damaged += self._folder.damaged - damaged
            for space in set(self._stamps) - set(stamps):
                self._state.dropped_space(space)
        self._stamps = stamps

    def open(self) -> None:
        """Segments that somebody wants to look at."""
        with self._state.lock:
            missing = [(name, file) for name, space in self._state.spaces.items() for file in space.missing()]
        for name, file in missing:
            segment = self._opened(name, file)
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

    def _opened(self, space: str, file: str) -> Segment | None:
        try:
            return Segment.open(self._folder.path(space, file), self._vocabulary, space)
        except (SegmentDamaged, OSError) as error:
            # Perhaps another process has merged it just now.
            if file in self._folder.read(space).files():
                log.error("a segment of namespace %s is lost: %s", space, error)
                with self._state.lock:
                    self._state.counts.damaged += 1
                self._commit(space, lambda manifest: _without(manifest, {file}, "its file was damaged"))
            return None

    # What was learned -------------------------------------------------------------------------------------

    def seal(self) -> None:
        while not self._stopped():
            with self._state.lock:
                batch = self._state.batches[0] if self._state.batches else None
            if batch is None:
                return
            try:
                self._seal(batch)
            except Exception:
                batch.failures += 1
                if batch.failures < _TRIES:
                    raise
                log.exception("what namespace %s has learned can't become a segment: it is lost", batch.space)
                with self._state.lock:
                    self._state.counts.failures += 1
                    self._sealed(batch)

    def _seal(self, batch: Batch) -> None:
        made: list[tuple[str, Segment]] = []
        try:
            for texts in _pieces([text.tokens for text in batch.texts], self._state.bounds.largest_segment):
                made.append(self._build(texts, batch.space))
        except Exception:
            self._throw_away(made)
            raise
        now = self._state.now()

        def change(manifest: Manifest) -> None:
            manifest.segments += [_entry(name, segment, now) for name, segment in made]
            manifest.covered[self._folder.instance] = batch.below

        self._commit(batch.space, change, made)
        with self._state.lock:
            self._state.counts.seals += 1
            self._sealed(batch)

    def _sealed(self, batch: Batch) -> None:
        self._state.batches.remove(batch)
        self._state.learning.gone(batch.texts)
        space = self._state.spaces.get(batch.space)
        if space is not None:
            space.sealed = batch.ticket

    # Corpora ----------------------------------------------------------------------------------------------

    def keep_uploads(self) -> None:
        """Complete ones come to disk, with a place in the manifest; those that were asked to go, go."""
        with self._state.lock:
            complete, removals = self._state.uploads.complete(), list(self._state.removals)
        for space, name in removals:
            self._commit(space, lambda manifest, name=name: _pop(manifest.corpora, name))  # type: ignore[misc]
            with self._state.lock:
                self._state.removals.remove((space, name))
        for upload in complete:
            try:
                self._keep(upload)
            except OSError:
                upload.failures += 1
                if upload.failures < _TRIES:
                    raise
                log.exception("corpus %s of namespace %s can't be written: it is lost", upload.name, upload.space)
            with self._state.lock:
                self._state.uploads.done(upload)

    def _keep(self, upload: Upload) -> None:
        now, name = self._state.now(), upload.name
        corpora = sum(entry.bytes for space in self._spaces() for entry in _corpora_of(space.manifest))
        # Its texts, and its segment beside them for a moment.
        if corpora + 16 * upload.tokens > self._state.bounds.max_bytes // 2:
            refused = "no room: corpora have at most half of the store's bytes"
            self._commit(upload.space, lambda manifest: _failed(manifest, name, refused))
            return
        file = self._folder.new_name("texts")
        size = source.write(self._folder.building / file, upload.texts)
        entry = SegmentEntry(file, upload.tokens, len(upload.texts), size, now)

        def change(manifest: Manifest) -> None:
            manifest.corpora[name] = CorpusEntry(manifest.corpora.get(name, CorpusEntry()).ready, entry)

        self._commit(upload.space, change, [(file, None)])

    def _build_corpora(self) -> None:
        with self._state.lock:
            waiting = [
                (space, name, entry.source)
                for space, known in self._state.spaces.items()
                for name, entry in known.manifest.corpora.items()
                if entry.source is not None
            ]
        for space, name, entry in waiting:
            self._build_corpus(space, name, entry)

    def _build_corpus(self, space: str, name: str, entry: SegmentEntry) -> None:
        def change(manifest: Manifest) -> None:
            corpus = manifest.corpora.get(name)
            if corpus is None or corpus.source is None or corpus.source.file != entry.file:
                raise _Outdated
            manifest.corpora[name] = CorpusEntry(_entry(*made[0], self._state.now()))

        made: list[tuple[str, Segment]] = []
        try:
            texts = source.read(self._folder.path(space, entry.file))
            self._state.progress[space, name] = 0.1
            made.append(self._build(texts, space))
            self._state.progress[space, name] = 0.9
            self._commit(space, change, made)
        except _Outdated:
            log.info("corpus %s of namespace %s was replaced or removed while it was built", name, space)
        except (source.SourceDamaged, OSError, ValueError) as error:
            log.error("corpus %s of namespace %s can't be built: %s", name, space, error)
            message = "its texts were damaged" if isinstance(error, source.SourceDamaged) else "it couldn't be written"
            self._commit(space, lambda manifest: _failed(manifest, name, message))
        finally:
            self._state.progress.pop((space, name), None)

    # Merging and evicting ---------------------------------------------------------------------------------

    def compact(self) -> None:
        """By one process at a time. What the others do meanwhile is looked at the next time."""
        with self._state.lock:
            building = any(entry.source for space in self._state.spaces.values() for entry in _entries(space))
            if not self._state.changed and not building:
                return
        with self._folder.compacting() as ours:
            if not ours:
                return
            self._build_corpora()
            while self._state.changed and not self._stopped():
                with self._state.lock:
                    name = next(iter(self._state.changed))
                    space = self._state.spaces.get(name)
                    entries = policy.to_merge(space.manifest, self._state.bounds) if space is not None else []
                if entries:
                    self._merge(name, entries)
                    # What was learned meanwhile comes first.
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
                    segment = self._opened(name, file)
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
                raise _Outdated
            segment = made[0][1]
            entry = policy.merged_entry(merged, file, segment.tokens, segment.held_bytes(), self._state.now())
            manifest.segments = [one for one in manifest.segments if one.file not in files] + [entry]

        with suppress(_Outdated):
            self._commit(name, change, made)
            with self._state.lock:
                self._state.counts.merges += 1

    def _go_on(self) -> None:
        if self._stopped():
            raise Stopped

    def _evict(self, name: str, entries: Sequence[SegmentEntry]) -> None:
        if not entries:
            return
        gone = {entry.file for entry in entries}
        self._commit(name, lambda manifest: _without(manifest, gone, ""))
        with self._state.lock:
            self._state.counts.evicted_segments += len(entries)
            self._state.counts.evicted_tokens += sum(entry.tokens for entry in entries)

    def _make_room(self) -> None:
        """Namespaces that are too many, then segments of any, until all of it is small enough."""
        with self._state.lock:
            manifests = {name: space.manifest for name, space in self._state.spaces.items()}
        by_age = sorted(manifests, key=lambda name: manifests[name].used_at)
        for name in by_age[: max(0, len(by_age) - self._state.bounds.max_namespaces)]:
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
        """What was accepted from segments since the last time, so that all processes know, and the next."""
        now = self._state.now()
        with self._state.lock:
            spaces = [
                name
                for name, space in self._state.spaces.items()
                if space.uses and space.manifest.entries() and (at_once or now - space.told_at >= _TELL_USE)
            ]
        for name in spaces:
            self._commit(name, lambda manifest: None)

    def _commit(
        self,
        name: str,
        change: Callable[[Manifest], None],
        bring: Sequence[tuple[str, Segment | None]] = (),
    ) -> None:
        """Together with what was used. Segments that are brought are open from now on."""
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
            self._throw_away(bring)
            raise
        with self._state.lock:
            self._state.told_manifest(name, manifest)
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

    def _build(self, texts: Sequence[array[int]], space: str) -> tuple[str, Segment]:
        file = self._folder.new_name("segment")
        return file, Segment.build(texts, self._folder.building / file, self._vocabulary, space)

    def _throw_away(self, made: Sequence[tuple[str, Segment | None]]) -> None:
        for file, segment in made:
            if segment is not None:
                segment.close()
            (self._folder.building / file).unlink(missing_ok=True)

    def _spaces(self) -> list[Space]:
        with self._state.lock:
            return list(self._state.spaces.values())


def _entry(file: str, segment: Segment, now: float) -> SegmentEntry:
    return SegmentEntry(file, segment.tokens, segment.texts, segment.held_bytes(), now)


def _entries(space: Space) -> list[CorpusEntry]:
    return list(space.manifest.corpora.values())


def _corpora_of(manifest: Manifest) -> Iterator[SegmentEntry]:
    for corpus in manifest.corpora.values():
        yield from (entry for entry in (corpus.ready, corpus.source) if entry is not None)


def _pop(corpora: dict[str, CorpusEntry], name: str) -> None:
    corpora.pop(name, None)


def _failed(manifest: Manifest, name: str, message: str) -> None:
    """What was there before, is there."""
    manifest.corpora[name] = CorpusEntry(manifest.corpora.get(name, CorpusEntry()).ready, None, message)


def _but(manifest: Manifest, gone: SegmentEntry) -> Manifest:
    return Manifest([entry for entry in manifest.segments if entry.file != gone.file], manifest.corpora)


def _without(manifest: Manifest, files: set[str], message: str) -> None:
    manifest.segments = [entry for entry in manifest.segments if entry.file not in files]
    for corpus in manifest.corpora.values():
        if corpus.ready is not None and corpus.ready.file in files:
            corpus.ready, corpus.message = None, message


def _pieces(texts: Sequence[array[int]], most: int) -> Iterator[list[array[int]]]:
    """Of at most so many tokens each; a text that is longer is cut."""
    piece: list[array[int]] = []
    room = most
    for text in texts:
        begin = 0
        while begin < len(text):
            # A short one goes into the next as a whole.
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
