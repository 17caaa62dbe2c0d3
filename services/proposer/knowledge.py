"""Everything guesses are made from, for all texts that are followed: a text is a row of a flat table, a batch is one
compiled call (suffix_store/step.py). All methods of the proposer process share one.

Here memory is laid out, batches are packed, and what was told becomes drafts. Which sources a method asks, and what it
makes of the answers, is the method's own. Not for more than one thread at a time.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from services.api.drafts import chances_in
from services.api.settings import Settings
from services.proposer import calibration
from services.proposer.draft import EMPTY, MAX_DRAFT_TOKENS, Draft, Guesses
from services.proposer.namespaces import Namespace, Namespaces, Segment
from services.proposer.proposer import Ask, View
from services.proposer.suffix_store import (
    blending,
    branches,
    candidates,
    chances,
    guessing,
    layout,
    loops,
    predicting,
    scouting,
    step,
)
from services.proposer.suffix_store.automaton import Automaton
from services.proposer.suffix_store.memory import POOL

assert layout.LONGEST == MAX_DRAFT_TOKENS

# Tokens of prompts that join in one call, of all texts together, and as many that are learned; about a millisecond.
SLICE = 2048
# What can be asked for together, and how a guess of each is called. A corpus' guess also has its name: corpus:NAME.
OWN, SHARED, STORE, CORPUS = (1 << source for source in (chances.OWN, chances.SHARED, chances.STORE, chances.CORPUS))
PREDICTION, NGRAM = 1 << chances.PREDICTION, 1 << chances.NGRAM
# Chances instead of shares, and learning from what came of every source's guess.
CALIBRATED = layout.CALIBRATED
NAMES = {
    chances.OWN: "suffix",
    chances.SHARED: "shared",
    chances.STORE: "store",
    chances.CORPUS: "corpus",
    chances.PREDICTION: "prediction",
    chances.NGRAM: "ngram",
}
_QUESTION = struct.Struct(f"{layout.ASK_WORDS}q")
_IN_SEGMENTS = (chances.STORE, chances.CORPUS)
_FIRST_ROWS = 64
_FIRST_BATCH = 32
_SCRATCH = 16
assert max(loops.FOLLOWER_WORDS, predicting.PREDICTION_WORDS) <= _SCRATCH


@dataclass(frozen=True, slots=True)
class Rule:
    """A context of n tokens is worth a draft of n * factor + offset tokens, as long as their probability is at least
    `least`."""

    factor: float = 1.0
    offset: float = 0.0
    least: float = 0.1

    @classmethod
    def of(cls, settings: Settings) -> Rule:
        return cls(
            settings.suffix_decoding_max_spec_factor,
            settings.suffix_decoding_max_spec_offset,
            settings.suffix_decoding_min_token_prob,
        )


@dataclass(slots=True)
class _Text:
    row: int
    automaton: Automaton
    namespace: Namespace | None
    wanted: list[str] | None
    # Names of the corpora whose segments the row lists, one for each segment.
    corpora: list[str] = field(default_factory=list)
    # Memory that the row knows by its address, by the word that holds it.
    memory: dict[int, Any] = field(default_factory=dict)


class Knowledge:
    def __init__(
        self, namespaces: Namespaces, depth: int = 64, least_ngram: int = 2, most_ngram: int = 5,
        prefers_frequent: bool = False, learns_prompts: bool = False,
    ) -> None:  # fmt: skip
        self.namespaces = namespaces
        self._depth, self._most_ngram, self._learns_prompts = max(depth, most_ngram), most_ngram, learns_prompts
        # Called with a segment that a draft came of, and its tokens' chances.
        self.used: Callable[[Namespace, Segment, list[float]], None] = lambda namespace, segment, likely: None
        self._texts: dict[int, _Text] = {}
        self._row_of: dict[int, int] = {}
        self._text_in: dict[int, _Text] = {}
        # Of which the last tokens are taken in when their answer has left.
        self._put_off: list[View] = []
        self._control = np.zeros(layout.WORDS, np.int64)
        self._words = memoryview(self._control)  # type: ignore[arg-type]
        self._control_at = int(self._control.ctypes.data)
        self._rows: npt.NDArray[np.int64] = np.zeros((_FIRST_ROWS, layout.ROW_WORDS), np.int64)
        self._free_rows = list(range(_FIRST_ROWS - 1, -1, -1))
        self._beliefs = calibration.new_table()
        self._scratch: dict[int, npt.NDArray[Any]] = {
            layout.TOLD_AT: np.zeros(guessing.TOLD_WORDS, np.int64),
            # A guess, and behind it another that may be better.
            layout.DRAFT_AT: np.zeros(2 * layout.LONGEST, np.int32),
            layout.RATIOS_AT: np.zeros(2 * layout.LONGEST, np.float64),
            # One more than there are: that of a guess that may become one.
            layout.LINES_AT: np.zeros((blending.LINES + 1, 2 * layout.LONGEST), np.int32),
            layout.SPEAKERS_AT: np.zeros((blending.SPEAKERS + 1, blending.SPEAKER_WORDS), np.int64),
            layout.COPY_AT: np.zeros(_SCRATCH, np.int64),
            layout.CONTEXT_AT: np.zeros(depth, np.int32),
            layout.BELIEFS_AT: self._beliefs,
            layout.SPARE_AT: np.zeros(candidates.RECORD_WORDS, np.int32),
        }
        for word, memory in self._scratch.items():
            self._words[word] = memory.ctypes.data
        self._words[layout.LIMIT], self._words[layout.LEAST_NGRAM] = depth, least_ngram
        self._words[layout.FREQUENT] = prefers_frequent
        self._words[layout.SPACES_AT], self._words[layout.ROWS_AT] = namespaces.address, self._rows.ctypes.data
        self._batch = 0
        self._lay_out_batch(_FIRST_BATCH)
        POOL.prepare()

    @classmethod
    def of(cls, settings: Settings) -> Knowledge:
        return cls(
            Namespaces.of(settings),
            settings.suffix_decoding_max_tree_depth,
            settings.min_ngram_size,
            settings.max_ngram_size,
            settings.ngram_prefers == "frequent",
            settings.suffix_decoding_learn_prompts,
        )

    def __len__(self) -> int:
        return len(self._texts)

    def guess(self, asks: Sequence[Ask], sources: int, rule: Rule) -> Sequence[Draft]:
        """What is new is taken in, and the best guess of the sources is the draft; EMPTY while a long prompt joins. A
        few tokens of those who are asked about in a hurry, by all sources, stay out until `settle`."""
        count = len(asks)
        if count > self._batch:
            self._lay_out_batch(2 * count)
        row_of, asked, at, trees = self._row_of, self._asked, 0, False
        aheads: array[int] | None = None
        soon = bool(sources & CALIBRATED)
        pack_into, size = _QUESTION.pack_into, _QUESTION.size
        for ask in asks:
            view, ahead = ask.view, ask.ahead
            row = row_of.get(view.sequence_id)
            if row is None:
                row = self._start(view)
            address, length = view.tokens.buffer_info()
            pack_into(asked, at, row, address, length, ask.budget, len(ahead))
            at += size
            trees |= ask.trees
            soon &= ask.soon
            if ahead:
                if aheads is None:
                    aheads = array("i")
                aheads.extend(ahead)
        if soon and aheads is None and not trees:
            sources |= layout.LATER
            for ask in asks:
                self._put_off.append(ask.view)
        told = self._step(count, aheads, sources, rule)
        if not told:
            return [EMPTY] * count
        guesses = self._guesses(count, asks, told)
        return self._branched(asks, guesses) if trees and sources & OWN else guesses

    def _branched(self, asks: Sequence[Ask], drafts: Sequence[Draft]) -> Sequence[Draft]:
        """What automata say, as trees where these are wanted."""
        return [
            branches.grown(draft, self._followers(ask.view), ask.ahead) if ask.trees and draft.tokens else draft
            for ask, draft in zip(asks, drafts, strict=True)
        ]

    def _followers(self, view: View) -> list[int]:
        """Addresses of those that stand at the text's end."""
        text = self._texts[view.sequence_id]
        row, namespace = self._rows[text.row], text.namespace
        words = [layout.OWN_FOLLOWER]
        if namespace is not None and row[layout.READ] == len(view.tokens):
            reads = ((layout.NEW_READER, layout.READS_NEW, layout.NEW_SERIAL),
                     (layout.OLD_READER, layout.READS_OLD, layout.OLD_SERIAL))  # fmt: skip
            space = namespace.words
            words += [word for word, reads_it, serial in reads if row[reads_it] and row[reads_it] == space[serial]]
        return [int(row[word:].ctypes.data) for word in words]

    def follow(self, views: Iterable[View]) -> None:
        """What is new is taken in, and nothing is asked; of long texts a slice."""
        self.guess([Ask(view, 0) for view in views], 0, _NO_RULE)

    def settle(self) -> None:
        """What was put off is done."""
        if self._put_off:
            views, self._put_off = self._put_off, []
            self.follow([view for view in views if view.sequence_id in self._row_of])

    def is_followed(self, view: View) -> bool:
        """Whether all of the text has been taken in."""
        text = self._texts.get(view.sequence_id)
        if text is None:
            return False
        row = self._rows[text.row]
        learned = row[layout.WRITTEN] if row[layout.SPACE] >= 0 and row[layout.LEARNS] else len(view.tokens)
        return bool(min(row[layout.JOINED], learned) >= len(view.tokens))

    def forget(self, sequence_id: int) -> None:
        text = self._texts.pop(sequence_id, None)
        if text is None:
            return
        del self._row_of[sequence_id], self._text_in[text.row]
        self._rows[text.row] = 0
        self._free_rows.append(text.row)
        text.automaton.close()
        if text.namespace is not None:
            text.namespace.requests -= 1

    def held_bytes(self) -> int:
        held = self.namespaces.held_bytes()
        for text in self._texts.values():
            held += text.automaton.held_bytes() + sum(int(memory.nbytes) for memory in text.memory.values())
        return held

    # The call ---------------------------------------------------------------------------------------------

    def _step(self, count: int, aheads: array[int] | None, sources: int, rule: Rule) -> int:
        words, asks_at, aheads_at = self._words, self._asked_at, 0 if aheads is None else aheads.buffer_info()[0]
        words[layout.SHARED_LEFT] = words[layout.OWN_LEFT] = SLICE
        factor, offset, least = rule.factor, rule.offset, rule.least
        while (told := step.step(self._control_at, asks_at, count, aheads_at, sources, factor, offset, least)) < 0:
            self._help(words[layout.STATUS], words[layout.WHICH])
        return int(told)

    def _help(self, status: int, which: int) -> None:
        if status == layout.SPACE_NEEDS_ROOM:
            self.namespaces.make_room(which)
        elif status == layout.SPACE_IS_FULL:
            self.namespaces.take_over(which)
        elif status == layout.SPACE_DROPS:
            self.namespaces.drop_old(which)
        elif status == layout.OWN_NEEDS_ROOM:
            self._text_in[which].automaton.grow()
        else:
            assert status == layout.ROW_NEEDS_MEMORY, status
            self._give(self._text_in[which], layout.CANDIDATES_AT, np.zeros(candidates.TEXT_WORDS, np.int32))

    def _guesses(self, count: int, asks: Sequence[Ask], told: int) -> Guesses:
        words, begin = layout.ANSWER_WORDS, count * layout.ANSWER_WORDS
        answers = self._told[:begin].tolist()
        lengths, kinds = answers[layout.TOLD_COUNT :: words], answers[layout.TOLD_SOURCE :: words]
        guesses = Guesses(
            lengths,
            [NAMES[kind] for kind in kinds],
            answers[layout.TOLD_MATCHED :: words],
            self._told[begin : begin + told].tobytes(),
            self._ratios[:told].tobytes(),
        )
        if chances.STORE in kinds or chances.CORPUS in kinds:
            self._name(guesses, asks, kinds, answers[layout.TOLD_WHICH :: words])
        return guesses

    def _name(self, guesses: Guesses, asks: Sequence[Ask], kinds: list[int], which: list[int]) -> None:
        """Of drafts that came of segments: whose corpus that is, and that they were of use."""
        at, likely = 0, chances_in(guesses.chances)
        for number, length in enumerate(guesses.lengths):
            if length and kinds[number] in _IN_SEGMENTS:
                text = self._texts[asks[number].view.sequence_id]
                if kinds[number] == chances.CORPUS:
                    guesses.sources[number] += ":" + text.corpora[which[number]]
                elif text.namespace is not None:
                    self.used(text.namespace, text.namespace.segments[which[number]], likely[at : at + length])
            at += length

    def _lay_out_batch(self, most: int) -> None:
        self._batch = most
        self._shares = np.zeros(most, np.int64)
        self._asked = array("q", bytes(8 * most * layout.ASK_WORDS))
        self._asked_at = self._asked.buffer_info()[0]
        told = array("i", bytes(4 * most * (layout.ANSWER_WORDS + layout.LONGEST)))
        ratios = array("d", bytes(8 * most * layout.LONGEST))
        # Lists are made of views in less time than of arrays.
        self._told: memoryview[int] = memoryview(told)
        self._ratios: Any = memoryview(ratios)
        self._scouts = np.zeros(most * scouting.SCOUT_WORDS, np.int32)
        self._words[layout.SCOUTS_AT] = self._scouts.ctypes.data
        self._words[layout.SHARES_AT] = self._shares.ctypes.data
        self._words[layout.TOKENS_OUT_AT] = told.buffer_info()[0]
        self._words[layout.CHANCES_OUT_AT] = ratios.buffer_info()[0]

    # Texts --------------------------------------------------------------------------------------------------

    def _start(self, view: View) -> int:
        if not self._free_rows:
            self._lay_out_rows(2 * len(self._rows))
        automaton = Automaton(self._depth, looked_up=self._most_ngram)
        automaton.make_room(len(view.tokens) + SLICE // 8)
        number, namespace = self._free_rows.pop(), self.namespaces.get(view.namespace)
        text = _Text(number, automaton, namespace, view.corpora)
        self._texts[view.sequence_id] = self._text_in[number] = text
        self._row_of[view.sequence_id] = number
        row = self._rows[number]
        row[layout.OWN_FOLLOWER + loops.AUTOMATON] = automaton.address
        row[layout.SPACE] = -1
        row[layout.PROMPT] = max(0, view.prompt_tokens)
        if namespace is not None:
            namespace.requests += 1
            row[layout.SPACE], row[layout.LEARNS] = namespace.number, view.learn and self.namespaces.learns
            row[layout.WRITTEN] = 0 if self._learns_prompts else row[layout.PROMPT]
            row[layout.CHANCES_AT] = namespace.chances.ctypes.data
            namespace.corpora_changed = self._refresh_corpora
            self._list_corpora(text)
        else:
            self._give(text, layout.CHANCES_AT, calibration.new_table())
        if view.prediction:
            self._predict(text, view.prediction)
        return number

    def _predict(self, text: _Text, prediction: array[int]) -> None:
        heads = 1 << max(4, len(prediction).bit_length())
        tokens = np.array(prediction, np.int32)
        table = np.zeros(heads + len(prediction) + 1, np.int32)
        words = np.zeros(predicting.PREDICTION_WORDS, np.int64)
        words[predicting.TOKENS_AT], words[predicting.PREDICTED] = tokens.ctypes.data, len(tokens)
        words[predicting.TABLE_AT], words[predicting.HEADS] = table.ctypes.data, heads
        self._give(text, layout.PREDICTION_AT, words)
        text.memory[-1], text.memory[-2] = tokens, table

    def _give(self, text: _Text, word: int, memory: npt.NDArray[Any]) -> None:
        self._rows[text.row, word] = memory.ctypes.data
        text.memory[word] = memory

    def _list_corpora(self, text: _Text) -> None:
        """The segments of the corpora that the request names; of all, when it names none."""
        assert text.namespace is not None
        corpora = text.namespace.corpora
        names = list(corpora) if text.wanted is None else [name for name in text.wanted if name in corpora]
        listed = [(name, segment) for name in names for segment in corpora[name]]
        text.corpora = [name for name, _ in listed]
        self._rows[text.row, layout.CORPORA] = len(listed)
        self._give(text, layout.CORPORA_AT, np.array([segment.address for _, segment in listed], np.int64))

    def _refresh_corpora(self) -> None:
        for text in self._texts.values():
            if text.namespace is not None:
                self._list_corpora(text)

    def _lay_out_rows(self, count: int) -> None:
        before = len(self._rows)
        rows = np.zeros((count, layout.ROW_WORDS), np.int64)
        rows[:before] = self._rows
        self._rows = rows
        self._words[layout.ROWS_AT] = rows.ctypes.data
        self._free_rows.extend(range(count - 1, before - 1, -1))


_NO_RULE = Rule()
