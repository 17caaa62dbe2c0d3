"""Where the words of the compiled step lie: of the whole, of a question and its answer, of a row (a text), and of a
namespace. knowledge.py and namespaces.py lay them out; step.py and taking_in.py work with them."""

from __future__ import annotations

import numpy as np

from services.proposer.suffix_store import blending, candidates, predicting
from services.proposer.suffix_store.loops import FOLLOWER_WORDS, READER
from services.proposer.suffix_store.native import long_table_of, table_of

# What can be asked for, as bits: a source's, whether shares are calibrated and learned from, and whether texts may be
# taken in later: what is new of them is read then as if it were only assumed to follow.
CALIBRATED, LATER = 1 << 10, 1 << 11
LONGEST = candidates.LONGEST
# Words of the whole: where everything lies, what was set, and what is left of what one call may take.
# fmt: off
(ROWS_AT, SPACES_AT, TOLD_AT, TOKENS_OUT_AT, CHANCES_OUT_AT, SHARES_AT, DRAFT_AT, RATIOS_AT, LINES_AT,
 COPY_AT, CONTEXT_AT, BELIEFS_AT, LIMIT, LEAST_NGRAM, FREQUENT, SHARED_LEFT, OWN_LEFT, STATUS, WHICH,
 SCOUTS_AT, SPEAKERS_AT, SPARE_AT) = range(22)
# fmt: on
WORDS = 22
# Statuses: an automaton needs room, one is full or has heard enough requests, a full one isn't needed any more, a text
# needs memory for candidates or chances.
DONE, OWN_NEEDS_ROOM, SPACE_NEEDS_ROOM, SPACE_IS_FULL, SPACE_DROPS, ROW_NEEDS_MEMORY = map(np.int64, range(6))

# Words of a question. AHEADS: how many tokens are ahead; those of all texts lie one behind the other.
ASK_ROW, ASK_TEXT_AT, ASK_LENGTH, ASK_BUDGET, ASK_AHEADS = range(5)
ASK_WORDS = 5
# Words of an answer.
TOLD_COUNT, TOLD_SOURCE, TOLD_MATCHED, TOLD_WHICH = range(4)
ANSWER_WORDS = 4

# Words of a row: a text. SPACE: its namespace's number, -1: none. Serials tell automata apart that came one after the
# other. WRITTEN and READ are places in the text.
(SPACE, LEARNS, PROMPT, JOINED, WRITTEN, WRITES, READ, READS_NEW, READS_OLD, CHANCES_AT, CANDIDATES_AT, PREDICTION_AT,
 CORPORA_AT, CORPORA) = range(14)  # fmt: skip
OWN_FOLLOWER = np.int64(14)
WRITER = OWN_FOLLOWER + FOLLOWER_WORDS
NEW_READER = WRITER + FOLLOWER_WORDS
OLD_READER = NEW_READER + FOLLOWER_WORDS
ROW_WORDS = int(OLD_READER) + FOLLOWER_WORDS

# Words of a namespace: its automata, the one that is written to first, 0: none; its segments.
NEW_AT, NEW_SERIAL, OLD_AT, OLD_SERIAL, REQUESTS, MAX_REQUESTS, SEGMENTS_AT, SEGMENTS = range(8)
SPACE_WORDS = 8

# What is passed on is no number of Python's: numba would compile each function once for each such number.
BEGIN, AT_ROOT, ONLY = np.int64(0), np.int64(0), np.int64(0)
AS_READER, ALL_OF_FOLLOWER, ALL_OF_PREDICTION = map(np.int64, (READER, FOLLOWER_WORDS, predicting.PREDICTION_WORDS))
ALL_OF_SPEAKER = np.int64(blending.SPEAKER_WORDS)

# What makes tables of these of an address.
ask_table, row_table, space_table = long_table_of(ASK_WORDS), long_table_of(ROW_WORDS), long_table_of(SPACE_WORDS)
speaker_table, answer_table = long_table_of(blending.SPEAKER_WORDS), table_of(ANSWER_WORDS)
