"""Law 3 on the GPU executor: a tiny model gives the text that plain torch gives, with chains and trees, chunks,
preemption, shared pages and a drafter of its own; and a tiny hybrid with chains. In Triton's interpreter its device
checks the order of use (kernels/interpreted_device.py); on a GPU, which rounds otherwise than plain torch, texts are
those of the same executor without drafts. Nothing is compiled once the worker is ready.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from engine_room import Ask, EngineRoom, Guess, draft
from transformers import Qwen3_5TextConfig

from kernels import interpreter, launch
from services.api.drafts import PlacedDraft
from services.api.strategies import STRATEGIES
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel
from services.worker.running.torch_runner import TorchRunner
from services.worker.speculation.heads.drafters import HeadDrafters
from services.worker.speculation.heads.head_drafter import HeadDrafter

sys.path.insert(0, str(Path(__file__).parents[1]))
from tiny_folder import write_tiny_model

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import parity

# Whose texts are expected.
REFERENCE = "plain" if interpreter.in_use() else "triton"

TOKENS = 8
# So small that prompts are computed in chunks, and that steps of few rows are graphs and others aren't.
LIMITS = {"max_step_tokens": 12, "method": "ngram"}
HYBRID: dict[str, Any] = {
    "vocab_size": 304, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 2, "num_key_value_heads": 1, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
    "linear_key_head_dim": 8, "linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip


def load(folder: Path, executor: str, drafting: bool) -> TorchModel:
    wanted = Wanted(
        dtype="float32", executor=executor, threads=1, page_tokens=8, kv_cache_mb=1, max_context=64, max_step_tokens=8
    )
    return load_torch_model(folder, wanted, head=("draft_model", folder) if drafting else None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    small = {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 32}
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny", **small)


@pytest.fixture(scope="module")
def plain(folder: Path) -> TorchModel:
    return load(folder, REFERENCE, drafting=False)


@pytest.fixture(scope="module")
def fused(folder: Path) -> TorchModel:
    return load(folder, "triton", drafting=True)


@pytest.fixture
def late() -> Iterator[Callable[[], int]]:
    """Kernels that are compiled from here on."""
    before = launch.compiled_late()
    yield lambda: launch.compiled_late() - before


def requests() -> list[dict[str, Any]]:
    """Greedy and seeded, some with penalties; the last two share their first pages."""
    chance = random.Random(5)
    prompts = [[chance.randrange(2, 300) for _ in range(length)] for length in (7, 15, 17)]
    prompts.append([*prompts[-1][:16], 7])
    sampled = {"temperature": 0.9, "seed": 3, "top_p": 0.9}
    found: list[dict[str, Any]] = [{}, sampled, {"repetition_penalty": 1.3}, sampled | {"presence_penalty": 0.5}]
    return [{"prompt": prompt, "max_tokens": TOKENS, **more} for prompt, more in zip(prompts, found, strict=True)]


class Ran(NamedTuple):
    texts: list[list[int]]
    accepted: int
    drafted: int
    preemptions: int
    found_tokens: int  # in the prefix cache


def run(
    model: TorchModel, guess: Guess | None, wanted: list[dict[str, Any]], own: bool = False, **limits: Any
) -> Ran:
    drafters = {"draft_model": HeadDrafter("draft_model", None, model)} if own else {}
    room = EngineRoom(TorchRunner(model, HeadDrafters(drafters), model.counts), guess, **LIMITS | limits)
    with room:
        sequence_ids = [room.send(**each) for each in wanted]
        room.run(sequence_ids)
        assert not room.failures and not room.drafts.failed, room.failures
        room.scheduler.check_idle()
    scheduler = room.scheduler
    accepted = sum(tally.accepted for tally in scheduler.tallies.values())
    drafted = sum(tally.drafted for tally in scheduler.tallies.values())
    texts = [room.tokens[sequence_id] for sequence_id in sequence_ids]
    return Ran(texts, accepted, drafted, scheduler.preemptions, scheduler.planner.sharing.found_tokens)


@pytest.fixture(scope="module")
def expected(plain: TorchModel) -> list[list[int]]:
    return run(plain, None, requests(), prefix_cache=False).texts


def right_and_wrong(answers: dict[tuple[int, ...], list[int]], trees: bool) -> Guess:
    """What the target will say and, as other branches of a tree or as every third chain, what it won't."""

    def guess(ask: Ask) -> PlacedDraft | None:
        known = answers[tuple(ask.text[: ask.prompt_tokens])]
        begin = ask.generated + len(ask.ahead)
        following = known[begin : begin + min(ask.budget, 3)]
        if not following:
            return None
        if not trees:
            wrong = len(ask.text) % 3 == 0
            return draft(ask, [token ^ wrong for token in following])
        tokens, parents, above = [], [], -1
        for place, token in enumerate(following):
            tokens += [token ^ 1, token] if place % 2 else [token, token ^ 1]
            parents += [above, above]
            above = len(tokens) - 1 - (place % 2 == 0)
        return draft(ask, tokens, parents=parents, confidence=[0.9] * len(tokens))

    return guess


