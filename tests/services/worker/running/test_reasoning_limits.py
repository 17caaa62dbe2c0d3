"""A limit of the reasoning, over the real model: after so many tokens its closing marker follows, and drafts, batches,
preemption and another attempt change no token."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from driving import Guess, Outcome, repeat_what_followed, request, run_all
from tokenizers import Tokenizer

from services.api.drafter import Draft
from services.api.messages import Generate
from services.api.sampling import ReasoningLimit
from services.api.strategies import Verification
from services.streamer.agents.grammars import lark
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.sequence import Sequence

pytestmark = pytest.mark.model

OPENER, CLOSER = "<think>", "</think>"
# Reasoning, and a word behind it.
THEN_A_WORD = lark(rf'start: thought /\s*/ ("yes" | "no"){chr(10)}thought[lazy]: /(?s:.*)<\/think>/')
ASKED: list[dict[str, Any]] = [
    {}, {"temperature": 0.9, "top_p": 0.95}, {"temperature": 1.3}, {"repetition_penalty": 1.2, "logprobs": 1},
    {"temperature": 0.8, "presence_penalty": 0.5, "min_tokens": 20}, {"grammar": THEN_A_WORD},
    {"grammar": THEN_A_WORD, "temperature": 1.2}, {"allowed_token_ids": list(range(300, 900))},
]  # fmt: skip


STRATEGIES = ["rejection", "block", *(pytest.param(each, marks=pytest.mark.slow) for each in ("typical", "topp"))]


@pytest.fixture(scope="module")
def closer(tokenizer: Tokenizer) -> list[int]:
    return list(tokenizer.encode(CLOSER).ids)


def limit(tokens: int, inside: bool = True) -> ReasoningLimit:
    return ReasoningLimit(tokens, inside, OPENER, CLOSER)


def asked(tokenizer: Tokenizer, limits: list[int], **more: Any) -> list[Generate]:
    prompt = tokenizer.encode("<|im_start|>user\nHow many?<|im_end|>\n<|im_start|>assistant\n<think>\n").ids
    return [
        request(prompt, name=str(place), **{
            "seed": place, "max_tokens": 28, "ignore_eos": True, "reasoning": limit(tokens),
            **ASKED[place % len(ASKED)], **more,
        })
        for place, tokens in enumerate(limits)
    ]  # fmt: skip


def seen(outcomes: list[Outcome]) -> list[tuple[list[int], Any, list[float]]]:
    return [(each.ids, each.finished.reason, each.logprobs) for each in outcomes]


LIMITS = [7, 0, 1, 12, 3, 9, 5, 16]


def assert_closed(tokenizer: Tokenizer, closer: list[int], outcomes: list[Outcome], limits: list[int]) -> None:
    """Where the model didn't close it before."""
    forced = 0
    for tokens, outcome in zip(limits, outcomes, strict=True):
        before = tokenizer.decode(outcome.ids[: tokens + len(closer) - 1])
        if CLOSER not in before:
            forced += 1
            assert outcome.ids[tokens : tokens + len(closer)] == closer, tokenizer.decode(outcome.ids)
    assert forced > len(limits) // 2


def who_knows(texts: list[list[int]], right: float, branches: bool = False) -> Guess:
    """Drafts the text, each token with this probability, else any; or a tree of both."""

    def draft(sequence: Sequence, budget: int) -> list[int] | Draft:
        chance = random.Random(sequence.length)
        truth = texts[int(sequence.request_id)][sequence.generated :][:budget]
        guess = [token if chance.random() < right else chance.randrange(49152) for token in truth]
        if not branches or len(guess) < 3:
            return guess
        parents = [-1, 0, -1, *range(2, len(guess))]
        return Draft([guess[0] + 1, 5, *guess[: len(parents) - 2]], "t", parents=parents)

    return draft


