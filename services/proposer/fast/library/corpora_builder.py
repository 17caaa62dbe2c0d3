"""Builds corpora: complete uploads become segments. Their texts are written to disk first, so that any process can
build them, also after a crash. The corpus that is replaced stays until the new one is ready."""

from __future__ import annotations

import logging
from collections.abc import Callable

from services.proposer.fast.library import source as source
from services.proposer.fast.library.commits import Commits, Outdated, entry_of, pieces
from services.proposer.fast.library.corpora import Upload
from services.proposer.fast.library.folder import LibraryFolder, owner_of_space
from services.proposer.fast.library.manifest import CorpusEntry, Manifest, SegmentEntry
from services.proposer.fast.library.state import State
from services.proposer.fast.segments.segment import Segment, merge

log = logging.getLogger(__name__)

_TRIES = 3
# Tokens sorted at once, which bounds memory and the time between two reports of progress.
_PIECE = 2_000_000  # tokens
# Share of sorting in the work of building; the rest is merging.
_SORTING = 0.7
# On disk at most, of a segment and its texts.
_BYTES_A_TOKEN = 14


class CorpusBuilder:
    """`go_on` raises when the library is being closed."""

    def __init__(self, folder: LibraryFolder, state: State, commits: Commits, go_on: Callable[[], None]) -> None:
        self._folder, self._state, self._commits, self._go_on = folder, state, commits, go_on

    def keep_uploads(self) -> None:
        """Complete uploads are written to disk and named in the manifest; corpora to be removed are removed."""
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
        """(namespace, name, texts) of corpora to be built. The caller holds the lock."""
        return [
            (space, name, entry.source)
            for space, known in self._state.spaces.items()
            for name, entry in known.manifest.corpora.items()
            if entry.source is not None
        ]

    def build(self) -> None:
        """To be called by one process at a time."""
        with self._state.lock:
            waiting = self.waiting()
        for space, name, entry in waiting:
            try:
                self._build(space, name, entry)
            finally:
                self._state.progress.pop((space, name), None)

    def _keep(self, upload: Upload) -> None:
        name = upload.name
        refused = self._no_room(upload)
        if refused:
            self._commits.commit(upload.space, lambda manifest: _fail(manifest, name, refused))
            return
        file = self._folder.new_name("texts")
        size = source.write(self._folder.building / file, upload.texts)
        entry = SegmentEntry(file, upload.tokens, len(upload.texts), size, self._state.now())

        def change(manifest: Manifest) -> None:
            manifest.corpora[name] = CorpusEntry(_ready(manifest, name), entry)

        self._commits.commit(upload.space, change, [(file, None)])

    def _no_room(self, upload: Upload) -> str:
        """Why there is no room for it; "": there is."""
        with self._state.lock:
            held = {space: known.manifest.corpora_bytes() for space, known in self._state.spaces.items()}
        size, owner = _BYTES_A_TOKEN * upload.tokens, owner_of_space(upload.space)
        if sum(held.values()) + size > self._state.bounds.corpora_bytes:
            return "no room: corpora have half of the store's bytes"
        own = sum(each for space, each in held.items() if owner_of_space(space) == owner)
        if own + size > self._state.bounds.owner_corpora_bytes:
            return "no room: the corpora of one caller have a quarter of the store's bytes"
        return ""

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
    """The corpus of before stays."""
    manifest.corpora[name] = CorpusEntry(_ready(manifest, name), None, message)
