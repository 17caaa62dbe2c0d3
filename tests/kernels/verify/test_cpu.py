"""Compiled loops against reference.py: the same integers, everywhere they are defined."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import numba
import numpy as np
import pytest
import torch
from cases import batch

from kernels import cpu_vectors as v
from kernels.verify import cpu, reference
from kernels.verify import cpu_lanes as lanes
from kernels.verify.noise import gumbel
from kernels.verify.questions import (
    ALL,
    BLOCK,
    MATCH,
    REJECTION,
    TOPP,
    TYPICAL,
    Answers,
    Asked,
    Questions,
    Rule,
    gather,
)


def differing(logits: torch.Tensor, questions: Questions) -> list[int]:
    """The sequences that are told something else than by the reference."""
    told, truth = cpu.verify(logits, questions), reference.verify(logits, questions)
    begins = questions.begins.tolist()
    return [i for i, begin in enumerate(begins[:-1]) if _said(told, i, begin) != _said(truth, i, begin)]


def _said(answers: Answers, index: int, begin: int) -> tuple[list[int], list[int]] | None:
    if int(answers.failed[index]):
        return None
    span = slice(begin, begin + int(answers.accepted[index]) + 1)
    return answers.tokens[span].tolist(), answers.rows[span].tolist()


def normal(rows: int, size: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, size, generator=torch.Generator().manual_seed(seed))


# All at once ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "first", [*range(0, 300, 50), *(pytest.param(first, marks=pytest.mark.slow) for first in range(300, 700, 50))]
)
def test_mixed_batches_are_told_what_the_reference_says(first: int) -> None:
    cases = [batch(seed) for seed in range(first, first + 50)]
    assert [case for case in cases if differing(case.logits, case.questions)] == []


@pytest.mark.parametrize("seed", range(1000, 1008))
def test_real_vocabularies_are_told_what_the_reference_says(seed: int) -> None:
    case = batch(seed, sequences=4, vocabularies=(49152, 49153, 32000), longest=3)
    assert differing(case.logits, case.questions) == []


def test_one_sequence_alone_is_told_the_same_as_among_others() -> None:
    case = batch(5, sequences=6)
    together = cpu.verify(case.logits, case.questions)
    begins = case.questions.begins.tolist()
    for i, one in enumerate(case.asked):
        alone = cpu.verify(case.logits[begins[i] : begins[i + 1]].clone(), gather([one], case.logits.shape[1]))
        there, here = _said(together, i, begins[i]), _said(alone, 0, 0)
        assert (there and there[0]) == (here and here[0])


def test_rows_may_be_parts_of_wider_ones() -> None:
    wide = normal(8, 300, 1)
    questions = gather([Asked(Rule(temperature=1.0, seed=2), 9, [3] * 7)], 200)
    part = wide[:, 50:250]
    assert torch.equal(cpu.verify(part, questions).tokens, cpu.verify(part.contiguous(), questions).tokens)


# What is left -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wide", [0.01, 1.0, 3.0])
@pytest.mark.parametrize(
    "filters",
    [{"top_p": 0.3}, {"top_p": 0.99}, {"top_k": 700}, {"top_k": 3000}, {"top_k": 2500, "top_p": 0.8},
     {"top_k": 8000, "top_p": 0.999, "min_p": 0.01}],
    ids=str,
)  # fmt: skip
def test_edges_far_from_the_top_are_the_reference_s(wide: float, filters: dict[str, float]) -> None:
    """Wider than any sorted beginning of the row. A drafted token stands with its probability among what is left."""
    logits = normal(6, 8192, 3) * wide
    # Around the edge, where one id more or less would be seen.
    order = logits.sort(dim=-1, descending=True).indices
    for seed, rank in enumerate((1, 640, 2400, 2499, 2900)):
        asked = [
            Asked(Rule(temperature=1.0, seed=seed, strategy=strategy, **filters), 7, order[:-1, rank].tolist())  # type: ignore[arg-type]
            for strategy in (MATCH, REJECTION, TYPICAL)
        ]
        assert differing(logits.repeat(3, 1), gather(asked, 8192)) == []


def test_ties_at_an_edge_are_cut_by_id() -> None:
    """Five values for 4096 ids: every edge lies within a value."""
    logits = (normal(2, 4096, 4) * 1.3).round().clamp(-2, 2)
    for top_k in (1, 63, 64, 65, 1000, 3333):
        for top_p in (1.0, 0.41):
            rule = Rule(temperature=0.7, seed=top_k, top_k=top_k, top_p=top_p, strategy=REJECTION)
            for token in range(0, 4096, 512):
                assert differing(logits, gather([Asked(rule, 3, [token])], 4096)) == []


def test_a_row_with_one_possible_id_has_no_second() -> None:
    """Every other id is at -inf, of which the lowest one has the second rank."""
    logits = torch.full((3, 64), -math.inf)
    logits[:, 7] = 1.0
    rule = Rule(temperature=1.0, strategy=TOPP, max_candidate_len=1, verify_window=1)
    answers = cpu.verify(logits, gather([Asked(rule, 3, [0, 7])], 64))
    assert (int(answers.accepted[0]), int(answers.tokens[0])) == (0, 7)


# The search -------------------------------------------------------------------------------------------------


@numba.njit
def _bounds(x, factor, offset, out):
    for i in range(0, 4096, 16):
        v.store_floats(out, i, lanes.reaches(v.load_floats(x, i), factor, offset))


def test_the_bound_of_the_search_is_never_less_than_the_exponential() -> None:
    x = np.linspace(-30, 6, 4096, dtype=np.float32)
    out = np.empty_like(x)
    log2_e = 1.4426950408889634
    for best in (0.0, 3.3, -17.1):
        factor, offset = np.float32(log2_e * 2**23), np.float32((127 + 31 - (best - 0.001) * log2_e) * 2**23)
        _bounds(x.ctypes.data, factor, offset, out.ctypes.data)
        truth = np.exp(x.astype(np.float64) - best) * 2.0**31
        # Half the margin is kept for what is rounded elsewhere.
        assert (out >= truth * 1.0005).all() and (out <= truth * 1.07).all()


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4, 1e7, 1e11, 1e13, 1e30])
def test_an_unlikely_token_wins_by_the_last_bit_and_loses_by_it(scale: float) -> None:
    """The id with the largest noise is put where it is level with the likeliest one, and a few roundings around."""
    size, position = 4096, 5
    for seed in range(20):
        noise = gumbel(seed, position, torch.arange(size))
        first, other = int(noise.argmin()), int(noise.argmax())
        logits = torch.full((1, size), -math.inf)
        logits[0, first] = scale
        level = (torch.tensor(scale) + noise[first]) - noise[other]
        for step in range(-3, 4):
            bits = level.view(torch.int32) + (step if level > 0 else -step)
            logits[0, other] = min(float(bits.view(torch.float32)), scale)
            assert differing(logits, gather([Asked(Rule(temperature=1.0, seed=seed), position)], size)) == []





def test_every_id_of_a_flat_row_can_win() -> None:
    logits = torch.zeros(1, 100)
    asked = [Asked(Rule(temperature=1.0, seed=seed)) for seed in range(3000)]
    tokens = cpu.verify(logits.expand(3000, 100).contiguous(), gather(asked, 100)).tokens
    counts = torch.bincount(tokens, minlength=100)
    assert len(counts) == 100 and int(counts.min()) > 5 and int(counts.max()) < 65


# What isn't looked at ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [MATCH, REJECTION, BLOCK, TYPICAL, TOPP])
def test_rows_behind_the_end_of_a_path_are_not_read(strategy: int) -> None:
    """The first draft is impossible; the second has no row of its own in memory that may be touched."""
    logits = normal(3, 64, 6)
    logits[0, 9] = -math.inf
    logits[1:] = float("nan")
    rule = Rule(temperature=1.0, seed=1, strategy=strategy, verify_window=0)
    answers = cpu.verify(logits, gather([Asked(rule, 4, [9, 9])], 64))
    if strategy == BLOCK:
        # Joint acceptance may use what follows: it is refused, and ends the draft.
        assert int(answers.accepted[0]) == 0
    assert int(answers.failed[0]) == 0 and answers.tokens.tolist()[1:] == [-1, -1]


def test_logits_stay_as_they_are_whatever_is_edited() -> None:
    for seed in range(40):
        case = batch(seed, broken=0.0)
        before = case.logits.clone()
        cpu.verify(case.logits, case.questions)
        assert torch.equal(case.logits, before)


def test_drafts_that_hang_anywhere_do_no_harm() -> None:
    """Parents before the root, behind the child, of another sequence; ids of no vocabulary."""
    logits = normal(12, 32, 8)
    asked = [Asked(Rule(temperature=1.0, seed=1, strategy=s, accept=a), 4, [5] * 5) for s in range(5) for a in (0, ALL)]
    for wrong in (-(2**31), -7, -1, 5, 11, 12, 2**31 - 1):
        for at in range(7, 12):
            for one in asked:
                questions = gather([one, one], 32)
                questions.parents[at] = wrong
                questions.drafted[at] = -wrong if wrong > -(2**31) else wrong
                answers = cpu.verify(logits, questions)
                alone = cpu.verify(logits[:6], gather([one], 32))
                assert torch.equal(answers.tokens[:6], alone.tokens) and int(answers.failed[1]) == 0
                assert 0 <= int(answers.accepted[1]) <= 5


@pytest.mark.parametrize("kind", ["seen", "bias", "forbidden"])
@pytest.mark.parametrize("token", [-1, 64, 2**31 - 1])
def test_an_id_outside_of_the_vocabulary_is_refused(kind: str, token: int) -> None:
    edit = {"seen": {"seen": {3: 1, token: 1}}, "bias": {"bias": {token: 1.0}}, "forbidden": {"forbidden": [[token]]}}
    questions = gather([Asked(Rule(), **edit[kind])], 64)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        cpu.verify(torch.zeros(1, 64), questions)


# Many ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [MATCH, REJECTION, BLOCK])
def test_a_hundred_thousand_small_sequences_are_one_call(strategy: int) -> None:
    count, size = 100_000, 13
    logits = normal(3, size, 2).repeat(count, 1)
    rules = torch.from_numpy(np.tile(Rule(temperature=1.0, strategy=strategy).words(3), (count, 1)))
    drafted = torch.tensor([-1, 4, 7], dtype=torch.int32).repeat(count)
    rows = torch.arange(3 * count, dtype=torch.int32)
    parents = torch.where(rows % 3 == 0, -1, rows - 1).int()
    questions = Questions(rules, torch.arange(count + 1, dtype=torch.int32) * 3, drafted, parents)
    questions.records["seed"] = np.arange(count)
    answers = cpu.verify(logits, questions)
    assert bool((questions.records["strategy"] == strategy).all()) and int(answers.failed.sum()) == 0
    # A certain draft stands with the probability that the target gives it.
    probs = torch.softmax(logits[:2].double(), -1)
    first, both = float(probs[0, 4]), float(probs[0, 4] * probs[1, 7])
    for share, stood in ((first, answers.accepted >= 1), (both, answers.accepted == 2)):
        assert abs(float(stood.double().mean()) - share) < 5 * (share * (1 - share) / count) ** 0.5


# Log-probabilities ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 64, 100, 1000, 49152])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_the_reference_s(size: int, dtype: torch.dtype) -> None:
    logits = (normal(7, size, size) * 3).to(dtype)
    logits[3] = -math.inf
    logits[3, 2] = 1.0
    logits[4] = 0.0
    logits[5] = logits[5].round()
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(0, 7, (30,), generator=generator)
    tokens = torch.randint(0, size, (30,), generator=generator)
    for count in (0, 1, 5, min(size, 20), min(size, 900)):
        own, ids, best = cpu.logprobs(logits, rows, tokens, count)
        truth = reference.logprobs(logits, rows, tokens, count)
        assert ids.dtype == truth[1].dtype and torch.equal(ids, truth[1])
        torch.testing.assert_close(own, truth[0], rtol=0, atol=5e-6)
        torch.testing.assert_close(best, truth[2], rtol=0, atol=5e-6)


def test_logprobs_of_a_row_that_cannot_be_trusted_are_nan() -> None:
    logits = torch.zeros(2, 10)
    logits[0, 3] = float("nan")
    own, _, best = cpu.logprobs(logits, torch.tensor([0, 1]), torch.tensor([1, 1]), 2)
    assert own.isnan().tolist() == [True, False] and best.isnan().tolist() == [[True, True], [False, False]]
    with pytest.raises(IndexError):
        cpu.logprobs(logits, torch.tensor([2]), torch.tensor([1]), 2)


# Elsewhere --------------------------------------------------------------------------------------------------


NARROW = {
    "x86-64": "+sse2",
    "haswell": "+avx,+avx2,+fma,+bmi,+bmi2,+popcnt,+lzcnt,+f16c",
}


@pytest.mark.slow
@pytest.mark.parametrize("processor", NARROW)
def test_narrower_processors_compute_the_same(processor: str, tmp_path: Path) -> None:
    told = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": NARROW[processor], "NUMBA_CACHE_DIR": str(tmp_path)}
    here = Path(__file__)
    command = [sys.executable, "-m", "pytest", str(here), "-k", "mixed_batches or real_vocabularies or last_bit"]
    done = subprocess.run(
        command, cwd=here.parents[3], env=os.environ | told, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout


FUSED = """
import platform
import numba
from llvmlite import binding

platform.machine = lambda: "aarch64"

from kernels.verify.cpu_rows import judge_all

binding.initialize_all_targets()
binding.initialize_all_asmprinters()
triple = "aarch64-unknown-linux-gnu"
machine = binding.Target.from_triple(triple).create_target_machine(cpu="generic", features="+neon", jit=False)
judge_all.compile((numba.int64,))
module = binding.parse_assembly(list(judge_all.inspect_llvm().values())[0])
module.triple, module.data_layout = triple, str(machine.target_data)
print("fused:", machine.emit_assembly(module).count("fmla"))
"""


@pytest.mark.slow
def test_on_aarch64_nothing_is_fused_but_the_bound_of_the_search(tmp_path: Path) -> None:
    """Where a multiplication and an addition are cheaper as one instruction, the compiler still leaves them two."""
    told = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+neon,+fp-armv8", "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FUSED], cwd=Path(__file__).parents[3], env=os.environ | told,
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    # Four registers of four numbers.
    assert done.returncode == 0 and done.stdout == "fused: 4\n", done.stdout + done.stderr
