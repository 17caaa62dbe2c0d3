"""Learned text on disk, by namespace: first as it came, in a database, then in segments; and corpora.

    learn ─▶ database (within a second) ─ seal ─▶ segment ─ merge ─▶ larger segment ─ evict ─▶ nothing

A library is of one vocabulary: token ids of another mean something else. Several processes may have one folder open;
each writes what it learns, one at a time merges, all see each other's texts and segments. A crash loses the last
second. What is damaged is ignored, counted and logged. `learn`, `segments` and the like only touch memory and raise no
error of the disk; two threads do the rest.

Knows texts and namespaces, and nothing of drafts.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.api.messages import CorpusCard
from services.proposer.segments.segment import Segment, SegmentDamaged
from services.proposer.store.builder import SegmentBuilder
from services.proposer.store.database import Database, DatabaseDamaged, set_aside
from services.proposer.store.files import Role, StoredFile, learned, owner_of_space, space_of, total_bytes, total_tokens
from services.proposer.store.folder import LibraryFolder, private_folder
from services.proposer.store.learning import Learning
from services.proposer.store.policy import Bounds
from services.proposer.store.state import Space, StoreState
from services.proposer.store.steps import Repeating, Steps
from services.proposer.store.uploads import CorpusRefused, Uploads

__all__ = ["Bounds", "Library", "Stats"]

log = logging.getLogger(__name__)

_WRITE_EVERY = 0.5  # seconds: so that a slow disk still has each second's
_LOOK_EVERY = 1.0
_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Stats:
    """Of all processes that share the folder, where no comment says otherwise."""

    bytes: int
    tokens: int
    segments: int
    namespaces: int
    corpora: int
    # In no segment yet.
    learning_tokens: int
    # Of this process, since its start.
    dropped_tokens: int
    evicted_tokens: int
    damaged: int
    failures: int
    # 1 while a step fails with an error of the disk.
    unwritable: int


class Library:
    """`folder` None: in memory, for this process only. `now` is the time of day, for files; `clock` is monotonic.
    Without `threads` the caller calls `write` and `work`."""

    def __init__(
        self,
        folder: Path | None,
        vocabulary: str,
        bounds: Bounds | None = None,
        *,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        threads: bool = True,
    ) -> None:
        """OSError: the folder can't be used."""
        bounds = bounds or Bounds()
        self._private = None
        if folder is None:
            folder, lock = private_folder(bounds.max_bytes)
            self._private = weakref.finalize(self, _remove, folder, lock)
        self._clock = clock
        self._state = StoreState(bounds, now, Learning(bounds.learning_tokens), Uploads(bounds))
        self._folder = LibraryFolder(folder, vocabulary)
        try:
            self._database, lost = self._opened()
        except BaseException:
            self._folder.close()
            raise
        self._state.counts.damaged += lost
        self._folder.let_others_in()
        self._steps = Steps(clock)
        self._stopping = threading.Event()
        self._builder = SegmentBuilder(self._folder, self._database, self._state, self._stopping.is_set)
        self._held_bytes = self._database.held_bytes()
        self._builder.look()
        self._builder.make_room_to_learn()
        self._threads: list[Repeating] = []
        if threads:
            writing = Repeating("library-writes", lambda: self._steps.do(self.write), _WRITE_EVERY)
            self._threads = [writing, Repeating("library-works", self.work, _LOOK_EVERY)]

    def _opened(self) -> tuple[Database, bool]:
        """With whether another was damaged, and was set aside."""
        folder, most = self._folder, self._state.bounds.max_bytes
        try:
            database = Database(folder.database, folder.segments, folder.alone, most)
        except DatabaseDamaged as error:
            if not folder.alone:
                raise
            aside = set_aside(folder.database)
            log.error("the library's database is damaged and is now %s; its corpora are lost: %s", aside, error)
            database = Database(folder.database, folder.segments, True, most)
            self._find_segments(database)
            return database, True
        if folder.alone:
            self._complete(database)
            database.sweep()
        return database, False

    def _find_segments(self, database: Database) -> None:
        found = self._unnamed(set())
        database.change(found)
        log.error("%d segments of learned text were found again", len(found))

    def _complete(self, database: Database) -> None:
        """A copy of the folder that was taken while segments were merged may name segments that it lacks, and have what
        they were merged from, or into: that is named in their place."""
        named = learned(database.files())
        there = set(os.listdir(self._folder.segments))
        gone = [each for each in named if each.file not in there]
        spaces = {each.space for each in gone}
        found = [each for each in self._unnamed({each.file for each in named}) if each.space in spaces] if gone else []
        if found:
            database.change(found, gone)
            log.warning("%d segments weren't copied; %d others of their namespaces were", len(gone), len(found))

    def _unnamed(self, named: set[str]) -> list[StoredFile]:
        """Segments of learned text tell themselves which namespace they are of."""
        found, now = [], self._state.now()
        for path in self._folder.segments.glob("*.learned"):
            if path.name in named:
                continue
            with suppress(SegmentDamaged, OSError):
                one = Segment.open(path, self._folder.vocabulary)
                sizes = one.tokens, one.texts, one.held_bytes()
                found.append(StoredFile(path.name, one.namespace, "learned", "", *sizes, now))
        return found

    # Texts ------------------------------------------------------------------------------------------------

    def learn(self, namespace: str, text_id: int, tokens: Sequence[int]) -> None:
        """New tokens of a running text."""
        if len(tokens):
            with self._state.lock:
                self._state.learning.learn(space_of(namespace), text_id, tokens)

    def end(self, namespace: str, text_id: int) -> None:
        """The text has ended; its id may be used again."""
        with self._state.lock:
            self._state.learning.end(space_of(namespace), text_id)

    # Segments ---------------------------------------------------------------------------------------------

    def seal(self, namespace: str) -> None:
        """What was learned in the namespace becomes a segment, in a thread; texts that begin from now on don't."""
        with self._state.lock:
            self._state.to_seal[space_of(namespace)] = self._state.learning.next_number
        self._wake()

    def version(self, namespace: str) -> int:
        """Changes when `segments` or `corpus_segments` change; 0 while there are none."""
        with self._state.lock:
            return self._state.spaces.get(space_of(namespace), Space()).version

    def segments(self, namespace: str) -> list[Segment]:
        """The open segments. The first call returns none and has them opened, which changes the version. Each stays
        mapped until it is released, even if it has been merged into another."""
        return self._open_ones(namespace, "", "learned")

    def _open_ones(self, namespace: str, corpus: str, role: Role) -> list[Segment]:
        with self._state.lock:
            space = self._state.spaces.get(space_of(namespace))
            if space is None:
                return []
            asked, space.wanted = space.wanted, True
            files = [each.file for each in space.files if (each.corpus, each.role) == (corpus, role)]
            found = [space.open[file] for file in files if file in space.open]
        if not asked:
            self._wake()
        return found

    def release(self, segment: Segment) -> None:
        """The caller drops it: a thread unmaps it if it was the last."""
        with self._state.lock:
            self._state.released.append(segment)

    # Corpora ----------------------------------------------------------------------------------------------

    def add_corpus(
        self, namespace: str, name: str, part: int, texts: Sequence[Sequence[int]], last: bool = True
    ) -> None:
        """Parts come in order, from 0. CorpusRefused: nothing has changed."""
        space = space_of(namespace)
        with self._state.lock:
            known = self._state.spaces.get(space)
            there = self._state.uploads.names(space)
            if known is not None:
                there |= {each.corpus for each in known.files if each.corpus}
            if name not in there and len(there) >= self._state.bounds.max_corpora:
                raise CorpusRefused(f"there are {len(there)} corpora already; remove one first", "overloaded")
            if not there:
                self._refuse_beyond_quota(space)
            upload = self._state.uploads.add(space, name, part, texts, self._clock())
            upload.complete = last
        if last:
            self._wake()

    def _refuse_beyond_quota(self, space: str) -> None:
        """Namespaces with corpora are never dropped, so they are refused."""
        bounds = self._state.bounds
        taken = self._state.uploads.spaces()
        taken |= {one for one, known in self._state.spaces.items() if known.files != learned(known.files)}
        own = sum(owner_of_space(one) == owner_of_space(space) for one in taken)
        if own >= bounds.max_corpora_namespaces or len(taken) >= bounds.max_namespaces:
            raise CorpusRefused(f"{own} of your namespaces have corpora; remove those of one first", "overloaded")

    def remove_corpus(self, namespace: str, name: str) -> None:
        """Also one that is being uploaded; unknown names are fine."""
        space = space_of(namespace)
        with self._state.lock:
            upload = self._state.uploads.remove(space, name)
            known = self._state.spaces.get(space, Space())
            # A complete upload may be being written now.
            if any(each.corpus == name for each in known.files) or (upload is not None and upload.complete):
                self._state.removals.append((space, name))
        self._wake()

    def corpora(self, namespace: str) -> list[CorpusCard]:
        space = space_of(namespace)
        with self._state.lock:
            known = self._state.spaces.get(space)
            going = {name for one, name in self._state.removals if one == space}
            files = [each for each in known.files if each.corpus not in going] if known is not None else []
            return self._state.uploads.cards(space, files, self._state.progress)

    def corpus_segments(self, namespace: str, name: str) -> list[Segment]:
        """As `segments`."""
        return self._open_ones(namespace, name, "ready")

    # What the threads do ----------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes what was learned to disk."""
        with self._database.lock:
            with self._state.lock:
                texts = self._state.learning.unwritten()
            if texts:
                self._database.add_pieces([(text.space, text.number, tokens) for text, tokens in texts])
                with self._state.lock:
                    self._state.learning.written(texts)
            self._held_bytes = self._database.held_bytes()

    def _seal(self) -> None:
        """Text that was learned before a seal was asked for may not be on disk yet."""
        with self._state.lock:
            names = list(self._state.to_seal)
        if names:
            self.write()
            self._builder.seal(names)

    def work(self) -> None:
        """Does all steps in turn. One that fails is tried again later; the others are done."""
        with self._state.lock:
            self._state.uploads.drop_old(self._clock())
        more = True
        while more and not self._stopping.is_set():
            before = self._state.counts.merges
            for step in (
                self._builder.look,
                self.write,
                self._builder.make_room_to_learn,
                self._seal,
                self._builder.keep_uploads,
                self._builder.compact,
                self._builder.open_missing,
                self._builder.forget_released,
            ):
                self._steps.do(step)
            more = self._state.counts.merges > before

    def _wake(self) -> None:
        if self._threads:
            self._threads[1].wake()

    # Around it --------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        with self._state.lock:
            files = [each for space in self._state.spaces.values() for each in space.files]
            learning, counts = self._state.learning, self._state.counts
            return Stats(
                bytes=total_bytes(files) + self._held_bytes,
                tokens=total_tokens(learned(files)),
                segments=len(learned(files)),
                namespaces=len(self._state.spaces),
                corpora=len({(each.space, each.corpus) for each in files if each.corpus}),
                learning_tokens=learning.stored_tokens + learning.unwritten_tokens(),
                dropped_tokens=learning.dropped,
                evicted_tokens=counts.evicted_tokens,
                damaged=counts.damaged + self._database.damaged,
                failures=self._steps.failures,
                unwritable=int(self._steps.failing()),
            )

    def close(self) -> None:
        """Writes what was learned."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        stopped = [thread.stop(_PATIENCE) for thread in self._threads]
        self._steps.do(self.write, at_once=True)
        if not all(stopped):
            log.warning("a thread of the library didn't stop in time; it ends with the process")
            return
        self._steps.do(self._database.close, at_once=True)
        self._folder.close()
        if self._private is not None:
            self._private()


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
