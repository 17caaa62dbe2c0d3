"""The ids inside of top_k and top_p in Triton against plain torch, by every way the search for the last one can end."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from kernels.testing import device, poisoned
from kernels.verify import fused, reference
from kernels.verify.fused import Launches, Workspace
from kernels.verify.fused_numbers import BAR_ID, BAR_KEY, FOUND, FOUND_LATER, MEASURED
from kernels.verify.fused_rows import CAPACITY, SHORT
from kernels.verify.questions import MATCH, REJECTION, TYPICAL, Asked, Questions, Rule, gather
from tests.kernels.verify.test_fused import ask, moved, told

pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

# More than are collected for a row.
VOCABULARY = CAPACITY.value + 700
ROWS = {
    "normal": lambda normal: normal * 3,
    "flat": lambda normal: normal * 0.1,
    "equal": lambda normal: normal * 0,
    "steps": lambda normal: (normal * 2).round(),
    "equal on top": lambda normal: normal.clamp(max=0.5),
    "dominant": lambda normal: torch.where(normal == normal.max(), 30.0, normal),
    "rising by id": lambda normal: normal.sort().values * 2,
    "few that can be": lambda normal: torch.where(torch.arange(len(normal)) % 700 == 3, normal, -torch.inf),
    "half that can be": lambda normal: torch.where(torch.arange(len(normal)) % 2 == 1, normal, -torch.inf),
    "huge": lambda normal: normal * 3e37,
}  # fmt: skip
LIMITS = (
    (1, 1.0), (2, 1.0), (50, 1.0), (VOCABULARY // 2, 1.0), (VOCABULARY - 1, 1.0), (VOCABULARY, 1.0),
    (0, 0.0), (0, 1e-6), (0, 0.5), (0, 0.95), (0, 0.999999),
    (1, 0.5), (20, 1e-6), (50, 0.95), (50, 0.999999), (VOCABULARY // 2, 0.5), (VOCABULARY - 1, 0.95), (10**9, 0.9),
)  # fmt: skip


def row(kind: str, dtype: torch.dtype = torch.float32, size: int = VOCABULARY) -> torch.Tensor:
    normal = torch.randn(size, generator=torch.Generator().manual_seed(len(kind)))
    return ROWS[kind](normal).to(dtype)


def looked_at(logits: torch.Tensor, questions: Questions, needs: Launches = fused.EVERYTHING) -> torch.Tensor:
    """What is kept of each row afterwards, from a workspace full of rubbish."""
    there, asked = logits.to(device(), copy=True), moved(questions)
    work: Workspace = fused.workspace_for(there, asked)
    for tensor in work.memory:
        tensor.copy_(poisoned(*tensor.shape, dtype=tensor.dtype))
    fused.verify(there, asked, work, needs)
    return work.table.cpu()


def assert_the_same_ids_are_inside(
    logits: torch.Tensor, asked: Sequence[Asked], needs: Launches = fused.EVERYTHING
) -> torch.Tensor:
    questions = gather(asked, logits.shape[1])
    table = looked_at(logits, questions, needs)
    for index, one in enumerate(asked):
        sequence = reference._Sequence(logits, questions, index)
        for at in range(sequence.begin, sequence.end):
            expected = sequence.look(at, True)
            assert expected.valid
            z = expected.z
            bits = torch.where(z == 0, 0.0, z).view(torch.int32)
            key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
            bar, last = table[at, BAR_KEY.value], table[at, BAR_ID.value]
            inside = (key > bar) | ((key == bar) & (torch.arange(len(z)) <= last))
            inside &= (z - z.max() >= min(float(sequence.rule.floor), 0.0)) & (z > -torch.inf)
            assert torch.equal(inside, expected.allowed), (one.rule, int(inside.sum()), int(expected.allowed.sum()))
    return table


def sampled(top_k: int, top_p: float, **others: object) -> Rule:
    return Rule(temperature=0.8, seed=3, top_k=top_k, top_p=top_p, **others)  # type: ignore[arg-type]


# Ties are in rows of bfloat16; the other tests have float32. The fast tests try every third limit of a kind of rows, by
# turns.
@pytest.mark.parametrize(
    ("dtype", "every"),
    [(torch.bfloat16, 3), *(pytest.param(each, 1, marks=pytest.mark.slow) for each in (torch.bfloat16, torch.float32))],
)
@pytest.mark.parametrize("kind", ROWS)
def test_the_ids_inside_are_those_of_plain_torch(kind: str, dtype: torch.dtype, every: int) -> None:
    limits = LIMITS[list(ROWS).index(kind) % every :: every]
    asked = [Asked(sampled(top_k, top_p)) for top_k, top_p in limits]
    assert_the_same_ids_are_inside(row(kind, dtype).expand(len(asked), -1).contiguous(), asked)


@pytest.mark.parametrize("programs", [1, 24])
def test_the_ids_inside_do_not_depend_on_how_many_programs_share_a_row(
    programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused, "PROGRAMS", programs)
    kinds = ("normal", "flat", "steps")
    asked = [Asked(sampled(top_k, top_p)) for top_k, top_p in ((0, 0.9), (0, 0.6), (40, 0.9)) for _ in kinds]
    assert_the_same_ids_are_inside(torch.stack([row(kind, size=5000) for kind in kinds] * 3), asked)


@pytest.mark.parametrize("steps", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (2, 3))])
def test_who_goes_on_alone_early_finds_the_same(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "STEPS", steps)
    kinds = ("normal", "equal", "equal on top")
    asked = [Asked(sampled(top_k, top_p)) for top_k, top_p in ((0, 0.97), (VOCABULARY - 9, 0.9)) for _ in kinds]
    assert_the_same_ids_are_inside(torch.stack([row(kind) for kind in kinds] * 2), asked)


def test_filters_that_the_launches_were_not_told_of_are_heeded() -> None:
    asked = [Asked(sampled(50, 0.9)), Asked(sampled(0, 0.9)), Asked(sampled(7, 1.0, strategy=REJECTION))]
    needs = Launches(penalties=False, filters=False, judged=False)
    assert_the_same_ids_are_inside(torch.stack([row("normal")] * 3), asked, needs)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1024, 1025])
def test_small_vocabularies_have_as_many_ids_inside(size: int) -> None:
    asked = [Asked(sampled(top_k, top_p)) for top_k, top_p in ((0, 0.5), (2, 1.0), (2, 0.7), (size - 1, 0.9))]
    assert_the_same_ids_are_inside(torch.stack([row("normal", size=size)] * len(asked)), asked)


def test_edits_and_masks_come_before_the_filters() -> None:
    """Edited ids are the likeliest, the last inside and in between, and drafts add some."""
    likely = row("normal").topk(60).indices.tolist()
    bias = {likely[0]: -3.0, likely[49]: 0.25, likely[55]: 9.0, likely[20]: -100.0, 17: 30.0, 18: 30.0}
    seen = {token: 1 + token % 2 for token in likely[5:15]}
    some = [token for token in range(VOCABULARY) if token % 3 or token in likely[:7]]
    asked = [
        Asked(sampled(top_k, top_p, repetition_penalty=1.3), draft=likely[:2], bias=bias, seen=seen, allowed=allowed)
        for top_k, top_p in ((50, 1.0), (50, 0.9), (0, 0.9), (0, 0.9999), (VOCABULARY - 5, 0.99), (1, 1.0))
        for allowed in (None, some)
    ]
    assert_the_same_ids_are_inside(torch.stack([row("normal")] * 3 * len(asked)), asked)


def test_min_p_alone_needs_no_search() -> None:
    asked = [Asked(sampled(0, 1.0, min_p=min_p)) for min_p in (1e-3, 0.5, 1.0)]
    table = assert_the_same_ids_are_inside(torch.stack([row("normal")] * 3), asked)
    assert table[:, FOUND.value].tolist() == [0, 0, 0]


# What it costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "top_k", "top_p", "fits"),
    [
        ("normal", 50, 0.95, lambda found: 50 <= found < 100),
        ("normal", 500, 1.0, lambda found: 500 <= found < 1000),
        # A quarter of 1250 groups, and what else is as likely.
        ("normal", 0, 0.5, lambda found: 312 <= found < 500),
    ],
)
def test_few_ids_are_collected_and_the_row_is_not_read_again(
    kind: str, top_k: int, top_p: float, fits: Callable[[int], bool]
) -> None:
    table = assert_the_same_ids_are_inside(row(kind, size=5000)[None], [Asked(sampled(top_k, top_p))])
    assert fits(int(table[0, FOUND.value]))
    # All later launches return at once; behind a short list, so does the one that would read the row once more.
    assert table[0, FOUND_LATER.value] == -1
    assert table[0, MEASURED.value] == (table[0, FOUND.value] <= SHORT.value)


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("top_p", [0.8, 1.0])
def test_a_list_that_is_just_short_is_put_in_order_at_once(top_p: float, more: int) -> None:
    """And says what the row chooses, and how much weighs what is left of it."""
    count = SHORT.value + more
    logits = torch.full((2, 5000), -30.0)
    # The last inside is among equal ones, which are all in the list.
    some = torch.randn(2, count, generator=torch.Generator().manual_seed(9)).mul(8).round().div(8).clamp(min=-0.5)
    logits[:, 100 : 100 + 8 * count : 8] = some
    some_rules = ((MATCH, 0.0), (MATCH, 0.3), (REJECTION, 0.3), (TYPICAL, 0.0))
    rules = [sampled(SHORT.value - 3, top_p, strategy=strategy, min_p=min_p) for strategy, min_p in some_rules]
    asked = [Asked(rule, draft=[int(logits[0].argmax())]) for rule in rules]
    logits, questions = logits.repeat(len(rules), 1), gather(asked, 5000)
    table = assert_the_same_ids_are_inside(logits, asked)
    assert table[:, FOUND.value].tolist() == [count] * 8 and table[:, MEASURED.value].tolist() == [1 - more] * 8
    assert ask(logits, questions) == told(reference.verify(logits, questions), questions)


@pytest.mark.parametrize(
    ("kind", "top_k", "top_p"),
    # The last inside comes after those collected first; or more are equally likely than there is room for.
    [
        ("flat", 0, 0.9), ("equal", 7, 0.5),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("flat", 2000, 1.0), ("equal", 0, 0.5))),
    ],
)  # fmt: skip
def test_a_flat_row_is_narrowed_until_few_ids_are_left(kind: str, top_k: int, top_p: float) -> None:
    table = assert_the_same_ids_are_inside(row(kind, size=5000)[None], [Asked(sampled(top_k, top_p))])
    assert 0 < table[0, FOUND_LATER.value] <= CAPACITY.value


@pytest.mark.parametrize("more", [0, 1])
def test_a_list_that_is_just_full_is_enough(more: int) -> None:
    """One more and the row is narrowed. All of the likeliest are inside."""
    logits = torch.full((1, 5000), -30.0)
    logits[0, 100 : 100 + CAPACITY.value + more] = 0.0
    table = assert_the_same_ids_are_inside(logits, [Asked(sampled(0, 0.9999))])
    assert table[0, FOUND.value] == CAPACITY.value + more
    assert (table[0, FOUND_LATER.value] == -1) == (more == 0)