@pytest.mark.parametrize("trees", [False, True], ids=["chains", "trees"])
def test_drafts_change_no_text(
    plain: TorchModel, fused: TorchModel, expected: list[list[int]], trees: bool, late: Callable[[], int]
) -> None:
    """Three prompts are computed in chunks, two of them share two pages, and 4 pages are too few for all."""
    wanted = requests()
    answers = {tuple(each["prompt"]): text for each, text in zip(wanted, expected, strict=True)}
    before = Counter(fused.counts())
    found = run(fused, right_and_wrong(answers, trees), wanted, trees=trees, pages=4)
    assert found.texts == expected
    assert found.accepted > 5 and found.preemptions > 0 and found.found_tokens >= 16
    ran = Counter(fused.counts()) - before
    assert ran["graph"] and ran["eager"] and late() == 0


def test_steps_launched_before_the_last_ones_tokens_are_known_change_no_text(
    plain: TorchModel, fused: TorchModel, late: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ends with a stop id, which shows only when it has a row more."""
    prompts = [each["prompt"][:9] for each in requests()[:3]]
    sampled = {"temperature": 0.9, "seed": 3, "top_p": 0.9}
    kinds: list[dict[str, Any]] = [{}, sampled, sampled | {"seed": 4, "logit_bias": {7: 2.0}}]
    wanted = [{"prompt": prompt, "max_tokens": 14, **kind} for prompt, kind in zip(prompts, kinds, strict=True)]
    wanted[1]["stop_token_ids"] = [run(plain, None, wanted[1:2], method="naive").texts[0][7]]
    expected = run(plain, None, wanted, method="naive").texts
    assert len(expected[1]) < 8 and len(expected[2]) == 14
    fed: list[int] = []

    def forward_fed(batch: Any, given: Any, rows: int) -> Any:
        fed.append(rows)
        return own(batch, given, rows)

    own = fused.executor.forward_fed  # type: ignore[attr-defined]
    monkeypatch.setattr(fused.executor, "forward_fed", forward_fed)
    assert run(fused, None, wanted, method="naive").texts == expected
    assert len(fed) > 6 and max(fed) == 3 and late() == 0


def test_prompts_that_join_steps_whose_tokens_are_not_known_change_no_text(
    plain: TorchModel, fused: TorchModel, late: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They arrive while such steps run; the last one is longer than a step."""
    wanted = [{"prompt": each["prompt"], "max_tokens": 14} for each in requests()[:3]]
    expected = run(plain, None, wanted, method="naive").texts
    room = EngineRoom(TorchRunner(fused, HeadDrafters({}), fused.counts), **LIMITS | {"method": "naive"})
    sent: list[int] = []
    rows: list[tuple[int, int]] = []

    def forward_fed(batch: Any, given: Any, fed: int) -> Any:
        rows.append((fed, len(batch.tokens)))
        if len(rows) in (2, 6):
            sent.append(room.send(**wanted[len(sent)]))
        return own(batch, given, fed)

    own = fused.executor.forward_fed  # type: ignore[attr-defined]
    monkeypatch.setattr(fused.executor, "forward_fed", forward_fed)
    with room:
        sent.append(room.send(**wanted[0]))
        room.run(sent[:1])
        room.run(sent)
        assert not room.failures and not room.drafts.failed, room.failures
        room.scheduler.check_idle()
    assert [room.tokens[each] for each in sent] == expected
    assert sum(fed < count for fed, count in rows) >= 2 and late() == 0


def test_drafts_change_no_text_of_a_hybrid(tmp_path: Path, late: Callable[[], int]) -> None:
    """A prompt is computed in chunks, and 4 pages are too few for both."""
    parity.save_tiny(Qwen3_5TextConfig, tmp_path, **HYBRID)
    wanted = [{**each, "prompt": each["prompt"][:7], "max_tokens": 12} for each in requests()[:2]]
    expected = run(load(tmp_path, REFERENCE, drafting=False), None, wanted).texts
    answers = {tuple(each["prompt"]): text for each, text in zip(wanted, expected, strict=True)}
    hybrid = load(tmp_path, "triton", drafting=False)
    before, compiled = Counter(hybrid.counts()), late()
    found = run(hybrid, right_and_wrong(answers, trees=False), wanted, pages=4)
    assert found.texts == expected
    assert 2 < found.accepted < found.drafted and found.preemptions > 0
    ran = Counter(hybrid.counts()) - before
    assert ran["graph"] and ran["eager"] and late() == compiled


@pytest.mark.parametrize("method", [pytest.param("draft_model", marks=pytest.mark.slow), "auto"])
def test_trees_of_its_own_drafter_alone_and_with_those_of_the_text_change_no_text(
    fused: TorchModel, expected: list[list[int]], method: str, late: Callable[[], int]
) -> None:
    wanted = requests()[:2]
    answers = {tuple(each["prompt"]): text for each, text in zip(wanted, expected, strict=False)}
    guess = None if method == "draft_model" else right_and_wrong(answers, trees=True)
    limits = {"method": method, "head": "draft_model", "trees": True, "num_speculative_tokens": 4}
    found = run(fused, guess, wanted, own=True, **limits)
    assert found.texts == expected[:2] and found.accepted > 2 and late() == 0


def test_a_kernel_that_was_not_prepared_is_counted(fused: TorchModel, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fused.counts()["compiled_late"]
    monkeypatch.setattr(launch, "_compiled", {})
    run(fused, None, requests()[:1])
    assert fused.counts()["compiled_late"] > before


# A mixed load -----------------------------------------------------------------------------------------------


def mixed(number: int) -> list[dict[str, Any]]:
    """Requests of every kind: the parameters of sampling by turns, each strategy, chains and trees."""
    chance = random.Random(number)
    lossy = [name for name in STRATEGIES if name != "auto"]
    kinds: list[dict[str, Any]] = [
        {}, {"temperature": 0.8, "seed": 1}, {"temperature": 1.1, "seed": 2, "top_p": 0.8, "top_k": 9},
        {"temperature": 0.7, "seed": 3, "min_p": 0.05}, {"repetition_penalty": 1.2}, {"logprobs": 3},
        {"temperature": 1.0, "seed": 4, "frequency_penalty": 0.4, "logprobs": 0}, {"logit_bias": {5: 4.0, 9: -4.0}},
        {"allowed_token_ids": list(range(2, 40))}, {"bad_words": [[7], [9, 11]], "temperature": 1.0, "seed": 5},
        {"min_tokens": 2, "ignore_eos": False}, {"allowed_token_ids": [4, 5, 6], "presence_penalty": 0.5},
    ]  # fmt: skip
    return [
        {
            "prompt": [chance.randrange(2, 300) for _ in range(chance.choice([1, 2, 3, 14]))],
            "max_tokens": chance.choice([1, 2, 3]),
            "speculation": {"verify_strategy": lossy[k % len(lossy)], "trees": k % 3 == 0},
            **kinds[k % len(kinds)],
        }
        for k in range(number)
    ]


def any_draft(ask: Ask) -> PlacedDraft:
    chance = random.Random(len(ask.text) * 31 + ask.id)
    tokens = [chance.randrange(2, 300) for _ in range(min(ask.budget, chance.randint(1, 4)))] or [2]
    if chance.random() < 0.5 or len(set(tokens)) < len(tokens):
        return draft(ask, tokens)
    return draft(ask, tokens, parents=[-1, *(chance.randrange(-1, at) for at in range(1, len(tokens)))],
                 confidence=[0.5] * len(tokens))  # fmt: skip


@pytest.mark.parametrize("number", [12, pytest.param(500, marks=pytest.mark.slow)])
def test_no_request_of_a_mixed_load_waits_for_a_compiler(
    fused: TorchModel, number: int, late: Callable[[], int]
) -> None:
    limits: dict[str, Any] = {"allow_lossy": True, "max_waiting": 1000, "max_step_tokens": 40}
    assert all(run(fused, any_draft, mixed(number), **limits).texts) and late() == 0
