"""A network that is split over ranks computes what the whole one does, and reads no more than it needs."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import parity
import pytest
import ranks
import routing
import torch
from quantized_writer import Written, fp8
from test_quantized import LATENT, SPARSE, WRITTEN, named, write_both, write_folder
from transformers import (
    DeepseekV3Config,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from models.batch import Stretch, make_batch
from models.config import read_network
from models.errors import ModelError
from models.executor import Options
from models.memory import kept_by, weight_bytes
from models.plain import PlainExecutor
from models.quantized.at_load import CodedWeights
from models.shards import part_of, shard
from models.spec import Attention, Cut, Linear, Network, Part
from models.taps import FINAL
from models.weights import Weights

TOKENS = parity.random_tokens(70, 5)
DENSE: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "llama": (LlamaConfig, {}),
    "llama, tied, biases": (LlamaConfig, {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama, 3 key heads": (LlamaConfig, {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 72}),
    "llama, 1 key head": (LlamaConfig, {"num_key_value_heads": 1}),
    "qwen2": (Qwen2Config, {}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "mistral": (MistralConfig, {"sliding_window": 20, "head_dim": 16}),
    "ernie": (Ernie4_5Config, {"head_dim": 16}),
    "gemma": (Gemma3TextConfig, {"head_dim": 16, "tie_word_embeddings": True, "pad_token_id": None}),
}
MOE: dict[str, tuple[type[PreTrainedConfig], dict[str, Any]]] = {
    "qwen3_moe": (Qwen3MoeConfig, SPARSE | {"norm_topk_prob": True}),
    "gpt_oss": (GptOssConfig, {"head_dim": 16, "num_local_experts": 5, "num_experts_per_tok": 2, "sliding_window": 20,
                               "intermediate_size": 24}),
    "deepseek": (DeepseekV3Config, LATENT | {"n_shared_experts": 2}),
    "ernie_moe": (Ernie4_5_MoeConfig, {"head_dim": 16, "moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 24,
                                       "moe_num_shared_experts": 1, "moe_layer_start_index": 1}),
}  # fmt: skip


def texts(executor: Any) -> tuple[torch.Tensor, list[int]]:
    """Logits of a prompt in two chunks beside another sequence, and a greedy text."""
    pages = parity.Pages()
    first, second = pages.take(70), pages.take(70)
    parity.run(executor, [Stretch(TOKENS[:30], 0, first, 30)])
    logits = parity.run(executor, [Stretch(TOKENS[30:], 30, first, 0), Stretch(TOKENS[::-1], 0, second, 60)])
    return logits, parity.greedy(executor, pages.take(24), TOKENS[:12], 12)


def check(folder: Path, count: int, make: parity.MakeExecutor, whole: parity.MakeExecutor | None = None) -> None:
    expected, text = texts(parity.load(folder, whole or make))
    assert expected.abs().max() > 0.5
    with ranks.split(folder, count, make) as split:
        logits, said = texts(split)
    assert logits.shape == expected.shape
    assert (logits - expected).abs().max() <= parity.TOLERANCE
    assert said == text


# Every network over two ranks or four, by turns with every executor; the slow tests have the other number, too.
TURNS = [
    pytest.param(name, ranks, executor, marks=[pytest.mark.slow] * (turn != place // 2 % 2))
    for place, name in enumerate(DENSE)
    for turn, (ranks, executor) in enumerate(
        zip((2, 4), ("plain", "compiled") if place % 2 else ("compiled", "plain"), strict=True)
    )
]


@pytest.mark.parametrize(("name", "count", "executor"), TURNS)
def test_a_split_dense_model_gives_the_logits_and_the_text_of_the_whole_one(
    name: str, count: int, executor: str, tmp_path: Path
) -> None:
    config_class, changes = DENSE[name]
    parity.save_tiny(config_class, tmp_path, **changes)
    check(tmp_path, count, parity.EXECUTORS[executor])


@parity.every_executor
def test_the_first_rank_has_what_the_head_reads_whole(make: parity.MakeExecutor, tmp_path: Path) -> None:
    theirs = parity.save_tiny(LlamaConfig, tmp_path)
    expected = parity.features_of(theirs, TOKENS, (FINAL,))[60:]
    with ranks.split(tmp_path, 2, make) as split:
        final = split.forward(make_batch([Stretch(TOKENS, 0, list(range(5)), 60)], parity.PAGE_TOKENS)).final
        assert final is not None
        parity.assert_close(final, expected, "what the head reads")


@parity.every_executor
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_tokens_at_the_borders_of_shares_are_fed_drafted_and_scored_as_by_one_rank(
    tied: bool, count: int, make: parity.MakeExecutor, tmp_path: Path
) -> None:
    """Alone, in a prompt, and as a tree behind it; the last share is smaller than the others."""
    parity.save_tiny(LlamaConfig, tmp_path, tie_word_embeddings=tied)
    edges = ranks.borders(parity.VOCABULARY, count)
    assert len({*edges}) == 2 * count and (edges[0], edges[-1]) == (0, parity.VOCABULARY - 1)
    parents = [-1, 0, 0, *range(1, len(edges) - 2)]

    def logits(executor: Any) -> torch.Tensor:
        alone = [Stretch([token], 0, [place], 0) for place, token in enumerate(edges)]
        found = [parity.run(executor, alone), parity.run(executor, [Stretch(edges, 0, [20], 0)])]
        tree = Stretch([5, *edges], len(edges), [20], 0, parents, range(100, 110))
        found.append(executor.forward(make_batch([tree], parity.PAGE_TOKENS)).logits.clone())
        return torch.cat(found)

    changes = {"branch_pages": 10}
    expected = logits(parity.load(tmp_path, make, **changes))
    with ranks.split(tmp_path, count, make, **changes) as split:
        found = logits(split)
    assert found.shape == expected.shape == (3 * len(edges) + 1, parity.VOCABULARY)
    assert (found - expected).abs().max() <= parity.TOLERANCE
    # The rows of different tokens differ by more.
    alone = expected[: len(edges)]
    assert min((one - other).abs().max() for one, other in combinations(alone, 2)) > 100 * parity.TOLERANCE


@parity.every_executor
@pytest.mark.parametrize("name", MOE)
def test_experts_are_shared_out_whole(name: str, make: parity.MakeExecutor, tmp_path: Path) -> None:
    config_class, changes = MOE[name]
    routing.save_sparse(config_class, tmp_path, 0, **changes)
    check(tmp_path, 2, make)


@pytest.mark.parametrize(
    ("name", "count", "dtype"),
    [("llama", 2, "int8"), ("llama, 1 key head", 4, "bfloat16"), ("qwen3_moe", 2, "bfloat16"), ("deepseek", 2, "int8")],
)
def test_a_row_has_the_same_bits_alone_and_beside_others(name: str, count: int, dtype: str, tmp_path: Path) -> None:
    """Law 3 within a layout: neither the batch nor how a prompt was cut changes a bit."""
    config_class, changes = (DENSE | MOE)[name]
    routing.save_sparse(config_class, tmp_path, 0, **changes)
    with ranks.split(tmp_path, count, parity.EXECUTORS["compiled"], dtype) as split:
        pages = parity.Pages()
        first, second, third = (pages.take(70) for _ in range(3))
        whole = parity.run(split, [Stretch(TOKENS, 0, first, 0)])
        pieces = [parity.run(split, [Stretch(TOKENS[:33], 0, second, 0), Stretch(TOKENS[::-1], 0, third, 70)])]
        pieces += [parity.run(split, [Stretch([TOKENS[at]], at, second, 0)]) for at in range(33, 70)]
    assert torch.equal(torch.cat(pieces), whole)


# What is read ---------------------------------------------------------------------------------------------


class CountedWeights(Weights):
    """Notes what of the files' values is asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.places: dict[tuple[str, str], int] = {}

    def _values(self, name: str, *places: slice) -> torch.Tensor:
        values = super()._values(name, *places)
        self.places[name, str(places)] = values.nbytes
        return values


