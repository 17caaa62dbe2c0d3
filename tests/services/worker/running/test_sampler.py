"""What a step asks of its logits, as values: requests and their texts in, the arrays of kernels/verify out."""

from __future__ import annotations

import math
import random
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from driving import new_sequence, request

from kernels.verify import questions as ask
from kernels.verify.questions import Asked, Questions, Rule, gather
from services.api.drafter import Draft
from services.api.strategies import Verification
from services.worker.running.runner import Facts
from services.worker.running.sampler import Counts, Sampler, questions_of
from services.worker.running.work import SequenceWork

VOCABULARY = 70
EOS = 2
FACTS = Facts(VOCABULARY, 4096, (EOS,), 4, 32)


class One:
    """A sequence as its runner knows it."""

    def __init__(
        self, prompt: list[int], so_far: list[int] | None = None, verification: Verification | None = None, **more: Any
    ) -> None:
        generate = request(prompt, so_far=so_far, **{"max_tokens": 1000, **more})
        self.new = new_sequence(generate, verification or Verification(strategy="target_match"))
        self.sampler = Sampler(self.new, FACTS)
        self.text = self.new.text[:]

    def commit(self, *tokens: int) -> None:
        self.text += tokens
        self.sampler.commit(list(tokens))


Step = tuple[One, SequenceWork]


def step(of: One, draft: list[int] | Draft = [], computed: int | None = None) -> Step:  # noqa: B006
    """As the scheduler plans it for a text of which all but the last token is computed, or `computed` tokens are."""
    start = len(of.text) - 1 if computed is None else computed
    given = draft if isinstance(draft, Draft) else Draft(draft)
    return of, SequenceWork(1, of.text[start:], start, [], True, given)


def asked(*steps: Step) -> Questions:
    return questions_of([item for _, item in steps], [one.sampler for one, _ in steps], VOCABULARY)


def rule_of(questions: Questions, index: int = 0) -> dict[str, float]:
    """By field, but for seed and position."""
    left_out = ("seed", "position", "unused")
    names = [name for name in ask.RULE.names or () if name not in left_out]
    return {name: questions.records[index][name].item() for name in names}


def lists(begins: torch.Tensor, *columns: torch.Tensor) -> list[list[Any]]:
    """Items begins[i]..begins[i + 1] of the columns, side by side where there are several."""
    edges = begins.tolist()
    assert edges[0] == 0 and edges == sorted(edges) and all(len(column) == edges[-1] for column in columns)
    items = columns[0].tolist() if len(columns) == 1 else list(zip(*(c.tolist() for c in columns), strict=True))
    return [items[begin:end] for begin, end in pairwise(edges)]


def once(items: list[Any]) -> dict[int, Any]:
    """As a dict; no list may name an id twice."""
    assert len({key for key, _ in items}) == len(items), items
    return dict(items)


def seen(questions: Questions) -> list[dict[int, int]]:
    edits = questions.edits
    assert edits is not None
    return [once(items) for items in lists(edits.seen_begins, edits.seen_ids, edits.seen_counts)]


def bias(questions: Questions) -> list[dict[int, float]]:
    edits = questions.edits
    assert edits is not None
    return [once(items) for items in lists(edits.bias_begins, edits.bias_ids, edits.bias_values)]


def forbidden(questions: Questions) -> list[list[int]]:
    edits = questions.edits
    assert edits is not None
    found = lists(edits.forbidden_begins, edits.forbidden_ids)
    assert all(len(set(ids)) == len(ids) for ids in found)
    return [sorted(ids) for ids in found]


def allowed(questions: Questions) -> list[list[int] | None]:
    """By row; None: everything."""
    masks = questions.masks
    assert masks is not None
    bits = [np.unpackbits(row.numpy().view(np.uint8), bitorder="little") for row in masks.bits]
    return [None if row < 0 else bits[row].nonzero()[0].tolist() for row in masks.of_row.tolist()]


# Rules, rows and positions -----------------------------------------------------------------------------


