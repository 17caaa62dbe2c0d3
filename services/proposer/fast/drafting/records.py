"""The records of the compiled step: of the whole, of a request and its answer, of a row (a text) and of a namespace.
texts.py and namespaces.py fill them."""

from __future__ import annotations

import numpy as np

from services.api.drafter import MAX_DRAFT_TOKENS
from services.proposer.fast.automaton.records import FOLLOWER
from services.proposer.native import pointer_to

# The request's own automaton and its namespace's; the best segment of two kinds, a prediction, and the last place.
MOST_SOURCES = 6
LONGEST = MAX_DRAFT_TOKENS

# `source` and `which`: where the tokens came from, and which of its segments. Shares, or rates, by token.
DRAFT = np.dtype([
    ("count", np.int64), ("matched", np.int64), ("source", np.int64), ("which", np.int64), ("score", np.float64),
    ("tokens", np.int32, (LONGEST,)), ("shares", np.float64, (LONGEST,)),
])  # fmt: skip

# A source of a blended draft: an automaton, with a reader, or a line of `count` tokens with their cells. `token` and
# `cell`: what it predicts next, cell -1: nothing. `at_end`: occurrences of its context that nothing can follow. `led`:
# tokens that it was the surest of.
SOURCE = np.dtype([
    *((name, np.int64) for name in (
        "source", "which", "matched", "token", "cell", "at_end", "is_line", "count", "led",
    )),
    ("reader", FOLLOWER), ("tokens", np.int32, (LONGEST,)), ("cells", np.int32, (LONGEST,)),
])  # fmt: skip

# What was predicted for the tokens of a draft, those ahead of it included; `sources`: how many there were, 0: the
# record is empty. `cells` of the draft's own token; `by_token` and `by_cell` of each source, cell -1: nothing.
PREDICTED = np.dtype([
    ("token", np.int32), ("cells", np.int32, (3,)), ("by_token", np.int32, (MOST_SOURCES,)),
    ("by_cell", np.int32, (MOST_SOURCES,)),
])  # fmt: skip
RECORD = np.dtype([
    *((name, np.int64) for name in ("made_at", "ahead", "count", "compared", "sources")),
    ("entries", PREDICTED, (LONGEST,)),
])  # fmt: skip
# The records of the last draft and of the one before, and which is the later one; and one that is never read.
RECORDS = np.dtype([("records", RECORD, (3,)), ("later", np.int64)])
SPARE = 2

# A prediction: its tokens, a table of the places behind each few tokens, how far the answer has been read, and the
# place in it.
PREDICTION = np.dtype([(name, np.int64) for name in (
    "tokens_at", "count", "table_at", "heads", "is_built", "read", "pointer", "agreed", "lost",
)])  # fmt: skip

# A text. `space`: its namespace's number, -1: none. Serials tell automata apart that came one after the other.
# `joined`, `written` and `read` are places in the text.
ROW = np.dtype([
    *((name, np.int64) for name in (
        "space", "learns", "prompt", "joined", "written", "writes", "read", "reads", "rates_at",
        "records_at", "prediction_at", "corpora_at", "corpora",
    )),
    ("own", FOLLOWER), ("writer", FOLLOWER), ("reader", FOLLOWER),
])  # fmt: skip

# A namespace: its automaton, 0: none, and its segments.
SPACE = np.dtype([(name, np.int64) for name in ("automaton_at", "serial", "segments_at", "segments")])

# `upto`: how much of the text is taken in.
REQUEST = np.dtype([(name, np.int64) for name in ("row", "text_at", "length", "upto", "budget", "aheads")])

# Statuses: a text's automaton, or a namespace's, needs room; a namespace's is full.
DONE, OWN_NEEDS_ROOM, SPACE_NEEDS_ROOM, SPACE_IS_FULL = map(np.int64, range(4))
# The whole: settings, what the call wants done and for whom, and scratch memory.
MOST_DEPTH = 1024
CONTROL = np.dtype([
    *((name, np.int64) for name in (
        "rows_at", "rows", "spaces_at", "spaces", "depth", "least_ngram", "status", "which",
    )),
    ("drafts", DRAFT, (2,)), ("sources", SOURCE, (MOST_SOURCES,)), ("place", PREDICTION),
    ("context", np.int32, (MOST_DEPTH,)),
])  # fmt: skip

row_at, space_at, request_at, draft_at, records_at, prediction_at, control_at = map(
    pointer_to, (ROW, SPACE, REQUEST, DRAFT, RECORDS, PREDICTION, CONTROL)
)
