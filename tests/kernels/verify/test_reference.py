"""Each sampling parameter does what kernels/verify/README.md says, and the sampler samples."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from plainly import plainly, spoken

from kernels.verify.noise import gumbel
from kernels.verify.questions import ALL, MATCH, NONE, REJECTION, TYPICAL, Answers, Asked, Rule, gather
from kernels.verify.reference import logprobs, verify

TEN = torch.tensor([1.0, 4.0, 2.0, -1.0, 3.0, 0.0, -2.0, 2.5, 0.5, -3.0])
SAMPLED = Rule(temperature=1.0)


def answer(logits: torch.Tensor, asked: list[Asked]) -> Answers:
    return verify(logits, gather(asked, logits.shape[1]))


def chosen(logits: torch.Tensor, rule: Rule, position: int = 0, **more: Any) -> int:
    """One token of one row, nothing drafted."""
    [(tokens, _)] = spoken(answer(logits[None], asked := [Asked(rule, position, **more)]), asked)
    return tokens[0]


# The parameters -----------------------------------------------------------------------------------------

RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.2},
    {"temperature": 5.0},
    {"temperature": 1e-6},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 1.0, "top_p": 0.0},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 2.0, "top_p": 0.999},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.3, "top_k": 100, "top_p": 0.8, "min_p": 0.05},
    {"temperature": 1.0, "bias": {3: 100.0}},
    {"temperature": 1.0, "bias": {7: -100.0, 8: 2.5, 9: -math.inf}},
    {"repetition_penalty": 1.3},
    {"temperature": 0.8, "repetition_penalty": 0.7, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    {"presence_penalty": 2.0, "forbidden": [[0, 5]]},
    {"temperature": 0.9, "allowed": [3, 31, 32, 63, 64, 299], "forbidden": [[32]], "bias": {31: 1.0}},
]


@pytest.mark.parametrize("wanted", RULES, ids=str)
def test_every_parameter_means_what_the_readme_says(wanted: dict[str, Any]) -> None:
    """Against plain floats: penalties, bias, what is forbidden or allowed, temperature, top_k, top_p, min_p, noise."""
    generator = torch.Generator().manual_seed(7)
    rule = {key: value for key, value in wanted.items() if key not in ("bias", "forbidden", "allowed")}
    more = {key: value for key, value in wanted.items() if key not in rule}
    logits, asked = [], []
    for seed in range(40):
        row = torch.randn(300, generator=generator) * (1 + seed % 5)
        # Many equal values, as bf16 gives them.
        logits.append((row * 2).round() / 2 if seed % 3 == 0 else row)
        seen = {1: 0, 2: 0, 3: 7, 250: 0, 4: 2, 5: 1}
        asked.append(Asked(Rule(**rule, seed=seed), seed * 3, seen=seen, **more))
    rows = torch.stack(logits)
    before = rows.clone()
    assert spoken(answer(rows, asked), asked) == plainly(rows, asked)
    assert torch.equal(rows, before), "logits are left as they were"


def test_bfloat16_logits_mean_what_they_mean_in_float32() -> None:
    logits = (torch.randn(30, 200, generator=torch.Generator().manual_seed(5)) * 3).bfloat16()
    asked = [Asked(Rule(temperature=0.1 * (seed % 9), seed=seed, top_p=0.95), seed) for seed in range(30)]
    assert spoken(answer(logits, asked), asked) == spoken(answer(logits.float(), asked), asked)


SELDOM: list[dict[str, Any]] = [{"top_k": 4}, {"min_p": 0.1}, {"bias": {0: 2.0}}]


@pytest.mark.parametrize(
    "wanted",
    # What the rest means is compared with plain floats above.
    [{}, {"top_p": 0.9}, *(pytest.param(each, marks=pytest.mark.slow) for each in SELDOM)],
    ids=str,
)
def test_tokens_come_as_often_as_they_should(wanted: dict[str, Any]) -> None:
    """Chi-square of 6000 draws against the softmax of what is allowed. Millions, and joint: tests/laws/."""
    draws, batch = 6000, 300
    bias = wanted.get("bias")
    rule = Rule(temperature=1.3, **{key: value for key, value in wanted.items() if key != "bias"})
    z = TEN.double() / 1.3
    if bias:
        z[0] += 2.0 / 1.3
    order = z.argsort(descending=True)
    if rule.top_k:
        order = order[:4]
    if rule.top_p < 1:
        order = order[torch.softmax(z, 0)[order].cumsum(0) - torch.softmax(z, 0)[order] < 0.9]
    if rule.min_p:
        order = order[z[order] >= z.max() + math.log(0.1)]
    expected = torch.zeros(10, dtype=torch.float64)
    expected[order] = torch.softmax(z[order], 0) * draws
    asked = [Asked(replace(rule, seed=draw % 100), draw // 100, bias=bias) for draw in range(draws)]
    batches = (asked[begin : begin + batch] for begin in range(0, draws, batch))
    tokens = torch.cat([answer(TEN.expand(batch, -1), each).tokens for each in batches])
    seen = torch.bincount(tokens.long(), minlength=10).double()
    assert (seen[expected == 0] == 0).all()
    there = expected > 0
    chi = ((seen - expected)[there] ** 2 / expected[there]).sum().item()
    degrees = int(there.sum()) - 1
    # Wilson-Hilferty: this is passed once in ten thousand.
    assert chi < degrees * (1 - 2 / (9 * degrees) + 3.72 * math.sqrt(2 / (9 * degrees))) ** 3


def test_rare_tokens_are_sampled_too() -> None:
    """49 152 tokens of which one has half of the mass: the rest shares the other half, each 1e-5."""
    logits = torch.zeros(49152)
    logits[77] = math.log(49151)
    tokens = [chosen(logits, Rule(temperature=1.0, seed=seed), 5) for seed in range(300)]
    assert 115 < tokens.count(77) < 185
    assert len(set(tokens)) > 110


def test_the_seed_and_the_position_decide_and_nothing_else_does() -> None:
    flat = torch.zeros(1000)
    first = [chosen(flat, Rule(temperature=1.0, seed=1), i) for i in range(50)]
    assert first == [chosen(flat, Rule(temperature=1.0, seed=1), i) for i in range(50)]
    second = [chosen(flat, Rule(temperature=1.0, seed=2), i) for i in range(50)]
    assert sum(a == b for a, b in zip(first, second, strict=True)) < 5
    assert len(set(first)) > 40


def test_scores_are_multiplied_then_added_to_the_noise_and_nothing_is_subtracted() -> None:
    """Two roundings, whose bits decide near ties: the same in every implementation."""
    generator = torch.Generator().manual_seed(9)
    for seed in range(30):
        # So few bits are left below large scores that the noise ties often.
        logits = torch.randn(400, generator=generator) * 0.25 + 30000.0
        inverse = torch.tensor(1.0 / 0.9, dtype=torch.float32)
        noisy = logits * inverse + gumbel(seed, 3, torch.arange(400))
        assert chosen(logits, Rule(temperature=0.9, seed=seed), 3) == int((noisy == noisy.max()).nonzero()[0])


# Edges and ties -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 7, 511, 512, 513, 1024, 50000])
def test_ties_go_to_the_lowest_id(dtype: torch.dtype, size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    # Small whole numbers: every row has its maximum in many places.
    logits = torch.randint(-3, 4, (6, size), generator=generator).to(dtype)
    found = answer(logits, [Asked(Rule())] * 6).tokens.tolist()
    assert found == [int((row == row.max()).nonzero()[0]) for row in logits]


def tokens_seen(logits: torch.Tensor, rule: Rule, draws: int = 300, **more: Any) -> set[int]:
    asked = [Asked(rule, position, **more) for position in range(draws)]
    return set(answer(logits.expand(draws, -1), asked).tokens.tolist())


def test_the_edge_of_top_k_runs_through_ties_by_id() -> None:
    scores = torch.zeros(100)
    scores[[10, 40]] = 1.0
    assert tokens_seen(scores, Rule(temperature=1.0, top_k=4)) == {10, 40, 0, 1}
    assert tokens_seen(scores, Rule(temperature=1.0, top_k=2)) == {10, 40}
    assert tokens_seen(scores, Rule(temperature=1.0, top_k=1)) == {10}


def test_the_edge_of_top_p_runs_through_ties_by_id() -> None:
    """Eight equal ids: 0.5 of their mass is four of them exactly, and a little more takes a fifth."""
    flat = torch.zeros(8)
    assert tokens_seen(flat, Rule(temperature=1.0, top_p=0.5)) == {0, 1, 2, 3}
    assert tokens_seen(flat, Rule(temperature=1.0, top_p=0.51)) == {0, 1, 2, 3, 4}
    assert tokens_seen(flat, Rule(temperature=1.0, top_p=0.0)) == {0}


def test_top_p_is_of_the_mass_that_top_k_left() -> None:
    flat = torch.zeros(8)
    assert tokens_seen(flat, Rule(temperature=1.0, top_k=4, top_p=0.5)) == {0, 1}


def test_min_p_is_relative_to_the_likeliest_and_keeps_what_lies_on_its_edge() -> None:
    logits = torch.tensor([0.0, math.log(0.5), math.log(0.5) - 1e-6, 0.0])
    assert tokens_seen(logits, Rule(temperature=1.0, min_p=0.5)) == {0, 1, 3}
    assert tokens_seen(logits, Rule(temperature=1.0, min_p=1.0)) == {0, 3}


def test_more_of_top_k_than_there_are_ids_leaves_all() -> None:
    assert tokens_seen(torch.zeros(6), Rule(temperature=1.0, top_k=600)) == set(range(6))


def test_what_a_mask_forbids_has_no_place_among_the_top_k() -> None:
    allowed = [2, 5]
    assert tokens_seen(torch.zeros(8), Rule(temperature=1.0, top_k=4), allowed=allowed) == {2, 5}
    assert tokens_seen(torch.zeros(8), Rule(temperature=1.0, top_p=0.999), allowed=allowed) == {2, 5}


def test_a_bias_of_100_wins_at_any_temperature() -> None:
    for temperature in (0.0, 0.5, 2.0):
        assert tokens_seen(TEN, Rule(temperature=temperature), 50, bias={9: 100.0}) == {9}


def test_edits_come_in_their_order() -> None:
    """Repetition, presence and frequency, bias, forbidden, mask: 4.0 / 2 - (1 * 3 + 0.5) + 2 = 0.5 < 0.6."""
    logits = torch.tensor([0.6, 4.0, 0.4, 9.0, 8.0])
    rule = Rule(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=1.0)
    more: dict[str, Any] = {"seen": {1: 3}, "forbidden": [[3]], "allowed": [0, 1, 2, 3]}
    assert chosen(logits, rule, bias={1: 2.0}, **more) == 0
    assert chosen(logits, rule, bias={1: 2.2}, **more) == 1
    assert chosen(logits, rule, bias={1: 2.0, 3: 100.0}, **more) == 0, "what is forbidden has no bias"


def test_repetition_counts_the_prompt_and_the_other_penalties_only_what_was_generated() -> None:
    logits = torch.tensor([2.0, 1.9, -1.0])
    assert chosen(logits, Rule(repetition_penalty=1.2), seen={0: 0}) == 1
    assert chosen(logits, Rule(presence_penalty=1.0, frequency_penalty=1.0), seen={0: 0}) == 0
    assert chosen(logits, Rule(presence_penalty=1.0), seen={0: 1}) == 1


# Logits that can't be trusted ---------------------------------------------------------------------------

BAD_RULES = [Rule(), SAMPLED, Rule(temperature=1.0, top_p=0.5), Rule(temperature=1.0, top_k=3)]


@pytest.mark.parametrize("place", [0, 300, 600, 1029])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_refused(place: int, value: float) -> None:
    logits = torch.zeros(1, 1030)
    logits[0, place] = value
    for rule in BAD_RULES:
        assert answer(logits, [Asked(rule)]).failed.tolist() == [1]


def test_a_row_that_allows_nothing_is_refused_and_minus_infinity_is_no_fault() -> None:
    for rule in BAD_RULES:
        assert answer(torch.full((1, 600), -math.inf), [Asked(rule)]).failed.tolist() == [1]
        assert answer(torch.zeros(1, 600), [Asked(rule, allowed=[])]).failed.tolist() == [1]
        logits = torch.full((600,), -math.inf)
        logits[5] = 1.0
        assert chosen(logits, rule) == 5


def test_a_row_whose_scores_leave_float32_is_refused() -> None:
    """A temperature of 1e-5 multiplies by 1e5."""
    assert answer(torch.full((1, 5), 1e35), [Asked(Rule(temperature=1e-5))]).failed.tolist() == [1]
    assert answer(torch.full((1, 5), 1e35), [Asked(Rule())]).failed.tolist() == [0]


def test_a_temperature_too_small_to_divide_by_is_greedy() -> None:
    assert tokens_seen(torch.tensor([0.0, 1e-7]), Rule(temperature=9e-6), 50) == {1}


@pytest.mark.parametrize("rule", [Rule(), SAMPLED, replace(SAMPLED, strategy=REJECTION)], ids=str)
def test_rows_that_are_not_finite_fail_their_sequence_alone(rule: Rule) -> None:
    rows = torch.zeros(4, 700)
    rows[0, 8] = rows[1, 9] = rows[2, 10] = 50.0
    rows[1, 500] = math.nan
    answers = answer(rows, [Asked(rule), Asked(rule), Asked(rule, draft=[10])])
    assert answers.failed.tolist() == [0, 1, 0]
    assert answers.tokens[0] == 8
    assert answers.tokens[2] == 10 and answers.accepted.tolist() == [0, 0, 1]


def test_a_row_behind_the_first_mismatch_is_not_looked_at() -> None:
    rows = torch.zeros(2, 700)
    rows[0, 8] = 50.0
    rows[1] = math.nan
    for rule in (Rule(), SAMPLED, replace(SAMPLED, strategy=REJECTION)):
        answers = answer(rows, [Asked(rule, draft=[7])])
        assert (answers.failed.tolist(), answers.tokens.tolist()[0]) == ([0], 8)


# Drafts and batches -------------------------------------------------------------------------------------

V = 300


class Model:
    """Logits that depend on the text, for any text."""

    def row(self, text: list[int]) -> torch.Tensor:
        generator = torch.Generator().manual_seed(hash(tuple(text[-3:])) % 2**31)
        # Rounded to bf16, so that ties happen.
        return (torch.randn(V, generator=generator) * 3.0).bfloat16().float()

    def rows(self, text: list[int], draft: list[int]) -> torch.Tensor:
        return torch.stack([self.row(text + draft[:i]) for i in range(len(draft) + 1)])


def asked_at(text: list[int], prompt: int, draft: list[int], wanted: dict[str, Any]) -> Asked:
    """As a server asks: what was generated is counted, and ids are held back until min_tokens were."""
    wanted = dict(wanted)
    held, least, bias = wanted.pop("held_back", []), wanted.pop("min_tokens", 0), wanted.pop("bias", None)
    seen = dict.fromkeys(text[:prompt], 0)
    for token in text[prompt:]:
        seen[token] = seen.get(token, 0) + 1
    forbidden = [held if len(text) - prompt + row < least else [] for row in range(len(draft) + 1)]
    return Asked(Rule(**wanted), len(text), draft, seen=seen, bias=bias, forbidden=forbidden)


DECODED: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 0.8, "seed": 4, "top_k": 20, "top_p": 0.9},
    {"repetition_penalty": 1.5},
    {"temperature": 0.7, "seed": 5, "presence_penalty": 1.5, "frequency_penalty": 0.8},
    {"temperature": 1.0, "seed": 6, "min_tokens": 30, "held_back": [1, 2, 3]},
    {"bias": {7: 3.0, 8: -5.0}},
]


@pytest.mark.parametrize("wanted", DECODED, ids=str)
def test_under_match_any_draft_gives_the_text_of_naive_decoding(wanted: dict[str, Any]) -> None:
    """Penalties and min_tokens among them: they count per position, not per step."""
    model, chance, prompt = Model(), random.Random(1), [5, 6, 7]
    naive = list(prompt)
    for _ in range(60):
        naive.append(int(answer(model.row(naive)[None], [asked_at(naive, 3, [], wanted)]).tokens[0]))
    text, steps = list(prompt), 0
    while len(text) < len(prompt) + 60:
        ahead = naive[len(text) :][: chance.randrange(7)]
        draft = [token if chance.random() < 0.8 else chance.randrange(V) for token in ahead]
        one = asked_at(text, 3, draft, wanted)
        [(tokens, rows)] = spoken(answer(model.rows(text, draft), [one]), [one])
        assert tokens[:-1] == draft[: len(tokens) - 1] and rows == list(range(len(tokens)))
        text += tokens
        steps += 1
    assert text[:63] == naive
    assert steps < 40


def test_what_a_question_is_answered_does_not_depend_on_its_neighbours() -> None:
    model, chance = Model(), random.Random(2)
    asked, rows = [], []
    for index in range(35):
        text = [chance.randrange(V) for _ in range(5)]
        draft = [chance.randrange(V) for _ in range(chance.randrange(5))]
        draft[:1] = [int(model.row(text).argmax())] if draft else []
        one = asked_at(text, 3, draft, DECODED[index % len(DECODED)])
        asked.append(replace(one, rule=replace(one.rule, strategy=index % 5)))
        rows.append(model.rows(text, draft))
    together = spoken(answer(torch.cat(rows), asked), asked)
    assert together == [spoken(answer(row, [one]), [one])[0] for row, one in zip(rows, asked, strict=True)]
    assert any(len(tokens) > 1 for tokens, _ in together)


def test_an_accepted_token_counts_for_the_penalties_of_the_next_row() -> None:
    rows = torch.zeros(3, V)
    rows[:, 9], rows[:, 4] = 2.0, 1.5
    asked = [Asked(Rule(presence_penalty=1.0), 3, [9, 9], seen={})]
    assert spoken(answer(rows, asked), asked) == [([9, 4], [0, 1])]
    asked = [Asked(Rule(presence_penalty=0.3, frequency_penalty=0.2), 3, [9, 9], seen={9: 1})]
    rows[:, 9] = 2.1
    assert spoken(answer(rows, asked), asked) == [([9, 4], [0, 1])], "2.1 - 0.5 is over 1.5, 2.1 - 0.7 isn't"


def test_ids_held_back_are_free_from_the_row_on_that_no_longer_forbids_them() -> None:
    rows = torch.zeros(4, V)
    rows[:, 2], rows[:, 6] = 5.0, 3.0
    asked = [Asked(Rule(), 9, [6, 6, 6], forbidden=[[2], [2], [], []])]
    assert spoken(answer(rows, asked), asked) == [([6, 6, 2], [0, 1, 2])]


def test_a_wrong_first_token_accepts_nothing_and_gives_the_recovered_one() -> None:
    rows = torch.zeros(3, V)
    rows[0, 8] = rows[1, 9] = 1.0
    asked = [Asked(Rule(), draft=[7, 9])]
    assert spoken(answer(rows, asked), asked) == [([8], [0])]


@pytest.mark.parametrize("strategy", range(5))
@pytest.mark.parametrize("temperature", [0.0, 1e-3])
def test_accept_policies_take_all_and_none(strategy: int, temperature: float) -> None:
    rows = torch.zeros(3, V)
    rows[0, 8] = rows[1, 9] = rows[2, 10] = 1.0
    rule = Rule(temperature=temperature, strategy=strategy)
    everything = [Asked(replace(rule, accept=ALL), draft=[8, 7])]
    nothing = [Asked(replace(rule, accept=NONE), draft=[8, 7])]
    assert spoken(answer(rows, everything), everything) == [([8, 7, 10], [0, 1, 2])]
    assert spoken(answer(rows, nothing), nothing) == [([8], [0])]


def test_nothing_accepted_is_what_naive_decoding_says_under_every_strategy() -> None:
    """So an audit may replay any request's text without drafts."""
    logits = torch.randn(5, V, generator=torch.Generator().manual_seed(4))
    asked = [Asked(Rule(temperature=1.0, seed=6, strategy=s, accept=NONE), 12, [3]) for s in range(5)]
    naive = chosen(logits[0], Rule(temperature=1.0, seed=6), 12)
    rows = torch.stack([logits[0], logits[1]]).repeat(5, 1)
    assert [tokens for tokens, _ in spoken(answer(rows, asked), asked)] == [[naive]] * 5