def test_a_rule_has_the_parameters_of_request_and_verification() -> None:
    sampling = {"temperature": 0.5, "top_k": 40, "top_p": 0.75, "min_p": 0.25, "repetition_penalty": 1.5}
    sampling |= {"presence_penalty": 0.5, "frequency_penalty": -0.25}
    verification = Verification(
        strategy="topp", max_candidate_len=7, verify_window=3, typical_epsilon=0.5, typical_delta=1.0
    )
    found = rule_of(asked(step(One([5, 6], verification=verification, **sampling))))
    assert found == {
        "strategy": ask.TOPP, "accept": ask.NORMAL, "inverse": 2.0, "top_k": 40, "top_p": 0.75,
        "floor": pytest.approx(math.log(0.25)), "repetition": 1.5, "presence": 0.5, "frequency": -0.25,
        "candidates": 7, "window": 3, "epsilon": pytest.approx(math.log(0.5)), "delta": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("strategy", "code"),
    [("greedy", ask.MATCH), ("target_match", ask.MATCH), ("rejection", ask.REJECTION), ("block", ask.BLOCK),
     ("typical", ask.TYPICAL), ("topp", ask.TOPP)],
)  # fmt: skip
def test_each_strategy_has_its_code_and_at_temperature_0_all_are_match(strategy: str, code: int) -> None:
    verification = Verification(strategy=strategy)
    sampled, greedy = (One([5], verification=verification, temperature=t) for t in (0.8, 0.0))
    assert asked(step(sampled), step(greedy)).records["strategy"].tolist() == [code, ask.MATCH]


@pytest.mark.parametrize(
    ("policy", "code"), [("normal", ask.NORMAL), ("accept_all", ask.ALL), ("reject_all", ask.NONE)]
)
def test_each_accept_policy_has_its_code(policy: str, code: int) -> None:
    verification = Verification(strategy="greedy", accept_policy=policy)
    assert rule_of(asked(step(One([5], verification=verification))))["accept"] == code


def test_drafts_of_several_lengths_lie_side_by_side() -> None:
    questions = asked(step(One([5, 6]), [7, 8, 9]), step(One([5])), step(One([5, 6, 7]), [1]))
    assert questions.begins.tolist() == [0, 4, 5, 7]
    assert questions.drafted.tolist() == [-1, 7, 8, 9, -1, -1, 1]
    assert questions.parents.tolist() == [-1, 0, 1, 2, -1, -1, 5]


def test_the_root_judges_the_token_behind_the_text() -> None:
    later = One([5] * 30, so_far=[6] * 12, temperature=1.0)
    # A prompt's last chunk is many tokens long; it asks for the token behind all of them.
    chunk = step(later, computed=10)
    questions = asked(step(One([5, 6]), [7, 8]), step(later, [1]), chunk)
    assert questions.records["position"].tolist() == [2, 42, 42]


def test_seeds_are_the_requests_own_in_full_length() -> None:
    seeds = [0, 7, 2**32, 2**63 - 1]
    work = [step(One([5], temperature=1.0, seed=seed)) for seed in seeds]
    assert asked(*work).records["seed"].tolist() == seeds


def test_positions_grow_with_the_text_and_the_rest_of_a_rule_does_not() -> None:
    one = One([5, 6], temperature=0.7, seed=9)
    before = asked(step(one, [7, 8]))
    one.commit(7, 8, 3)
    after = asked(step(one))
    assert (before.records["position"], after.records["position"]) == (2, 5)
    assert rule_of(before) == rule_of(after) and before.records["seed"] == after.records["seed"] == 9


def test_where_nothing_is_edited_there_are_no_arrays_for_it() -> None:
    questions = asked(step(One([5], temperature=0.7, top_k=3)), step(One([6]), [7]))
    assert (questions.edits, questions.masks, questions.draft_probs) == (None, None, None)


# Counts ------------------------------------------------------------------------------------------------


def test_counts_say_how_often_an_id_was_generated_and_know_the_prompts() -> None:
    one = One([5, 6, 5], repetition_penalty=1.2)
    assert seen(asked(step(one))) == [{5: 0, 6: 0}]
    one.commit(6)
    assert seen(asked(step(one))) == [{5: 0, 6: 1}]


