"""The texts being followed, in the memory that the compiled step works on, with the calls of the plain ones
(plain/texts.py). A text is a row of a flat table, and a batch is one compiled call (drafting/step.py).

Memory is laid out and batches are packed here, and what the step found becomes drafts. Which sources are asked is the
drafter's choice. Not thread-safe.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from services.api.drafter import NO_DRAFT, Draft, DraftRequest, Text
from services.api.settings import Settings
from services.proposer.fast.automaton.automaton import FastAutomaton
from services.proposer.fast.drafting import chances, records
from services.proposer.fast.drafting.step import BLENDED, step
from services.proposer.fast.namespaces import FastNamespace, FastNamespaces
from services.proposer.native import Records
from services.proposer.plain.guess import DraftRule
from services.proposer.plain.rates import CORPUS, SOURCES
from services.proposer.plain.texts import PlainMethod, TextOptions, shared_out

# The most tokens that one call takes in: about a millisecond.
SLICE = 2048
_BIT = {source: 1 << number for number, source in enumerate(SOURCES)}
_REQUEST = struct.Struct(f"{records.REQUEST.itemsize // 8}q")
_FIRST_ROWS = 64
_FIRST_BATCH = 32
_NO_RULE = DraftRule()


@dataclass(slots=True)
class _Row:
    number: int
    automaton: FastAutomaton
    namespace: FastNamespace | None
    text: Text
    # How many tokens are taken in.
    taken: int = 0
    # The corpus of each segment that the row lists.
    corpora: list[str] = field(default_factory=list)
    # Memory whose address a field of the row holds, by that field.
    memory: dict[str, npt.NDArray[Any]] = field(default_factory=dict)


class FastTexts:
    def __init__(self, namespaces: FastNamespaces, options: TextOptions) -> None:
        self.namespaces, self.options = namespaces, options
        self._row_of: dict[int, _Row] = {}
        self._by_number: dict[int, _Row] = {}
        self._control: Records = np.zeros(1, records.CONTROL)
        self._control_at = int(self._control.ctypes.data)
        for name, value in (
            ("depth", options.depth), ("least_ngram", options.least_ngram),
            ("spaces_at", namespaces.records.ctypes.data), ("spaces", len(namespaces.records)),
        ):  # fmt: skip
            self._control[name] = value
        self._rows: Records = np.zeros(0, records.ROW)
        self._free_rows: list[int] = []
        self._lay_out_rows(_FIRST_ROWS)
        self._lay_out_batch(_FIRST_BATCH)

    @classmethod
    def of(cls, settings: Settings) -> FastTexts:
        return cls(FastNamespaces.of(settings), TextOptions.of(settings))

    def __len__(self) -> int:
        return len(self._row_of)

    def draft(self, requests: Sequence[DraftRequest], method: PlainMethod) -> list[Draft]:
        """Take in the texts' new tokens, then return the method's draft for each. A text may appear only once in a
        call."""
        sources = sum(_BIT[source] for source in method.sources) | (BLENDED if method.is_blended else 0)
        rows = self._step(requests, sources, method.rule)
        counts = self._answers["count"][: len(rows)].tolist()
        return [self._draft(at, rows[at], count) if count else NO_DRAFT for at, count in enumerate(counts)]

    def take_in(self, texts: Sequence[Text]) -> None:
        """New tokens, of long texts a slice; no drafts are made."""
        self._step([DraftRequest(text, 0) for text in texts], 0, _NO_RULE)

    def is_taken_in(self, text: Text) -> bool:
        row = self._row_of.get(text.text_id)
        return row is not None and row.taken >= len(text.tokens)

    def forget(self, text_id: int) -> None:
        row = self._row_of.pop(text_id, None)
        if row is None:
            return
        del self._by_number[row.number]
        self._free_rows.append(row.number)
        row.automaton.close()
        if row.namespace is not None:
            row.namespace.requests -= 1

    def held_bytes(self) -> int:
        held = self.namespaces.held_bytes()
        for row in self._row_of.values():
            held += row.automaton.held_bytes() + sum(int(memory.nbytes) for memory in row.memory.values())
        return held

    # The call ---------------------------------------------------------------------------------------------

    def _step(self, requests: Sequence[DraftRequest], sources: int, rule: DraftRule) -> list[_Row]:
        """The answers are in the records then."""
        rows = [self._row_of.get(request.text.text_id) or self._start(request.text) for request in requests]
        new = [len(request.text.tokens) - row.taken for request, row in zip(requests, rows, strict=True)]
        if len(rows) > self._batch:
            self._lay_out_batch(2 * len(rows))
        aheads = array("i")
        for at, (request, row, count) in enumerate(zip(requests, rows, shared_out(new, SLICE), strict=True)):
            row.taken += count
            address, length = request.text.tokens.buffer_info()
            budget, ahead = request.budget, request.ahead
            _REQUEST.pack_into(
                self._requests, at * _REQUEST.size, row.number, address, length, row.taken, budget, len(ahead)
            )
            aheads.extend(ahead)
        arguments = (
            self._control_at, self._requests.buffer_info()[0], len(rows), aheads.buffer_info()[0], sources,
            rule.factor, rule.offset, rule.least, self._answers_at,
        )  # fmt: skip
        while not step(*arguments):
            self._help()
        return rows

    def _help(self) -> None:
        status, which = int(self._control["status"][0]), int(self._control["which"][0])
        if status == records.SPACE_NEEDS_ROOM:
            self.namespaces.grow(which)
        elif status == records.SPACE_IS_FULL:
            self.namespaces.is_full(which)
        else:
            assert status == records.OWN_NEEDS_ROOM, status
            self._by_number[which].automaton.grow()

    def _draft(self, at: int, row: _Row, count: int) -> Draft:
        answer = self._answers[at]
        source = SOURCES[answer["source"]]
        if source == CORPUS:
            source = f"{source}:{row.corpora[answer['which']]}"
        tokens, shares = answer["tokens"][:count].tolist(), answer["shares"][:count].tolist()
        return Draft(tokens, source, int(answer["matched"]), [], shares)

    def _lay_out_batch(self, most: int) -> None:
        self._batch = most
        self._requests = array("q", bytes(most * _REQUEST.size))
        self._answers: Records = np.zeros(most, records.DRAFT)
        self._answers_at = int(self._answers.ctypes.data)

    # Rows -------------------------------------------------------------------------------------------------

    def _start(self, text: Text) -> _Row:
        if not self._free_rows:
            self._lay_out_rows(2 * len(self._rows))
        options, namespace = self.options, self.namespaces.get(text.namespace)
        automaton = FastAutomaton(max(options.depth, options.most_ngram), looked_up=options.most_ngram)
        automaton.make_room(len(text.tokens) + SLICE // 8)
        held = _Row(self._free_rows.pop(), automaton, namespace, text)
        self._row_of[text.text_id] = self._by_number[held.number] = held
        self._rows[held.number] = np.zeros(1, records.ROW)[0]
        row = self._rows[held.number]
        row["own"]["automaton_at"], row["prompt"], row["space"] = automaton.address, max(0, text.prompt_tokens), -1
        row["written"] = options.begins_to_learn(text)
        self._give(held, "records_at", np.zeros(1, records.RECORDS))
        if namespace is not None:
            namespace.requests += 1
            row["space"], row["learns"] = namespace.number, text.learn and self.namespaces.learns
            row["rates_at"] = namespace.chances.ctypes.data
            namespace.corpora_changed = self._refresh_corpora
            self._list_corpora(held)
        else:
            self._give(held, "rates_at", np.zeros((chances.CELLS, chances.CELL_WORDS)))
        if text.prediction:
            self._predict(held, text.prediction)
        return held

    def _predict(self, row: _Row, prediction: array[int]) -> None:
        heads = 1 << max(4, len(prediction).bit_length())
        tokens = row.memory["prediction"] = np.array(prediction, np.int32)
        table = row.memory["places"] = np.zeros(heads + len(prediction) + 1, np.int32)
        place: Records = np.zeros(1, records.PREDICTION)
        place["tokens_at"], place["count"] = tokens.ctypes.data, len(tokens)
        place["table_at"], place["heads"] = table.ctypes.data, heads
        self._give(row, "prediction_at", place)

    def _give(self, row: _Row, name: str, memory: npt.NDArray[Any]) -> None:
        self._rows[row.number][name] = memory.ctypes.data
        row.memory[name] = memory

    def _list_corpora(self, row: _Row) -> None:
        """The segments of the corpora that the request names; of all corpora, when it names none."""
        assert row.namespace is not None
        listed = row.namespace.corpora_of(row.text)
        row.corpora = [name for name, _ in listed]
        self._rows[row.number]["corpora"] = len(listed)
        self._give(row, "corpora_at", np.array([segment.address for _, segment in listed], np.int64))

    def _refresh_corpora(self) -> None:
        for row in self._row_of.values():
            if row.namespace is not None:
                self._list_corpora(row)

    def _lay_out_rows(self, count: int) -> None:
        before = self._rows
        self._rows = np.zeros(count, records.ROW)
        self._rows[: len(before)] = before
        self._control["rows_at"], self._control["rows"] = self._rows.ctypes.data, count
        self._free_rows.extend(range(count - 1, len(before) - 1, -1))
