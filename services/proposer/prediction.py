"""Prediction: the caller sends the text that it expects, and the draft continues in it. After a difference the place in
the prediction is searched again (place.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from services.proposer.plain.guess import Guess
from services.proposer.plain.place import AGREED_SHARE, ASSUMED_SHARE, PredictedPlace
from services.proposer.plain.rates import PREDICTION, RateCell, of_source
from services.proposer.plain.texts import Followed
from services.proposer.text_drafter import TextDrafter


class PredictionDrafter(TextDrafter):
    name: ClassVar[str] = PREDICTION
    sources: ClassVar[tuple[str, ...]] = (PREDICTION,)

    def guess(self, followed: Followed, ahead: Sequence[int], longest: int) -> Guess:
        tokens, cells, matched = predicted(followed, ahead, longest)
        return Guess(tokens, [followed.rates.rate(cell) for cell in cells], matched, PREDICTION)


def predicted(followed: Followed, ahead: Sequence[int], longest: int) -> tuple[list[int], list[RateCell], int]:
    """(the rest of the prediction, a cell of each token, how many tokens before it agree)"""
    text = followed.text
    if not text.prediction:
        return [], [], 0
    if PREDICTION not in followed.kept:
        followed.kept[PREDICTION] = PredictedPlace(text.prediction.tolist())
    place: PredictedPlace = followed.kept[PREDICTION]
    prompt = max(0, text.prompt_tokens)
    place.follow(text.tokens[prompt:])
    if ahead:
        place = replace(place)
        place.follow([*text.tokens[prompt:], *ahead])
    tokens = place.tokens[place.pointer : place.pointer + longest]
    share = ASSUMED_SHARE if place.lost else AGREED_SHARE
    return tokens, [of_source(PREDICTION, place.agreed + at, share) for at in range(len(tokens))], place.agreed
