"""Places of words in the memory of the compiled step: of the whole, of a request and its answer, of a row (a text), and
of a namespace. texts.py and namespaces.py lay them out; step.py and taking_in.py use them."""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import FOLLOWER_WORDS, READER
from services.proposer.fast.drafting import blending, candidates, predicting
from services.proposer.fast.native import long_table_of, table_of

# A bit beside those of the sources: all of them together, with calibrated probabilities.
CALIBRATED = 1 << 10
LONGEST = candidates.LONGEST
# Words of the whole: addresses, settings, and the tokens that the call may still take in.
# fmt: off
(ROWS_AT, SPACES_AT, RESULT_AT, TOKENS_OUT_AT, CHANCES_OUT_AT, SHARES_AT, DRAFT_AT, RATIOS_AT, LINES_AT,
 COPY_AT, CONTEXT_AT, LIMIT, LEAST_NGRAM, FREQUENT, SHARED_LEFT, OWN_LEFT, STATUS, WHICH,
 SCOUTS_AT, PREDICTORS_AT, SPARE_AT) = range(21)
# fmt: on
WORDS = 21
# Statuses: an automaton needs room; a namespace's is full or has enough requests; its full one isn't needed any more; a
# text needs memory for candidates.
DONE, OWN_NEEDS_ROOM, SPACE_NEEDS_ROOM, SPACE_IS_FULL, SPACE_DROPS, ROW_NEEDS_MEMORY = map(np.int64, range(6))

# Words of a request. AHEADS: how many tokens are ahead; those of all texts are in one array.
REQUEST_ROW, REQUEST_TEXT_AT, REQUEST_LENGTH, REQUEST_BUDGET, REQUEST_AHEADS = range(5)
REQUEST_WORDS = 5
# Words of an answer.
ANSWER_COUNT, ANSWER_SOURCE, ANSWER_MATCHED, ANSWER_WHICH = range(4)
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

# Arguments of loops aren't Python numbers: numba would compile a function for each of them.
BEGIN, AT_ROOT, ONLY = np.int64(0), np.int64(0), np.int64(0)
AS_READER, ALL_OF_FOLLOWER, ALL_OF_PREDICTION = map(np.int64, (READER, FOLLOWER_WORDS, predicting.PREDICTION_WORDS))
ALL_OF_PREDICTOR = np.int64(blending.PREDICTOR_WORDS)

# Make tables of an address.
request_table, row_table, space_table = map(long_table_of, (REQUEST_WORDS, ROW_WORDS, SPACE_WORDS))
predictor_table, answer_table = long_table_of(blending.PREDICTOR_WORDS), table_of(ANSWER_WORDS)
