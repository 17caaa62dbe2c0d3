"""Embeddings are what transformers' hidden states come to, with the same bits whatever else is in the step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driving import Guess, Outcome, repeat_what_followed, request, run_all
from msgspec.structs import replace
from tiny_folder import write_tiny_model
from transformers import AutoModelForCausalLM

from kernels.gemm import fused as gemm
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.executor import Executor, Options
from models.gpu.executor import GpuExecutor
from models.plain.decoder import PlainExecutor
from models.weights import Weights
from services.api.messages import Generate
from services.api.pooling import LAST, MEAN, POOLINGS
from services.api.settings import Settings, cache_dir
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.runner import Facts
from services.worker.running.torch_model import TorchModel
from services.worker.running.torch_runner import TorchRunner
from services.worker.running.verifier import verifier
from services.worker.scheduling import limits

PROMPT = [1 + place * 7 % 300 for place in range(29)]


def embed(prompt: list[int], pooling: str) -> Generate:
    return replace(request(prompt, max_tokens=0), pooling=pooling)


def numbers(outcome: Outcome) -> np.ndarray:
    assert not outcome.ids and outcome.finished.completion_tokens == 0
    return np.frombuffer(outcome.finished.embedding, np.float32)


def tiny(folder: Path, executor: str, graph_rows: int = 256) -> TorchModel:
    """Triton runs in its interpreter, on the CPU."""
    network = read_network(write_tiny_model(folder))
    options = Options(dtype="float32", pages=12, page_tokens=8, max_context=64, graph_rows=graph_rows)
    made: Executor
    if executor == "triton":
        made = GpuExecutor(network, Weights(folder), options, device="cpu")
    else:
        made = (CpuExecutor if executor == "compiled" else PlainExecutor)(network, Weights(folder), options)
    facts = Facts(network.vocab_size, 64, (0,), 8, 12, "float32", made.parameters, "tiny")
    return TorchModel(made, facts, verifier(executor))


def truth(folder: Path, prompt: list[int], pooling: str) -> np.ndarray:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).model
    with torch.inference_mode():
        states = model(torch.tensor([prompt])).last_hidden_state[0].double().numpy()
    return np.asarray(states[-1] if pooling == LAST else states.mean(0))


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("executor", ["plain", "compiled", "triton"])
def test_each_executor_gives_the_hidden_states_of_transformers(tmp_path: Path, executor: str, pooling: str) -> None:
    """In chunks, beside a text that is generated with drafts and another prompt to embed."""
    model = tiny(tmp_path, executor)
    wanted = [embed(PROMPT, pooling), request(PROMPT[:5], max_tokens=6), embed(PROMPT[3:14], pooling)]
    crowded = run_all(TorchRunner(model), wanted, repeat_what_followed, max_step_tokens=8)[0]
    for generate, outcome in zip(wanted[::2], crowded[::2], strict=True):
        expected = truth(tmp_path, generate.token_ids, pooling)
        np.testing.assert_allclose(numbers(outcome), expected, rtol=0, atol=2e-5)
        alone = run_all(TorchRunner(model), [generate])[0][0]
        assert outcome.finished.embedding == alone.finished.embedding
    assert crowded[1].ids == run_all(TorchRunner(model), [wanted[1]])[0][0].ids


UNTOUCHED = 12345.0


def rows_of_the_head(model: TorchModel, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many the head computes in each call."""
    made: Any = model.executor
    seen: list[int] = []
    if isinstance(made, CpuExecutor):
        forward = made.forward

        def written(*given: Any) -> Any:
            memory = made._logits.view(made.max_rows)
            memory.fill_(UNTOUCHED)
            output = forward(*given)
            seen.append(int((memory != UNTOUCHED).sum()) // model.facts.vocab_size)
            return output

        monkeypatch.setattr(made, "forward", written)
    elif isinstance(made, GpuExecutor):
        linear = gemm.linear

        def counted(x: torch.Tensor, weight: Any, *more: Any, **named: Any) -> torch.Tensor:
            seen.extend([len(x)] if weight is made._head else [])
            return linear(x, weight, *more, **named)

        monkeypatch.setattr(gemm, "linear", counted)
    else:
        head = made._head
        monkeypatch.setattr(made, "_head", lambda x: (seen.append(len(x)), head(x))[1])
    return seen


@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("executor", ["plain", "compiled", "triton"])
def test_no_logits_are_computed_of_what_is_embedded(
    tmp_path: Path, executor: str, pooling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU a step that is a graph computes logits of all its rows, whoever reads them."""
    model = tiny(tmp_path, executor, graph_rows=0)
    seen = rows_of_the_head(model, monkeypatch)
    run_all(TorchRunner(model), [embed(PROMPT, pooling)], max_step_tokens=8)
    assert sum(seen) == 0
    run_all(TorchRunner(model), [embed(PROMPT, pooling), request(PROMPT[:5], max_tokens=6)], max_step_tokens=8)
    assert sum(seen) == 6


@pytest.mark.parametrize("executor", ["plain", "compiled"])
@pytest.mark.parametrize("pooling", POOLINGS)
def test_hidden_states_that_are_not_finite_fail_their_request_alone(
    tmp_path: Path, executor: str, pooling: str
) -> None:
    model = tiny(tmp_path, executor)
    forward = model.forward

    def poisoned(rows: object) -> object:
        made = forward(rows)  # type: ignore[arg-type]
        made.final[0] = float("nan")  # type: ignore[index]
        return made

    model.forward = poisoned  # type: ignore[method-assign,assignment]
    bad, good = run_all(TorchRunner(model), [embed(PROMPT[:6], pooling), embed(PROMPT[:9], pooling)])[0]
    assert bad.end.reason == "engine" and "hidden states" in bad.end.message
    assert np.isfinite(numbers(good)).all()


# With a real model -------------------------------------------------------------------------------------

TEXT_TOKENS = [1 + place * place * 31 % 40_000 for place in range(170)]


@pytest.fixture(scope="module", params=["bfloat16", "int8", pytest.param("float32", marks=pytest.mark.slow)])
def model(request: pytest.FixtureRequest) -> Iterator[TorchModel]:
    from models.sources import ensure_model

    settings = Settings.for_tests()
    folder = ensure_model(settings.model, cache_dir(settings))
    yield load_torch_model(folder, Wanted(dtype=request.param, threads=1, page_tokens=16, kv_cache_mb=256))


@pytest.mark.model
def test_batch_mates_chunks_preemption_and_the_cache_change_no_bit(
    model: TorchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXT_TOKENS
    lengths = [170, 14, 40, 9]
    wanted = [embed(text[:length], pooling) for length in lengths for pooling in POOLINGS]
    alone = [run_all(TorchRunner(model), [each])[0][0] for each in wanted]
    assert model.facts.hidden_size == 576 and all(len(numbers(each)) == 576 for each in alone)
    monkeypatch.setattr(limits, "PROMPT_LOGITS_BYTES", 50 * 4 * model.facts.vocab_size)
    mates = [request(text[:length], max_tokens=40, ignore_eos=True) for length in (30, 20, 10)]

    def crowded(guess: Guess | None, **cramped: int) -> list[Outcome]:
        outcomes, scheduler = run_all(TorchRunner(model), [*mates, *wanted, *wanted[:2]], guess, **cramped)
        assert bool(cramped) == (scheduler.preemptions > 0)
        assert [each.ids for each in outcomes[:3]] == generated
        return outcomes[3:]

    generated = [each.ids for each in run_all(TorchRunner(model), mates)[0]]
    truth = [each.finished.embedding for each in [*alone, *alone[:2]]]
    assert [each.finished.embedding for each in crowded(repeat_what_followed)] == truth
    found = crowded(repeat_what_followed, pages=20, max_step_tokens=12)
    assert [each.finished.embedding for each in found] == truth


@pytest.mark.model
def test_the_last_row_alone_is_computed_of_a_prompt_that_is_cached_and_all_of_them_for_the_mean(
    model: TorchModel,
) -> None:
    wanted = [embed(TEXT_TOKENS, LAST), embed(TEXT_TOKENS, LAST), embed(TEXT_TOKENS, MEAN)]
    outcomes, _ = run_all(TorchRunner(model), wanted, max_sequences=1)
    assert [each.finished.cached_tokens for each in outcomes] == [0, 160, 0]
    assert outcomes[0].finished.embedding == outcomes[1].finished.embedding != outcomes[2].finished.embedding