def read_by_ranks(folder: Path, count: int) -> list[float]:
    """Shares of the folder's bytes."""
    made: list[CountedWeights] = []

    def counted(folder: Path) -> CountedWeights:
        made.append(CountedWeights(folder))
        return made[-1]

    with ranks.split(folder, count, parity.EXECUTORS["plain"], weights=counted):
        pass
    whole = sum(header.end - header.begin for header in made[0]._headers.tensors.values())
    return [sum(each.places.values()) / whole for each in made]


@pytest.mark.parametrize("count", [2, 4])
def test_a_rank_reads_its_share_and_little_more(count: int, tmp_path: Path) -> None:
    parity.save_tiny(LlamaConfig, tmp_path, hidden_size=128, intermediate_size=512, num_key_value_heads=4)
    assert max(read_by_ranks(tmp_path, count)) <= 1 / count + 0.05


IN_BLOCKS = WRITTEN["fp8 in blocks"].config | {"weight_block_size": [16, 32]}
READ = {name: WRITTEN[name] for name in ("awq", "gptq 4 bits, one group", "W8A8")} | {
    "fp8 in blocks": Written(IN_BLOCKS, lambda s, n, k: fp8(s, n, k, block=(16, 32), scale="weight_scale_inv"), "fp8")
}


@pytest.mark.parametrize("name", READ)
def test_a_rank_reads_its_share_of_a_quantised_folder(name: str, tmp_path: Path) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 512, "num_key_value_heads": 4, "vocab_size": 64}
    folder, _ = write_both(tmp_path, LlamaConfig, READ[name], **sizes)
    assert max(read_by_ranks(folder, 2)) <= 0.55


