"""Each strategy's rule, on examples made by hand and against the same rule in plain floats."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from plainly import plainly, spoken

from kernels.verify.noise import gumbel, uniform
from kernels.verify.questions import ALL, BLOCK, MATCH, REJECTION, TOPP, TYPICAL, Asked, Rule, gather
from kernels.verify.reference import verify

STRATEGIES = {"match": MATCH, "rejection": REJECTION, "block": BLOCK, "typical": TYPICAL, "topp": TOPP}
Spoken = tuple[list[int], list[int]]


def says(logits: torch.Tensor, asked: list[Asked]) -> list[Spoken]:
    return spoken(verify(logits, gather(asked, logits.shape[1])), asked)


def said(rows: list[list[float]] | torch.Tensor, asked: Asked) -> Spoken:
    """Of one question. Rows in plain lists are probabilities."""
    logits = torch.tensor(rows).clamp(min=1e-30).log() if isinstance(rows, list) else rows
    return says(logits, [asked])[0]


def rule(strategy: int, **more: Any) -> Rule:
    return Rule(**{"temperature": 1.0, "strategy": strategy} | more)


# Against plain floats -----------------------------------------------------------------------------------

RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6, "top_k": 5},
    {"temperature": 1.4, "top_p": 0.8},
    {"min_p": 0.2, "repetition_penalty": 1.3, "presence_penalty": 0.4},
    {"temperature": 0.0},
]
V = 24


def some_draft(chance: random.Random, rows: torch.Tensor, length: int) -> list[int]:
    """Likely tokens, unlikely ones, and now and then one that isn't any."""
    ids = [int(torch.multinomial(torch.softmax(row, 0), 1)) for row in rows[:length]]
    return [chance.choice([token] * 6 + [chance.randrange(V)] * 2 + [V, -1][: chance.randrange(2)]) for token in ids]


def some_parents(chance: random.Random, length: int) -> list[int]:
    return [chance.randrange(max(0, k - 3), k + 1) for k in range(length)]


def some_probs(chance: random.Random, rows: torch.Tensor, draft: list[int]) -> list[torch.Tensor | None]:
    """Near the target's, with a few zeros and a few certain tokens."""
    found: list[torch.Tensor | None] = []
    for row, token in zip(rows, draft, strict=False):
        probs = torch.softmax(row * chance.uniform(0.3, 1.5) + torch.randn(V) * chance.random(), 0)
        probs[torch.rand(V) < 0.2] = 0
        if 0 <= token < V:
            probs[token] += 0.01
        found.append(None if chance.random() < 0.25 else probs / probs.sum())
    return found