def test_drafts_count_when_they_are_committed_and_only_what_is_accepted() -> None:
    one = One([5], presence_penalty=0.5)
    # The rows of a draft count it for themselves: kernels/verify adds the path to a row.
    assert seen(asked(step(one, [7, 7, 8]))) == [{5: 0}]
    one.commit(7, 7, 9)
    assert seen(asked(step(one, [9, 9]))) == [{5: 0, 7: 2, 9: 1}]
    one.commit(9, 9, 5)
    assert seen(asked(step(one))) == [{5: 1, 7: 2, 9: 3}]


def test_what_an_earlier_attempt_delivered_was_generated() -> None:
    assert seen(asked(step(One([5, 6], so_far=[6, 7, 7], frequency_penalty=0.1)))) == [{5: 0, 6: 1, 7: 2}]


def test_counts_of_a_text_that_is_computed_again_stay() -> None:
    one = One([5], frequency_penalty=0.1)
    one.commit(7)
    assert seen(asked(step(one, computed=0))) == [{5: 0, 7: 1}]


def test_counts_grow_beyond_what_they_began_with() -> None:
    counts = Counts([3, 3])
    text = [token % 1000 for token in range(0, 5000, 7)]
    for start in range(0, len(text), 9):
        counts.add(text[start : start + 9])
    expected = Counter(text) | Counter()
    assert dict(zip(counts.ids.tolist(), counts.counts.tolist(), strict=True)) == {3: 0} | dict(expected)


def test_a_request_without_penalties_counts_nothing_beside_one_that_has_them() -> None:
    questions = asked(step(One([5, 6])), step(One([7], presence_penalty=1.0)), step(One([8])))
    assert seen(questions) == [{}, {7: 0}, {}]


# What may not follow -----------------------------------------------------------------------------------


def test_biases_and_banned_tokens_are_one_list_in_which_the_ban_wins() -> None:
    one = One([5], logit_bias={7: 1.5, 8: -2.0}, bad_words=[[8], [9], [3, 4]])
    assert bias(asked(step(One([5])), step(one, [1]))) == [{}, {7: 1.5, 8: -math.inf, 9: -math.inf}]


def test_the_end_is_held_back_in_those_rows_of_a_draft_that_lie_before_min_tokens() -> None:
    one = One([5], so_far=[6], min_tokens=3, stop_token_ids=[40])
    # One token is there: rows 0 and 1 judge the second and the third.
    assert forbidden(asked(step(one, [7, 8, 9]))) == [[EOS, 40], [EOS, 40], [], []]
    one.commit(7, 8)
    assert forbidden(asked(step(one, [9]))) == [[], []]


def test_an_ignored_end_is_not_held_back_and_what_is_no_token_never() -> None:
    one = One([5], min_tokens=3, ignore_eos=True, stop_token_ids=[40, VOCABULARY, -1])
    assert forbidden(asked(step(one))) == [[40]]
    assert asked(step(One([5], min_tokens=3, ignore_eos=True))).edits is None


BAD = [[10, 11, 12], [11, 13], [20, 20]]


@pytest.mark.parametrize(
    ("text", "draft", "expected"),
    [
        ([5, 10, 11], [], [[12, 13]]),  # the beginning lies in the text
        ([5, 10], [11], [[], [12, 13]]),  # across the edge of text and draft
        ([5], [10, 11, 6], [[], [], [12, 13], []]),  # wholly in the draft
        ([5], [10, 6, 11], [[], [], [], [13]]),  # not when something lies between
        ([5, 10, 11], [12, 11], [[12, 13], [], [13]]),  # behind a draft that itself is bad
        ([20], [20, 20, 20], [[20], [20], [20], [20]]),  # a word that overlaps itself
        ([11], [11], [[13], [13]]),  # a text shorter than the longest word
    ],
)  # fmt: skip
def test_the_last_id_of_a_bad_word_may_not_follow_the_others(
    text: list[int], draft: list[int], expected: list[list[int]]
) -> None:
    assert forbidden(asked(step(One(text, bad_words=BAD), draft))) == expected
    # Where the prompt ends and the answer begins makes no difference.
    if len(text) > 1:
        generated = One(text[:1], so_far=text[1:], bad_words=BAD)
        assert forbidden(asked(step(generated, draft))) == expected


