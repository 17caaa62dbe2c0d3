"""How the proposer benchmark counts; its text and its bars need a model's tokenizer and a quiet machine."""

from __future__ import annotations

from array import array

from bench import replay
from bench.proposer import OurGuesser, at_drafted

JOB = {"method": "suffix", "depth": 64, "factor": 1.0, "min_token_prob": 0.1, "longest": 8}


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
