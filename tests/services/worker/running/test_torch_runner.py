"""Law 3 over the real model: drafts, batches, chunks and preemption change speed and never a token."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from driving import Guess, Outcome, new_sequence, repeat_what_followed, request, run_all
from fixed_model import FixedModel
from tokenizers import Tokenizer

from services.api.drafter import Draft
from services.api.messages import Generate
from services.api.strategies import Verification
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel
from services.worker.running.torch_runner import TorchRunner
from services.worker.running.work import SequenceWork, Verdict, Work
from services.worker.scheduling.sequence import Sequence

pytestmark = pytest.mark.model

PROMPTS = (
    "Count from one to thirty: one, two, three,",
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Dear Sir or Madam,\n\nI am writing to",
    "a b c d e f g a b c d e f g a b c",
    "Once upon a time in a small village there lived",
    "1 + 1 = 2\n2 + 2 = 4\n3 + 3 =",
    "The quick brown fox jumps over the lazy dog. The quick brown fox",
)


@pytest.fixture(scope="module", params=["bfloat16", "int8", pytest.param("float32", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[TorchModel]:
    yield load_torch_model(folder, Wanted(dtype=request.param, threads=2, page_tokens=16, kv_cache_mb=256))


@pytest.fixture(scope="module")
def prompts(folder: Path) -> list[list[int]]:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert json.loads((folder / "config.json").read_text())["vocab_size"] == tokenizer.get_vocab_size()
    return [tokenizer.encode(prompt).ids for prompt in PROMPTS]


def requests(prompts: list[list[int]], count: int, *samplings: dict[str, Any]) -> list[Generate]:
    """Neighbours are sampled each in its own way, in turns."""
    ways = samplings or ({},)
    return [
        request(prompt, name=str(i), max_tokens=count, ignore_eos=True, **{"seed": i, **ways[i % len(ways)]})
        for i, prompt in enumerate(prompts)
    ]


def texts(outcomes: list[Outcome]) -> list[list[int]]:
    assert all(outcome.finished.reason == "length" for outcome in outcomes)
    return [outcome.ids for outcome in outcomes]


def who_knows(texts: list[list[int]], wanted: list[Generate], right: float) -> Guess:
    """Drafts the true text, each token with this probability; else any token."""

    def draft(sequence: Sequence, budget: int) -> list[int]:
        chance = random.Random(sequence.length)
        truth = texts[int(sequence.request_id)][sequence.generated :]
        return [token if chance.random() < right else chance.randrange(49152) for token in truth[:budget]]

    return draft


SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "top_p": 0.95},
    {"repetition_penalty": 1.2, "presence_penalty": 0.3},
    {"temperature": 0.8, "min_p": 0.02, "bad_words": [[28], [284, 253], [198, 198]], "logit_bias": {260: -4.0}},
    {"temperature": 1.0},
    {"allowed_token_ids": list(range(250, 3000)), "frequency_penalty": 0.5},
]
EACH_ALONE = [pytest.param([one], marks=pytest.mark.slow, id=str(one)) for one in SAMPLINGS]


@pytest.mark.parametrize("samplings", [pytest.param(SAMPLINGS[:4], id="four side by side"), *EACH_ALONE])
def test_the_text_is_the_same_alone_in_a_batch_and_with_good_or_bad_drafts(
    model: TorchModel, prompts: list[list[int]], samplings: list[dict[str, Any]]
) -> None:
    runner = TorchRunner(model)
    wanted = requests(prompts, 24, *samplings)
    alone = [texts(run_all(runner, [each])[0])[0] for each in wanted]
    batch, _ = run_all(runner, wanted)
    drafted, scheduler = run_all(runner, wanted, who_knows(alone, wanted, right=1.0))
    hostile, mixed = run_all(runner, wanted, who_knows(alone, wanted, right=0.7), num_speculative_tokens=16)
    assert texts(batch) == alone
    assert texts(drafted) == alone
    assert texts(hostile) == alone
    # Of 23 tokens each that could be drafted.
    assert sum(tally.accepted for tally in scheduler.tallies.values()) > 8 * 18
    assert sum(tally.accepted for tally in mixed.tallies.values()) > 8 * 5


def test_chunks_and_preemption_change_nothing(model: TorchModel, prompts: list[list[int]]) -> None:
    runner = TorchRunner(model)
    wanted = requests(prompts, 40, {"temperature": 0.7})
    calm = texts(run_all(runner, wanted)[0])
    # Nine pages for eight texts of about four.
    crowded, scheduler = run_all(runner, wanted, repeat_what_followed, pages=9, max_step_tokens=16)
    assert scheduler.preemptions > 0
    assert texts(crowded) == calm


@pytest.mark.slow
def test_texts_of_512_tokens_show_no_collapse_that_48_would_hide(model: TorchModel, prompts: list[list[int]]) -> None:
    """Collapse shows late."""
    runner = TorchRunner(model)
    for sampling in ({}, {"temperature": 0.9, "top_p": 0.95}):
        wanted = requests(prompts, 512, sampling)
        drafted = run_all(runner, wanted, repeat_what_followed)[0]
        assert texts(drafted) == texts(run_all(runner, wanted)[0])


def test_an_attempt_continues_the_text_of_the_one_before(model: TorchModel, prompts: list[list[int]]) -> None:
    runner = TorchRunner(model)
    sampling = {"max_tokens": 30, "temperature": 0.9, "seed": 5, "presence_penalty": 0.5, "ignore_eos": True}
    [whole] = run_all(runner, [request(prompts[1], **sampling)])[0]
    [rest] = run_all(runner, [request(prompts[1], so_far=whole.ids[:13], attempt=2, **sampling)])[0]
    assert whole.ids[13:] == rest.ids


def test_logprobs_are_the_same_with_drafts_and_belong_to_their_tokens(
    model: TorchModel, prompts: list[list[int]]
) -> None:
    runner = TorchRunner(model)
    wanted = requests(prompts[:2], 24, {"logprobs": 2})
    plain, drafted = run_all(runner, wanted)[0], run_all(runner, wanted, repeat_what_followed)[0]
    for one, other in zip(plain, drafted, strict=True):
        assert len(one.logprobs) == len(one.ids) == 24
        assert one.logprobs == other.logprobs


# With logits made by hand ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("elsewhere", "notes"), [(True, ["forward", "verify", "host"]), (False, ["host", "forward", "verify"])]
)
def test_on_a_device_a_step_is_under_way_when_its_launch_returns(elsewhere: bool, notes: list[str]) -> None:
    model = FixedModel(elsewhere=elsewhere)
    runner = TorchRunner(model)
    new = new_sequence(request([1, 7]), Verification(strategy="greedy"))
    runner.launch(Work([SequenceWork(1, [1, 7], 0, [0], True, Draft([8]))], [new], copies=[(3, 4)]))
    model.notes.append("host")
    result = runner.finish()
    assert [verdict.tokens for verdict in result.verdicts if verdict] == [[8, 7]] and result.seconds > 0
    assert model.notes == ["copy 3 4", *notes]


def test_a_step_is_fed_with_the_tokens_of_the_one_before_it_while_that_runs() -> None:
    """The second row of three has ended meanwhile."""
    model = FixedModel(elsewhere=True)
    runner = TorchRunner(model)
    news = [new_sequence(request([1, last]), Verification(strategy="greedy"), last) for last in (7, 8, 9)]
    runner.launch(Work([SequenceWork(last, [1, last], 0, [last], True) for last in (7, 8, 9)], news))
    assert runner.feeds
    runner.launch(Work([SequenceWork(last, [0], 2, [last], True) for last in (7, 9)], fed=[0, 2]))
    assert runner.feeds
    assert [verdict.tokens for verdict in runner.finish().verdicts if verdict] == [[8], [7], [7]]
    runner.launch(Work([SequenceWork(last, [0], 3, [last], True) for last in (7, 9)], fed=[0, 1]))
    assert [verdict.tokens for verdict in runner.finish().verdicts if verdict] == [[7], [8]]
    second = runner.finish()
    assert [verdict.tokens for verdict in second.verdicts if verdict] == [[8], [7]] and second.seconds > 0
    assert [note for note in model.notes if note != "verify"] == ["forward", "forward, 2 fed", "forward, 2 fed"]


def test_a_prompt_joins_rows_that_are_fed_and_goes_on_with_them() -> None:
    model = FixedModel(elsewhere=True)
    runner = TorchRunner(model)
    news = [new_sequence(request([1, last]), Verification(strategy="greedy"), last) for last in (7, 9, 8)]
    runner.launch(Work([SequenceWork(last, [1, last], 0, [last], True) for last in (7, 9)], news[:2]))
    joined = SequenceWork(8, [1, 8], 0, [8], True)
    runner.launch(Work([SequenceWork(9, [0], 2, [9], True), joined], news[2:], fed=[1], copies=[(3, 8)]))
    assert runner.feeds
    assert [verdict.tokens for verdict in runner.finish().verdicts if verdict] == [[8], [7]]
    # The one that has left is forgotten once the step behind its last one is over.
    runner.launch(Work([SequenceWork(last, [0], 3, [last], True) for last in (9, 8)], ended=[7], fed=[0, 1]))
    assert [verdict.tokens for verdict in runner.finish().verdicts if verdict] == [[8], [7]]
    assert [verdict.tokens for verdict in runner.finish().verdicts if verdict] == [[7], [8]]
    notes = [note for note in model.notes if note != "verify"]
    assert notes == ["forward", "copy 3 8", "forward, 1 fed", "forward, 2 fed"]
    assert list(runner._samplers) == [9, 8]


def test_what_joins_may_need_its_logits_again_and_then_feeds_no_step() -> None:
    runner = TorchRunner(FixedModel(elsewhere=True))
    greedy = Verification(strategy="greedy")
    news = [new_sequence(request([1, 7], **more), greedy, id) for id, more in enumerate([{}, {"logprobs": 0}])]
    runner.launch(Work([SequenceWork(0, [1, 7], 0, [0], True)], news[:1]))
    runner.launch(Work([SequenceWork(0, [0], 2, [0], True), SequenceWork(1, [1, 7], 0, [1], True)], news[1:], fed=[0]))
    assert not runner.feeds
    runner.finish()
    first, second = runner.finish().verdicts
    assert first is not None and second is not None
    assert (first.tokens, first.logprobs, second.tokens) == ([7], None, [8]) and second.logprobs is not None


@pytest.mark.parametrize(
    "sampling",
    [{"logprobs": 0}, {"repetition_penalty": 1.2}, {"bad_words": [[3, 4]]},
     {"allowed_token_ids": [7, 8], "bad_words": [[3]]}],
)  # fmt: skip
def test_a_step_whose_tokens_are_needed_on_the_host_feeds_none(sampling: dict[str, Any]) -> None:
    for own in ({}, sampling):
        runner = TorchRunner(FixedModel(elsewhere=True))
        news = [
            new_sequence(request([1, 7], **each), Verification(strategy="greedy"), id)
            for id, each in enumerate(({}, own))
        ]
        runner.launch(Work([SequenceWork(id, [1, 7], 0, [id], True) for id in (0, 1)], news))
        assert runner.feeds == (own == {})
        runner.finish()


def test_a_step_on_the_cpu_feeds_none() -> None:
    runner = TorchRunner(FixedModel())
    new = new_sequence(request([1, 7]), Verification(strategy="greedy"))
    runner.launch(Work([SequenceWork(1, [1, 7], 0, [0], True)], [new]))
    assert not runner.feeds


def test_what_is_accepted_of_a_tree_is_kept_by_the_places_of_its_rows() -> None:
    model = FixedModel()
    runner = TorchRunner(model)
    news = [new_sequence(request([1, 7]), Verification(strategy="greedy"), id) for id in (1, 2, 3)]
    #    ─┬ 9
    #     └ 8 ┬ 5
    #         └ 7
    tree = Draft([9, 8, 5, 7], parents=[-1, -1, 1, 1])
    chunk = SequenceWork(1, [1], 0, [0], False)
    items = [chunk, SequenceWork(2, [1, 7], 0, [1], True, tree), SequenceWork(3, [1, 7], 0, [2], True, Draft([8]))]
    runner.launch(Work(items, news))
    verdicts = runner.finish().verdicts
    assert verdicts == [None, Verdict([8, 7, 8], 2), Verdict([8, 7], 1)]
    # By the place of the item, and row 0 is the token before the tree.
    assert model.kept == [(1, [2, 4])]


def test_what_has_ended_is_forgotten() -> None:
    runner = TorchRunner(FixedModel())
    for sequence_id in range(50):
        ended = [sequence_id - 1] if sequence_id else []
        new = new_sequence(request([1, 7]), Verification(strategy="greedy"), sequence_id)
        runner.launch(Work([SequenceWork(sequence_id, [1, 7], 0, [0], True)], [new], ended))
        runner.finish()
    assert len(runner._samplers) == 1


@pytest.mark.parametrize("executor", ["plain", "compiled", "triton"])
def test_a_sequence_with_logits_that_are_not_finite_fails_alone(executor: str) -> None:
    runner = TorchRunner(FixedModel(executor))
    outcomes, _ = run_all(runner, [request([1], max_tokens=5), request([13], max_tokens=5)])
    assert outcomes[0].ids == [7, 8, 7, 8, 7]
    assert (outcomes[1].end.reason, outcomes[1].ids) == ("engine", [])


@pytest.mark.parametrize("executor", ["plain", "compiled", "triton"])
def test_strategies_side_by_side_get_their_own_rows(executor: str) -> None:
    wanted = [request([1], max_tokens=9, temperature=0.01 * (i % 2), seed=i, logprobs=i % 3) for i in range(6)]
    outcomes, scheduler = run_all(TorchRunner(FixedModel(executor)), wanted, repeat_what_followed)
    assert all(len(outcome.logprobs) == 9 for outcome in outcomes)
    assert [outcome.ids for outcome in outcomes] == [[7, 8] * 4 + [7]] * 6
    assert set(scheduler.tallies) == {("ngram", "greedy"), ("ngram", "target_match")}
    assert all(tally.accepted for tally in scheduler.tallies.values())


def test_accept_policies_show_the_limits() -> None:
    wanted = [request([1], max_tokens=9)]

    def wrong(sequence: Sequence, budget: int) -> list[int]:
        return [55] * budget

    everyone = Verification(accept_policy="accept_all")
    [everything], _ = run_all(TorchRunner(FixedModel()), wanted, wrong, verification=everyone)
    assert everything.ids.count(55) == 7
    none = Verification(accept_policy="reject_all")
    [nothing], scheduler = run_all(TorchRunner(FixedModel()), wanted, repeat_what_followed, verification=none)
    assert nothing.ids == [7, 8] * 4 + [7]
    assert scheduler.tallies[("ngram", "greedy")].accepted == 0


def test_min_tokens_hold_back_eos_and_stop_ids() -> None:
    wanted = [request([1], max_tokens=9, min_tokens=3, stop_token_ids=[7, 8])]
    [outcome], _ = run_all(TorchRunner(FixedModel()), wanted)
    assert len(outcome.ids) == 3 and not {7, 8} & set(outcome.ids)
    assert outcome.finished.stop_token == 7


def test_a_sequence_that_fails_and_chunks_between_them_leave_the_others_their_logprobs() -> None:
    runner = TorchRunner(FixedModel())
    wanted = [request([1, 7], logprobs=2), request([13], logprobs=1), request([8, 7]), request([1, 8], logprobs=0)]
    news = [new_sequence(each, Verification(strategy="greedy"), id) for id, each in enumerate(wanted, 1)]
    chunk = SequenceWork(9, [1, 2], 0, [], False)
    items: list[SequenceWork] = []
    for new, draft in zip(news, ([8, 7, 9], [], [9], [9, 7]), strict=True):
        items += [chunk, SequenceWork(new.sequence_id, new.text, 0, [], True, Draft(draft))]
    runner.launch(Work(items, news))
    found = runner.finish().verdicts
    assert found[::2] == [None] * 4
    first, failed, unasked, last = found[1::2]
    assert first is not None and failed is not None and unasked is not None and last is not None
    assert (first.tokens, first.accepted) == ([8, 7, 8], 2)
    assert (failed.tokens, unasked.tokens, last.tokens) == ([], [8], [7])
    assert failed.failure and (failed.logprobs, unasked.logprobs) == (None, None)
    sure = 9.0 - math.log(math.exp(9.0) + 99)
    for verdict, count in ((first, 2), (last, 0)):
        assert verdict.logprobs is not None
        assert [value.logprob for value in verdict.logprobs] == [pytest.approx(sure, abs=1e-5)] * len(verdict.tokens)
        # Those not likely are equally so: by id.
        expected = [[token, 0][:count] for token in verdict.tokens]
        assert [[top.id for top in value.top] for value in verdict.logprobs] == expected


def test_all_strategies_and_policies_share_a_batch_and_each_is_counted_and_told_for_itself() -> None:
    names = ["greedy", "target_match", "rejection", "block", "typical", "topp"]
    wanted = [
        request([1], max_tokens=12, temperature=0.5 if name != "greedy" else 0.0, seed=i, strategy=name)
        for i, name in enumerate(names)
    ]
    outcomes, scheduler = run_all(TorchRunner(FixedModel()), wanted, repeat_what_followed, allow_lossy=True)
    assert [outcome.ids for outcome in outcomes] == [[7, 8] * 6] * 6
    assert {strategy for _, strategy in scheduler.tallies} == set(names)
    stats = [outcome.finished.speculation for outcome in outcomes]
    assert [each.verify_strategy for each in stats] == names
    assert [each.lossless for each in stats] == [True, True, True, True, False, False]
    assert all(each.accepted > 4 for each in stats)
