"""The first half of the step: the new tokens of each text are learned by its namespace and added to the text's own
automaton. Compiled into step.py; returns a STATUS where memory is short."""

from __future__ import annotations

import numpy as np

from services.proposer.fast.automaton.loops import (
    AUTOMATON,
    END,
    FOLLOWER_WORDS,
    LACKS,
    MAX_BYTES,
    MAX_TOKENS,
    TAKES,
    TOKENS,
    held,
    lasts_of,
    opened,
    write,
)
from services.proposer.fast.automaton.prefetch import (
    AHEAD,
    CONTEXTS,
    SCOUT_WORDS,
    fetch_contexts,
    moves,
    sets_out,
)
from services.proposer.fast.drafting.layout import (
    AT_ROOT,
    JOINED,
    LEARNS,
    MAX_REQUESTS,
    NEW_AT,
    NEW_SERIAL,
    OLD_AT,
    OWN_FOLLOWER,
    OWN_LEFT,
    OWN_NEEDS_ROOM,
    REQUEST_LENGTH,
    REQUEST_ROW,
    REQUEST_TEXT_AT,
    REQUESTS,
    SCOUTS_AT,
    SHARED_LEFT,
    SHARES_AT,
    SPACE,
    SPACE_DROPS,
    SPACE_IS_FULL,
    SPACE_NEEDS_ROOM,
    SPACES_AT,
    STATUS,
    WHICH,
    WRITER,
    WRITES,
    WRITTEN,
    space_table,
)
from services.proposer.fast.native import (
    Ints,
    Longs,
    Table,
    carray,
    ints,
    ints_at,
    longs_at,
    loop,
    part,
)

# A text's own automaton of fewer tokens is in the processor's cache: prefetching would take longer than it saves.
ANY, LARGE = np.int64(0), np.int64(20_000)
WRITTEN_AT, JOINED_AT = np.int64(WRITTEN), np.int64(JOINED)


@loop
def _share(waiting: Longs, left: int) -> None:
    """How many tokens of each text are taken in now: the shortest texts first, so that long ones don't delay them."""
    total, most = 0, 0
    for each in waiting:
        total, most = total + each, max(most, each)
    if total <= left:
        return
    # Texts with up to `low` new tokens fit; of the next longer ones, the first.
    low, high = 0, most
    while low < high:
        middle, total = (low + high + 1) // 2, 0
        for each in waiting:
            total += each if each <= middle else 0
        low, high = (middle, high) if total <= left else (low, middle - 1)
    for each in waiting:
        left -= each if each <= low else 0
    after = most
    for each in waiting:
        if each > low:
            after = min(after, each)
    for at in range(waiting.size):
        if waiting[at] > low:
            waiting[at] = min(waiting[at], left) if waiting[at] == after else 0
            left -= waiting[at]


@loop
def starts(row: Longs, follower: int, automaton: int, end: int) -> None:
    for word in range(FOLLOWER_WORDS):
        row[follower + word] = 0
    row[follower + AUTOMATON], row[follower + END] = automaton, end


@loop
def ends(control: Longs, status: int, which: int) -> bool:
    control[STATUS], control[WHICH] = status, which
    return False


@loop
def learn(control: Longs, rows: Table, requests: Table, count: int) -> bool:
    """The new tokens of each text go into its namespace's automaton."""
    shares = carray(longs_at(control[SHARES_AT]), count)
    spaces = space_table(control[SPACES_AT])
    waits = 0
    for at in range(count):
        row = rows[requests[at, REQUEST_ROW]]
        learns = row[SPACE] >= 0 and row[LEARNS]
        shares[at] = max(0, requests[at, REQUEST_LENGTH] - row[WRITTEN]) if learns else 0
        waits += shares[at]
    if not waits:
        return True
    _share(shares, control[SHARED_LEFT])
    _send_scouts(control, rows, requests, count, spaces, shares, WRITER, WRITTEN_AT, ANY)
    for at in range(count):
        row, scout = rows[requests[at, REQUEST_ROW]], _scout_of(control, at)
        if shares[at] and not _learn_from(control, row, spaces, requests[at], shares[at], scout):
            return False
    return True


@loop
def _scout_of(control: Longs, at: int) -> Ints:
    return ints(control[SCOUTS_AT] + 4 * SCOUT_WORDS * at)  # type: ignore[no-any-return]


@loop
def _then(text: Ints, at: int) -> int:
    return np.int64(text[at]) if at < text.size else np.int64(-1)  # type: ignore[return-value]


