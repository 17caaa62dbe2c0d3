"""The place in a prediction that an answer has reached. Compiled into step.py.

A pointer starts at 0 and advances with the answer, also past a token that differs, which was probably replaced. Until
GRAM tokens agree again, the answer's last GRAM tokens are looked up in the prediction, and the best place is taken:

    predicted   the red fox and the dog and the cat
    answer      the old fox, and the |                  the places behind "and the" are before dog and before cat

At or behind the pointer is better than before it, then the longer agreement, then what is nearer.
"""

from __future__ import annotations

import numpy as np

from services.proposer.fast.native import Ints, Longs, carray, ints_at, loop

# Words of a prediction: its tokens, the table of places behind each GRAM tokens, how far the answer has been read, and
# the pointer. AGREED: tokens in a row that agree up to the pointer; LOST: the pointer is only assumed.
TOKENS_AT, PREDICTED, TABLE_AT, HEADS, IS_BUILT, READ, POINTER, AGREED, LOST = range(9)
PREDICTION_WORDS = 9
GRAM = 3
_LONGEST, _PLACES = 32, 64


@loop
def _head(words: Longs, first: int, second: int, third: int) -> int:
    mixed = (np.uint64(first) * np.uint64(0x9E3779B1) ^ np.uint64(second)) * np.uint64(0x85EBCA6B) ^ np.uint64(third)
    mixed = mixed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)
    return np.int64(mixed & np.uint64(words[HEADS] - 1))  # type: ignore[return-value]


@loop
def _build(words: Longs, predicted: Ints, table: Ints) -> None:
    """Chains of places: HEADS first ones, then for each place the one before it. 0 ends a chain."""
    for place in range(GRAM, predicted.size + 1):
        head = _head(words, predicted[place - 3], predicted[place - 2], predicted[place - 1])
        table[words[HEADS] + place] = table[head]
        table[head] = place
    words[IS_BUILT] = 1


@loop
def _token(text: Ints, ahead: Ints, at: int) -> int:
    return text[at] if at < text.size else ahead[at - text.size]  # type: ignore[no-any-return]


@loop
def _align(words: Longs, predicted: Ints, table: Ints, text: Ints, ahead: Ints, begin: int, upto: int) -> None:
    """Moves the pointer to the best place for text[begin:upto], if its last GRAM tokens are anywhere in the
    prediction."""
    if upto - begin < GRAM:
        return
    first, second = _token(text, ahead, upto - 3), _token(text, ahead, upto - 2)
    place = table[_head(words, first, second, _token(text, ahead, upto - 1))]
    pointer = words[POINTER]
    best, best_length, looked = -1, GRAM - 1, 0
    while place and looked < _PLACES:
        length = 0
        most = min(_LONGEST, place, upto - begin)
        while length < most and predicted[place - 1 - length] == _token(text, ahead, upto - 1 - length):
            length += 1
        if length >= GRAM:
            looked += 1
            is_behind, was_behind = place >= pointer, best >= pointer
            better = length > best_length or (length == best_length and abs(place - pointer) < abs(best - pointer))
            if best < 0 or (is_behind and not was_behind) or (is_behind == was_behind and better):
                best, best_length = place, length
        place = table[words[HEADS] + place]
    if best >= 0:
        words[POINTER], words[AGREED], words[LOST] = best, best_length, 0


@loop
def follow(words: Longs, text: Ints, ahead: Ints, begin: int) -> None:
    """Reads the new tokens of the answer: text[begin:] and what is ahead of it."""
    predicted = carray(ints_at(words[TOKENS_AT]), words[PREDICTED])
    table = carray(ints_at(words[TABLE_AT]), words[HEADS] + words[PREDICTED] + 1)
    if not words[IS_BUILT]:
        _build(words, predicted, table)
    for at in range(max(words[READ], begin), text.size + ahead.size):
        if words[POINTER] < predicted.size and predicted[words[POINTER]] == _token(text, ahead, at):
            words[AGREED] += 1
        else:
            words[AGREED], words[LOST] = 0, 1
        words[POINTER] += 1
        if words[AGREED] >= GRAM:
            words[LOST] = 0
        elif words[LOST]:
            _align(words, predicted, table, text, ahead, begin, at + 1)
    words[READ] = text.size + ahead.size


@loop
def rest(words: Longs, longest: int, tokens: Ints) -> int:
    """The prediction from the pointer on."""
    predicted = carray(ints_at(words[TOKENS_AT]), words[PREDICTED])
    count = max(0, min(longest, predicted.size - words[POINTER]))
    for at in range(count):
        tokens[at] = predicted[words[POINTER] + at]
    return count  # type: ignore[no-any-return]
