"""Makes segments of learned text, merges them, and evicts what is too much. Runs in a thread of the library."""

from __future__ import annotations

import logging
import random
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress

from services.proposer.names import names_to_drop
from services.proposer.store import policy
from services.proposer.store.corpora import PORTION, CorpusBuilder
from services.proposer.store.database import Database, Outdated, StoredPiece
from services.proposer.store.files import StoredFile, learned, owner_of_space, total_bytes, total_tokens
from services.proposer.store.folder import LibraryFolder
from services.proposer.store.learning import PRICE
from services.proposer.store.shelf import Shelf
from services.proposer.store.state import StoreState

log = logging.getLogger(__name__)


class SegmentBuilder:
    def __init__(
        self, folder: LibraryFolder, database: Database, state: StoreState, stopped: Callable[[], bool]
    ) -> None:
        self._folder, self._database, self._state, self._stopped = folder, database, state, stopped
        self._shelf = Shelf(folder, database, state, stopped)
        self._corpora = CorpusBuilder(folder, state, self._shelf)
        self.look, self.open_missing = self._shelf.look, self._shelf.open_missing
        self.forget_released, self.keep_uploads = self._shelf.forget_released, self._corpora.keep_uploads

    # What was learned -------------------------------------------------------------------------------------

    def make_room_to_learn(self) -> None:
        """Namespaces beyond the bound lose their texts that are in no segment; the largest ones are to be sealed when
        there is little room."""
        with self._database.lock:
            stored = self._database.stored()
            dropped = names_to_drop([*stored], self._state.bounds.max_namespaces, owner_of_space)
            for name in dropped:
                self._database.drop_pieces(name)
            tokens_dropped = sum(stored.pop(name)[0] for name in dropped)
            sizes = {name: tokens + PRICE * pieces for name, (tokens, pieces) in stored.items()}
            with self._state.lock:
                self._state.learning.dropped += tokens_dropped
                self._state.learning.stored_tokens = sum(tokens for tokens, _ in stored.values())
                self._state.learning.stored_size = sum(sizes.values())
        full = policy.to_seal(sizes, self._state.bounds.learning_tokens)
        # Another process may find the same: each begins elsewhere.
        random.shuffle(full)
        with self._state.lock:
            self._state.to_seal |= dict.fromkeys(full)

    def seal(self, names: Sequence[str]) -> None:
        """Text on disk becomes segments."""
        for name in names:
            if self._stopped():
                return
            # Another process may have sealed it.
            with suppress(Outdated):
                if pieces := self._pieces(name, self._begun_later(name)):
                    self._seal(name, pieces)
            with self._state.lock:
                self._state.to_seal.pop(name, None)

    def _seal(self, name: str, pieces: Sequence[StoredPiece]) -> None:
        texts: dict[int, array[int]] = {}
        for piece in pieces:
            texts.setdefault(piece.text, array("i")).extend(piece.tokens)
        most = min(PORTION, self._state.bounds.largest_segment)
        made = self._shelf.build([*texts.values()], most, name, "learned")
        self._shelf.commit([self._shelf.file(name, "learned", segment=each) for each in made], [], (name, pieces), made)
        tokens = sum(map(len, texts.values()))
        with self._state.lock:
            self._state.counts.seals += 1
            self._state.learning.stored_tokens -= tokens
            self._state.learning.stored_size -= tokens + PRICE * len(pieces)

    def _begun_later(self, name: str) -> range:
        """The numbers of texts that weren't there when it was asked for: without them a namespace that begins would
        become a segment of its first words."""
        with self._state.lock:
            first, end = self._state.to_seal.get(name), self._state.learning.next_number
        return range(end if first is None else first, end)

    def _pieces(self, name: str, later: range) -> list[StoredPiece]:
        """As many as may be in memory, up to the first of a later text."""
        found: list[StoredPiece] = []
        tokens = 0
        for piece in self._database.pieces(name):
            if piece.text in later:
                break
            found.append(piece)
            tokens += len(piece.tokens)
            if tokens >= self._state.bounds.learning_tokens:
                break
        return found

    # Merging and evicting ---------------------------------------------------------------------------------

    def compact(self) -> None:
        """Builds corpora, merges and evicts, one process at a time. Changes meanwhile are seen the next time."""
        with self._state.lock:
            if not self._state.changed and not self._corpora.waiting():
                return
        with self._folder.building() as ours, suppress(Outdated):
            if not ours:
                return
            self._corpora.build()
            while self._state.changed and not self._stopped():
                with self._state.lock:
                    name = next(iter(self._state.changed))
                segments = learned(self._shelf.files(name))
                if some := policy.to_merge(segments, self._state.bounds):
                    self._merge(name, some)
                    # The other steps of `work` come in between.
                    return
                self._evict(policy.too_much(segments, self._state.bounds))
                with self._state.lock:
                    self._state.changed.discard(name)
            self._make_room()

    def _merge(self, name: str, files: list[StoredFile]) -> None:
        with self._state.lock:
            there = dict(self._state.spaces[name].open)
        segments = [there.get(each.file) or self._shelf.opened(each) for each in files]
        whole = [each for each in segments if each is not None]
        if len(whole) == len(files):
            segment = self._shelf.merged(whole, "learned")
            file = policy.merged(files, segment.path.name, segment.tokens, segment.held_bytes())
            self._shelf.commit([file], files, made=[segment])
            with self._state.lock:
                self._state.counts.merges += 1

    def _evict(self, files: Sequence[StoredFile]) -> None:
        if files:
            self._shelf.commit([], files)
            with self._state.lock:
                self._state.counts.evicted_tokens += sum(each.tokens for each in files)

    def _make_room(self) -> None:
        """Namespaces beyond the bound are dropped, then segments are evicted until the bytes are within theirs."""
        with self._state.lock:
            spaces = {name: space.files for name, space in self._state.spaces.items()}
        gone: list[StoredFile] = []
        for name in policy.namespaces_to_drop(spaces, self._state.bounds.max_namespaces):
            files = spaces.pop(name)
            log.info("namespace %s is dropped with %d learned tokens: the store is full", name, total_tokens(files))
            gone += files
        total = sum(map(total_bytes, spaces.values())) + self._database.held_bytes(full_log=True)
        self._evict([*gone, *policy.to_make_room(spaces, total - self._state.bounds.max_bytes)])
