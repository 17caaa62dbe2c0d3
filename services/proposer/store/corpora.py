"""Builds corpora: complete uploads become segments. Their texts are written to disk first, so that any process can
build them, also after a crash. The corpus that is replaced stays until the new one is ready."""

from __future__ import annotations

import logging

import msgspec

from services.proposer.store import source
from services.proposer.store.database import Outdated
from services.proposer.store.files import StoredFile, learned, owner_of_space, total_bytes
from services.proposer.store.folder import LibraryFolder
from services.proposer.store.shelf import Progress, Shelf, unlink
from services.proposer.store.state import StoreState
from services.proposer.store.uploads import Upload

log = logging.getLogger(__name__)

# Tokens sorted at once, which bounds memory and the time between two reports of progress.
PORTION = 2_000_000
# Share of sorting in the work of building; the rest is merging.
_SORTING = 0.7
# On disk at most, of a segment and its texts.
_BYTES_A_TOKEN = 14


class CorpusBuilder:
    def __init__(self, folder: LibraryFolder, state: StoreState, shelf: Shelf) -> None:
        self._folder, self._state, self._shelf = folder, state, shelf

    def keep_uploads(self) -> None:
        """Complete uploads are written to disk; corpora to be removed are removed."""
        with self._state.lock:
            complete, removals = self._state.uploads.complete(), list(self._state.removals)
        for space, name in removals:
            if files := self._of_corpus(space, name, "ready", "source", "failed"):
                self._shelf.commit([], files)
            with self._state.lock:
                self._state.removals.remove((space, name))
        for upload in complete:
            self._keep(upload)
            with self._state.lock:
                self._state.uploads.done(upload)

    def _keep(self, upload: Upload) -> None:
        """The corpus of before stays until this one is built."""
        before = self._of_corpus(upload.space, upload.name, "source", "failed")
        if refused := self._no_room(upload):
            file = self._shelf.file(upload.space, "failed", upload.name, message=refused)
        else:
            file = self._shelf.file(upload.space, "source", upload.name)
            size = source.write(self._folder.segments / file.file, upload.texts)
            file = msgspec.structs.replace(file, tokens=upload.tokens, texts=len(upload.texts), bytes=size)
        self._shelf.commit([file], before)

    def _no_room(self, upload: Upload) -> str:
        """Why there is no room for it; "": there is."""
        with self._state.lock:
            held: dict[str, int] = {}
            for name, space in self._state.spaces.items():
                size = total_bytes(space.files) - total_bytes(learned(space.files))
                held[owner_of_space(name)] = held.get(owner_of_space(name), 0) + size
        size = _BYTES_A_TOKEN * upload.tokens
        if sum(held.values()) + size > self._state.bounds.corpora_bytes:
            return "no room: corpora have half of the store's bytes"
        if held.get(owner_of_space(upload.space), 0) + size > self._state.bounds.owner_corpora_bytes:
            return "no room: the corpora of one caller have a quarter of the store's bytes"
        return ""

    def waiting(self) -> list[StoredFile]:
        """Texts of corpora to be built. The caller holds the lock."""
        return [file for space in self._state.spaces.values() for file in space.files if file.role == "source"]

    def build(self) -> None:
        """To be called by one process at a time."""
        with self._state.lock:
            waiting = self.waiting()
        for file in waiting:
            try:
                self._build(file)
            except Outdated:
                log.info("corpus %s of namespace %s was replaced or removed meanwhile", file.corpus, file.space)
            except (ValueError, FileNotFoundError) as error:
                self._shelf.lost(file, error)
            finally:
                self._state.progress.pop((file.space, file.corpus), None)

    def _build(self, file: StoredFile) -> None:
        key = file.space, file.corpus

        def progress(begin: float, end: float) -> Progress:
            def told(tokens: int) -> None:
                self._state.progress[key] = begin + (end - begin) * tokens / max(1, file.tokens)

            return told

        texts = source.read(self._folder.segments / file.file)
        parts = self._shelf.build(texts, PORTION, file.space, "ready", progress(0.0, _SORTING))
        if len(parts) == 1:
            [segment] = parts
        else:
            try:
                segment = self._shelf.merged(parts, "ready", progress(_SORTING, 1.0))
            finally:
                unlink(parts)
        before = self._of_corpus(*key, "ready", "failed")
        ready = self._shelf.file(file.space, "ready", file.corpus, segment)
        self._shelf.commit([ready], [file, *before], made=[segment])

    def _of_corpus(self, space: str, name: str, *roles: str) -> list[StoredFile]:
        return [each for each in self._shelf.files(space) if each.corpus == name and each.role in roles]