def test_a_row_of_a_tree_is_edited_like_the_last_row_of_its_chain() -> None:
    draft, parents = [7, 8, 9, 10, 9], [-1, -1, 0, 2, 1]
    settings: dict[str, Any] = {"bad_words": [[7, 9, 3], [8, 9, 4], [8, 5], [9, 10, 6]], "min_tokens": 3}
    of = One([5], so_far=[6], **settings)
    questions = asked(step(One([5]), [1]), step(of, Draft(draft, parents=parents)))
    assert questions.parents.tolist() == [-1, 0, -1, 2, 2, 3, 5, 4]
    assert questions.drafted.tolist() == [-1, 1, -1, *draft]
    of_rows = forbidden(questions)[3:]
    for row, chain in enumerate(([7], [8], [7, 9], [7, 9, 10], [8, 9])):
        assert of_rows[row] == forbidden(asked(step(of, chain)))[-1]
    assert of_rows[2] == [EOS, 3][1:] and of_rows[4] == [4] and of_rows[1] == [EOS, 5]


def test_bad_words_that_share_their_end_forbid_it_once() -> None:
    one = One([5, 6], bad_words=[[6, 9], [5, 6, 9], [5, 6, 8], [6, EOS]], min_tokens=5)
    assert forbidden(asked(step(one))) == [[EOS, 8, 9]]


def test_rejected_drafts_leave_nothing_behind() -> None:
    one = One([5], bad_words=BAD, min_tokens=2, presence_penalty=1.0)
    asked(step(one, [10, 11, 12]))
    one.commit(6)
    questions = asked(step(one, [7, 7]))
    assert seen(questions) == [{5: 0, 6: 1}]
    assert forbidden(questions) == [[EOS], [], []]


# What alone may be chosen ------------------------------------------------------------------------------


def test_all_rows_of_a_request_with_allowed_ids_have_its_mask_and_the_others_none() -> None:
    work = [
        step(One([5]), [6]),
        step(One([5], allowed_token_ids=[0, 31, 32, 69]), [31, 0]),
        step(One([5])),
        step(One([5], allowed_token_ids=[7, 7])),
    ]
    some = [0, 31, 32, 69]
    assert allowed(asked(*work)) == [None, None, some, some, some, None, [7]]


# Probabilities that drafts were drawn from ---------------------------------------------------------------


def drawn(tokens: list[int], rows: int | None = None, vocab: int = VOCABULARY, **more: Any) -> Draft:
    probs = np.full((len(tokens) if rows is None else rows, vocab), 1 / vocab, np.float32)
    probs[:, 0] = np.arange(len(probs))
    return Draft(tokens, probs=probs, **more)


def test_rows_of_drafts_with_probabilities_find_them_and_others_are_certain() -> None:
    of_device = Draft([9], probs=torch.full((1, VOCABULARY), 0.5, dtype=torch.float64))
    questions = asked(
        step(One([5]), drawn([7, 8])), step(One([5]), [6]), step(One([5])), step(One([5]), of_device)
    )
    assert questions.draft_probs is not None
    probs, of_row = questions.draft_probs.probs, questions.draft_probs.of_row
    assert of_row.tolist() == [-1, 0, 1, -1, -1, -1, -1, 2]
    assert probs.shape == (3, VOCABULARY) and probs.dtype == torch.float32
    assert probs[:, 0].tolist() == [0.0, 1.0, 0.5]


@pytest.mark.parametrize(
    "unfit",
    [drawn([7, 8], rows=1), drawn([7], rows=2), drawn([7], vocab=VOCABULARY - 1), drawn([7, 8], parents=[-1, -1])],
    ids=["too few rows", "too many rows", "another vocabulary", "a tree"],
)
def test_probabilities_that_do_not_fit_their_draft_are_as_none(unfit: Draft) -> None:
    assert asked(step(One([5]), unfit)).draft_probs is None
    beside = asked(step(One([5]), unfit), step(One([5]), drawn([7])))
    assert beside.draft_probs is not None and (beside.draft_probs.of_row >= 0).sum() == 1


# The same as plain lists ---------------------------------------------------------------------------------