# Quantised folders ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITTEN)
def test_any_part_of_a_quantised_matrix_is_that_part_of_the_whole(name: str, tmp_path: Path) -> None:
    """Cuts of all kinds, also such as lie within a group, a block or a word."""
    written, source = WRITTEN[name], random.Random(4)
    outputs, inputs = 64, 96
    made, meant = written.make(source, outputs, inputs)
    folder = write_folder(tmp_path, written.config, named("q", made)).folder
    weights = Weights(folder)
    for row, rows, column, columns in (
        (0, 64, 0, 48), (0, 64, 48, 48), (0, 24, 0, 96), (24, 40, 0, 96), (8, 8, 8, 40), (40, 24, 72, 24),
    ):  # fmt: skip
        part = Part("q", rows, Cut(row, outputs) if rows < outputs else None)
        linear = Linear((part,), columns, cut=Cut(column, inputs) if columns < inputs else None)
        found = weights.linear(linear).dense(torch.float32)
        assert torch.equal(found, meant[row : row + rows, column : column + columns]), (row, rows, column, columns)


@pytest.mark.parametrize("name", ["awq", "gptq 4 bits, inputs in any order", "W8A8", "fp8 in blocks"])
def test_a_quantised_model_is_split_like_the_dense_one(name: str, tmp_path: Path) -> None:
    folders = write_both(tmp_path, LlamaConfig, WRITTEN[name])
    expected, text = texts(parity.load(folders[1], parity.EXECUTORS["plain"]))
    with ranks.split(folders[0], 2, parity.EXECUTORS["plain"]) as split:
        logits, said = texts(split)
    assert (logits - expected).abs().max() <= parity.TOLERANCE and said == text


@pytest.mark.parametrize("way", ["wint8", "wint4"])
def test_codes_that_are_made_at_load_are_made_of_shares(way: str, tmp_path: Path) -> None:
    """Scales are of a share's inputs, so the values are others, no further from the stored ones."""
    parity.save_tiny(LlamaConfig, tmp_path)
    network = read_network(tmp_path)
    expected, _ = texts(parity.load(tmp_path, parity.EXECUTORS["plain"]))

    def coded(folder: Path) -> CodedWeights:
        return CodedWeights(Weights(folder), network, way)

    options = Options("float32", parity.PAGES, parity.PAGE_TOKENS, 256)
    whole, _ = texts(parity.EXECUTORS["plain"](network, coded(tmp_path), options))  # type: ignore[arg-type]
    with ranks.split(tmp_path, 2, parity.EXECUTORS["plain"], weights=coded) as split:
        logits, _ = texts(split)
    off, whole_off = ((each - expected).abs().mean() for each in (logits, whole))
    assert 0 < off < 1.2 * whole_off, (off, whole_off)