def test_drafts_batches_and_trees_change_no_token(
    runner: TorchRunner, tokenizer: Tokenizer, closer: list[int]
) -> None:
    wanted = asked(tokenizer, LIMITS)
    alone = [run_all(runner, [each])[0][0] for each in wanted]
    assert_closed(tokenizer, closer, alone, LIMITS)
    texts = [each.ids for each in alone]
    free = [run_all(runner, [replace_limit(each, None)])[0][0].ids for each in wanted]
    guesses = [
        who_knows(texts, 1.0), who_knows(texts, 0.6), who_knows(texts, 0.9, True), repeat_what_followed,
        # The text without the limit: wrong from there on.
        who_knows(free, 1.0),
    ]  # fmt: skip
    assert seen(run_all(runner, wanted)[0]) == seen(alone)
    for guess in guesses:
        drafted, scheduler = run_all(runner, wanted, guess)
        assert seen(drafted) == seen(alone)
        assert sum(tally.accepted for tally in scheduler.tallies.values()) > 0


def replace_limit(generate: Generate, limit: ReasoningLimit | None) -> Generate:
    sampling = replace(generate.sampling, reasoning=limit)
    return request(generate.token_ids, name=generate.request_id, **{
        name: getattr(sampling, name) for name in sampling.__slots__
    })  # fmt: skip


def test_a_limit_that_is_not_reached_changes_nothing(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    wanted = asked(tokenizer, [1000] * len(ASKED))
    assert seen(run_all(runner, wanted)[0]) == seen(run_all(runner, [replace_limit(each, None) for each in wanted])[0])


@pytest.mark.slow
def test_preemption_and_another_attempt_change_no_token(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    wanted = asked(tokenizer, LIMITS[:5], max_tokens=50)
    calm = run_all(runner, wanted)[0]
    crowded, scheduler = run_all(runner, wanted, repeat_what_followed, pages=7, max_step_tokens=24)
    assert scheduler.preemptions > 0 and seen(crowded) == seen(calm)
    # Also one that begins between two tokens of the marker.
    for so_far in (3, 7, 8, 9, 15):
        again = request(
            wanted[0].token_ids, so_far=calm[0].ids[:so_far], attempt=2, seed=0, max_tokens=50, ignore_eos=True,
            reasoning=limit(LIMITS[0]),
        )  # fmt: skip
        assert run_all(runner, [again])[0][0].ids == calm[0].ids[so_far:]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_strategy_goes_beyond_the_limit(
    runner: TorchRunner, tokenizer: Tokenizer, closer: list[int], strategy: str
) -> None:
    limits = LIMITS[:5]
    wanted = [
        request(each.token_ids, name=each.request_id, strategy=strategy, temperature=1.0, seed=3, max_tokens=28,
                ignore_eos=True, reasoning=each.sampling.reasoning)
        for each in asked(tokenizer, limits)
    ]  # fmt: skip
    texts = [each.ids for each in run_all(runner, [replace_limit(each, None) for each in wanted])[0]]
    drafted = run_all(runner, wanted, who_knows(texts, 0.8), allow_lossy=True)[0]
    assert_closed(tokenizer, closer, drafted, limits)


def test_what_accepts_every_draft_keeps_to_the_limit(
    runner: TorchRunner, tokenizer: Tokenizer, closer: list[int]
) -> None:
    everyone = Verification(accept_policy="accept_all")
    wanted = asked(tokenizer, LIMITS[:5])
    outcomes, _ = run_all(runner, wanted, lambda sequence, budget: [5] * budget, verification=everyone)
    assert_closed(tokenizer, closer, outcomes, LIMITS[:5])


def test_the_form_behind_the_reasoning_is_held(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    wanted = asked(tokenizer, [6], grammar=THEN_A_WORD)
    [outcome] = run_all(runner, wanted)[0]
    assert outcome.finished.reason == "stop"
    assert tokenizer.decode(outcome.ids).rpartition(CLOSER)[2].strip() in ("yes", "no")

