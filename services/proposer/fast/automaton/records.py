"""The records of an automaton's tables. 0 means none: no token leads to the root, and no entry has number 0."""

from __future__ import annotations

import numpy as np

from services.proposer.native import pointer_to

# The first token that followed, and where it leads; further ones are entries.
STATE = np.dtype([(name, np.int32) for name in (
    "length", "link", "count", "best_count", "best", "token", "target", "others",
)])  # fmt: skip
ENTRY = np.dtype([(name, np.int32) for name in ("source", "token", "target", "next_in_bucket", "next_of_source")])
# Addresses of the tables, what is in use of them, and what there is room for. `buckets` is between `low`, a power of
# two, and twice that. `lasts_at` 0: of many texts, so no places are kept.
AUTOMATON = np.dtype([(name, np.int64) for name in (
    "states_at", "entries_at", "buckets_at", "lasts_at", "states", "entries", "buckets", "low", "tokens",
    "states_room", "entries_room", "buckets_room", "max_tokens", "max_bytes", "depth", "looked_up",
)])  # fmt: skip
# `end`: the state of all that it wrote; READER: it only reads. `state`, `length`: its context, the last tokens that it
# read or wrote. `before`: the place behind the last earlier occurrence of the last `before_length` tokens.
FOLLOWER = np.dtype([(name, np.int64) for name in (
    "automaton_at", "end", "state", "length", "before", "before_length",
)])  # fmt: skip
READER = -1
BUCKET_BYTES = LAST_BYTES = 4
FIRST_BUCKETS = 16
# So that few buckets have more than one entry.
BUCKETS_AN_ENTRY = 2

state_at, entry_at, automaton_at = map(pointer_to, (STATE, ENTRY, AUTOMATON))