# Shares ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "over"), [(9, 2), (3, 3), (7, 4), (4, 4)])
def test_parts_are_neighbours_and_nearly_equal(count: int, over: int) -> None:
    parts = [part_of(count, rank, over) for rank in range(over)]
    assert [place for first, size in parts for place in range(first, first + size)] == list(range(count))
    assert max(size for _, size in parts) - min(size for _, size in parts) <= 1


def smollm2_like(tmp_path: Path) -> Network:
    parity.save_tiny(
        LlamaConfig, tmp_path, num_attention_heads=9, num_key_value_heads=3, hidden_size=144, intermediate_size=1536
    )
    return read_network(tmp_path)


@pytest.mark.parametrize(
    ("over", "heads"), [(2, [(6, 2), (3, 1)]), (3, [(3, 1)] * 3), (4, [(2, 1), (1, 1), (3, 1), (3, 1)])]
)
def test_query_heads_stay_with_their_key_head(over: int, heads: list[tuple[int, int]], tmp_path: Path) -> None:
    network = smollm2_like(tmp_path)
    shares = [shard(network, rank, over) for rank in range(over)]
    found = [share.layers[0].attention for share in shares]
    assert [(one.heads, one.kv_heads) for one in found if isinstance(one, Attention)] == heads
    columns = [share.layers[0].mlp.down.cut.first for share in shares]  # type: ignore[union-attr]
    assert all(first % 128 == 0 for first in columns)


@pytest.mark.parametrize(
    ("over", "changes", "told"), [(10, {}, "9 query heads"), (4, {"vocab_size": 3}, "3 tokens of its vocabulary")]
)
def test_what_leaves_a_rank_with_nothing_is_refused_by_name(
    over: int, changes: dict[str, int], told: str, tmp_path: Path
) -> None:
    network = replace(smollm2_like(tmp_path), **changes)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=f"tensor_parallel_size is {over}, and the model has .*{told}"):
        for rank in range(over):
            shard(network, rank, over)


def test_sums_of_a_row_do_not_depend_on_the_rows_beside_it() -> None:
    """Libraries sum a large tensor in pieces, each in an order of its own."""
    source = torch.Generator().manual_seed(1)
    parts = [torch.randn(64, 24, generator=source) * 10.0 ** (4 * rank % 5) for rank in range(4)]

    def summed(rows: slice) -> list[torch.Tensor]:
        with ranks.groups(4) as (pool, groups):
            return list(pool.map(lambda group: group.sum(parts[group.rank][rows].clone()), groups))

    whole = summed(slice(None))
    assert all(torch.equal(each, whole[0]) for each in whole)
    for row in (0, 17, 63):
        assert torch.equal(summed(slice(row, row + 1))[0], whole[0][row : row + 1])


@pytest.mark.parametrize("name", ["llama, 3 key heads", "deepseek"])
def test_shares_take_together_what_the_whole_takes_and_what_is_everybodys(name: str, tmp_path: Path) -> None:
    config_class, changes = (DENSE | MOE)[name]
    routing.save_sparse(config_class, tmp_path, 0, **changes)
    network, weights = read_network(tmp_path), Weights(tmp_path)

    def takes(one: Network) -> int:
        return weight_bytes(one, kept_by(one, weights, "float32", False))

    everybodys = sum(
        takes(replace(shard(network, rank, 2), layers=())) for rank in range(2)
    ) - takes(replace(network, layers=()))
    assert everybodys == 4 * network.hidden_size  # the last norm
    options = Options("float32", 0, 16, 256)
    pages = [PlainExecutor.page_bytes(shard(network, rank, 2), options) for rank in range(2)]
    whole = PlainExecutor.page_bytes(network, options)
    assert sum(pages) == (whole if name.startswith("llama") else 2 * whole)
    assert whole and takes(network) < sum(takes(shard(network, rank, 2)) for rank in range(2)) < 1.2 * takes(network)
