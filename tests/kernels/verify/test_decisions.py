"""strategies.py from values: the facts of rows in, a verdict out. No logits, no noise.

The rows here also see to what the compiled loops rely on: a row is asked only until another one is looked at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from kernels.verify.questions import ALL, BLOCK, MATCH, NONE, REJECTION, RULE, TOPP, TYPICAL, Rule
from kernels.verify.strategies import FAILED, judge

# What is sampled, in place of a token: how it was asked for.
Sampled = tuple[Any, ...]


@dataclass
class Row:
    """Probabilities in percent; `below` is their logarithm less that of the highest."""

    percent: dict[int, int] = field(default_factory=dict)
    own: int = 0
    valid: bool = True
    total: int = 100
    entropy: float = 0.0
    sequence: Any = None

    def asked(self) -> dict[int, int]:
        assert self.valid and self.sequence.at_hand is self, "not the row that was looked at last"
        return self.percent

    def mass(self, token: int) -> int:
        return self.asked().get(token, 0)

    def rank(self, token: int) -> int:
        percent = self.asked()
        return sum(each > percent.get(token, 0) for each in percent.values())

    def below(self, token: int) -> float:
        percent = self.asked()
        return math.log(percent[token] / max(percent.values())) if percent.get(token) else -math.inf

    def allows(self, token: int) -> bool:
        return self.asked().get(token, 0) > 0

    def whole(self) -> float:
        return -math.log(max(self.asked().values()) / 100)

    def mean_below(self) -> float:
        return self.whole() - self.entropy


class Told:
    """A sequence whose facts are these. Its first row is row 10 of the batch."""

    def __init__(
        self, rule: Rule, draft: list[int], rows: list[Row], chances: list[float] | None = None,
        parents: list[int] | None = None, probs: dict[int, float] | None = None, rests: dict[int, float] | None = None,
    ) -> None:  # fmt: skip
        self.rule = rule.words().view(RULE)[0]
        self.begin, self.end, self.vocabulary = 10, 11 + len(draft), 50
        self.drafted = {10: -1} | {11 + i: token for i, token in enumerate(draft)}
        self.parents = {10: -1} | {11 + i: 10 + parent for i, parent in enumerate(parents or range(len(draft)))}
        self.notes = [99] * (len(draft) + 1)
        self.at_hand: Row | None = None
        self._rows, self._chances, self._probs, self._rests = rows, chances or [], probs or {}, rests or {}
        for row in rows:
            row.sequence = self

    def look(self, row: int, masses: bool) -> Row:
        self.at_hand = self._rows[row - 10]
        return self.at_hand

    def own(self, row: int) -> int:
        found = self.look(row, False)
        return found.own if found.valid else -1

    def own_without(self, facts: Row, count: int) -> Sampled:
        assert facts is self.at_hand
        return "without", *self.notes[:count]

    def uniform(self, row: int) -> float:
        return self._chances[row - 11]

    def is_certain(self, row: int) -> bool:
        return row - 10 not in self._probs

    def draft_prob(self, row: int) -> float:
        return self._probs.get(row - 10, 1.0)

    def rest(self, facts: Row, row: int, joint: float) -> float:
        assert facts is self.at_hand
        return self._rests[row - 10] * joint

    def residual(self, facts: Row, row: int, weight: float) -> Sampled:
        assert facts is self.at_hand
        return "residual", row - 10, weight


def verdict(*given: Any, **more: Any) -> tuple[int, Any]:
    last, token = judge(Told(*given, **more))
    return (last - 10 if last >= 0 else last), token


def sampled(strategy: int, **more: Any) -> Rule:
    return Rule(**{"temperature": 1.0, "strategy": strategy} | more)


INVALID = Row(valid=False)


# Policies and match ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [Rule(), sampled(MATCH), Rule(strategy=TYPICAL)])
def test_match_accepts_what_each_row_chooses(rule: Rule) -> None:
    rows = [Row(own=5), Row(own=6), Row(own=9), Row(own=1)]
    assert verdict(rule, [5, 6, 7], rows) == (2, 9)
    assert verdict(rule, [5, 6, 9], rows) == (3, 1)
    assert verdict(rule, [6, 5], rows[:3], parents=[0, 0]) == (2, 9)


def test_a_greedy_rule_is_match_whatever_its_strategy_says() -> None:
    told = Told(sampled(REJECTION), [5], [Row(own=5), Row(own=9)])
    told.rule.inverse = 0.0
    assert judge(told) == (11, 9)


def test_policies_ask_no_strategy_and_skip_what_is_no_token() -> None:
    rows = [Row(own=each) for each in (1, 2, 3, 4)]
    assert verdict(sampled(REJECTION, accept=ALL), [7, 8, 9], rows) == (3, 4)
    assert verdict(sampled(REJECTION, accept=ALL), [50, 8, 9], rows, parents=[0, 0, 2]) == (3, 4)
    assert verdict(sampled(REJECTION, accept=NONE), [1, 2, 3], rows) == (0, 1)


@pytest.mark.parametrize("strategy", [MATCH, REJECTION])
def test_an_invalid_row_fails_if_the_walk_reaches_it_and_only_then(strategy: int) -> None:
    rows = [Row({5: 60}, own=5), INVALID]
    assert verdict(sampled(strategy), [5], rows, [0.5]) == (FAILED, FAILED)
    reached, _ = verdict(sampled(strategy), [4], rows, [0.5])
    assert reached == 0


# Rejection ---------------------------------------------------------------------------------------------------


def test_a_certain_token_is_accepted_below_its_probability_and_not_at_it() -> None:
    rows = [Row({5: 25}), Row(own=9)]
    assert verdict(sampled(REJECTION), [5], rows, [0.2499]) == (1, ("without",))
    assert verdict(sampled(REJECTION), [5], rows, [0.25]) == (0, ("without", 5))


def test_a_token_with_a_probability_is_accepted_below_the_ratio_or_gives_way_to_the_residual() -> None:
    rows = [Row({5: 25}), Row(own=9)]
    assert verdict(sampled(REJECTION), [5], rows, [0.4999], probs={1: 0.5}) == (1, ("without",))
    assert verdict(sampled(REJECTION), [5], rows, [0.5], probs={1: 0.5}) == (0, ("residual", 1, 1.0))


def test_siblings_are_verified_against_what_the_rejected_ones_left() -> None:
    rows = [Row({5: 20, 6: 40}), Row(), Row(own=9), Row(own=8)]
    draft, parents = [5, 6], [0, 0]
    # 40 of the 80 that are left.
    assert verdict(sampled(REJECTION), draft, rows, [0.3, 0.4999], parents) == (2, ("without",))
    assert verdict(sampled(REJECTION), draft, rows, [0.3, 0.5], parents) == (0, ("without", 5, 6))
    # A second 5 has no mass of its own.
    assert verdict(sampled(REJECTION), [5, 5], rows, [0.3, 0.0], parents) == (0, ("without", 5, 5))


# Block -------------------------------------------------------------------------------------------------------


def test_block_accepts_the_longest_beginning_that_its_numbers_allow() -> None:
    rows = [Row({5: 50}), Row({6: 50}), Row({7: 40}), Row(own=9)]
    # joint: 0.5, 0.25, 0.1; rest(1) = 0.5 * 0.5, rest(2) = 0.25 * 0.6; h: 0.25 / 0.75, 0.15 / 0.9, 0.1
    for chances, expected in (
        ([0.3, 0.1, 0.0999], (3, 9)),
        ([0.3, 0.1666, 0.1], (2, ("without", 7))),
        ([0.333, 0.167, 0.1], (1, ("without", 6))),
        ([0.334, 0.167, 0.1], (0, ("without", 5))),
    ):
        assert verdict(sampled(BLOCK), [5, 6, 7], rows, chances) == expected


def test_what_follows_a_block_is_weighted_by_the_joint_probability_of_its_end() -> None:
    rows = [Row({5: 20}), Row({6: 40}), Row(own=9)]
    # joint: min(1, 0.2 / 0.5), then 0.4 * 0.4 / 0.8; rest(1) = 0.25 * 0.4, h(1) = 0.1 / 0.7
    told = {"probs": {1: 0.5, 2: 0.8}, "rests": {2: 0.25}}
    assert verdict(sampled(BLOCK), [5, 6], rows, [0.9, 0.1999], **told) == (2, 9)
    last, (how, row, weight) = verdict(sampled(BLOCK), [5, 6], rows, [0.142, 0.2001], **told)
    assert (last, how, row, weight) == (1, "residual", 2, pytest.approx(0.4))
    assert verdict(sampled(BLOCK), [5, 6], rows, [0.144, 0.2001], **told) == (0, ("residual", 1, 1.0))


def test_a_block_is_never_likelier_than_certain_and_ends_where_nothing_is_left() -> None:
    rows = [Row({5: 90}), Row({6: 0}), Row(own=9)]
    # joint: 1, then 0: of the second token nothing stands, and all of the first.
    told = {"probs": {1: 0.1, 2: 0.5}, "rests": {2: 0.5}}
    assert verdict(sampled(BLOCK), [5, 6], rows, [0.9999, 0.0], **told) == (1, ("residual", 2, 1.0))
    # Without a rest the row before isn't accepted by itself.
    told["rests"] = {2: 0.0}
    assert verdict(sampled(BLOCK), [5, 6], rows, [0.0, 0.0], **told) == (0, ("residual", 1, 1.0))


def test_a_draft_probability_of_0_is_no_reason_to_reject_but_one_of_the_target_is() -> None:
    for percent, expected in ((1, (1, 9)), (0, (0, ("residual", 1, 1.0)))):
        rows = [Row({5: percent}), Row(own=9)]
        assert verdict(sampled(BLOCK), [5], rows, [0.0], probs={1: 0.0}) == expected


@pytest.mark.parametrize(("draft", "row"), [([5, 50], Row(own=9)), ([5, 6], INVALID)])
def test_a_block_ends_before_what_is_no_token_and_before_an_invalid_row(draft: list[int], row: Row) -> None:
    rows = [Row({5: 50}), Row({6: 50}, own=7), row]
    assert verdict(sampled(BLOCK), draft, rows, [0.4999, 0.0]) == (1, 7)
    assert verdict(sampled(BLOCK), draft, [INVALID, *rows[1:]], [0.0, 0.0]) == (FAILED, FAILED)


def test_a_tree_is_verified_by_rejection() -> None:
    rows = [Row({5: 20, 6: 40}), Row(), Row()]
    assert verdict(sampled(BLOCK), [5, 6], rows, [0.3, 0.4999], [0, 0]) == (2, ("without",))


# Typical and topp --------------------------------------------------------------------------------------------


def test_typical_accepts_above_the_smaller_threshold() -> None:
    rule = sampled(TYPICAL, typical_epsilon=0.1, typical_delta=0.5)
    sharp, flat = Row({4: 80, 5: 11, 6: 9}), Row({4: 50, 5: 3, 6: 2}, entropy=3.0)
    assert [verdict(rule, [token], [sharp, Row(own=9)])[0] for token in (4, 5, 6)] == [1, 1, 0]
    # 0.5 * exp(-3) = 0.0249
    assert [verdict(rule, [token], [flat, Row(own=9)])[0] for token in (4, 5, 6)] == [1, 1, 0]


def test_topp_accepts_the_most_probable_few_that_are_allowed() -> None:
    rule = sampled(TOPP, max_candidate_len=2, verify_window=0)
    row = Row({4: 50, 5: 30, 6: 20})
    assert [verdict(rule, [token], [row, Row(own=9)])[0] for token in (4, 5, 6)] == [1, 1, 0]
    assert verdict(sampled(TOPP, max_candidate_len=9), [7], [row, Row()])[0] == 0


def test_of_a_tree_the_deepest_member_is_the_end_and_the_first_of_equals() -> None:
    rule, good = sampled(TOPP, max_candidate_len=1), {4: 50}
    rows = [Row(good), Row(good), Row({5: 1}, own=1), Row(good, own=2), Row(own=3)]
    # 4 and 4 at the root; a 4 behind each.
    assert verdict(rule, [4, 4, 4, 4], [rows[0], rows[1], rows[1], rows[3], rows[4]], parents=[0, 0, 1, 2]) == (3, 2)
    # An invalid row has no members, nor is it the end of a path.
    assert verdict(rule, [4, 4], [rows[0], INVALID, rows[3]]) == (0, 0)


def test_a_window_of_most_probable_tokens_makes_good_for_a_second_most_probable_one() -> None:
    rule = sampled(TOPP, max_candidate_len=1, verify_window=2)
    row, end = Row({4: 50, 5: 30, 6: 20}), Row(own=9)
    assert verdict(rule, [4, 5, 4, 4], [row, row, row, row, end]) == (4, 9)
    # The third most probable; a window cut short; a token in it that isn't the most probable; invalid rows.
    assert verdict(rule, [4, 6, 4, 4], [row, row, row, row, end])[0] == 1
    assert verdict(rule, [4, 5, 4], [row, row, row, end])[0] == 1
    assert verdict(rule, [4, 5, 5, 4], [row, row, row, row, end])[0] == 1
    assert verdict(rule, [4, 5, 4, 4], [row, row, row, row, INVALID])[0] == 1
    assert verdict(rule, [4, 5, 4, 4], [row, row, row, INVALID, end])[0] == 1
    # A row with only one possible id has no second.
    assert verdict(rule, [5, 4, 4], [Row({4: 100}), row, row, end])[0] == 0
