"""What a GPU's benchmarks time is what they say, and their figures add up; in the interpreter, on toys."""

from __future__ import annotations

import pytest
import torch

from bench.gpu import attention, decode, http, layers, prefill, stage, verify
from bench.gpu.busy import LEAD, Busy
from bench.gpu.in_process import InProcess
from kernels import interpreter
from kernels.verify import fused, reference
from models.config import Fields, network_of
from models.spec import Attention, Experts, Network
from services.worker.running.mock import MockRunner, Profile
from tests.kernels.verify.test_fused import told


@pytest.mark.skipif(not interpreter.in_use(), reason="compares in the interpreter")
@pytest.mark.parametrize("kind", verify.RULES)
def test_verification_that_is_timed_answers_as_the_reference_does(kind: str) -> None:
    copies = verify.made(torch.float32, 96, 6, torch.device("cpu"))
    [(logits, questions, work, needs)] = verify.prepared(copies, verify.RULES[kind], 2, 2)
    expected = told(reference.verify(logits, questions), questions)
    assert told(fused.verify(logits.clone(), questions, work, needs), questions) == expected
    assert kind != "greedy" or [accepted for _, accepted, *_ in expected] == [2, 2]


def test_texts_in_process_are_the_same_whether_steps_are_launched_ahead() -> None:
    prompts = [[100, 105], [120, 121, 122], [107]]
    plain, ahead = (InProcess(MockRunner(Profile(acceptance=0.5))) for _ in range(2))
    answers = ahead.generate_ahead(prompts, 20)
    assert answers.texts == plain.generate(prompts, 20).texts and answers.steps == 19
    assert len(set(map(tuple, answers.texts))) == 3


def test_the_busy_share_is_of_what_was_read_between_two_times() -> None:
    busy = Busy()
    busy._read += [(0.0, 0), (LEAD, 80), (2.0, 100), (3.0, 0)]
    assert busy.share(0.0, 2.5) == 0.9
    # Of a short run its second half counts.
    assert busy.share(1.5, 2.5) == 1.0 and busy.share(5.0, 6.0) is None


def decoded(times: float, over: float) -> dict[str, object]:
    return {"of_bytes": dict.fromkeys(decode.OF_BYTES, times), "rows_over_one": over}


def test_bars_of_a_step_are_ratios_within_one_run() -> None:
    ratios = dict.fromkeys(decode.OF_BYTES, 1.0)
    met = decoded(1.2, 1.0) | {"over_fast": ratios}
    assert decode.missed({"strict": met, "fast": decoded(1.2, 1.0)}) == []
    slow = decoded(1.31, 1.04) | {"over_fast": ratios | {"batch 1": 1.04}}
    assert decode.missed({"strict": slow, "fast": decoded(1.0, 1.0)}) == [
        "strict, batch 1: 1.31 x its bytes, the bar is 1.2",
        "strict, batch 16: 1.31 x its bytes, the bar is 1.25",
        "strict, batch 64: 1.31 x its bytes, the bar is 1.3",
        "strict: 8 rows take 1.04 x one, the bar is 1.03",
        "batch 1: strict takes 1.04 x fast, the bar is 1.03",
    ]


def test_what_http_misses_is_told_with_how_sure_it_is() -> None:
    met = {"concurrency": 64, "failed": 0, "busy": None}
    auto, one = met | {"workload": "chat", "server": "auto"}, met | {"workload": http.ONE_LENGTH, "server": "naive"}
    noise, surely = ({"ratio": 0.9, "low": 0.8, "high": high} for high in (1.1, 0.95))
    runs = [
        one | {"concurrency": 1, "of_in_process": 0.95},
        one | {"of_in_process": 0.5, "busy": 0.45},
        *(auto | {"of_first": each} for each in (noise, surely, noise | {"ratio": 1.0})),
        auto | {"texts_differ": 2},
    ]
    assert http.missed({"runs": runs, "left_out": ["edit, 16 streams"], "compiled_late": 0}) == [
        "one length, 64 streams: 0.5 of the runner in process, the bar is 0.9",
        "one length, 64 streams: the GPU is busy 45% of the time, the bar is 90%",
        "chat, 64 streams: auto is 0.9 (0.8 to 1.1) of naive (within noise)",
        "chat, 64 streams: auto is 0.9 (0.8 to 0.95) of naive (certain)",
        "chat, 64 streams: 2 texts differ",
        "edit, 16 streams: no time was left",
    ]


def of_layers(config: dict[str, object], way: str) -> tuple[Network, layers.LayerWeights]:
    toy = config | stage.TOY | layers.TOYS["qwen3_moe"] | {"num_hidden_layers": layers.FEW}
    network = network_of(Fields(toy))
    weights = layers.LayerWeights(network, torch.device("cpu"), way, layers.TOY_BLOCK, "bfloat16")
    for layer in network.layers:
        assert isinstance(layer.attention, Attention)
        mlps = layer.mlp.experts if isinstance(layer.mlp, Experts) else (layer.mlp,)
        of_mlps = [linear for mlp in mlps for linear in (mlp.gate_up, mlp.down)]
        for linear in (layer.attention.qkv, layer.attention.output, *of_mlps):
            weights.linear(linear)
    return network, weights


def test_a_layers_bytes_are_its_codes_and_scales_and_of_experts_those_that_rows_choose() -> None:
    attention_bytes, expert = 2 * (64 + 32) * 32, 2 * (64 + 32) * 32
    network, weights = of_layers(layers.EXPERTS, "")
    # Two of four for a row; a row more chooses one of the other two, on the mean.
    assert weights.layer_bytes(network, 1) == attention_bytes + 2 * expert
    assert weights.layer_bytes(network, 2) == attention_bytes + 3 * expert
    network, weights = of_layers(layers.DENSE, "fp8")
    # A byte a number, and four for each block of 32 by 32.
    assert weights.layer_bytes(network, 64) == 2 * (64 + 32) * 32 * (1 + 4 / 32**2)


def test_attention_is_held_to_the_rate_of_reading_only_where_much_is_read() -> None:
    seen = {"1 queries": 0.2, "5 queries": 0.2}
    figures = {
        "five_over_one": {"1 at 4096": 1.0, "64 at 1024": 1.06},
        "read_mb": {"1 at 4096": 16.0, "64 at 1024": 256.0},
        "of_bandwidth": {"1 at 4096": seen, "64 at 1024": seen},
    }
    assert attention.missed(figures) == [
        "64 at 1024: 5 queries take 1.06 times as long as 1, the bar is 1.05",
        "64 at 1024: 0.2 of the bandwidth, the bar is 0.85",
    ]


def test_strict_prompts_may_take_so_much_longer_than_fast_ones() -> None:
    ratios = {"512 tokens": 1.3, "2048 tokens": 1.31}
    assert prefill.missed({"strict_over_fast": ratios}) == ["2048 tokens: strict takes 1.31 x fast, the bar is 1.3"]
