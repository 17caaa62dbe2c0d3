"""Learned text on disk, by namespace: first in journals, then in segments; and corpora.

    learn ─▶ journal (on disk within a second) ─ seal ─▶ segment ─ merge ─▶ larger segment ─ evict ─▶ nothing

A library is of one vocabulary: token ids of another mean something else. Several processes may have one folder open;
each writes its own journal, one at a time merges, all see each other's segments. A crash loses the last second. Damaged
files are ignored, counted and logged. `learn`, `segments` and the like only touch memory and raise no error of the
disk; two threads do the rest.

Knows texts and namespaces, and nothing of drafts.
"""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.api.messages import CorpusCard
from services.proposer.fast.library.builder import Builder
from services.proposer.fast.library.commits import Stopped
from services.proposer.fast.library.corpora import CorpusRefused, Uploads
from services.proposer.fast.library.folder import LibraryFolder, owner_of_space, private_folder, space_of
from services.proposer.fast.library.journals import Journals
from services.proposer.fast.library.policy import Bounds
from services.proposer.fast.library.state import State
from services.proposer.fast.library.texts import Learning
from services.proposer.fast.library.threads import Repeating
from services.proposer.fast.segments.segment import Segment

__all__ = ["Bounds", "Library", "Stats"]

log = logging.getLogger(__name__)

