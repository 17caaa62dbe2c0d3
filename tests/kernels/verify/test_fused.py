"""Verification in Triton against plain torch: the same integers, whatever is asked."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from kernels.launch import launch
from kernels.testing import device, poisoned
from kernels.verify import fused, noise, numbers, reference
from kernels.verify.fused import Launches, Sizes, Workspace
from kernels.verify.fused_numbers import (
    NONE_YET,
    best_with_noise,
    chances,
    exp,
    gumbel,
    ln,
    mass,
    may_reach,
    random_words,
    uniform,
)
from kernels.verify.on_device import needs_of
from kernels.verify.questions import REJECTION, Answers, Asked, Questions, Rule, gather
from tests.kernels.verify.cases import Case, batch

# The interpreter tells of infinities and of products that wrap.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

Told = tuple[int, int, list[int], list[int]]


def told(answers: Answers, questions: Questions) -> list[Told]:
    """By sequence: failed, accepted, tokens, rows (from the sequence's first)."""
    all_told: list[Told] = []
    for b, begin in enumerate(questions.begins.tolist()[:-1]):
        count = int(answers.accepted[b]) + 1
        tokens, rows = (part[begin : begin + count].tolist() for part in (answers.tokens, answers.rows))
        if answers.failed[b]:
            all_told.append((1, int(answers.accepted[b]), [], []))
        else:
            all_told.append((0, int(answers.accepted[b]), tokens, [row - begin for row in rows]))
    return all_told


def moved(questions: object) -> object:
    """The same arrays where the kernels run."""
    if isinstance(questions, torch.Tensor):
        return questions.to(device())
    if not dataclasses.is_dataclass(questions):
        return questions
    fields = {each.name: moved(getattr(questions, each.name)) for each in dataclasses.fields(questions)}
    return type(questions)(**fields)


def poison(work: Workspace) -> Workspace:
    answers = work.answers
    for tensor in (*work.memory, answers.tokens, answers.rows, answers.accepted, answers.failed):
        tensor.copy_(poisoned(*tensor.shape, dtype=tensor.dtype))
    return work


def ask(
    logits: torch.Tensor, questions: Questions, work: Workspace | None = None, needs: Launches = fused.EVERYTHING
) -> list[Told]:
    """What the kernels say, with a workspace full of rubbish; and they leave the logits as they were."""
    there = logits.to(device(), copy=True)
    asked = moved(questions)
    work = work or fused.workspace_for(there, asked)
    answers = fused.verify(there, asked, poison(work), needs)
    before = logits.contiguous().view(torch.uint8)
    assert torch.equal(there.cpu().contiguous().view(torch.uint8), before), "the logits have changed"
    return told(answers, questions)


def assert_parity(case: Case) -> None:
    expected = told(reference.verify(case.logits, case.questions), case.questions)
    for got, wanted, asked in zip(ask(case.logits, case.questions), expected, case.asked, strict=True):
        assert got == wanted, (case, asked)


# Parity -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(1000, 1003))
def test_a_mixed_batch_gets_the_answers_of_plain_torch(seed: int) -> None:
    assert_parity(batch(seed, sequences=3, vocabularies=(33, 100, 257), longest=3))


# 400 batches of 5 sequences.
@pytest.mark.slow
@pytest.mark.parametrize("begin", range(0, 400, 20))
def test_two_thousand_mixed_sequences_get_the_answers_of_plain_torch(begin: int) -> None:
    for seed in range(begin, begin + 20):
        assert_parity(batch(seed))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", range(5))
def test_a_strategy_gets_the_answers_of_plain_torch_for_sampled_drafts(strategy: int) -> None:
    """Nothing is broken here and temperatures are usual, so that drafts are long and mostly stand."""
    for seed in range(20):
        fixed = {"strategy": strategy, "accept": 0, "temperature": (0.3, 0.7, 1.0, 1.5)[seed % 4]}
        assert_parity(batch(5000 + seed, vocabularies=(100, 1000), broken=0.0, **fixed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(9000, 9004))
def test_vocabularies_of_real_models_get_the_answers_of_plain_torch(seed: int) -> None:
    assert_parity(batch(seed, sequences=3, vocabularies=(50257, 128256, 152064, 262144), longest=2))


@pytest.mark.parametrize("count", [2, pytest.param(64, marks=pytest.mark.slow)])
def test_drafts_of_any_length_share_a_launch(count: int) -> None:
    """A long chain that stands, one that doesn't, a bush and an empty draft."""
    draft = [(7 * i) % 50 for i in range(count)]
    parents = [max(0, i - 2) for i in range(count)]
    logits = torch.randn(3 * (count + 1) + 1, 50, generator=torch.Generator().manual_seed(count))
    for i, token in enumerate(draft):
        logits[i, token] = 50.0
        logits[2 * (count + 1) + parents[i], token] = 40.0
    asked = [
        Asked(Rule(), draft=draft),
        Asked(Rule(temperature=1.0, seed=3, strategy=REJECTION), draft=draft),
        Asked(Rule(temperature=1.0, seed=4), draft=draft, parents=parents),
        Asked(Rule(temperature=1.0, seed=5), draft=[]),
    ]
    questions = gather(asked, 50)
    expected = told(reference.verify(logits, questions), questions)
    assert ask(logits, questions) == expected
    assert expected[0][1] == count


def test_ids_that_are_edited_by_several_lists_are_edited_in_order_and_once() -> None:
    """Seen, drafted twice, biased and forbidden; what isn't penalised keeps its biases."""
    everywhere = {"seen": {1: 0, 2: 3, 9: 1}, "bias": {1: 0.5, 2: -1.0, 5: 30.0, 7: 2.0}}
    forbidden = [[5], [2, 5], [], [0]]
    penalised = Rule(repetition_penalty=1.3, presence_penalty=0.7, frequency_penalty=0.2)
    asked = [
        Asked(penalised, draft=[2, 2, 5], forbidden=forbidden, **everywhere),
        Asked(dataclasses.replace(penalised, temperature=1.0, seed=8), draft=[7, 7, 7], **everywhere),
        Asked(Rule(), draft=[5, 5, 5], forbidden=forbidden, **everywhere),
    ]
    logits = torch.randn(12, 12, generator=torch.Generator().manual_seed(1)).bfloat16()
    questions = gather(asked, 12)
    assert ask(logits, questions) == told(reference.verify(logits, questions), questions)


def test_long_lists_of_edits_take_several_rounds() -> None:
    seen = {token: token % 3 for token in range(0, 900, 3)}
    bias = {token: 0.01 * (token % 7) for token in range(0, 900, 4)}
    rule = Rule(temperature=0.8, seed=1, top_k=40, top_p=0.9, repetition_penalty=1.2, frequency_penalty=0.1)
    asked = [Asked(rule, draft=[3], seen=seen, bias=bias, forbidden=[list(range(150)), [7]])]
    logits = torch.randn(2, 1000, generator=torch.Generator().manual_seed(2)) * 2
    questions = gather(asked, 1000)
    assert ask(logits, questions) == told(reference.verify(logits, questions), questions)


def test_bits_of_an_edited_score_come_back_even_if_it_is_no_number() -> None:
    logits = torch.zeros(2, 20, dtype=torch.bfloat16)
    logits.view(torch.int16)[0, 3] = 0x7FA5
    logits[0, 4] = -0.0
    questions = gather([Asked(Rule(), bias={3: 1.0, 4: 2.0}), Asked(Rule(), forbidden=[[0]])], 20)
    assert ask(logits, questions) == [(1, 0, [], []), (0, 0, [1], [0])]


# A sequence is on its own -----------------------------------------------------------------------------------


def test_an_answer_does_not_depend_on_the_neighbours() -> None:
    case = batch(77, sequences=3, vocabularies=(257,), longest=2)
    together = ask(case.logits, case.questions)
    begins = case.questions.begins.tolist()
    for b, one in enumerate(case.asked):
        alone = gather([one], 257)
        assert ask(case.logits[begins[b] : begins[b + 1]], alone) == [together[b]]


def test_no_number_depends_on_how_many_programs_share_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    case = batch(78, sequences=2, vocabularies=(4095,), longest=1)
    expected = told(reference.verify(case.logits, case.questions), case.questions)
    for programs in (1, 4):
        monkeypatch.setattr(fused, "PROGRAMS", programs)
        assert ask(case.logits, case.questions) == expected


def test_a_graph_made_for_a_larger_batch_serves_a_smaller_one() -> None:
    """Sequences without rows, and rows that are nobody's."""
    case = batch(79, sequences=2, vocabularies=(100,), longest=2)
    expected = told(reference.verify(case.logits, case.questions), case.questions)
    q = case.questions
    rows = q.drafted.shape[0]
    wider = torch.cat([case.logits, torch.full((5, 100), float("nan"), dtype=case.logits.dtype)])
    stretched = gather([*case.asked, Asked(Rule()), Asked(Rule())], 100)
    stretched.begins[-2:] = rows
    if stretched.edits is not None:
        stretched.edits.forbidden_begins[rows:] = stretched.edits.forbidden_begins[rows]
    padding = torch.full((3,), 2**31 - 1, dtype=torch.int32)
    stretched.drafted = torch.cat([stretched.drafted, padding])
    stretched.parents = torch.cat([stretched.parents, padding])
    got = ask(wider, stretched)
    assert got[:2] == expected
    assert [(failed, accepted) for failed, accepted, _, _ in got[2:]] == [(0, 0), (0, 0)]


def test_edited_scores_that_do_not_fit_refuse_their_sequence_alone() -> None:
    asked = [Asked(Rule(), bias={1: 2.0, 2: 1.0}), Asked(Rule(), bias={3: 1.0, 4: 0.5}), Asked(Rule())]
    logits = torch.zeros(3, 10)
    work = Workspace(Sizes(3, 3, 3, torch.float32, device()))
    assert ask(logits, gather(asked, 10), work) == [(0, 0, [1], [0]), (1, 0, [], []), (0, 0, [0], [0])]


# Launches ---------------------------------------------------------------------------------------------------


def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels started from now on."""
    names: list[str] = []
    start = fused._start

    def noted(kernel: object, grid: tuple[int, ...], *args: object, **constants: object) -> None:
        names.append(kernel.fn.__name__)
        start(kernel, grid, *args, **constants)

    monkeypatch.setattr(fused, "_start", noted)
    return names


def test_only_what_a_batch_needs_is_launched(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = torch.randn(6, 64, generator=torch.Generator().manual_seed(5))
    asked = [Asked(Rule(), draft=[1, 2]), Asked(Rule(temperature=1.0, seed=4), draft=[1, 2])]
    questions = gather(asked, 64)
    expected = told(reference.verify(logits, questions), questions)
    names = launches(monkeypatch)
    assert ask(logits, questions, needs=Launches(penalties=False, filters=False, judged=False)) == expected
    assert names == ["prepare_kernel", "scan_kernel", "settle_kernel", "walk_kernel"]
    names.clear()
    greedy = gather([Asked(Rule(), draft=[1, 2]), Asked(Rule(strategy=REJECTION), draft=[1, 2])], 64)
    expected_then = told(reference.verify(logits, greedy), greedy)
    assert ask(logits, greedy, needs=Launches(penalties=False, sampled=False)) == expected_then
    assert names == ["prepare_kernel", "scan_kernel", "settle_kernel", "walk_kernel"]
    names.clear()
    filtered = gather([Asked(Rule(temperature=1.0, seed=4, top_k=9, top_p=0.9), draft=[1, 2])], 64)
    expected_then = told(reference.verify(logits, filtered), filtered)
    needs = needs_of(filtered)
    assert needs_of(gather([Asked(Rule(temperature=1.0, top_p=0.9))], 64)).long and not needs.long
    assert ask(logits, filtered, needs=needs) == expected_then
    assert names == [
        "prepare_kernel", "scan_kernel", "collect_kernel", "settle_kernel", "measure_kernel", "walk_kernel",
    ]  # fmt: skip
    names.clear()
    assert ask(logits, questions) == expected
    assert names == [
        "prepare_kernel", "edit_kernel", "scan_kernel", "collect_kernel", *["narrow_kernel"] * (fused.STEPS - 1),
        "settle_kernel", "measure_kernel", "walk_kernel", "pick_kernel", "finish_kernel", "put_back_kernel",
    ]  # fmt: skip


def test_nothing_on_the_host_asks_for_data_or_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a graph could not replay it: with a workspace, all that torch does is to take parts of tensors."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):
        def __torch_dispatch__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None):
            seen.add(str(func))
            return func(*args, **(kwargs or {}))

    seen: set[str] = set()
    case = batch(81, sequences=6)
    logits, questions = case.logits.to(device()), moved(case.questions)
    work = fused.workspace_for(logits, questions)
    monkeypatch.setattr(fused, "_start", lambda *args, **constants: None)
    with Noting():
        fused.verify(logits, questions, work)
    assert seen <= {"aten.slice.Tensor"}


@pytest.mark.parametrize("multiprocessors", [108, 132, 148])
def test_the_workspace_is_small_beside_the_logits(monkeypatch: pytest.MonkeyPatch, multiprocessors: int) -> None:
    """Of a row of 128 256 in bfloat16, a tenth."""
    monkeypatch.setattr(fused, "multiprocessors", lambda _: multiprocessors)
    for rows, sequences in ((256 * 9, 256), (64 * 5, 64), (1, 1)):
        work = Workspace(Sizes(rows, sequences, 0, torch.bfloat16, torch.device("cpu")))
        assert work.bytes <= (1 << 20) + rows * 128256 * 2 // 10


# Numbers ----------------------------------------------------------------------------------------------------


@triton.jit
def numbers_kernel(
    below, positive, ids, rule, exps, masses, lns, noises, reached, words, chance, best, BLOCK: tl.constexpr
):
    at = tl.arange(0, BLOCK)
    x = tl.load(below + at)
    tl.store(exps + at, exp(tl.maximum(x, -28.0)))
    tl.store(masses + at, mass(x))
    tl.store(lns + at, ln(tl.load(positive + at)))
    k0, k1, k2 = random_words(rule, tl.program_id(0) + 3, tl.program_id(0))
    w = chances(tl.load(ids + at), k0, k1, k2)
    noise = gumbel(w)
    tl.store(noises + at, noise)
    tl.store(reached + at, (may_reach(x, w, best) | (x + noise < best)).to(tl.int32))
    tl.store(words, k0.to(tl.int64))
    tl.store(words + 1, k1.to(tl.int64))
    tl.store(words + 2, k2.to(tl.int64))
    tl.store(chance, uniform(rule, tl.program_id(0) + 7))


def test_numbers_and_noise_have_the_bits_of_plain_torch() -> None:
    size = 4096
    generator = torch.Generator().manual_seed(0)
    below = -torch.rand(size, generator=generator) * 30
    below[:4] = torch.tensor([0.0, -0.0, -28.0, -float("inf")])
    positive = torch.exp(torch.randn(size, generator=generator) * 20)
    positive[:2] = torch.tensor([1.0, 2.0**60])
    ids = torch.randint(0, 2**18, (size,), generator=generator, dtype=torch.int32)
    for seed, position in ((0, 0), (2**64 - 5, 2**32 - 2), (12345, 2**40 + 7)):
        rule = torch.from_numpy(Rule(seed=seed).words(position))
        exps, lns, noises = (poisoned(size, dtype=torch.float32) for _ in range(3))
        masses, words = poisoned(size, dtype=torch.int64), poisoned(3, dtype=torch.int64)
        reached, chance = poisoned(size, dtype=torch.int32), poisoned(1, dtype=torch.float64)
        given = [each.to(device()) for each in (below, positive, ids, rule)]
        for best in (2.0, -25.0, 8.0):
            launch(numbers_kernel, (1,), *given, exps, masses, lns, noises, reached, words, chance, best,
                   BLOCK=size, fp_fusion=False)  # fmt: skip
            assert bool((reached == 1).all()), "a noise that reaches the best was passed over"
        assert torch.equal(exps.cpu(), numbers.exp(below.clamp(min=-28.0)))
        assert torch.equal(masses.cpu(), numbers.mass(below))
        assert torch.equal(lns.cpu(), numbers.ln(positive))
        assert tuple(words.tolist()) == noise.row_key(seed, position + 3)
        assert torch.equal(noises.cpu(), noise.gumbel(seed, position + 3, ids.long()))
        assert chance.item() == noise.uniform(seed, position, 7)


@triton.jit
def noisy_kernel(logits, rule, own, own_at, reached, BLOCK: tl.constexpr, TOGETHER: tl.constexpr):
    ids = tl.arange(0, BLOCK)
    k0, k1, k2 = random_words(rule, tl.program_id(0), tl.program_id(0))
    best, at = best_with_noise(
        tl.load(logits + ids), ids, k0, k1, k2, tl.full([], float("-inf"), tl.float32),
        tl.full([], NONE_YET, tl.int32), reached, TOGETHER,
    )  # fmt: skip
    tl.store(own, best)
    tl.store(own_at, at)


@pytest.mark.parametrize("together", [4, 8])
@pytest.mark.parametrize("scale", [0.0, 1.0, 3.0, 1e20])
def test_noise_that_is_passed_over_could_not_have_won(scale: float, together: int) -> None:
    """Whatever score of the row is known before, up to the best one itself."""
    size, rule = 512, Rule(seed=7, temperature=1.0)
    z = (torch.randn(size, generator=torch.Generator().manual_seed(1)) * scale).float()
    z[::7] = -torch.inf
    if scale:
        z[100:164] = z.max()
    scores = z + noise.gumbel(7, 0, torch.arange(size))
    best = scores.max()
    words = torch.from_numpy(rule.words(0)).to(device())
    for reached in (-torch.inf, best - 5.0, best - best.abs() * 2.0**-22, best):
        own, at = poisoned(1, dtype=torch.float32), poisoned(1, dtype=torch.int32)
        launch(noisy_kernel, (1,), z.to(device()), words, own, at, float(reached), BLOCK=size, TOGETHER=together,
               fp_fusion=False)  # fmt: skip
        assert (own.item(), at.item()) == (best.item(), int((scores == best).nonzero()[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_the_models_own(dtype: torch.dtype) -> None:
    logits = torch.randn(4, 2500, generator=torch.Generator().manual_seed(3)).to(dtype) * 3
    logits[1] = logits[1].round()
    logits[2] = float("-inf")
    logits[2, 1500] = 2.0
    rows = torch.tensor([3, 0, 1, 2, 1], dtype=torch.int32)
    tokens = torch.tensor([0, 2499, 17, 1500, 1024], dtype=torch.int32)
    own, ids, values = fused.logprobs(logits.to(device()), rows.to(device()), tokens.to(device()), 20)
    expected = reference.logprobs(logits, rows, tokens, 20)
    torch.testing.assert_close(own.cpu(), expected[0], rtol=2e-6, atol=2e-5)
    assert torch.equal(ids.cpu(), expected[1])
    torch.testing.assert_close(values.cpu(), expected[2], rtol=2e-6, atol=2e-5)


def test_logprobs_of_nothing_are_nothing() -> None:
    none = torch.zeros(0, dtype=torch.int32, device=device())
    own, ids, values = fused.logprobs(torch.zeros(2, 10, device=device()), none, none, 3)
    assert (own.shape, ids.shape, values.shape) == ((0,), (0, 3), (0, 3))
