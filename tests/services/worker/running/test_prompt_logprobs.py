"""Log-probabilities of prompts are the model's own, whatever else is in the step and however the prompt is cut."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from driving import Outcome, new_sequence, repeat_what_followed, request, run_all
from fixed_model import FixedModel
from tiny_folder import write_tiny_model
from tokenizers import Tokenizer

from models.batch import Stretch
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.executor import Executor, Options
from models.gpu.executor import GpuExecutor
from models.plain.decoder import PlainExecutor
from models.weights import Weights
from services.api.drafter import Draft
from services.api.prompt_logprobs import PromptLogprob, unpack
from services.api.strategies import Verification
from services.worker.running import prompt_logprobs
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.runner import Facts
from services.worker.running.torch_model import TorchModel
from services.worker.running.torch_runner import TorchRunner
from services.worker.running.verifier import verifier
from services.worker.running.work import SequenceWork, Work
from services.worker.scheduling import limits

# With logits made by hand ------------------------------------------------------------------------------

WHOLE = math.log(math.exp(9.0) + 99)
SURE, OTHER = 9.0 - WHOLE, -WHOLE


@pytest.mark.parametrize("executor", ["plain", "compiled", "triton"])
def test_every_item_of_a_step_gets_its_own_rows(executor: str) -> None:
    """Between a chunk that isn't scored, one that is and verifies, and drafts."""
    runner = TorchRunner(FixedModel(executor))
    wanted = [request([1, 7, 8, 3], prompt_logprobs=2), request([1, 7]), request([7, 8, 9, 7], prompt_logprobs=0)]
    news = [new_sequence(each, Verification(strategy="greedy"), id) for id, each in enumerate(wanted, 1)]
    items = [
        SequenceWork(9, [1, 2], 0, [], False),
        SequenceWork(1, [1, 7, 8, 3], 0, [], True, scored=[7, 8, 3]),
        SequenceWork(2, [1, 7], 0, [], True, Draft([8, 9])),
        SequenceWork(3, [8, 9], 1, [], False, scored=[9, 7]),
    ]
    runner.launch(Work(items, news))
    result = runner.finish()
    assert [verdict and verdict.tokens for verdict in result.verdicts] == [None, [7], [8, 7], None]
    first, third = unpack(result.prompt_logprobs[1]), unpack(result.prompt_logprobs[3])
    assert list(result.prompt_logprobs) == [1, 3] and result.prompt_logprobs[3].begin == 2
    assert [each.logprob for each in first] == pytest.approx([SURE, SURE, OTHER], abs=1e-5)
    # Of equal ones all count.
    assert [each.rank for each in first] == [1, 1, 100]
    assert [[top.id for top in each.top] for each in first] == [[7, 0], [8, 0], [7, 0]]
    assert [(each.rank, each.top) for each in third] == [(100, []), (1, [])]


@pytest.mark.parametrize("executor", ["plain", "compiled", "triton"])
@pytest.mark.parametrize("prompt", [[13, 1, 2], [1, 2, 13, 3, 4]])
def test_a_prompt_with_logits_that_are_not_finite_fails_alone(executor: str, prompt: list[int]) -> None:
    wanted = [request(each, max_tokens=1, prompt_logprobs=0) for each in ([1, 7, 8], prompt)]
    good, bad = run_all(TorchRunner(FixedModel(executor)), wanted, max_step_tokens=4)[0]
    assert (good.ids, len(good.prompt), good.finished.reason) == ([7], 2, "length")
    assert (bad.ids, bad.end.reason) == ([], "engine")


# With every executor -----------------------------------------------------------------------------------


def tiny(folder: Path, executor: str) -> TorchModel:
    """Triton runs in its interpreter, on the CPU."""
    network = read_network(write_tiny_model(folder))
    options = Options(dtype="float32", pages=12, page_tokens=8, max_context=64)
    made: Executor
    if executor == "triton":
        made = GpuExecutor(network, Weights(folder), options, device="cpu", graphs=False)
    else:
        made = (CpuExecutor if executor == "compiled" else PlainExecutor)(network, Weights(folder), options)
    facts = Facts(network.vocab_size, 64, (0,), 8, 12, "float32", made.parameters, "tiny")
    return TorchModel(made, facts, verifier(executor))