_WRITE_EVERY = 0.5  # seconds: so that a slow disk still has each second's
_LOOK_EVERY = 1.0
_SWEEP_EVERY = 600.0
_PATIENCE = 10.0
# After an error of the disk a step waits, and after each further one twice as long.
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Stats:
    """Of all processes that share the folder, where no comment says otherwise."""

    bytes: int
    tokens: int
    texts: int
    segments: int
    namespaces: int
    corpora: int
    # Of this process: learned tokens in no segment yet; those not on disk; seconds since all were on disk.
    learning_tokens: int
    unwritten_tokens: int
    unwritten_seconds: float
    journal_bytes: int
    # Of this process, since its start.
    dropped_tokens: int
    evicted_segments: int
    evicted_tokens: int
    evicted_namespaces: int
    damaged: int
    failures: int
    # 1 while a step fails with an error of the disk.
    unwritable: int
    seals: int
    merges: int


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
        self._state = State(bounds, now, Learning(bounds.learning_tokens, bounds.max_namespaces), Uploads(bounds))
        self._folder = LibraryFolder(folder, vocabulary)
        self._journals = Journals(self._folder, self._state, clock)
        self._stopping = threading.Event()
        self._builder = Builder(self._folder, self._state, self._stopping.is_set)
        self._swept_at = float("-inf")
        # Steps whose last attempt failed with an exception of ours.
        self._failing: set[str] = set()
        # Steps that the disk refuses: seconds until the next attempt, and its time.
        self._waits: dict[str, tuple[float, float]] = {}
        # Before the constructor returns, so that `recent` is complete.
        self._builder.look()
        self._journals.follow()
        self._threads: list[Repeating] = []
        if threads:
            writing = Repeating("library-writes", lambda: self._do(self.write), _WRITE_EVERY)
            self._threads = [writing, Repeating("library-works", self.work, _LOOK_EVERY)]

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

    def recent(self, namespace: str) -> list[array[int]]:
        """Texts that are in no segment yet, of all processes: the newest that fit into a bound, the oldest first. To be
        called before this process learns in the namespace, as its own texts are among them."""
        room = self._state.bounds.recent_tokens
        found = []
        with self._state.lock:
            for text in reversed(list(self._state.recent(space_of(namespace)))):
                if room <= 0:
                    break
                found.append(text.tokens[-room:])
                room -= len(found[-1])
        return found[::-1]

    # Segments ---------------------------------------------------------------------------------------------

    def seal(self, namespace: str) -> int:
        """What was learned in the namespace becomes a segment, in a thread: it is there once `sealed` has reached the
        number returned. Running texts are cut here."""
        with self._state.lock:
            ticket = self._state.seal(space_of(namespace))
        self._wake()
        return ticket

    def sealed(self, namespace: str) -> int:
        with self._state.lock:
            space = self._state.spaces.get(space_of(namespace))
            return space.sealed if space is not None else 0

    def version(self, namespace: str) -> int:
        """Changes when `segments` or `corpus_segments` change; 0 while there are none."""
        with self._state.lock:
            space = self._state.spaces.get(space_of(namespace))
            return space.version if space is not None else 0

    def segments(self, namespace: str) -> list[Segment]:
        """The open segments. The first call returns none and has them opened, which changes the version. Each stays
        mapped until it is released, even if it has been merged into another."""
        with self._state.lock:
            space = self._state.spaces.get(space_of(namespace))
            if space is None:
                return []
            found = [
                self._state.shelf.give(space, entry.file)
                for entry in space.manifest.segments
                if entry.file in space.open
            ]
            asked, space.wanted = space.wanted, True
        if not asked:
            self._wake()
        return found

    def release(self, segment: Segment) -> None:
        """The caller reads it no more, however often it was given."""
        with self._state.lock:
            if self._state.shelf.take_back(segment):
                self._state.closing.append(segment)

    def used(self, namespace: str, segment: Segment, accepted_tokens: float) -> None:
        """Adds to the segment's use, by which segments are evicted."""
        with self._state.lock:
            self._state.shelf.used(segment, accepted_tokens)

    # Corpora ----------------------------------------------------------------------------------------------

    def add_corpus(
        self, namespace: str, name: str, part: int, texts: Sequence[Sequence[int]], last: bool = True
    ) -> None:
        """Parts come in order, from 0. CorpusRefused: nothing has changed."""
        space = space_of(namespace)
        with self._state.lock:
            known = self._state.spaces.get(space)
            there = self._state.uploads.names(space) | set(known.manifest.corpora if known is not None else ())
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
        taken |= {one for one, known in self._state.spaces.items() if known.manifest.corpora}
        own = sum(owner_of_space(one) == owner_of_space(space) for one in taken)
        if own >= bounds.max_corpora_namespaces or len(taken) >= bounds.max_namespaces:
            raise CorpusRefused(f"{own} of your namespaces have corpora; remove those of one first", "overloaded")

    def remove_corpus(self, namespace: str, name: str) -> None:
        """Also one that is being uploaded; unknown names are fine."""
        space = space_of(namespace)
        with self._state.lock:
            upload = self._state.uploads.remove(space, name)
            known = self._state.spaces.get(space)
            # A complete upload may be being written now.
            if (known is not None and name in known.manifest.corpora) or (upload is not None and upload.complete):
                self._state.removals.append((space, name))
        self._wake()

    def corpora(self, namespace: str) -> list[CorpusCard]:
        space = space_of(namespace)
        with self._state.lock:
            known = self._state.spaces.get(space)
            entries = known.manifest.corpora if known is not None else {}
            going = {name for one, name in self._state.removals if one == space}
            entries = {name: entry for name, entry in entries.items() if name not in going}
            return self._state.uploads.cards(space, entries, self._state.progress)

    def corpus_segments(self, namespace: str, name: str) -> list[Segment]:
        """As `segments`."""
        with self._state.lock:
            space = self._state.spaces.get(space_of(namespace))
            corpus = space.manifest.corpora.get(name) if space is not None else None
            if space is None or corpus is None or corpus.ready is None:
                return []
            asked, space.wanted = space.wanted, True
            found = [self._state.shelf.give(space, corpus.ready.file)] if corpus.ready.file in space.open else []
        if not asked:
            self._wake()
        return found

    # What the threads do ----------------------------------------------------------------------------------

    def write(self) -> None:
        """Writes what was learned to disk."""
        self._journals.write()

    def work(self) -> None:
        """Does all steps in turn. One that fails is tried again the next time; the others are done."""
        with self._state.lock:
            self._state.uploads.drop_old(self._clock())
        more = True
        while more and not self._stopping.is_set():
            before = self._state.counts.merges
            for step in (
                self._builder.look,
                self._journals.follow,
                self._sweep,
                self._make_room_to_learn,
                self._make_journals_short,
                self._builder.seal,
                self._builder.keep_uploads,
                self._builder.compact,
                self._builder.open,
                self._builder.tell_use,
                self._builder.close_unread,
            ):
                self._do(step)
            more = self._state.counts.merges > before

    def _do(self, step: Callable[[], None], at_once: bool = False) -> None:
        """An exception is counted, and logged unless the last attempt had one, too."""
        name = step.__name__.strip("_")
        _, again_at = self._waits.get(name, (0.0, 0.0))
        if self._clock() < again_at and not at_once:
            return
        try:
            step()
        except Stopped:
            return
        except OSError as error:
            self._refused(name, error)
        except Exception:
            self._count_failure()
            if name not in self._failing:
                self._failing.add(name)
                log.exception("step %s of the library failed and will be tried again", name)
        else:
            self._failing.discard(name)
            if self._waits.pop(name, None) and not self._waits:
                log.info("the store can be written again")

    def _refused(self, name: str, error: OSError) -> None:
        """The disk is full or broken: all steps fail, and one line is enough."""
        self._count_failure()
        wait, _ = self._waits.get(name, (0.0, 0.0))
        wait = min(2 * wait or _FIRST_WAIT, _LONGEST_WAIT)
        if not self._waits:
            what = "step %s of the library: %s; what is learned stays in memory, and each step is tried again"
            log.error(f"the store can't be written, {what} after %g to %g s", name, error, _FIRST_WAIT, _LONGEST_WAIT)
        self._waits[name] = wait, self._clock() + wait

    def _count_failure(self) -> None:
        with self._state.lock:
            self._state.counts.failures += 1

    def _make_room_to_learn(self) -> None:
        with self._state.lock:
            if not self._state.batches:
                for space in self._state.learning.to_seal():
                    self._state.seal(space)

    def _make_journals_short(self) -> None:
        while spaces := self._journals.make_short():
            with self._state.lock:
                for space in spaces:
                    self._state.seal(space)
            self._builder.seal()

    def _sweep(self) -> None:
        if self._clock() - self._swept_at >= _SWEEP_EVERY:
            self._swept_at = self._clock()
            self._folder.sweep()

    def _wake(self) -> None:
        if self._threads:
            self._threads[1].wake()

    # Around it --------------------------------------------------------------------------------------------

    def stats(self) -> Stats:
        with self._state.lock:
            manifests = [space.manifest for space in self._state.spaces.values()]
            learning, counts = self._state.learning, self._state.counts
            unwritten = learning.unwritten_tokens()
            journal = self._journals.held_bytes()
            return Stats(
                bytes=sum(manifest.bytes() for manifest in manifests) + journal,
                tokens=sum(manifest.tokens() for manifest in manifests),
                texts=sum(entry.texts for manifest in manifests for entry in manifest.segments),
                segments=sum(len(manifest.segments) for manifest in manifests),
                namespaces=len(manifests),
                corpora=sum(len(manifest.corpora) for manifest in manifests),
                learning_tokens=learning.tokens,
                unwritten_tokens=unwritten,
                unwritten_seconds=self._clock() - self._journals.synced_at if unwritten else 0.0,
                journal_bytes=journal,
                dropped_tokens=learning.dropped,
                evicted_segments=counts.evicted_segments,
                evicted_tokens=counts.evicted_tokens,
                evicted_namespaces=counts.evicted_namespaces,
                damaged=counts.damaged,
                failures=counts.failures,
                unwritable=int(bool(self._waits)),
                seals=counts.seals,
                merges=counts.merges,
            )

    def close(self) -> None:
        """Writes what was learned and used. No segment may be read afterwards."""
        self._stopping.set()
        stopped = [thread.stop(_PATIENCE) for thread in self._threads]
        self._do(self.write, at_once=True)
        self._do(self._builder.tell_all_use)
        if not all(stopped):
            log.warning("a thread of the library didn't stop in time; it ends with the process")
            return
        with self._state.lock:
            for space in self._state.spaces.values():
                self._state.closing += self._state.shelf.drop(space, set(space.open))
            self._state.shelf.close()
        self._builder.close_unread()
        self._journals.close()
        self._folder.close()
        if self._private is not None:
            self._private()


def _remove(folder: Path, lock: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
