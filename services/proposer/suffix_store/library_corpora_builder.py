"""Corpora, from complete uploads to segments. Their texts come to disk first: whichever process builds, after whatever
crash, finds them there. What was there under the name stays until the new one is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable

from services.proposer.suffix_store import library_source as source
from services.proposer.suffix_store.library_commits import Commits, Outdated, entry_of, pieces
from services.proposer.suffix_store.library_corpora import Upload
from services.proposer.suffix_store.library_folder import LibraryFolder
from services.proposer.suffix_store.library_manifest import CorpusEntry, Manifest, SegmentEntry
from services.proposer.suffix_store.library_state import State
from services.proposer.suffix_store.segment import Segment, merge

log = logging.getLogger(__name__)

_TRIES = 3
# Sorted at once: it bounds memory, and the time until somebody hears of progress.
_PIECE = 2_000_000  # tokens
# Of the work of building, what sorting is; the rest is merging.
_SORTING = 0.7
# Of a segment and its texts on disk, at most, before it is built.
_BYTES_A_TOKEN = 14


class CorpusBuilder:
    """`go_on` raises when there is no time any more."""

    def __init__(self, folder: LibraryFolder, state: State, commits: Commits, go_on: Callable[[], None]) -> None:
        self._folder, self._state, self._commits, self._go_on = folder, state, commits, go_on

    def keep_uploads(self) -> None:
        """Complete ones come to disk, with a place in the manifest; those that were asked to go, go."""
        with self._state.lock:
            complete, removals = self._state.uploads.complete(), list(self._state.removals)
        for space, name in removals:
            self._commits.commit(space, lambda manifest, name=name: _remove(manifest, name))  # type: ignore[misc]
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

    def waiting(self) -> list[tuple[str, str, SegmentEntry]]:
        """(namespace, name, texts) of those that are to be built. Whoever calls holds the lock."""
        return [
            (space, name, entry.source)
            for space, known in self._state.spaces.items()
            for name, entry in known.manifest.corpora.items()
            if entry.source is not None
        ]

    def build(self) -> None:
        """One process does it at a time."""
        with self._state.lock:
            waiting = self.waiting()
        for space, name, entry in waiting:
            try:
                self._build(space, name, entry)
            finally:
                self._state.progress.pop((space, name), None)

    def _keep(self, upload: Upload) -> None:
        name = upload.name
        with self._state.lock:
            held = sum(
                entry.bytes
                for space in self._state.spaces.values()
                for corpus in space.manifest.corpora.values()
                for entry in (corpus.ready, corpus.source)
                if entry is not None
            )
        if held + _BYTES_A_TOKEN * upload.tokens > self._state.bounds.max_bytes // 2:
            refused = "no room: corpora have half of the store's bytes"
            self._commits.commit(upload.space, lambda manifest: _fail(manifest, name, refused))
            return
        file = self._folder.new_name("texts")
        size = source.write(self._folder.building / file, upload.texts)
        entry = SegmentEntry(file, upload.tokens, len(upload.texts), size, self._state.now())

        def change(manifest: Manifest) -> None:
            manifest.corpora[name] = CorpusEntry(_ready(manifest, name), entry)

        self._commits.commit(upload.space, change, [(file, None)])

    def _build(self, space: str, name: str, entry: SegmentEntry) -> None:
        made: list[tuple[str, Segment]] = []

        def change(manifest: Manifest) -> None:
            corpus = manifest.corpora.get(name)
            if corpus is None or corpus.source is None or corpus.source.file != entry.file:
                raise Outdated
            manifest.corpora[name] = CorpusEntry(entry_of(*made[0], self._state.now()))

        try:
            made.append(self._segment(space, name, entry))
            self._commits.commit(space, change, made)
        except Outdated:
            log.info("corpus %s of namespace %s was replaced or removed while it was built", name, space)
        except (source.SourceDamaged, FileNotFoundError) as error:
            if entry.file in self._folder.read(space).files():
                log.error("corpus %s of namespace %s is lost: %s", name, space, error)
                with self._state.lock:
                    self._state.counts.damaged += 1
                self._commits.commit(space, lambda manifest: _fail(manifest, name, "its texts were damaged"))

    def _segment(self, space: str, name: str, entry: SegmentEntry) -> tuple[str, Segment]:
        texts = source.read(self._folder.path(space, entry.file))
        parts: list[tuple[str, Segment]] = []
        done = 0
        try:
            for piece in pieces(texts, _PIECE) if texts else [[]]:
                self._go_on()
                parts.append(self._commits.build(piece, space))
                done += sum(map(len, piece))
                self._state.progress[space, name] = _SORTING * done / max(1, entry.tokens)
            if len(parts) == 1:
                return parts.pop()

            def merged(tokens: int, of: int) -> None:
                self._go_on()
                self._state.progress[space, name] = _SORTING + (1 - _SORTING) * tokens / of

            file = self._folder.new_name("segment")
            return file, merge([segment for _, segment in parts], self._folder.building / file, merged)
        finally:
            self._commits.throw_away(parts)


def _ready(manifest: Manifest, name: str) -> SegmentEntry | None:
    return manifest.corpora.get(name, CorpusEntry()).ready


def _remove(manifest: Manifest, name: str) -> None:
    manifest.corpora.pop(name, None)


def _fail(manifest: Manifest, name: str, message: str) -> None:
    """What was there before, stays."""
    manifest.corpora[name] = CorpusEntry(_ready(manifest, name), None, message)
