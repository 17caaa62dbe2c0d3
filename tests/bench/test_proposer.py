"""How the proposer benchmark counts; its text and its bars need a model's tokenizer and a quiet machine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from bench import replay
from bench.proposer import OurGuesser, at_drafted
from bench.replay import PROMPT, Guess, Text

JOB = {"method": "suffix", "depth": 64, "factor": 1.0, "min_token_prob": 0.1, "longest": 8}


class Seer:
    """Guesses that every token is one more than the one before."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}
        self.learned = 0

    def begin(self, key: int, prompt: Text) -> None:
        self._last[key] = prompt[-1] if len(prompt) else 0

    def take(self, key: int, tokens: Text) -> None:
        self._last[key] = tokens[-1]
        self.learned += len(tokens)

    def learn(self, key: int) -> None:
        pass

    def guess(self, keys: Sequence[int]) -> list[Any]:
        return [[self._last[key] + more for more in (1, 2, 3)] for key in keys]

    def told(self, keys: Sequence[int], guesses: list[Any]) -> list[Guess]:
        return [Guess(tokens, [0.9, 0.5, 0.1]) for tokens in guesses]

    def end(self, key: int) -> None:
        del self._last[key]

    def held_bytes(self) -> int:
        return 0


def test_a_draft_agrees_as_far_as_the_text_goes_its_way() -> None:
    text = array("i", [1, 2, 3, 4])
    assert replay.agreeing([2, 3, 9], text, 1) == 2
    assert replay.agreeing([9], text, 1) == 0
    assert replay.agreeing([4, 5, 6], text, 3) == 1
    assert replay.agreeing([], text, 1) == 0


def test_who_guesses_right_goes_faster_and_what_is_cut_isnt_drafted() -> None:
    texts = [array("i", range(PROMPT + 36)), array("i", range(PROMPT + 24))]
    whole = replay.free(Seer(), texts, 2, replay.cutter({}))
    assert (whole["steps"], whole["accepted_per_step"], whole["drafted_per_step"]) == (15, 3, 3)
    cut = replay.free(Seer(), texts, 2, replay.cutter({"least_chance": 0.5}))
    assert (cut["accepted_per_step"], cut["drafted_per_step"], cut["accepted_of_drafted"]) == (2, 2, 1)


def test_in_scheduled_steps_everyone_is_asked_at_the_same_places() -> None:
    texts = [array("i", range(PROMPT + 30)), array("i", range(PROMPT + 50)), array("i", range(PROMPT + 3))]
    guesser = Seer()
    guesses, _ = replay.scheduled(guesser, texts, batch=2)
    for number, text in enumerate(texts):
        lengths = replay.ends(text, number)
        assert lengths[-1] == len(text)
        assert [guess.tokens[0] for guess in guesses[number]] == [text[at - 1] + 1 for at in lengths]
    assert guesser.learned == sum(len(text) - PROMPT for text in texts)


def test_ours_drafts_from_what_was_learned_and_knows_how_probable_it_is() -> None:
    text = array("i", range(1000, 3000))
    guesser = OurGuesser(JOB)
    seen = replay.learn(guesser, [text])
    assert seen["tokens"] == 2000 and seen["bytes_per_token"] > 0
    (guesses,), _ = replay.scheduled(guesser, [text[:600]], batch=1)
    lengths = replay.ends(text[:600], 0)
    assert [guess.tokens for guess in guesses[8:]] == [text[at : at + 8].tolist() for at in lengths[8:]]


def test_a_curve_is_read_between_its_points_and_ends_at_its_most() -> None:
    curve = [(4.0, 2.0), (2.0, 1.5)]
    assert [at_drafted(curve, drafted) for drafted in (1.0, 3.0, 9.0)] == [0.75, 1.75, 2.0]
