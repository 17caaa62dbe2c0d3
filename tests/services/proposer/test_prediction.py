"""A prediction is followed while the answer agrees, and found again where it doesn't."""

from __future__ import annotations

import random
from array import array

import pytest
from asking import guess, index, say, told, view

from services.api.drafter import MAX_DRAFT_TOKENS, NO_DRAFT, Text
from services.proposer.prediction import PredictionDrafter

pytestmark = pytest.mark.usefixtures("each_form")

FILE = list(range(100, 180))


def editing(prediction: list[int] = FILE) -> tuple[PredictionDrafter, Text]:
    return PredictionDrafter(index()), view(1, [1, 2, 3], prompt=3, prediction=prediction)


def test_before_the_first_token_its_beginning_is_the_guess() -> None:
    drafter, one = editing()
    assert told(guess(drafter, one, 5)) == (FILE[:5], "prediction", 0)
    assert len(guess(drafter, one, 1000).tokens) == MAX_DRAFT_TOKENS


def test_while_the_answer_agrees_the_rest_is_the_guess_and_at_the_end_there_is_none() -> None:
    drafter, one = editing()
    assert told(say(drafter, one, FILE[:4], 3)) == (FILE[4:7], "prediction", 4)
    assert say(drafter, one, FILE[4:78], 8).tokens == FILE[78:]
    assert say(drafter, one, FILE[78:], 8) == NO_DRAFT
    assert say(drafter, one, [9], 8) == NO_DRAFT


def test_a_token_that_was_replaced_costs_that_token() -> None:
    drafter, one = editing()
    assert say(drafter, one, [*FILE[:10], 7], 2).tokens == FILE[11:13]


def test_behind_what_was_left_out_or_put_in_the_place_is_found_again() -> None:
    for answer, expected in (
        ([*FILE[:10], *FILE[30:33]], 33),
        ([*FILE[:10], 7, 8, 9, *FILE[10:13]], 13),
        ([7, 8, 9, *FILE[50:53]], 53),
        ([*FILE[40:60], 7, 7, *FILE[5:8]], 8),
    ):
        drafter, one = editing()
        assert told(say(drafter, one, answer, 2)) == (FILE[expected : expected + 2], "prediction", 3)


def test_of_several_places_one_behind_is_better_than_one_before() -> None:
    prediction = [1, 2, 3, 10, 11, 12, 1, 2, 3, 20, 21, 22, 1, 2, 3, 30, 31]
    drafter, one = editing(prediction)
    assert say(drafter, one, [1, 2, 3, 10, 11, 12, 99, 98, 1, 2, 3], 1).tokens == [30]
    drafter, one = editing(prediction)
    assert say(drafter, one, [1, 2, 3, 10, 99, 1, 2, 3], 1).tokens == [20]


def test_the_prompt_is_no_part_of_the_answer() -> None:
    drafter = PredictionDrafter(index())
    one = view(1, FILE[:20], prompt=20, prediction=FILE)
    assert guess(drafter, one, 3).tokens == FILE[:3]


def test_token_by_token_or_at_once_the_place_is_the_same() -> None:
    chance = random.Random(5)
    prediction = chance.choices(range(6), k=200)
    drafter, one = editing(prediction)
    for _ in range(60):
        at = chance.randrange(200)
        new = prediction[at : at + chance.randint(0, 9)] if chance.random() < 0.4 else chance.choices(range(6), k=2)
        for token in new:
            say(drafter, one, [token])
        fresh = PredictionDrafter(index())
        again = Text(1, array("i", one.tokens), 3, array("i", prediction))
        assert told(guess(drafter, one)) == told(guess(fresh, again))


def test_what_is_ahead_is_followed_as_if_it_had_been_said_and_only_then() -> None:
    chance = random.Random(6)
    for _ in range(50):
        drafter, one = editing()
        at = chance.randrange(60)
        said = [*FILE[:at], *chance.choices(FILE, k=chance.randint(0, 2))]
        ahead = FILE[at + 3 : at + 3 + chance.randint(1, 8)]
        before = say(drafter, one, said)
        assumed = guess(drafter, one, 8, ahead)
        assert guess(drafter, one) == before
        assert say(drafter, one, ahead) == assumed


def test_without_a_prediction_there_is_no_guess() -> None:
    assert guess(PredictionDrafter(index()), view(1, [1, 2, 1, 2, 1])) == NO_DRAFT


def test_it_is_believed_more_while_it_agrees_than_when_it_is_lost() -> None:
    drafter, one = editing()
    sure = say(drafter, one, FILE[:20])
    lost = say(drafter, one, [7])
    assert min(sure.confidence) > 0.8 and lost.confidence[0] < 0.6