@pytest.mark.parametrize("accept", [0, ALL, NONE])
@pytest.mark.parametrize("strategy", range(5))
@pytest.mark.parametrize("wrong", [-1, -5, V, 2**31 - 1, -(2**31)])
def test_what_is_no_token_never_stands(strategy: int, wrong: int, accept: int) -> None:
    """Nor is what hangs behind it looked at, with penalties that would count it."""
    rows = torch.zeros(4, V)
    rows[0, 8] = 60.0
    rows[2:] = math.nan
    rule = Rule(temperature=1.0, strategy=strategy, accept=accept, presence_penalty=0.1, verify_window=1)
    asked = [Asked(rule, 3, [8, wrong, 9])]
    [(tokens, found)] = spoken(answer(rows, asked), asked)
    assert (tokens[:-1], found) == (([8], [0, 1]) if accept != NONE else ([], [0]))
    assert 0 <= tokens[-1] < V


def test_seeds_belong_to_their_requests() -> None:
    rows = torch.zeros(6, V)
    tokens = answer(rows, [Asked(Rule(temperature=1.0, seed=seed), 5) for seed in (1, 2, 3, 1, 2, 3)]).tokens.tolist()
    assert tokens[:3] == tokens[3:] and len(set(tokens)) == 3


def test_positions_beyond_32_bits_are_other_positions() -> None:
    flat = torch.zeros(V)
    assert chosen(flat, SAMPLED, 5) != chosen(flat, SAMPLED, 5 + 2**32)