@pytest.mark.parametrize("executor", ["plain", "compiled", "triton"])
def test_each_executor_scores_a_prompt_in_chunks_beside_others(tmp_path: Path, executor: str) -> None:
    model = tiny(tmp_path, executor)
    prompt = [1 + place * 7 % 300 for place in range(20)]
    wanted = [request(prompt, max_tokens=3, prompt_logprobs=2), request(prompt[:5], max_tokens=6)]
    scored, other = run_all(TorchRunner(model), wanted, repeat_what_followed, max_step_tokens=8)[0]
    logits = model.forward([Stretch(prompt, 0, [0, 1, 2], 0)]).logits[:-1].double()
    truth = logits.log_softmax(-1)
    own = truth.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    said = torch.tensor([each.logprob for each in scored.prompt], dtype=torch.float64)
    torch.testing.assert_close(said, own, rtol=0, atol=5e-6)
    assert [[top.id for top in each.top] for each in scored.prompt] == truth.topk(2).indices.tolist()
    assert (len(scored.ids), len(other.ids), other.prompt) == (3, 6, [])


# With a real one ---------------------------------------------------------------------------------------

TEXT = (
    "The keeper of the lighthouse climbs one hundred and forty steps every evening. He lights the lamp, winds the "
    "clockwork and writes the weather into a book: wind from the north-west, sea moderate, visibility good. "
)


@pytest.fixture(scope="module")
def prompt(folder: Path) -> list[int]:
    return list(Tokenizer.from_file(str(folder / "tokenizer.json")).encode(TEXT * 2).ids)


@pytest.fixture(scope="module", params=["bfloat16", "int8", pytest.param("float32", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest, folder: Path) -> Iterator[TorchModel]:
    yield load_torch_model(folder, Wanted(dtype=request.param, threads=1, page_tokens=16, kv_cache_mb=256))


def score(model: TorchModel, prompt: list[int], top: int = 3) -> list[PromptLogprob]:
    [outcome], _ = run_all(TorchRunner(model), [request(prompt, max_tokens=0, prompt_logprobs=top)])
    assert outcome.finished.reason == "length"
    return outcome.prompt


@pytest.mark.model
def test_values_are_the_log_softmax_of_the_logits(model: TorchModel, prompt: list[int]) -> None:
    prompt = prompt[: len(prompt) // 2]
    scored = score(model, prompt)
    with torch.inference_mode():
        pages = list(range(len(prompt) // 16 + 1))
        logits = model.forward([Stretch(prompt, 0, pages, 0)]).logits[:-1].double()
    truth = logits.log_softmax(-1)
    own = truth.gather(1, torch.tensor(prompt[1:])[:, None])[:, 0]
    assert len(scored) == len(prompt) - 1
    said = torch.tensor([each.logprob for each in scored], dtype=torch.float64)
    torch.testing.assert_close(said, own, rtol=0, atol=5e-6)
    for each, row, token in zip(scored, truth, prompt[1:], strict=True):
        assert each.rank == int((row >= row[token]).sum())
        assert [top.logprob for top in each.top] == pytest.approx(row.topk(3).values.tolist(), abs=5e-6)
        # lm-evaluation-harness asks whether a token is the most probable one by comparing the two.
        assert (each.rank == 1) == (each.logprob == each.top[0].logprob)


@pytest.mark.model
def test_batch_mates_chunks_preemption_and_drafts_change_no_bit(
    model: TorchModel, prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = score(model, prompt)
    monkeypatch.setattr(limits, "PROMPT_LOGITS_BYTES", 50 * 4 * model.facts.vocab_size)
    monkeypatch.setattr(prompt_logprobs, "ROWS_AT_ONCE", 7)
    lengths = [len(prompt), 14, 40, 9]
    wanted = [
        request(prompt[:length], max_tokens=30, ignore_eos=True, logprobs=1, prompt_logprobs=3) for length in lengths
    ]
    calm, _ = run_all(TorchRunner(model), wanted)
    crowded, scheduler = run_all(
        TorchRunner(model), wanted, repeat_what_followed, pages=len(prompt) // 16 + 4, max_step_tokens=24
    )
    assert scheduler.preemptions > 0 and any(tally.accepted for tally in scheduler.tallies.values())

    def told(outcome: Outcome) -> tuple[list[PromptLogprob], list[int], list[float]]:
        return outcome.prompt, outcome.ids, outcome.logprobs

    assert list(map(told, crowded)) == list(map(told, calm))
    assert [outcome.prompt for outcome in calm] == [truth[: length - 1] for length in lengths]