@pytest.mark.parametrize("hangs", ["chain", "chain with probabilities", "tree"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_rule_means_what_the_readme_says(strategy: str, hangs: str) -> None:
    torch.manual_seed(3)
    chance = random.Random(3)
    asked, rows = [], []
    for seed in range(120):
        length = chance.randrange(6)
        logits = torch.randn(length + 1, V) * chance.choice([1.0, 2.0, 4.0])
        draft = some_draft(chance, logits, length)
        one = rule(STRATEGIES[strategy], **RULES[seed % len(RULES)], seed=seed, verify_window=1 + seed % 2)
        parents = some_parents(chance, length) if hangs == "tree" else ()
        probs = some_probs(chance, logits, draft) if hangs == "chain with probabilities" else ()
        asked.append(Asked(one, seed * 7, draft, parents, seen={1: 1, 2: 0}, draft_probs=probs))
        rows.append(logits)
    found = says(torch.cat(rows), asked)
    assert found == plainly(torch.cat(rows), asked)
    lengths = {len(tokens) for tokens, _ in found}
    assert {1, 2, 3} <= lengths, "drafts of which nothing, something and more stood"


# Rejection ----------------------------------------------------------------------------------------------

HALVES = [[0.5, 0.3, 0.2]] * 3


def seeds_where(position: int, index: int, low: float, high: float) -> list[int]:
    return [seed for seed in range(4000) if low < uniform(seed, position, index) < high][:20]


def test_a_certain_token_stands_with_the_targets_probability() -> None:
    for seed in seeds_where(4, 1, 0.25, 0.299):
        assert said(HALVES, Asked(rule(REJECTION, seed=seed), 4, [1]))[1] == [0, 1]
    for seed in seeds_where(4, 1, 0.301, 0.35):
        assert said(HALVES, Asked(rule(REJECTION, seed=seed), 4, [1]))[1] == [0]


def test_what_replaces_a_refused_certain_token_is_the_noisiest_of_the_others() -> None:
    for seed in seeds_where(4, 1, 0.9, 1.0):
        noisy = torch.tensor(HALVES[0]).log() + gumbel(seed, 4, torch.arange(3))
        noisy[0] = -math.inf
        assert said(HALVES, Asked(rule(REJECTION, seed=seed), 4, [0]))[0] == [int(noisy.argmax())]


def test_a_token_with_a_probability_stands_with_the_ratio() -> None:
    """0.3 / 0.4 of the time; a token the drafter liked less than the target always."""
    probs = torch.tensor([0.2, 0.4, 0.4])
    for low, high, rows in ((0.6, 0.749, [0, 1]), (0.751, 0.9, [0])):
        for seed in seeds_where(4, 1, low, high):
            assert said(HALVES, Asked(rule(REJECTION, seed=seed), 4, [1], draft_probs=[probs]))[1] == rows
    for seed in range(20):
        assert said(HALVES, Asked(rule(REJECTION, seed=seed), 4, [0], draft_probs=[probs]))[1] == [0, 1]


def test_what_replaces_it_comes_from_where_the_target_says_more_than_the_drafter() -> None:
    """Only id 0 does."""
    probs = torch.tensor([0.2, 0.4, 0.4])
    for seed in seeds_where(4, 1, 0.76, 1.0):
        assert said(HALVES, Asked(rule(REJECTION, seed=seed), 4, [1], draft_probs=[probs]))[0] == [0]


def test_a_drafter_that_says_what_the_target_says_is_never_refused() -> None:
    probs = torch.tensor([0.5, 0.25, 0.25])
    logits = torch.tensor([[1.0, 0.5, 0.5]] * 3).log()
    for strategy in (REJECTION, BLOCK):
        for seed in range(50):
            one = Asked(rule(strategy, seed=seed), 4, [seed % 3, (seed + 1) % 3], draft_probs=[probs, probs])
            assert said(logits, one)[1] == [0, 1, 2]


def test_siblings_are_judged_without_replacement() -> None:
    """The second guess, of 0.3, stands with 0.3 / 0.5 once the first was refused: what it stands with in all is 0.3."""
    siblings = Asked(rule(REJECTION), 4, [0, 1], parents=[0, 0])
    counted = {0: 0, 1: 0}
    for seed in range(1200):
        tokens, rows = said(HALVES, replace(siblings, rule=rule(REJECTION, seed=seed)))
        first, second = uniform(seed, 4, 1) < 0.5, uniform(seed, 4, 2) < 0.6
        assert rows == ([0, 1] if first else [0, 2] if second else [0])
        if len(rows) == 1:
            assert tokens == [2], "both guesses were refused, and one other id is left"
        else:
            counted[tokens[0]] += 1
    assert counted[0] == pytest.approx(600, abs=70) and counted[1] == pytest.approx(360, abs=65)


def test_a_guess_made_twice_is_judged_once() -> None:
    for seed in seeds_where(4, 1, 0.6, 1.0):
        tokens, _ = said(HALVES, Asked(rule(REJECTION, seed=seed), 4, [0, 0], parents=[0, 0]))
        assert tokens[0] != 0


def test_a_token_that_filters_leave_out_never_stands_and_never_replaces() -> None:
    rows = [[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]
    for strategy in (MATCH, REJECTION, BLOCK, TYPICAL):
        for seed in range(40):
            tokens, found = said(rows, Asked(rule(strategy, seed=seed, top_k=2), 4, [2]))
            assert found == [0] and tokens[0] in (0, 1)
            probs = torch.tensor([0.1, 0.1, 0.8])
            tokens, found = said(rows, Asked(rule(strategy, seed=seed, top_p=0.4), 4, [2], draft_probs=[probs]))
            assert (tokens, found) == ([0], [0])


@pytest.mark.parametrize("strategy", [REJECTION, BLOCK])
def test_probabilities_that_are_not_numbers_give_a_token_that_the_target_allows(strategy: int) -> None:
    """A drafter's fault may cost what it drafts; it gives neither an invalid token nor a failed sequence."""
    broken = torch.tensor([math.nan, math.nan, math.nan])
    for seed in range(30):
        tokens, _ = said(HALVES, Asked(rule(strategy, seed=seed, top_k=2), 4, [1, 2], draft_probs=[broken, broken]))
        assert set(tokens) <= {0, 1}


# Block --------------------------------------------------------------------------------------------------


def block_rows(h: list[float], seed: int, position: int) -> list[int]:
    """The last place whose number is under its h."""
    stands = max([0, *(i for i, each in enumerate(h, 1) if uniform(seed, position, i) < each)])
    return list(range(stands + 1))


def test_block_of_certain_tokens_by_hand() -> None:
    """Target probabilities of the drafted tokens 0.5, 0.4, 0.25: joint 0.5, 0.2, 0.05. What is left behind each:
    0.5 * 0.6 = 0.3 and 0.2 * 0.75 = 0.15, so h is 0.3 / (0.3 + 0.5), 0.15 / (0.15 + 0.8), and 0.05 at the end."""
    rows = [[0.5, 0.3, 0.2], [0.4, 0.35, 0.25], [0.25, 0.25, 0.5], [0.1, 0.2, 0.7]]
    seen = []
    for seed in range(600):
        found = said(rows, Asked(rule(BLOCK, seed=seed), 8, [0, 0, 0]))[1]
        assert found == block_rows([0.375, 0.15 / 0.95, 0.05], seed, 8)
        seen.append(len(found) - 1)
    # As often as token by token: 1 - 0.5, 0.5 - 0.2, 0.2 - 0.05, 0.05.
    for length, probability in enumerate([0.5, 0.3, 0.15, 0.05]):
        assert seen.count(length) == pytest.approx(600 * probability, abs=45)


def test_block_of_tokens_with_probabilities_by_hand() -> None:
    """The paper's own example: target 1/3, 2/3, drafter 2/3, 1/3, at both places. For AA: joint 1/2, 1/4. What is left
    behind the first: max(1/6 - 2/3, 0) + max(1/3 - 1/3, 0) = 0, so h is 0, 1/4. For BA: joint 1, 1/2; left 1/3 of
    max(2/3 - 1/3, 0), so h is (1/3) / (1/3 + 0) = 1, 1/2. For AB: joint 1/2, 1."""
    target, probs = [[1 / 3, 2 / 3]] * 3, torch.tensor([2 / 3, 1 / 3])
    for seed in range(200):
        for draft, h in (([0, 0], [0.0, 0.25]), ([1, 0], [1.0, 0.5]), ([0, 1], [0.0, 1.0]), ([1, 1], [1.0, 1.0])):
            found = said(target, Asked(rule(BLOCK, seed=seed), 8, draft, draft_probs=[probs, probs]))[1]
            assert found == block_rows(h, seed, 8)


@pytest.mark.slow
def test_block_accepts_more_than_rejection_on_average() -> None:
    """11/9 tokens of two against 10/9, for the same example."""
    target, probs = [[1 / 3, 2 / 3]] * 3, torch.tensor([2 / 3, 1 / 3])
    chance, lengths = random.Random(5), {REJECTION: 0, BLOCK: 0}
    for seed in range(1800):
        draft = [int(chance.random() > 2 / 3) for _ in range(2)]
        for strategy in lengths:
            one = Asked(rule(strategy, seed=seed), 8, draft, draft_probs=[probs, probs])
            lengths[strategy] += len(said(target, one)[1]) - 1
    assert lengths[REJECTION] / 1800 == pytest.approx(10 / 9, abs=0.055)
    assert lengths[BLOCK] / 1800 == pytest.approx(11 / 9, abs=0.055)


def test_what_follows_a_block_comes_from_what_the_joint_probability_left() -> None:
    """After A at joint 1/2 nothing of 1/2 * target - drafter is left but for B: 1/3 - 1/6."""
    probs = [torch.tensor([2 / 3, 1 / 3]), torch.tensor([5 / 6, 1 / 6])]
    target = [[1 / 3, 2 / 3]] * 3
    ended = [said(target, Asked(rule(BLOCK, seed=seed), 8, [0, 0], draft_probs=probs)) for seed in range(400)]
    behind_one = [tokens for tokens, rows in ended if rows == [0, 1]]
    assert len(behind_one) > 20 and all(tokens == [0, 1] for tokens in behind_one)


def test_a_tree_under_block_is_judged_guess_by_guess() -> None:
    rows = torch.randn(4, V, generator=torch.Generator().manual_seed(2))
    for seed in range(60):
        one = Asked(rule(BLOCK, seed=seed), 3, [int(rows[0].argmax()), 5, 6], parents=[0, 0, 1])
        assert said(rows, one) == said(rows, replace(one, rule=rule(REJECTION, seed=seed)))


def test_a_row_that_cannot_be_trusted_ends_a_block_before_it() -> None:
    rows = torch.tensor([[0.5, 0.3, 0.2]] * 3).log()
    rows[2, 1] = math.nan
    for seed in range(40):
        with_all = said(rows, Asked(rule(BLOCK, seed=seed), 8, [0, 0]))
        assert with_all == said(rows[:2], Asked(rule(BLOCK, seed=seed), 8, [0]))


def test_no_two_steps_of_a_sequence_judge_by_the_same_number() -> None:
    """A block of three looks at numbers of positions that later steps decide again, by chain or by tree. Who is
    judged by a number that was looked at before is judged by one that is known to be large."""
    certain = [[0.7, 0.1, 0.1, 0.1]] * 4
    block = Asked(rule(BLOCK), 8, [0, 0, 0])
    refused = [seed for seed in range(1500) if said(certain, replace(block, rule=rule(BLOCK, seed=seed)))[1] == [0]]
    assert len(refused) == pytest.approx(450, abs=70)
    # Two steps later, where the third token of that draft stood, three siblings: the third stands one time in ten.
    tree = Asked(rule(BLOCK), 10, [1, 2, 3], parents=[0, 0, 0])
    stood = [said(certain, replace(tree, rule=rule(BLOCK, seed=seed)))[1] for seed in refused]
    assert stood.count([0, 3]) == pytest.approx(len(refused) * 0.1, abs=25)


# Typical and topp ---------------------------------------------------------------------------------------


def test_typical_takes_what_is_over_the_smaller_threshold() -> None:
    """Entropy of (0.5, 0.3, 0.2) is 1.0297: exp(-entropy) = 0.3571, and a delta of 0.7 makes 0.25 of it."""
    typical = Asked(rule(TYPICAL, typical_epsilon=0.9, typical_delta=0.7), 4)
    assert [len(said(HALVES, replace(typical, draft=[token]))[1]) - 1 for token in (0, 1, 2)] == [1, 1, 0]
    wide = replace(typical, rule=rule(TYPICAL, typical_epsilon=0.9, typical_delta=0.5))
    assert len(said(HALVES, replace(wide, draft=[2]))[1]) == 2, "0.2 is over 0.5 * 0.3571"
    floor = replace(typical, rule=rule(TYPICAL, typical_epsilon=0.19, typical_delta=0.7))
    assert len(said(HALVES, replace(floor, draft=[2]))[1]) == 2, "epsilon always suffices"


def test_the_entropy_is_that_of_what_filters_left() -> None:
    """Of 0.625, 0.375 it is 0.6616: exp(-entropy) = 0.516."""
    for delta, stands in ((0.7, 1), (0.74, 0)):
        one = rule(TYPICAL, typical_epsilon=0.9, typical_delta=delta, top_k=2)
        assert len(said(HALVES, Asked(one, 4, [1]))[1]) - 1 == stands


def test_typical_doesnt_ask_the_seed_what_stands() -> None:
    found = {tuple(said(HALVES, Asked(rule(TYPICAL, seed=seed), 4, [2]))[1]) for seed in range(30)}
    assert found == {(0, 1)}


FOUR = [[0.4, 0.3, 0.2, 0.1]] * 6


def topp(draft: list[int], **more: Any) -> list[int]:
    return said(FOUR, Asked(rule(TOPP, **{"verify_window": 0} | more), 4, draft))[1]


def test_topp_takes_the_likeliest_few_that_top_p_leaves() -> None:
    assert [len(topp([token], top_p=0.65, max_candidate_len=5)) - 1 for token in range(4)] == [1, 1, 0, 0]
    assert [len(topp([token], top_p=0.95, max_candidate_len=3)) - 1 for token in range(4)] == [1, 1, 1, 0]
    assert [len(topp([token], max_candidate_len=1)) - 1 for token in range(4)] == [1, 0, 0, 0]


def test_topp_goes_over_a_second_likeliest_token_when_a_window_behind_it_is_the_likeliest() -> None:
    few = {"max_candidate_len": 1, "verify_window": 2}
    assert topp([0, 1, 0, 0], **few) == [0, 1, 2, 3, 4]
    assert topp([0, 1, 0, 0, 0], **few) == [0, 1, 2, 3, 4], "once, and up to the window's end"
    assert topp([0, 1, 0, 1], **few) == [0, 1], "one of the window isn't the likeliest"
    assert topp([0, 1, 0], **few) == [0, 1], "the window isn't full"
    assert topp([0, 2, 0, 0], **few) == [0, 1], "the third likeliest"
    assert topp([0, 1, 0, 0], max_candidate_len=1, verify_window=0) == [0, 1], "off"


def test_the_window_never_takes_what_a_mask_forbids() -> None:
    """Where one id is allowed the second likeliest is an id that can't be."""
    rows = torch.zeros(3, 8)
    tokens, found = said(rows, Asked(rule(TOPP, verify_window=1), 0, [0, 5], allowed=[5]))
    assert (tokens, found) == ([5], [0])


def test_of_a_tree_the_deepest_member_stands_and_the_first_of_equals() -> None:
    """0 ─ 1 (second likeliest) ─ 3 (likeliest) ─ 5 (last)
    └ 2 (likeliest)        ─ 4 (likeliest)
    """
    tree = Asked(rule(TOPP, max_candidate_len=3), 4, [1, 0, 0, 0, 3], parents=[0, 0, 1, 2, 3])
    assert said(FOUR, tree)[1] == [0, 1, 3]
    assert said(FOUR, replace(tree, rule=rule(TOPP, max_candidate_len=1)))[1] == [0, 2, 4]
    assert said(FOUR, replace(tree, rule=rule(TOPP, max_candidate_len=4)))[1] == [0, 1, 3, 5]


def test_a_member_behind_one_that_fell_does_not_stand() -> None:
    assert topp([3, 0, 0], max_candidate_len=3) == [0]


# Trees --------------------------------------------------------------------------------------------------


def test_match_follows_the_guess_that_the_target_chooses() -> None:
    rows = torch.zeros(5, V)
    rows[0, 7], rows[2, 9], rows[4, 3] = 9.0, 9.0, 9.0
    one = Asked(Rule(), 4, [6, 7, 8, 9], parents=[0, 0, 1, 2])
    assert said(rows, one) == ([7, 9, 3], [0, 2, 4])


def test_rows_say_which_row_of_the_batch_chose_each_token() -> None:
    rows = torch.zeros(7, V)
    rows[0, 1], rows[2, 7], rows[4, 9], rows[6, 3] = 9.0, 9.0, 9.0, 9.0
    asked = [Asked(Rule(), 0, [2]), Asked(Rule(), 4, [6, 7, 8, 9], parents=[0, 0, 1, 2])]
    answers = verify(rows, gather(asked, V))
    assert answers.rows[2:5].tolist() == [2, 4, 6]


def test_noise_and_penalties_of_a_row_are_those_of_its_depth_and_path() -> None:
    """Not of its place in the batch: a path of a tree is judged as that path would be alone."""
    rows = torch.randn(5, V, generator=torch.Generator().manual_seed(8)) * 2
    for seed in range(60):
        one = Rule(temperature=1.0, seed=seed, presence_penalty=0.5, frequency_penalty=0.5)
        first = said(rows[:1], Asked(one, 6, seen={}))[0][0]
        tree = Asked(one, 6, [first + 1, first, first + 2, first], parents=[0, 0, 1, 2], seen={})
        alone = Asked(one, 6, [first, first], seen={})
        tokens, found = said(rows, tree)
        assert tokens == said(rows[[0, 2, 4]], alone)[0] and found[:2] == [0, 2]


def test_of_a_tree_all_takes_the_first_guess_for_each_place() -> None:
    one = Asked(Rule(accept=ALL), 4, [6, 7, 8, 9], parents=[0, 0, 2, 1])
    assert said(torch.zeros(5, V), one)[1] == [0, 1, 4]


def test_a_mixed_batch_is_answered_as_each_alone() -> None:
    """Strategies, chains, trees, certain drafts and drafts with probabilities in one call."""
    torch.manual_seed(6)
    chance = random.Random(6)
    asked, rows = [], []
    for seed in range(100):
        length = chance.randrange(5)
        logits = torch.randn(length + 1, V) * 2
        draft = some_draft(chance, logits, length)
        parents = some_parents(chance, length) if seed % 3 == 0 else ()
        probs = some_probs(chance, logits, draft) if seed % 3 == 1 else ()
        one = rule(seed % 5, **RULES[seed // 5 % 5], seed=seed)
        asked.append(
            Asked(one, seed, draft, parents, allowed=range(1, V) if seed % 7 == 0 else None, draft_probs=probs)
        )
        rows.append(logits)
    together = says(torch.cat(rows), asked)
    assert together == [says(row, [one])[0] for row, one in zip(rows, asked, strict=True)]
