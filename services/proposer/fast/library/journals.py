"""Journals of all processes: this one's is written, others' are read, and those of dead processes are taken over."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from services.proposer.fast.library.folder import LibraryFolder
from services.proposer.fast.library.journal import Journal, Record, Tail
from services.proposer.fast.library.state import State
from services.proposer.fast.library.texts import OtherTexts, Text

log = logging.getLogger(__name__)

# Tokens of a namespace in the oldest file that are worth a segment; fewer are written again into the newest file.
_WORTH_A_SEGMENT = 1024


class Journals:
    def __init__(self, folder: LibraryFolder, state: State, clock: Callable[[], float]) -> None:
        self._folder, self._state, self._clock = folder, state, clock
        self._file_bytes = max(1 << 12, state.bounds.journal_bytes // 8)
        self._journal = Journal(folder.journals, folder.instance, folder.vocabulary, self._file_bytes)
        # The journal is written in one thread and shortened in another.
        self._writing = threading.Lock()
        self._tails: dict[str, Tail] = {}
        # Taken over, and not removed yet.
        self._emptied: set[str] = set()
        self.synced_at = clock()

    # Ours -------------------------------------------------------------------------------------------------

    def write(self) -> None:
        """What was learned is on disk when this returns. OSError: it is tried again the next time."""
        with self._writing:
            with self._state.lock:
                texts = self._state.learning.unwritten()
            try:
                self._append(texts)
            except OSError:
                with self._state.lock:
                    self._state.learning.not_written(texts)
                raise
            self.synced_at = self._clock()

    def _append(self, texts: list[Text]) -> None:
        records = [
            Record(text.space, text.number, text.written, text.tokens[text.written :], text.origin) for text in texts
        ]
        for text in texts:
            # If it starts in the next file, this one is kept a little longer than necessary.
            text.file = text.file or max(1, self._journal.number)
        self._journal.append(records)
        for text, record in zip(texts, records, strict=True):
            text.written = record.at + len(record.tokens)

    def make_short(self) -> list[str]:
        """Removes files whose texts are all in segments, and the oldest ones while there are too many bytes. Returns
        namespaces that have to be sealed first."""
        with self._writing:
            self._remove_covered()
            for number in sorted(self._journal.files):
                if self._journal.held_bytes() <= self._state.bounds.journal_bytes:
                    break
                with self._state.lock:
                    busy = bool(self._state.batches)
                    texts = self._state.learning.texts()
                needed = [text for text in texts if text.file <= number and text.written]
                by_space: dict[str, int] = {}
                for text in needed:
                    by_space[text.space] = by_space.get(text.space, 0) + len(text.tokens)
                to_seal = [space for space, tokens in by_space.items() if tokens >= _WORTH_A_SEGMENT]
                if to_seal or busy:
                    return to_seal
                if number == self._journal.number:
                    self._journal.finish()
                self._write_again(needed)
                self._journal.remove(number)
        return []

    def _remove_covered(self) -> None:
        with self._state.lock:
            texts = self._state.learning.texts()
            for batch in self._state.batches:
                texts += batch.texts
        first = min((text.file for text in texts if text.written), default=self._journal.number + 1)
        for number, size in sorted(self._journal.files.items()):
            # The file that is written to is kept until it is full: a new one costs something, too.
            if number >= first or (number == self._journal.number and size < self._file_bytes):
                break
            self._journal.remove(number)

    def _write_again(self, texts: list[Text]) -> None:
        """From their first token. Until the old file is removed they are in two files, which read the same."""
        for text in texts:
            text.file = text.written = 0
        try:
            self._append(texts)
        except OSError:
            with self._state.lock:
                self._state.learning.not_written(texts)
            raise

    # Others' ----------------------------------------------------------------------------------------------

    def follow(self) -> None:
        """Reads what others have learned; journals of dead processes are taken over."""
        others = self._folder.others()
        left = {instance for instance in others if self._folder.take_over(instance)}
        for instance in others - self._emptied:
            tail = self._tails.setdefault(instance, Tail(self._folder.journals, instance, self._folder.vocabulary))
            damaged = tail.damaged
            records = tail.read(ended=instance in left)
            with self._state.lock:
                if instance not in self._state.others:
                    bounds = self._state.bounds
                    # All that a journal can hold, even texts of one token each.
                    self._state.others[instance] = OtherTexts(2 * bounds.journal_bytes, bounds.max_namespaces)
                self._state.others[instance].read(records)
                self._state.counts.damaged += tail.damaged - damaged
        with self._state.lock:
            for instance in set(self._state.others) - others:
                self._tails.pop(instance, None)
                del self._state.others[instance]
            self._forget_covered(others)
        if left:
            self._take_over(left)

    def _forget_covered(self, others: set[str]) -> None:
        for instance, theirs in self._state.others.items():
            theirs.origins = {origin for origin in theirs.origins if origin[0] in others}
            for space in list(theirs.spaces):
                known = self._state.spaces.get(space)
                if known is not None:
                    theirs.covered(space, known.manifest.covered.get(instance, 0))

    def _take_over(self, left: set[str]) -> None:
        """Their texts are written to this journal, then theirs is removed. Who reads both knows them by their
        origin."""
        with self._state.lock:
            taken = {origin for theirs in self._state.others.values() for origin in theirs.origins}
            for instance in sorted(left - self._emptied):
                theirs = self._state.others.pop(instance)
                for texts in theirs.spaces.values():
                    for number, text in texts.items():
                        if (instance, number) not in taken and text.tokens:
                            self._state.learning.take_over(text, instance)
                self._tails.pop(instance)
        self._emptied |= left
        self.write()
        for instance in sorted(self._emptied & left):
            self._folder.forget(instance)
            self._emptied.discard(instance)

    def held_bytes(self) -> int:
        return self._journal.held_bytes()

    def close(self) -> None:
        with self._writing:
            self._journal.finish()
