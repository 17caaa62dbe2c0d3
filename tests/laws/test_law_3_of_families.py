"""Law 3 for families whose layers differ from Llama's: tiny random models on the compiled loops give the same text
whatever is drafted, and in whatever batch, chunks and pages."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from engine_room import Ask, EngineRoom, Guess, draft
from safetensors.torch import load_file, save_file
from transformers import Gemma3TextConfig, GptOssConfig, PreTrainedConfig, Qwen3_5TextConfig, Qwen3NextConfig

from services.api.drafts import PlacedDraft
from services.api.sampling import Sampling
from services.worker.in_process import InProcessEngine, runner_with_head
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel
from services.worker.running.torch_runner import TorchRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import parity

pytestmark = pytest.mark.slow  # loops of their own are compiled

HYBRID: dict[str, Any] = {
    "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "pad_token_id": None,
}  # fmt: skip
FAMILIES: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "gemma3": (
        Gemma3TextConfig,
        {"head_dim": 16, "sliding_window": 9, "layer_types": ["sliding_attention", "full_attention"],
         "tie_word_embeddings": False, "pad_token_id": None},
    ),
    "gpt_oss": (
        GptOssConfig,
        {"head_dim": 16, "sliding_window": 9, "num_local_experts": 6, "num_experts_per_tok": 2,
         "intermediate_size": 24},
    ),
    "qwen3_5": (Qwen3_5TextConfig, HYBRID),
    "qwen3_next": (
        Qwen3NextConfig,
        HYBRID | {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
                  "shared_expert_intermediate_size": 24},
    ),
}  # fmt: skip
SAID = 24
# Few tokens at random, so that texts go on in many ways.
SAMPLED = {"temperature": 0.9, "seed": 3, "top_p": 0.95}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchModel]:
    config, changes = FAMILIES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    parity.save_tiny(config, folder, **({"num_hidden_layers": 2} | changes))
    wanted = Wanted(
        dtype="bfloat16", executor="compiled", threads=1, page_tokens=8, kv_cache_mb=2, max_context=96,
        max_step_tokens=16,
    )  # fmt: skip
    yield load_torch_model(folder, wanted)


def requests() -> list[dict[str, Any]]:
    """Greedy and seeded; the last two share their first pages."""
    prompts = [parity.random_tokens(length, length) for length in (5, 18, 30)]
    prompts.append([*prompts[-1][:24], 7])
    return [
        {"prompt": prompt, "max_tokens": SAID, **more}
        for prompt, more in zip(prompts, ({}, SAMPLED, SAMPLED | {"presence_penalty": 0.4}, {}), strict=True)
    ]


class Ran(NamedTuple):
    texts: list[list[int]]
    accepted: int
    drafted: int
    preemptions: int
    found_tokens: int  # in the prefix cache


def run(model: TorchModel, guess: Guess | None, together: bool = True, rounds: int = 1, **limits: Any) -> Ran:
    room = EngineRoom(TorchRunner(model), guess, **({"max_step_tokens": 16} | limits))
    with room:
        sequence_ids = []
        for each in requests() * rounds:
            sequence_ids.append(room.send(**each))
            if not together or len(sequence_ids) % len(requests()) == 0:
                room.run(sequence_ids)
        assert not room.failures and not room.drafts.failed, room.failures
        room.settle()
    scheduler, tallies = room.scheduler, room.scheduler.tallies.values()
    return Ran(
        [room.tokens[sequence_id] for sequence_id in sequence_ids],
        sum(tally.accepted for tally in tallies), sum(tally.drafted for tally in tallies),
        scheduler.preemptions, scheduler.planner.sharing.found_tokens,
    )  # fmt: skip


@pytest.fixture(scope="module")
def alone(model: TorchModel) -> list[list[int]]:
    texts = run(model, None, together=False, prefix_cache=False).texts
    assert all(len(text) == SAID for text in texts) and len({token for text in texts for token in text}) > 12
    return texts


def other(token: int) -> int:
    return (token + 1) % parity.VOCABULARY


def guessing(texts: list[list[int]], right: float, trees: bool) -> Guess:
    """What the model will say, each token with the probability `right` and else another one; as trees, both beside each
    other."""
    answers = {tuple(each["prompt"]): text for each, text in zip(requests(), texts, strict=True)}

    def guess(ask: Ask) -> PlacedDraft | None:
        chance = random.Random(len(ask.text) * 7919 + ask.id)
        known = answers[tuple(ask.text[: ask.prompt_tokens])]
        begin = ask.generated + len(ask.ahead)
        following = known[begin : begin + min(ask.budget, 4)]
        if not following:
            return None
        said = [token if chance.random() < right else other(token) for token in following]
        if not trees:
            return draft(ask, said)
        tokens, parents, above = [], [], -1
        for token in said:
            tokens += [token, other(token)]
            parents += [above, above]
            above = len(tokens) - 2 + (chance.random() < 0.5)
        return draft(ask, tokens, parents=parents, confidence=[0.9] * len(tokens))

    return guess


@pytest.mark.parametrize("right", [1.0, 0.5, 0.0])
def test_drafts_that_are_right_half_right_and_wrong_change_no_text(
    model: TorchModel, alone: list[list[int]], right: float
) -> None:
    # A hybrid's text goes on where a state was left, so that no two begin together.
    rounds = 2 if model.facts.states else 1
    found = run(model, guessing(alone, right, trees=False), rounds=rounds)
    assert found.texts == alone * rounds
    assert found.found_tokens >= 16
    share = found.accepted / found.drafted
    assert share == right if right in (0.0, 1.0) else 0.1 < share < 0.9


def test_trees_and_preemption_change_no_text(model: TorchModel, alone: list[list[int]]) -> None:
    found = run(model, guessing(alone, 0.5, trees=True), pages=12)
    assert found.texts == alone and found.accepted > 10 and found.preemptions > 0


def test_a_hybrids_own_mtp_block_changes_no_text(tmp_path: Path) -> None:
    config, changes = FAMILIES["qwen3_5"]
    parity.save_tiny(config, tmp_path, **({"num_hidden_layers": 2} | changes))
    tensors = load_file(tmp_path / "model.safetensors")
    # A block of the model's own parts, so that some of its drafts are right.
    layer = {name: value for name, value in tensors.items() if ".layers.1." in name}
    block = {f"mtp.layers.0.{name.split('.layers.1.')[1]}": value.clone() for name, value in layer.items()}
    norm = next(value for name, value in tensors.items() if name.endswith("model.norm.weight"))
    block |= {f"mtp.{name}.weight": norm.clone() for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")}
    block["mtp.fc.weight"] = torch.cat([torch.eye(len(norm)), torch.eye(len(norm))], dim=1)
    save_file(tensors | block, tmp_path / "model.safetensors", {"format": "pt"})
    wanted = Wanted(dtype="bfloat16", threads=1, page_tokens=8, kv_cache_mb=2, max_context=96, max_step_tokens=16)
    prompts = {number: parity.random_tokens(length, length) for number, length in enumerate((5, 18, 30, 7))}
    sampling = Sampling(max_tokens=SAID, ignore_eos=True, temperature=0.9, seed=3)
    texts, drafted, accepted = [], 0, 0
    for runner, method in (
        (TorchRunner(load_torch_model(tmp_path, wanted)), "naive"),
        (runner_with_head(tmp_path, "mtp", tmp_path, wanted)[0], "mtp"),
    ):
        ended = list(InProcessEngine(runner, method).run(prompts, sampling))
        texts.append({each.number: each.ids for each in ended})
        drafted += sum(each.finished.speculation.drafted for each in ended)
        accepted += sum(each.finished.speculation.accepted for each in ended)
    assert texts[0] == texts[1] and 0 < accepted < drafted
