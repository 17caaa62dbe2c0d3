"""Answers with a grammar, over the real model: each has its form, and drafts, batches, preemption and another attempt
change no token of it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from driving import Guess, Outcome, one_step, repeat_what_followed, request, run_all
from tokenizers import Tokenizer

from services.api.drafter import Draft
from services.api.messages import Generate
from services.api.strategies import Verification
from services.streamer.agents.grammars import choice, json_schema, lark, regex
from services.worker.running.replay import Recorder, read, run_again, tokens_of
from services.worker.running.torch_runner import TorchRunner
from services.worker.scheduling.events import Arrived
from services.worker.scheduling.limits import limits_of
from services.worker.scheduling.scheduler import Scheduler
from services.worker.scheduling.sequence import Sequence

pytestmark = pytest.mark.model

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee", "water"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}


def is_person(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return True


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text) is not None


# A grammar, and what its texts are.
FORMS: list[tuple[str, Callable[[str], bool]]] = [
    (json_schema(PERSON), is_person),
    (regex("[a-z]{3,8}( [a-z]{2,6}){2,5}"), matches("[a-z]{3,8}( [a-z]{2,6}){2,5}")),
    (choice(["yes", "no", "yes indeed", "perhaps"]), lambda text: text in ("yes", "no", "yes indeed", "perhaps")),
    (lark('start: ("a" | "bc")+ "."'), matches(r"(a|bc)+\.")),
    ("", lambda text: True),
]
SAMPLINGS: list[dict[str, Any]] = [
    {}, {"temperature": 0.9, "top_p": 0.95}, {"temperature": 1.2, "logprobs": 2}, {"repetition_penalty": 1.2},
    {"temperature": 0.8, "presence_penalty": 0.5, "min_tokens": 6},
]  # fmt: skip


def asked(tokenizer: Tokenizer, count: int = 10, **more: Any) -> list[Generate]:
    """Each grammar with each sampling, side by side with texts that have none."""
    prompt = tokenizer.encode("<|im_start|>user\nTell me of a person.<|im_end|>\n<|im_start|>assistant\n").ids
    return [
        request(
            prompt,
            name=str(each),
            **{
                "seed": each, "max_tokens": 60, "grammar": FORMS[each % len(FORMS)][0],
                **SAMPLINGS[(each + each // len(FORMS)) % len(SAMPLINGS)], **more,
            },
        )
        for each in range(count)
    ]  # fmt: skip


def seen(outcomes: list[Outcome]) -> list[tuple[list[int], Any, list[float]]]:
    return [(each.ids, each.finished.reason, each.logprobs) for each in outcomes]


def assert_formed(tokenizer: Tokenizer, outcomes: list[Outcome]) -> None:
    """And nearly all came to their end."""
    for place, each in enumerate(outcomes):
        if each.finished.reason == "stop":
            assert FORMS[place % len(FORMS)][1](tokenizer.decode(each.ids))
    assert sum(each.finished.reason == "stop" for each in outcomes) >= len(outcomes) // 2


def who_knows(texts: list[list[int]], right: float, branches: bool = False) -> Guess:
    """Drafts the true text, each token with this probability, else any; or a tree of both."""

    def draft(sequence: Sequence, budget: int) -> list[int] | Draft:
        chance = random.Random(sequence.length)
        truth = texts[int(sequence.request_id)][sequence.generated :][:budget]
        guess = [token if chance.random() < right else chance.randrange(49152) for token in truth]
        if not branches or len(guess) < 3:
            return guess
        #    ─┬ wrong ─ wrong
        #     └ guess ─ ...
        parents = [-1, 0, -1, *range(2, len(guess))]
        return Draft([guess[0] + 1, 5, *guess[: len(parents) - 2]], "t", parents=parents)

    return draft


def test_drafts_batches_and_trees_change_no_token(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    wanted = asked(tokenizer)
    alone = [run_all(runner, [each])[0][0] for each in wanted]
    assert_formed(tokenizer, alone)
    texts = [each.ids for each in alone]
    assert seen(run_all(runner, wanted)[0]) == seen(alone)
    for guess in (who_knows(texts, 1.0), who_knows(texts, 0.6), who_knows(texts, 0.9, True), repeat_what_followed):
        drafted, scheduler = run_all(runner, wanted, guess)
        assert seen(drafted) == seen(alone)
        assert sum(tally.accepted for tally in scheduler.tallies.values()) > 0


@pytest.mark.slow
def test_preemption_and_another_attempt_change_no_token(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    wanted = asked(tokenizer, 5)
    calm = run_all(runner, wanted)[0]
    crowded, scheduler = run_all(runner, wanted, repeat_what_followed, pages=7, max_step_tokens=24)
    assert scheduler.preemptions > 0 and seen(crowded) == seen(calm)
    again = request(
        wanted[0].token_ids, so_far=calm[0].ids[:9], attempt=2, seed=0, max_tokens=60, grammar=FORMS[0][0]
    )
    assert run_all(runner, [again])[0][0].ids == calm[0].ids[9:]


@pytest.mark.parametrize("strategy", ["rejection", "block", "typical", "topp"])
def test_under_no_strategy_a_draft_leaves_its_grammar(runner: TorchRunner, tokenizer: Tokenizer, strategy: str) -> None:
    wanted = [
        request(each.token_ids, name=each.request_id, strategy=strategy, temperature=1.0, seed=3, max_tokens=60,
                grammar=each.sampling.grammar)
        for each in asked(tokenizer, 5)
    ]  # fmt: skip
    texts = [each.ids for each in run_all(runner, wanted)[0]]
    assert_formed(tokenizer, run_all(runner, wanted, who_knows(texts, 0.7), allow_lossy=True)[0])


def test_what_accepts_every_draft_stays_in_the_grammar(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    wanted = asked(tokenizer, 4)
    everyone = Verification(accept_policy="accept_all")
    outcomes, _ = run_all(runner, wanted, lambda sequence, budget: [5] * budget, verification=everyone)
    assert_formed(tokenizer, outcomes)


def one(runner: TorchRunner, tokenizer: Tokenizer, grammar: str, **sampling: Any) -> str:
    [outcome], _ = run_all(runner, [request([5, 6, 7], grammar=grammar, **{"max_tokens": 40, **sampling})])
    assert outcome.finished.reason == "stop", outcome
    return tokenizer.decode(outcome.ids)


def test_the_end_of_a_grammar_is_the_end(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    """Before min_tokens and with ignore_eos, too; where it may go on, these make it go on."""
    assert one(runner, tokenizer, choice(["yes"]), ignore_eos=True) == "yes"
    assert one(runner, tokenizer, choice(["yes"]), min_tokens=30) == "yes"
    assert one(runner, tokenizer, choice(["yes"]), allowed_token_ids=tokenizer.encode("yes").ids) == "yes"
    longest = "a" * 12
    assert one(runner, tokenizer, regex("a{1,12}"), ignore_eos=True) == longest
    assert len(one(runner, tokenizer, regex("(a ){1,12}"), min_tokens=8)) >= 8


def test_a_stop_id_counts_where_the_grammar_may_end(runner: TorchRunner, tokenizer: Tokenizer) -> None:
    """What is no text, such as <repo_name>, is else never allowed."""
    [outcome], _ = run_all(
        runner,
        [request([5, 6, 7], grammar=choice(["yes"]), stop_token_ids=[3], logit_bias={3: 100.0}, max_tokens=40)],
    )
    assert (tokenizer.decode(outcome.ids), outcome.finished.stop_token) == ("yes", 3)


def test_a_grammar_that_reaches_a_limit_fails_its_request_alone(runner: TorchRunner) -> None:
    bad = request([5, 6], name="bad", grammar=regex("(a?){300}" * 300), logit_bias={81: 100.0}, max_tokens=9)
    good = request([5, 6], name="good", max_tokens=9, ignore_eos=True)
    failed, other = run_all(runner, [bad, good])[0]
    assert failed.end.reason == "grammar" and "too many expressions" in failed.end.message
    assert len(other.ids) == 9 and other.finished.reason == "length"


def test_a_committed_token_that_the_grammar_forbids_is_the_servers_fault(
    runner: TorchRunner, tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    """As another attempt has it where the masks of the first were wrong."""
    no = tokenizer.encode("no").ids
    bad = request([5, 6], name="bad", so_far=no, attempt=2, grammar=choice(["yes"]), max_tokens=9)
    good = request([5, 6], name="good", grammar=choice(["yes"]), max_tokens=9)
    (failed, other), scheduler = run_all(runner, [bad, good])
    assert failed.end.reason == "engine" and "doesn't satisfy the grammar" in failed.end.message
    assert scheduler.ends == {"engine": 1, "stop": 1} and "grammar forbids" in caplog.text
    assert tokenizer.decode(other.ids) == "yes"


def test_recorded_steps_with_grammars_give_the_same_tokens_again(
    runner: TorchRunner, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    record = Recorder(tmp_path / "steps")
    scheduler = Scheduler(limits_of(runner.facts, method="ngram"))
    for stream, each in enumerate(asked(tokenizer, 3, max_tokens=20)):
        scheduler.handle(Arrived(each, stream))
    while scheduler.has_work:
        work, result, _ = one_step(scheduler, runner, repeat_what_followed)
        record(work, result)
    again = list(run_again(runner, read(tmp_path / "steps")))
    assert len(again) > 10
    for step, result in again:
        assert tokens_of(step.result) == tokens_of(result)
