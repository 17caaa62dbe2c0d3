"""The place in a prediction that an answer has reached: proposer/prediction.py, compiled."""

from __future__ import annotations

import numpy as np

from services.proposer.fast.drafting.chances import PREDICTION, cell_of
from services.proposer.fast.drafting.records import prediction_at
from services.proposer.native import Ints, Record, carray, ints_at, loop
from services.proposer.plain.place import AGREED_SHARE, ASSUMED_SHARE, GRAM_TOKENS, MAX_COMPARED, MAX_PLACES


@loop
def _head(heads: int, first: int, second: int, third: int) -> int:
    mixed = (np.uint64(first) * np.uint64(0x9E3779B1) ^ np.uint64(second)) * np.uint64(0x85EBCA6B) ^ np.uint64(third)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return np.int64(mixed & np.uint64(heads - 1))  # type: ignore[return-value]


@loop
def _build(place: Record, predicted: Ints, table: Ints) -> None:
    """Chains of places: as many first ones as heads, then for each place the one before it. 0 ends a chain."""
    for end in range(GRAM_TOKENS, predicted.size + 1):
        head = _head(place.heads, predicted[end - 3], predicted[end - 2], predicted[end - 1])
        table[place.heads + end] = table[head]
        table[head] = end
    place.is_built = 1


@loop
def _token(text: Ints, ahead: Ints, at: int) -> int:
    return np.int64(text[at] if at < text.size else ahead[at - text.size])  # type: ignore[return-value]


@loop
def _align(place: Record, predicted: Ints, table: Ints, text: Ints, ahead: Ints, begin: int, upto: int) -> None:
    """Moves the pointer to the best place for text[begin:upto], if its last GRAM_TOKENS are anywhere in the
    prediction."""
    if upto - begin < GRAM_TOKENS:
        return
    first, second = _token(text, ahead, upto - 3), _token(text, ahead, upto - 2)
    end = np.int64(table[_head(place.heads, first, second, _token(text, ahead, upto - 1))])
    pointer = place.pointer
    best, best_length, looked = np.int64(-1), GRAM_TOKENS - 1, 0
    while end and looked < MAX_PLACES:
        length, most = 0, min(MAX_COMPARED, int(end), upto - begin)
        while length < most and predicted[end - 1 - length] == _token(text, ahead, upto - 1 - length):
            length += 1
        if length >= GRAM_TOKENS:
            looked += 1
            is_behind, was_behind = end >= pointer, best >= pointer
            better = length > best_length or (length == best_length and abs(end - pointer) < abs(best - pointer))
            if best < 0 or (is_behind and not was_behind) or (is_behind == was_behind and better):
                best, best_length = end, length
        end = np.int64(table[place.heads + end])
    if best >= 0:
        place.pointer, place.agreed, place.lost = best, best_length, 0


@loop
def _follow(place: Record, text: Ints, ahead: Ints, begin: int) -> None:
    """Reads the new tokens of the answer: text[begin:] and what is ahead of it."""
    predicted = carray(ints_at(place.tokens_at), place.count)
    table = carray(ints_at(place.table_at), place.heads + place.count + 1)
    if not place.is_built:
        _build(place, predicted, table)
    for at in range(max(place.read, begin), text.size + ahead.size):
        if place.pointer < predicted.size and predicted[place.pointer] == _token(text, ahead, at):
            place.agreed += 1
        else:
            place.agreed, place.lost = 0, 1
        place.pointer += 1
        if place.agreed >= GRAM_TOKENS:
            place.lost = 0
        elif place.lost:
            _align(place, predicted, table, text, ahead, begin, at + 1)
    place.read = text.size + ahead.size


@loop
def predicted(control: Record, row: Record, text: Ints, ahead: Ints, longest: int, cells: Ints) -> int:
    """The rest of the prediction becomes a draft, and its tokens' cells; how many tokens there are."""
    draft, place = control.drafts[0], carray(prediction_at(row.prediction_at), 1)[0]
    _follow(place, text, ahead[:0], row.prompt)
    if ahead.size:
        control.place = place
        place = control.place
        _follow(place, text, ahead, row.prompt)
    rest = carray(ints_at(place.tokens_at), place.count)
    draft.count, draft.matched = max(0, min(longest, place.count - place.pointer)), place.agreed
    share = ASSUMED_SHARE if place.lost else AGREED_SHARE
    for at in range(draft.count):
        draft.tokens[at] = rest[place.pointer + at]
        cells[at] = cell_of(PREDICTION, place.agreed + at, share)
    return draft.count  # type: ignore[no-any-return]
