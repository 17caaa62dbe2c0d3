"""What is asked arrives as the arrays say: words, rows, trees, edits, masks, probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from kernels.verify import questions as ask
from kernels.verify.questions import Asked, Rule, gather, mask_of


def test_a_rule_becomes_words_and_floats_keep_their_bits() -> None:
    rule = Rule(
        temperature=0.5, top_k=7, top_p=0.9, min_p=0.1, seed=3, repetition_penalty=1.1, presence_penalty=0.2,
        frequency_penalty=0.3, strategy=ask.BLOCK, accept=ask.ALL, max_candidate_len=4, verify_window=3,
        typical_epsilon=0.1, typical_delta=0.4,
    )  # fmt: skip
    words = rule.words(position=9)
    assert (words.dtype, words.shape) == (np.int32, (ask.WORDS,))
    found = words.view(ask.RULE)[0]
    whole = {"strategy": ask.BLOCK, "accept": ask.ALL, "top_k": 7, "seed": 3, "position": 9, "candidates": 4}
    whole["window"] = 3
    assert {field: int(found[field]) for field in whole} == whole
    real = {"inverse": 2.0, "top_p": 0.9, "floor": math.log(0.1), "repetition": 1.1, "presence": 0.2, "frequency": 0.3}
    real |= {"epsilon": math.log(0.1), "delta": math.log(0.4)}
    assert {field: float(found[field]) for field in real} == {field: float(np.float32(x)) for field, x in real.items()}


@pytest.mark.parametrize(
    ("seed", "position"), [(0, 0), (1 << 31, 1 << 31), (-1, 5), (2**64 - 1, 2**40 + 3), (1 << 63, 2**32 - 1)]
)
def test_seeds_and_positions_have_64_bits_low_word_first(seed: int, position: int) -> None:
    words = Rule(seed=seed).words(position).view(np.uint32).astype(object)
    for field, value in (("seed", seed % 2**64), ("position", position)):
        low = ask.word_of(field)
        assert words[low] + (words[low + 1] << 32) == value


def test_at_temperature_0_every_strategy_is_match() -> None:
    for strategy in (ask.MATCH, ask.REJECTION, ask.BLOCK, ask.TYPICAL, ask.TOPP):
        rule = Rule(temperature=1e-6, strategy=strategy).words().view(ask.RULE)[0]
        assert rule.strategy == ask.MATCH and rule.inverse == 0.0


def test_what_is_off_has_the_value_that_changes_nothing() -> None:
    rule = Rule(top_k=2**40).words().view(ask.RULE)[0]
    assert rule.top_p == 1.0 and rule.floor == -math.inf and rule.repetition == 1.0
    assert rule.top_k == 2**31 - 1


def test_a_chain_has_a_root_and_a_row_behind_each_drafted_token() -> None:
    asked = [Asked(Rule(), draft=[5, 6]), Asked(Rule()), Asked(Rule(), draft=[7])]
    questions = gather(asked, 10)
    assert questions.begins.tolist() == [0, 3, 4, 6]
    assert questions.drafted.tolist() == [-1, 5, 6, -1, -1, 7]
    assert questions.parents.tolist() == [-1, 0, 1, -1, -1, 4]
    assert (questions.edits, questions.masks, questions.draft_probs) == (None, None, None)


def test_the_parents_of_a_tree_are_rows_of_the_batch() -> None:
    questions = gather([Asked(Rule(), draft=[1]), Asked(Rule(), draft=[5, 6, 7], parents=[0, 0, 2])], 10)
    assert questions.parents.tolist() == [-1, 0, -1, 2, 2, 4]


def test_edits_are_lists_by_sequence_and_what_is_forbidden_by_row() -> None:
    asked = [
        Asked(Rule(), draft=[4], seen={9: 2, 3: 0}, forbidden=[[1, 2], [8]]),
        Asked(Rule(), bias={6: 1.5, 2: -math.inf}),
    ]
    edits = gather(asked, 10).edits
    assert edits is not None
    assert (edits.seen_begins.tolist(), edits.seen_ids.tolist(), edits.seen_counts.tolist()) == (
        [0, 2, 2],
        [3, 9],
        [0, 2],
    )
    assert (edits.bias_begins.tolist(), edits.bias_ids.tolist()) == ([0, 0, 2], [2, 6])
    assert edits.bias_values.tolist() == [-math.inf, 1.5]
    assert (edits.forbidden_begins.tolist(), edits.forbidden_ids.tolist()) == ([0, 2, 3, 3], [1, 2, 8])


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
def test_a_mask_has_a_bit_for_each_id(vocab_size: int) -> None:
    allowed = [i for i in range(vocab_size) if i % 3 == 0 or i == 31]
    bits = mask_of(allowed, vocab_size).view(np.uint32)
    assert len(bits) == (vocab_size + 31) // 32
    assert [i for i in range(len(bits) * 32) if int(bits[i // 32]) >> i % 32 & 1] == allowed


def test_rows_without_a_mask_say_so() -> None:
    masks = gather([Asked(Rule(), draft=[1]), Asked(Rule(), draft=[1], allowed=[3])], 40).masks
    assert masks is not None
    assert (masks.of_row.tolist(), masks.bits.tolist()) == ([-1, -1, 0, 0], [[8, 0]])


def test_certain_tokens_and_tokens_with_probabilities_may_stand_in_one_chain() -> None:
    half = torch.full((4,), 0.25)
    asked = [Asked(Rule(), draft=[1, 2], draft_probs=[None, half]), Asked(Rule(), draft=[3])]
    probs = gather(asked, 4).draft_probs
    assert probs is not None
    assert (probs.of_row.tolist(), probs.probs.tolist()) == ([-1, -1, 0, -1, -1], [half.tolist()])