def plainly(of: One, draft: list[int]) -> Asked:
    """Of a sequence's text alone, by definition: nothing that was kept from an earlier step."""
    sampling, verification = of.new.sampling, of.new.verification
    codes = {"target_match": ask.MATCH, "rejection": ask.REJECTION, "block": ask.BLOCK}
    rule = Rule(
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        seed=sampling.seed,
        repetition_penalty=sampling.repetition_penalty,
        presence_penalty=sampling.presence_penalty,
        strategy=codes[verification.strategy],
    )
    prompt, generated = of.text[: of.new.prompt_tokens], of.text[of.new.prompt_tokens :]
    banned = {word[0]: -math.inf for word in sampling.bad_words if len(word) == 1}
    rows = []
    for row in range(len(draft) + 1):
        text = of.text + draft[:row]
        ends = {word[-1] for word in sampling.bad_words if len(word) > 1 and _ends_with(text, word[:-1])}
        if len(generated) + row < sampling.min_tokens:
            ends |= {EOS, *sampling.stop_token_ids}
        rows.append(sorted(ends))
    return Asked(
        rule=rule,
        position=len(of.text),
        draft=draft,
        seen=dict.fromkeys(prompt, 0) | Counter(generated) if rule.penalised else None,
        bias=sampling.logit_bias | banned,
        forbidden=rows,
        allowed=sampling.allowed_token_ids or None,
    )


def _ends_with(text: list[int], beginning: list[int]) -> bool:
    return len(text) >= len(beginning) and text[len(text) - len(beginning) :] == beginning


def anything(chance: random.Random) -> One:
    some = lambda count: [chance.randrange(12) for _ in range(count)]  # noqa: E731
    sampling: dict[str, Any] = {
        "temperature": chance.choice((0.0, 0.8)),
        "top_k": chance.choice((0, 5)),
        "seed": chance.getrandbits(63),
        "repetition_penalty": chance.choice((1.0, 1.0, 1.3)),
        "presence_penalty": chance.choice((0.0, 0.0, 0.5)),
        "logit_bias": {token: chance.choice((-5.0, 2.0)) for token in some(chance.choice((0, 0, 3)))},
        # Few ids and short words, so that their beginnings come up everywhere.
        "bad_words": [some(chance.randint(1, 4)) for _ in range(chance.choice((0, 0, 1, 8)))],
        "min_tokens": chance.choice((0, 0, 4, 20)),
        "stop_token_ids": chance.choice(([], [3, 4])),
        "allowed_token_ids": chance.choice(([], [], some(6))),
    }
    verification = Verification(strategy=chance.choice(("target_match", "rejection", "block")))
    return One(some(chance.randint(1, 9)), some(chance.choice((0, 0, 5))), verification, **sampling)


def described(questions: Questions) -> dict[str, Any]:
    """Without the order in lists, which means nothing, and the same whether nothing is edited or no row is."""
    rows, sequences = len(questions.drafted), len(questions.rules)
    plain = questions.edits is None
    return {
        "rules": questions.rules.tolist(),
        "begins": questions.begins.tolist(),
        "drafted": questions.drafted.tolist(),
        "parents": questions.parents.tolist(),
        "seen": [{}] * sequences if plain else seen(questions),
        "bias": [{}] * sequences if plain else bias(questions),
        "forbidden": [[]] * rows if plain else forbidden(questions),
        "allowed": [None] * rows if questions.masks is None else allowed(questions),
    }


@pytest.mark.parametrize("seed", range(40))
def test_the_arrays_of_texts_that_grow_are_those_of_their_plain_lists(seed: int) -> None:
    chance = random.Random(seed)
    running = [anything(chance) for _ in range(chance.randint(1, 5))]
    for _ in range(12):
        drafts = [[chance.randrange(12) for _ in range(chance.choice((0, 0, 1, 3, 8)))] for _ in running]
        work = [step(each, draft) for each, draft in zip(running, drafts, strict=True)]
        lists_of = gather([plainly(each, draft) for each, draft in zip(running, drafts, strict=True)], VOCABULARY)
        arrays = asked(*work)
        assert described(arrays) == described(lists_of)
        assert all(t.dtype == torch.int32 for t in (arrays.rules, arrays.begins, arrays.drafted, arrays.parents))
        for each, draft in zip(running, drafts, strict=True):
            accepted = chance.randint(0, len(draft))
            each.commit(*draft[:accepted], chance.randrange(12))
        if chance.random() < 0.3:
            running.append(anything(chance))
        if len(running) > 1 and chance.random() < 0.3:
            del running[chance.randrange(len(running))]
