"""How often tokens stood that were guessed like this one: the compiled side of calibration. Knows neither texts nor how
guesses are made.

A cell for each source, about how long the context was, and about how large the share was of the times the context was
followed by the token. It holds the chance that such a token stands when all before it do, and the decaying counts it
is made of. calibration.py lays the tables out and says what is believed before anything was seen.
"""

from __future__ import annotations

from services.proposer.suffix_store.native import Floats, loop

# Who guesses. The order is that of preference among equal scores.
OWN, SHARED, STORE, CORPUS, PREDICTION, NGRAM = range(6)
SOURCES = 6
# Cells of a source.
LENGTHS, SHARES = 9, 10
CELLS = SOURCES * LENGTHS * SHARES
# A cell's words.
CHANCE, STOOD, SEEN = range(3)
CELL_WORDS = 3
# So many tokens' worth what was believed before; what was seen loses so much of its weight with each new token.
BELIEF, KEPT = 3.0, 0.99


@loop
def cell_of(source: int, length: int, share: float) -> int:
    if length <= 4:
        at = max(length, 1) - 1
    elif length <= 6:
        at = 4
    elif length <= 10:
        at = 5
    elif length <= 20:
        at = 6
    else:
        at = 7 if length <= 40 else 8
    return (source * LENGTHS + at) * SHARES + min(SHARES - 1, max(0, int(share * SHARES)))


@loop
def seen(table: Floats, cell: int, stood: bool) -> None:
    """One more of the cell's tokens stood, or didn't. Beliefs aren't kept apart: they are what the chance was."""
    before = (table[cell, CHANCE] * (table[cell, SEEN] + BELIEF) - table[cell, STOOD]) / BELIEF
    table[cell, STOOD] = table[cell, STOOD] * KEPT + stood
    table[cell, SEEN] = table[cell, SEEN] * KEPT + 1
    table[cell, CHANCE] = (table[cell, STOOD] + BELIEF * before) / (table[cell, SEEN] + BELIEF)
