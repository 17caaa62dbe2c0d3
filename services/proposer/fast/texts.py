"""The texts being followed, in the memory that the compiled step works on, with the calls of the plain ones
(proposer/texts.py). A text is a row of a flat table, and a batch is one compiled call (drafting/step.py).

Memory is laid out and batches are packed here, and what the step found becomes drafts. Which sources are asked is the
drafter's choice. Not thread-safe.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Draft, DraftRequest, Text
from services.api.settings import Settings
from services.proposer.fast.automaton import loops, prefetch
from services.proposer.fast.automaton.automaton import Automaton
from services.proposer.fast.automaton.memory import POOL
from services.proposer.fast.drafting import (
    blending,
    branches,
    candidates,
    chances,
    guessing,
    layout,
    predicting,
    step,
)
from services.proposer.fast.namespaces import Namespace, Namespaces
from services.proposer.fast.segments.segment import Segment
from services.proposer.guess import Rule
from services.proposer.rates import OWN, SOURCES
from services.proposer.texts import Method, Options

assert layout.LONGEST == MAX_DRAFT_TOKENS

# The most tokens that one call indexes, and the most it learns, of all texts together: about a millisecond.
SLICE = 2048
_REQUEST = struct.Struct(f"{layout.REQUEST_WORDS}q")
_IN_SEGMENTS = (chances.STORE, chances.CORPUS)
_FIRST_ROWS = 64
_FIRST_BATCH = 32
_SCRATCH = 16
assert max(loops.FOLLOWER_WORDS, predicting.PREDICTION_WORDS) <= _SCRATCH


@dataclass(slots=True)
class _Row:
    number: int
    automaton: Automaton
    namespace: Namespace | None
    wanted: list[str] | None
    # The corpus of each segment that the row lists.
    corpora: list[str] = field(default_factory=list)
    # Memory whose address a word of the row holds, by that word.
    memory: dict[int, Any] = field(default_factory=dict)


class Texts:
    def __init__(self, namespaces: Namespaces, options: Options) -> None:
        self.namespaces, self.options = namespaces, options
        # Called with a segment that a draft came from, and the probabilities of its tokens.
        self.used: Callable[[Namespace, Segment, Sequence[float]], None] = lambda namespace, segment, likely: None
        # By sequence id: the row's number, and the row.
        self._number_of: dict[int, int] = {}
        self._row_of: dict[int, _Row] = {}
        self._by_number: dict[int, _Row] = {}
        self._control = np.zeros(layout.WORDS, np.int64)
        self._words = memoryview(self._control)  # type: ignore[arg-type]
        self._control_at = int(self._control.ctypes.data)
        self._rows: npt.NDArray[np.int64] = np.zeros((_FIRST_ROWS, layout.ROW_WORDS), np.int64)
        self._free_rows = list(range(_FIRST_ROWS - 1, -1, -1))
        self._scratch: dict[int, npt.NDArray[Any]] = {
            layout.RESULT_AT: np.zeros(guessing.RESULT_WORDS, np.int64),
            # A draft, and behind it another that may be better.
            layout.DRAFT_AT: np.zeros(2 * layout.LONGEST, np.int32),
            layout.RATIOS_AT: np.zeros(2 * layout.LONGEST, np.float64),
            # One more than there are: that of a draft that may become one.
            layout.LINES_AT: np.zeros((blending.LINES + 1, 2 * layout.LONGEST), np.int32),
            layout.PREDICTORS_AT: np.zeros((blending.PREDICTORS + 1, blending.PREDICTOR_WORDS), np.int64),
            layout.COPY_AT: np.zeros(_SCRATCH, np.int64),
            layout.CONTEXT_AT: np.zeros(options.depth, np.int32),
            layout.SPARE_AT: np.zeros(candidates.RECORD_WORDS, np.int32),
        }
        for word, memory in self._scratch.items():
            self._words[word] = memory.ctypes.data
        self._words[layout.LIMIT], self._words[layout.LEAST_NGRAM] = options.depth, options.least_ngram
        self._words[layout.FREQUENT] = options.prefers_frequent
        self._words[layout.SPACES_AT], self._words[layout.ROWS_AT] = namespaces.address, self._rows.ctypes.data
        self._batch = 0
        self._lay_out_batch(_FIRST_BATCH)
        POOL.prepare()

    @classmethod
    def of(cls, settings: Settings) -> Texts:
        return cls(Namespaces.of(settings), Options.of(settings))

    def __len__(self) -> int:
        return len(self._row_of)

    def draft(self, requests: Sequence[DraftRequest], method: Method) -> list[Draft]:
        """Index the texts' new tokens, then return the method's draft for each. A text may appear only once in a
        call."""
        sources = sum(_BIT[source] for source in method.sources) | (layout.CALIBRATED if method.is_blended else 0)
        drafts = self._ask(requests, sources, method.rule)
        if OWN in method.sources:
            for at, request in enumerate(requests):
                if request.tree and drafts[at].tokens:
                    drafts[at] = branches.grown(drafts[at], self._followers(request.text), request.ahead)
        return drafts

    def _ask(self, requests: Sequence[DraftRequest], sources: int, rule: Rule) -> list[Draft]:
        count = len(requests)
        if count > self._batch:
            self._lay_out_batch(2 * count)
        number_of, asked, at = self._number_of, self._requests, 0
        aheads: array[int] | None = None
        pack_into, size = _REQUEST.pack_into, _REQUEST.size
        for request in requests:
            text, ahead = request.text, request.ahead
            number = number_of.get(text.sequence_id)
            if number is None:
                number = self._start(text)
            address, length = text.tokens.buffer_info()
            pack_into(asked, at, number, address, length, request.budget, len(ahead))
            at += size
            if ahead:
                if aheads is None:
                    aheads = array("i")
                aheads.extend(ahead)
        drafted = self._step(count, aheads, sources, rule)
        if not drafted:
            return [NO_DRAFT] * count
        return self._drafts(count, requests, drafted)

    def take_in(self, texts: Iterable[Text]) -> None:
        """Index new tokens, of long texts a slice; no drafts are made."""
        self._ask([DraftRequest(text, 0) for text in texts], 0, _NO_RULE)

    def is_taken_in(self, text: Text) -> bool:
        """Whether the whole text has been indexed."""
        held = self._row_of.get(text.sequence_id)
        if held is None:
            return False
        row = self._rows[held.number]
        learned = row[layout.WRITTEN] if row[layout.SPACE] >= 0 and row[layout.LEARNS] else len(text.tokens)
        return bool(min(row[layout.JOINED], learned) >= len(text.tokens))

    def forget(self, sequence_id: int) -> None:
        held = self._row_of.pop(sequence_id, None)
        if held is None:
            return
        del self._number_of[sequence_id], self._by_number[held.number]
        self._rows[held.number] = 0
        self._free_rows.append(held.number)
        held.automaton.close()
        if held.namespace is not None:
            held.namespace.requests -= 1

    def held_bytes(self) -> int:
        held = self.namespaces.held_bytes()
        for row in self._row_of.values():
            held += row.automaton.held_bytes() + sum(int(memory.nbytes) for memory in row.memory.values())
        return held

    def _followers(self, text: Text) -> list[int]:
        """Addresses of the automata's followers that have read the text to its end."""
        held = self._row_of[text.sequence_id]
        row, namespace = self._rows[held.number], held.namespace
        words = [layout.OWN_FOLLOWER]
        if namespace is not None and row[layout.READ] == len(text.tokens):
            reads = ((layout.NEW_READER, layout.READS_NEW, layout.NEW_SERIAL),
                     (layout.OLD_READER, layout.READS_OLD, layout.OLD_SERIAL))  # fmt: skip
            space = namespace.words
            words += [word for word, reads_it, serial in reads if row[reads_it] and row[reads_it] == space[serial]]
        return [int(row[word:].ctypes.data) for word in words]

    # The call ---------------------------------------------------------------------------------------------

    def _step(self, count: int, aheads: array[int] | None, sources: int, rule: Rule) -> int:
        words, control, requests = self._words, self._control_at, self._requests_at
        aheads_at = 0 if aheads is None else aheads.buffer_info()[0]
        words[layout.SHARED_LEFT] = words[layout.OWN_LEFT] = SLICE
        factor, offset, least = rule.factor, rule.offset, rule.least
        while (drafted := step.step(control, requests, count, aheads_at, sources, factor, offset, least)) < 0:
            self._help(words[layout.STATUS], words[layout.WHICH])
        return int(drafted)

    def _help(self, status: int, which: int) -> None:
        if status == layout.SPACE_NEEDS_ROOM:
            self.namespaces.grow(which)
        elif status == layout.SPACE_IS_FULL:
            self.namespaces.is_full(which)
        elif status == layout.SPACE_DROPS:
            self.namespaces.drop_old(which)
        elif status == layout.OWN_NEEDS_ROOM:
            self._by_number[which].automaton.grow()
        else:
            assert status == layout.ROW_NEEDS_MEMORY, status
            self._give(self._by_number[which], layout.CANDIDATES_AT, np.zeros(candidates.TEXT_WORDS, np.int32))

    def _drafts(self, count: int, requests: Sequence[DraftRequest], drafted: int) -> list[Draft]:
        begin = count * layout.ANSWER_WORDS
        answers = self._answers[:begin].tolist()
        tokens, confidence = self._answers[begin : begin + drafted].tolist(), self._shares_out[:drafted].tolist()
        drafts, at, place = [], 0, 0
        for number in range(count):
            length, kind, matched, which = answers[place : place + layout.ANSWER_WORDS]
            place += layout.ANSWER_WORDS
            if not length:
                drafts.append(NO_DRAFT)
                continue
            after = at + length
            source = SOURCES[kind]
            if kind in _IN_SEGMENTS:
                source = self._segment_used(requests[number].text, kind, which, confidence[at:after])
            drafts.append(Draft(tokens[at:after], source, matched, _CHAIN, confidence[at:after]))
            at = after
        return drafts

    def _segment_used(self, text: Text, kind: int, which: int, confidence: list[float]) -> str:
        """The source of a draft from a segment. Segments of corpora stay as long as their corpus; others that are used
        are evicted later."""
        row = self._row_of[text.sequence_id]
        if kind == chances.CORPUS:
            return f"{SOURCES[kind]}:{row.corpora[which]}"
        if row.namespace is not None:
            self.used(row.namespace, row.namespace.segments[which], confidence)
        return SOURCES[kind]

    def _lay_out_batch(self, most: int) -> None:
        self._batch = most
        self._shares = np.zeros(most, np.int64)
        self._requests = array("q", bytes(8 * most * layout.REQUEST_WORDS))
        self._requests_at = self._requests.buffer_info()[0]
        answers = array("i", bytes(4 * most * (layout.ANSWER_WORDS + layout.LONGEST)))
        ratios = array("d", bytes(8 * most * layout.LONGEST))
        # Lists are made of views in less time than of arrays.
        self._answers: memoryview[int] = memoryview(answers)
        self._shares_out: Any = memoryview(ratios)
        self._scouts = np.zeros(most * prefetch.SCOUT_WORDS, np.int32)
        self._words[layout.SCOUTS_AT] = self._scouts.ctypes.data
        self._words[layout.SHARES_AT] = self._shares.ctypes.data
        self._words[layout.TOKENS_OUT_AT] = answers.buffer_info()[0]
        self._words[layout.CHANCES_OUT_AT] = ratios.buffer_info()[0]

    # Rows -------------------------------------------------------------------------------------------------

    def _start(self, text: Text) -> int:
        if not self._free_rows:
            self._lay_out_rows(2 * len(self._rows))
        depth = max(self.options.depth, self.options.most_ngram)
        automaton = Automaton(depth, looked_up=self.options.most_ngram)
        automaton.make_room(len(text.tokens) + SLICE // 8)
        number, namespace = self._free_rows.pop(), self.namespaces.get(text.namespace)
        held = _Row(number, automaton, namespace, text.corpora)
        self._row_of[text.sequence_id] = self._by_number[number] = held
        self._number_of[text.sequence_id] = number
        row = self._rows[number]
        row[layout.OWN_FOLLOWER + loops.AUTOMATON] = automaton.address
        row[layout.SPACE] = -1
        row[layout.PROMPT] = max(0, text.prompt_tokens)
        if namespace is not None:
            namespace.requests += 1
            row[layout.SPACE], row[layout.LEARNS] = namespace.number, text.learn and self.namespaces.learns
            row[layout.WRITTEN] = self.options.begins_to_learn(text)
            row[layout.CHANCES_AT] = namespace.chances.ctypes.data
            namespace.corpora_changed = self._refresh_corpora
            self._list_corpora(held)
        else:
            self._give(held, layout.CHANCES_AT, np.zeros((chances.CELLS, chances.CELL_WORDS)))
        if text.prediction:
            self._predict(held, text.prediction)
        return number

    def _predict(self, row: _Row, prediction: array[int]) -> None:
        heads = 1 << max(4, len(prediction).bit_length())
        tokens = np.array(prediction, np.int32)
        table = np.zeros(heads + len(prediction) + 1, np.int32)
        words = np.zeros(predicting.PREDICTION_WORDS, np.int64)
        words[predicting.TOKENS_AT], words[predicting.PREDICTED] = tokens.ctypes.data, len(tokens)
        words[predicting.TABLE_AT], words[predicting.HEADS] = table.ctypes.data, heads
        self._give(row, layout.PREDICTION_AT, words)
        row.memory[-1], row.memory[-2] = tokens, table

    def _give(self, row: _Row, word: int, memory: npt.NDArray[Any]) -> None:
        self._rows[row.number, word] = memory.ctypes.data
        row.memory[word] = memory

    def _list_corpora(self, row: _Row) -> None:
        """The segments of the corpora that the request names; of all corpora, when it names none."""
        assert row.namespace is not None
        corpora = row.namespace.corpora
        names = list(corpora) if row.wanted is None else [name for name in row.wanted if name in corpora]
        listed = [(name, segment) for name in names for segment in corpora[name]]
        row.corpora = [name for name, _ in listed]
        self._rows[row.number, layout.CORPORA] = len(listed)
        self._give(row, layout.CORPORA_AT, np.array([segment.address for _, segment in listed], np.int64))

    def _refresh_corpora(self) -> None:
        for row in self._row_of.values():
            if row.namespace is not None:
                self._list_corpora(row)

    def _lay_out_rows(self, count: int) -> None:
        before = len(self._rows)
        rows = np.zeros((count, layout.ROW_WORDS), np.int64)
        rows[:before] = self._rows
        self._rows = rows
        self._words[layout.ROWS_AT] = rows.ctypes.data
        self._free_rows.extend(range(count - 1, before - 1, -1))


_NO_RULE = Rule()
_BIT = {source: 1 << number for number, source in enumerate(SOURCES)}
_CHAIN: list[int] = []