# Log-probabilities --------------------------------------------------------------------------------------


def test_logprobs_are_of_the_raw_logits() -> None:
    own, ids, values = logprobs(TEN[None].repeat(2, 1), torch.tensor([1, 0]), torch.tensor([4, 9]), 3)
    raw = torch.log_softmax(TEN, 0)
    assert own.tolist() == pytest.approx([raw[4].item(), raw[9].item()], abs=1e-5)
    assert ids.tolist() == [[1, 4, 7]] * 2
    assert values[0].tolist() == pytest.approx([raw[1].item(), raw[4].item(), raw[7].item()], abs=1e-5)


def test_equal_logprobs_are_told_by_id() -> None:
    logits = torch.tensor([[0.0, 1.0, 1.0, 0.0, 1.0]])
    _, ids, _ = logprobs(logits, torch.tensor([0]), torch.tensor([0]), 4)
    assert ids.tolist() == [[1, 2, 4, 0]]


def test_match_and_typical_choose_alike_where_nothing_is_drafted() -> None:
    asked = [Asked(Rule(temperature=1.0, seed=s, strategy=k), s) for s in range(20) for k in (MATCH, TYPICAL)]
    tokens = answer(TEN.expand(40, -1), asked).tokens.tolist()
    assert tokens[::2] == tokens[1::2]