@loop
def _send_scouts(
    control: Longs, rows: Table, requests: Table, count: int, spaces: Table, shares: Longs, follower: int, done: int,
    least: int,
) -> None:  # fmt: skip
    """Of all texts at a time, so that none is waited for. `follower` and `done`: words of a row. Automata of fewer
    tokens than `least` do without."""
    for move in range(-CONTEXTS, AHEAD + 1):
        for at in range(count):
            row = rows[requests[at, REQUEST_ROW]]
            if shares[at] < max(1, move) or (follower == WRITER and row[WRITES] != spaces[row[SPACE], NEW_SERIAL]):
                continue
            words, states, _, buckets = opened(row[follower + AUTOMATON])
            if words[TOKENS] < least:
                continue
            if move < 0:
                fetch_contexts(words, states, row[follower + END], CONTEXTS + move)
                continue
            text, begin = carray(ints_at(requests[at, REQUEST_TEXT_AT]), requests[at, REQUEST_LENGTH]), row[done]
            scout = _scout_of(control, at)
            if move:
                moves(words, states, buckets, scout, text[begin + move - 1], _then(text, begin + move))
            else:
                sets_out(words, states, scout, row[follower + END], text[begin])


@loop
def _learn_from(control: Longs, row: Longs, spaces: Table, request: Longs, share: int, scout: Ints) -> bool:
    space, which = spaces[row[SPACE]], row[SPACE]
    if row[WRITES] != space[NEW_SERIAL]:
        if space[MAX_REQUESTS] and space[REQUESTS] >= space[MAX_REQUESTS]:
            return ends(control, SPACE_IS_FULL, which)  # type: ignore[no-any-return]
        space[REQUESTS] += 1
        row[WRITES] = space[NEW_SERIAL]
        starts(row, WRITER, space[NEW_AT], AT_ROOT)
        scout[0] = 0
    text = carray(ints_at(request[REQUEST_TEXT_AT]), request[REQUEST_LENGTH])
    words, states, entries, buckets = opened(space[NEW_AT])
    lasts, writer = lasts_of(words), part(row, WRITER)
    for at in range(share):
        if at + AHEAD < share:
            ahead = row[WRITTEN] + AHEAD
            moves(words, states, buckets, scout, text[ahead], _then(text, ahead + 1))
        found = write(words, states, entries, buckets, lasts, writer, text[row[WRITTEN]])
        if found == LACKS:
            return ends(control, SPACE_NEEDS_ROOM, which)  # type: ignore[no-any-return]
        if found != TAKES:
            if words[TOKENS]:
                return ends(control, SPACE_IS_FULL, which)  # type: ignore[no-any-return]
            # Too small for a single token.
            row[WRITTEN] = text.size
            return True
        row[WRITTEN] += 1
        control[SHARED_LEFT] -= 1
    if space[OLD_AT]:
        heard = space[MAX_REQUESTS] and 2 * space[REQUESTS] >= space[MAX_REQUESTS]
        if heard or 2 * words[TOKENS] >= words[MAX_TOKENS] or 2 * held(words) >= words[MAX_BYTES]:
            return ends(control, SPACE_DROPS, which)  # type: ignore[no-any-return]
    return True


@loop
def join(control: Longs, rows: Table, requests: Table, count: int) -> bool:
    """The new tokens of each text go into its own automaton."""
    shares = carray(longs_at(control[SHARES_AT]), count)
    waits, large = 0, False
    for at in range(count):
        row = rows[requests[at, REQUEST_ROW]]
        shares[at] = max(0, requests[at, REQUEST_LENGTH] - row[JOINED])
        waits += shares[at]
        large |= row[JOINED] >= LARGE
    if not waits:
        return True
    _share(shares, control[OWN_LEFT])
    if large:
        spaces = space_table(control[SPACES_AT])
        _send_scouts(control, rows, requests, count, spaces, shares, OWN_FOLLOWER, JOINED_AT, LARGE)
    for at in range(count):
        if not shares[at]:
            continue
        which = requests[at, REQUEST_ROW]
        row = rows[which]
        text = carray(ints_at(requests[at, REQUEST_TEXT_AT]), requests[at, REQUEST_LENGTH])
        writer = part(row, OWN_FOLLOWER)
        words, states, entries, buckets = opened(writer[AUTOMATON])
        lasts = lasts_of(words)
        scout, scouts = _scout_of(control, at), words[TOKENS] >= LARGE
        for done in range(shares[at]):
            if scouts and done + AHEAD < shares[at]:
                ahead = row[JOINED] + AHEAD
                moves(words, states, buckets, scout, text[ahead], _then(text, ahead + 1))
            if write(words, states, entries, buckets, lasts, writer, text[row[JOINED]]) != TAKES:
                return ends(control, OWN_NEEDS_ROOM, which)  # type: ignore[no-any-return]
            row[JOINED] += 1
            control[OWN_LEFT] -= 1
    return True
