"""Every head agrees with its reference on every executor, however its rows are cut into calls, and refuses a model that
it wasn't made for."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import reference
import torch
from reference import DRAFT_VOCABULARY, HIDDEN, VOCABULARY, State
from safetensors.torch import load_file, save_file

from models.batch import Stretch, make_batch
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.errors import ModelError
from models.executor import Executor, Options
from models.gpu.executor import GpuExecutor
from models.heads.folder import read_head
from models.heads.head import Head, Mask
from models.heads.residual import ResidualHeads
from models.heads.sources import method_of
from models.heads.weights import HeadWeights, target_ids
from models.passes import store
from models.plain import PlainExecutor
from models.spec import Network
from models.taps import FINAL, Tap
from models.weights import Weights
from services.worker.running.head import open_head

LENGTH, PAGE_TOKENS, PAGES = 50, 16, 12
TARGET_LAYERS = 3
TREE = Stretch([3, 5, 6, 7, 8], 0, [0], 0, [-1, -1, 0, 1], [PAGES, PAGES + 1])
Reference = Callable[[State, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> tuple[Network, Weights]:
    folder = tmp_path_factory.mktemp("target")
    reference.write_target(folder, TARGET_LAYERS)
    return read_network(folder), Weights(folder)


def _mtp(state: State, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return reference.mtp(state, tokens, hidden, f"model.layers.{TARGET_LAYERS}.")


def _speculators(state: State, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return reference.eagle3(state, tokens, hidden, name="layers.0.", first=True)


LAYOUTS: dict[str, tuple[str, Callable[[Path], State], Reference]] = {
    "eagle3": ("eagle3", reference.write_eagle3, reference.eagle3),
    "eagle3, speculators": (
        "eagle3", lambda folder: reference.write_eagle3(folder, "layers.0.", norm_before_residual=True), _speculators,
    ),
    "eagle3, two layers": (
        "eagle3",
        lambda folder: reference.write_eagle3(folder, "layers.0.", reference.layer_shapes("layers.1.")),
        reference.eagle3_deep,
    ),
    "block": ("block", reference.write_block, reference.eagle3),
    "eagle": ("eagle", reference.write_eagle, reference.eagle),
    "eagle without bias": ("eagle", lambda folder: reference.write_eagle(folder, bias=False), reference.eagle),
    "mtp": ("mtp", lambda folder: reference.write_mtp(folder, TARGET_LAYERS, shared=False), _mtp),
    "mtp with the model's own head": (
        "mtp", lambda folder: reference.write_mtp(folder, TARGET_LAYERS, shared=True), _mtp,
    ),
    "mtp, ernie": ("mtp", reference.write_ernie_mtp, reference.ernie_mtp),
    "mtp, mimo": ("mtp", reference.write_mimo_mtp, reference.mimo_mtp),
    "mtp, qwen3.5": ("mtp", reference.write_qwen3_5_mtp, reference.qwen3_5_mtp),
}  # fmt: skip

EXECUTORS: dict[str, Callable[[Network, Any, Options], Executor]] = {
    "plain": lambda network, weights, options: PlainExecutor(
        network, weights, dataclasses.replace(options, strict=False)
    ),
    "plain, strict": PlainExecutor,
    "compiled": lambda network, weights, options: CpuExecutor(
        network, weights, dataclasses.replace(options, threads=2)
    ),
    "gpu": lambda network, weights, options: GpuExecutor(network, weights, options, device="cpu"),
}


def _open(folder: Path, method: str, target: tuple[Network, Weights]) -> tuple[Head, HeadWeights]:
    network, weights = target
    head = read_head(method, folder, network)
    assert isinstance(head, Head)
    own = Weights(folder)
    return head, HeadWeights(own, weights, head.shared, target_ids(head, own, network.vocab_size), network.vocab_size)


def _with_shared(state: State, head: Head, weights: HeadWeights) -> State:
    """What the reference reads, the tensors of the target among it."""
    network = head.network
    (part,) = network.head.parts
    found = dict(state)
    found.setdefault(network.embedding, weights.take(network.embedding, network.vocab_size, HIDDEN))
    found.setdefault(f"{part.name}.weight", weights.take(f"{part.name}.weight", part.outputs, HIDDEN))
    if network.norm is not None:
        found.setdefault(f"{network.norm.name}.weight", weights.take(f"{network.norm.name}.weight", HIDDEN))
    return found


# Where a row takes long: each way in which rows enter a network, with norms and without, in both orders.
TAKEN_BY = {
    "plain": list(LAYOUTS),
    "compiled": list(LAYOUTS),
    "plain, strict": ["eagle3", "mtp"],
    "gpu": ["eagle3", "eagle3, speculators", "eagle", "mtp", "mtp, mimo"],
}
CASES = [(executor, layout) for executor, layouts in TAKEN_BY.items() for layout in layouts]


def cuts(executor: str) -> list[tuple[int, int]]:
    """A prompt in chunks, then steps of a few rows and of one; over the end of a page."""
    if executor == "gpu":
        return [(0, 9), (9, 17), (17, 19), (19, 20)]
    return [(0, 20), (20, 33), (33, 40), (40, 41), (41, 49), (49, LENGTH)]


@pytest.mark.shows("published heads of other models", "tested")
@pytest.mark.parametrize(("executor", "layout"), CASES)
def test_it_computes_what_the_reference_does(
    executor: str, layout: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    (method, write, expected), make = LAYOUTS[layout], EXECUTORS[executor]
    state = write(tmp_path)
    head, weights = _open(tmp_path, method, target)
    # A block drafter's values are of no further use.
    assert (head.follows is None) == (method == "block")
    options = Options("float32", PAGES, PAGE_TOKENS, 256, taps=() if head.follows is None else (head.follows,))
    made = make(head.network, weights, options)
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(VOCABULARY, (LENGTH,), generator=generator)
    hidden = torch.randn(LENGTH, HIDDEN, generator=generator)
    logits, follows = expected(_with_shared(state, head, weights), tokens, hidden)
    found, values = [], []
    for start, end in cuts(executor):
        stretch = Stretch(tokens[start:end].tolist(), start, list(range(4, 4 + LENGTH // PAGE_TOKENS + 1)), 0)
        output = made.forward(make_batch([stretch], PAGE_TOKENS), hidden[start:end])
        found.append(output.logits.clone())
        if output.features is not None:
            values.append(output.features.clone())
    torch.testing.assert_close(torch.cat(found), logits[:end], rtol=1e-4, atol=1e-4)
    if head.follows is not None:
        torch.testing.assert_close(torch.cat(values).float(), follows[:end], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("make", EXECUTORS.values(), ids=EXECUTORS)
def test_hidden_values_find_their_rows_in_a_tree(
    make: Callable[..., Executor], target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_eagle3(tmp_path)
    head, weights = _open(tmp_path, "eagle3", target)
    options = Options("float32", PAGES, PAGE_TOKENS, 256, branch_pages=4, taps=(0,))
    executor = make(head.network, weights, options)
    hidden = torch.randn(5, HIDDEN)
    logits = executor.forward(make_batch([TREE], PAGE_TOKENS), hidden).logits.clone()
    # The path 3, 6, 8 as a chain.
    path = [0, 2, 4]
    chain = Stretch([TREE.tokens[row] for row in path], 0, [1], 0)
    alone = executor.forward(make_batch([chain], PAGE_TOKENS), hidden[path]).logits
    torch.testing.assert_close(logits[path], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", EXECUTORS)
def test_a_block_sees_the_whole_text_and_all_of_itself(
    name: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    """Keys and values of two texts are made in chunks of the model's values; then come their blocks, over the end of a
    page, in one pass."""
    state = reference.write_dflash(tmp_path)
    head, weights = _open(tmp_path, "dflash", target)
    executor: Any = EXECUTORS[name](head.network, weights, Options("float32", PAGES, PAGE_TOKENS, 256))
    state, lengths = _with_shared(state, head, weights), (19, 30) if name == "gpu" else (29, 48)
    hidden = [torch.randn(length, HIDDEN, generator=torch.Generator().manual_seed(length)) for length in lengths]
    tables = [[4, 9, 2, 7], [1, 0, 8, 3]]
    for text, pages in zip(hidden, tables, strict=True):
        for start, end in ((0, 9), (9, 17), (17, len(text))):
            store(executor, [Stretch([0] * (end - start), start, pages, end - start)], PAGE_TOKENS, text[start:end])
    blocks = [[5, *[reference.MASK_TOKEN] * 4], [9, *[reference.MASK_TOKEN] * 3]]
    stretches = [
        Stretch(tokens, len(text), pages, 1, block=True)
        for tokens, text, pages in zip(blocks, hidden, tables, strict=True)
    ]
    found = executor.forward(make_batch(stretches, PAGE_TOKENS)).logits
    rows = [
        reference.dflash(state, text, torch.tensor(block))[1:] for text, block in zip(hidden, blocks, strict=True)
    ]
    torch.testing.assert_close(found, torch.cat(rows), rtol=1e-4, atol=1e-4)


def test_what_dflash_and_dspark_say_of_themselves(target: tuple[Network, Weights], tmp_path: Path) -> None:
    reference.write_dflash(tmp_path / "dflash")
    head, _ = _open(tmp_path / "dflash", "dflash", target)
    assert head.taps == (0, 2)
    assert head.mask == Mask(reference.MASK_TOKEN, block=reference.BLOCK, by_last_token=False)
    # Speculators count layers from 1, and their first token is a mask's.
    speculators = {"dflash_config": None, "aux_hidden_state_layer_ids": [1, 3], "mask_token_id": 3, "block_size": 9}
    reference.write_dspark(tmp_path / "dspark", **speculators)
    head, _ = _open(tmp_path / "dspark", "dspark", target)
    assert head.taps == (0, 2) and head.mask == Mask(3, block=8, by_last_token=False) and head.markov is not None
    reference.write_dspark(tmp_path / "dspark", dflash_config=None, mask_token_id=3, target_layer_ids=[1, 2])
    head, _ = _open(tmp_path / "dspark", "dspark", target)
    assert head.taps == (1, 2) and head.mask == Mask(3, block=reference.BLOCK)


def _of(layers: list[int], token: int | None = 7, **more: Any) -> dict[str, Any]:
    return {"dflash_config": {"mask_token_id": token, "target_layer_ids": layers} | more}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_of([0, 2], VOCABULARY), f"mask_token_id is {VOCABULARY}"),
        (_of([0, 2], -1), "mask_token_id is -1"),
        (_of([0, 2], None), "mask_token_id is None"),
        (_of([0, 3]), r"reads layers \[0, 3\] of a model with 3"),
        (_of([-1, 2]), r"reads layers \[-1, 2\]"),
        (_of([1, 1]), r"reads layers \[1, 1\]"),
        (_of([]), r"reads layers \[\]"),
        (_of([0, 1, 2]), r"fc.weight has shape"),
        (_of([0, 2], causal=True), "causal is True"),
        ({"dflash_config": None}, "reads layers None"),
        ({"num_target_layers": 36}, "num_target_layers is 36, and the model has 3"),
        ({"block_size": 1}, "block_size is 1"),
        ({"block_size": 10**9}, "block_size is 1000000000"),
        ({"use_sliding_window": True, "sliding_window": 8, "layer_types": ["sliding_attention"] * 2}, "sliding_window"),
        ({"sample_from_anchor": True}, "sample_from_anchor is True"),
        ({"selector_rank": 4}, "selector_rank is 4"),
        ({"vocab_size": 99}, "vocab_size is 99, the model's 101"),
        ({"num_hidden_layers": 3}, r"layers\.2\.\S* is missing"),
    ],
)
def test_a_dflash_head_that_fits_no_model_or_asks_for_more_is_refused_by_name(
    change: dict[str, Any], said: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_dflash(tmp_path, **change)
    with pytest.raises(ModelError, match=said):
        _open(tmp_path, "dflash", target)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("markov_head.markov_w1.weight", (VOCABULARY, 7)), ("markov_head.markov_w1.weight", (VOCABULARY - 1, 8)),
        ("markov_head.markov_w2.weight", (VOCABULARY, 8)), ("hidden_norm.weight", (HIDDEN + 1,)),
        ("layers.1.self_attn.k_norm.weight", (8,)),
    ],
)  # fmt: skip
def test_a_tensor_of_dspark_of_another_shape_is_refused_by_name(
    name: str, shape: tuple[int, ...], target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_dspark(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {name: torch.zeros(shape)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=f"{name} has shape"):
        _open(tmp_path, "dspark", target)


def _prefix_of(folder: Path, target: tuple[Network, Weights], make: Callable[..., Executor]) -> Executor:
    network, weights = target
    heads = read_head("hydra", folder, network)
    assert isinstance(heads, ResidualHeads) and heads.prefix is not None and heads.prefix.follows == FINAL
    options = Options("float32", PAGES, PAGE_TOKENS, 256, branch_pages=4, taps=(FINAL,))
    own = HeadWeights(Weights(folder), weights, heads.prefix.shared, None, network.vocab_size)
    return make(heads.prefix.network, own, options)


@pytest.mark.parametrize("name", EXECUTORS)
def test_the_prefix_layer_of_hydra_reads_hidden_values_alone(
    name: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    """In chunks, in steps and in a tree, as over the whole text; tokens don't matter, and no logits are made."""
    state = reference.write_hydra(tmp_path, prefix=True)
    executor = _prefix_of(tmp_path, target, EXECUTORS[name])
    hidden = torch.randn(LENGTH, HIDDEN, generator=torch.Generator().manual_seed(1))
    values = []
    for start, end in cuts(name):
        stretch = Stretch([start] * (end - start), start, list(range(4, 4 + LENGTH // PAGE_TOKENS + 1)), end - start)
        output = executor.forward(make_batch([stretch], PAGE_TOKENS), hidden[start:end])
        assert output.logits.shape == (0, 0) and output.features is not None
        values.append(output.features.clone())
    torch.testing.assert_close(torch.cat(values), reference.hydra_prefix(state, hidden)[:end], rtol=1e-4, atol=1e-4)
    found = executor.forward(make_batch([TREE], PAGE_TOKENS), hidden[:5])
    assert found.logits.shape == (5, 0) and found.features is not None
    path = [0, 2, 4]
    torch.testing.assert_close(
        found.features[path], reference.hydra_prefix(state, hidden[path]), rtol=1e-4, atol=1e-4
    )


def test_blocks_of_hydra_that_are_one_module_may_be_written_once(
    target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_hydra(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hydra_num_layers": 4}))
    heads = read_head("hydra", tmp_path, target[0])
    assert isinstance(heads, ResidualHeads)
    first, *others = heads.heads[1].blocks
    assert first.skip is not None and len(others) == 3 and len(set(others)) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hydra_head_arch": "eagle-attn"}, "hydra_head_arch is 'eagle-attn'.*mlp or prefix-mlp"),
        ({"hidden_state_offset": 1}, "hidden_state_offset is 1"),
        ({"hydra_head_arch": "prefix-mlp"}, "prefix_embeding_layer.* is missing"),
    ],
)
def test_a_kind_of_hydra_that_is_not_computed_is_refused_by_name(
    change: dict[str, Any], said: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_hydra(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelError) as refused:
        read_head("hydra", tmp_path, target[0])
    assert re.search(said, f"{refused.value}")


def test_a_reduced_vocabulary_comes_with_the_ids_of_the_model(target: tuple[Network, Weights], tmp_path: Path) -> None:
    reference.write_eagle3(tmp_path)
    head, _ = _open(tmp_path, "eagle3", target)
    assert head.network.head.outputs == DRAFT_VOCABULARY and head.taps == (0, 1, 2)
    offsets = Weights(tmp_path).take_ids(head.id_offsets, DRAFT_VOCABULARY)
    assert (torch.arange(DRAFT_VOCABULARY) + offsets).tolist() == list(range(1, 2 * DRAFT_VOCABULARY, 2))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hidden_size": 128}, "hidden_size is 128, the model's 64"),
        ({"vocab_size": 99}, "vocab_size is 99, the model's 101"),
        ({"eagle_aux_hidden_state_layer_ids": [1, 2, 9]}, "reads layers \\[1, 2, 9\\] of a model with 3"),
    ],
)
def test_a_head_for_another_model_is_refused_by_name(
    change: dict[str, Any], said: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_eagle3(tmp_path, **change)
    with pytest.raises(ModelError, match=said):
        _open(tmp_path, "eagle3", target)


def test_a_head_whose_folder_names_no_layers_reads_those_that_its_authors_chose(
    target: tuple[Network, Weights], tmp_path: Path
) -> None:
    """The second, the middle and the third but last; taps count from 0."""
    reference.write_eagle3(tmp_path, eagle_aux_hidden_state_layer_ids=None)
    twelve = dataclasses.replace(target[0], layers=target[0].layers * (12 // TARGET_LAYERS))
    assert read_head("eagle3", tmp_path, twelve).taps == (1, 5, 8)


def test_a_folder_without_the_block_is_refused(target: tuple[Network, Weights], tmp_path: Path) -> None:
    reference.write_eagle(tmp_path)
    with pytest.raises(ModelError, match="holds a head of method eagle "):
        _open(tmp_path, "mtp", target)


def test_an_mtp_block_behind_other_layers_than_the_models_is_refused(
    target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_mtp(tmp_path, TARGET_LAYERS + 1, shared=True)
    with pytest.raises(ModelError, match=f"no MTP block: none of model.layers.{TARGET_LAYERS}.eh_proj"):
        _open(tmp_path, "mtp", target)


@pytest.mark.parametrize(
    ("write", "taps", "follows"),
    [
        (lambda folder: reference.write_deepseek_mtp(folder, TARGET_LAYERS), (FINAL,), FINAL),
        (lambda folder: reference.write_glm_mtp(folder, TARGET_LAYERS), (FINAL,), FINAL),
        # Trained by specmesh, on its own values before the norm.
        (lambda folder: reference.write_mtp(folder, TARGET_LAYERS, shared=True), (FINAL,), 0),
        (reference.write_ernie_mtp, (FINAL,), FINAL),
        # The model's own norm is not what MiMo's block reads.
        (reference.write_mimo_mtp, (TARGET_LAYERS - 1,), FINAL),
        (reference.write_qwen3_5_mtp, (FINAL,), FINAL),
        (reference.write_qwen3_next_mtp, (FINAL,), FINAL),
    ],
    ids=["deepseek", "glm", "specmesh", "ernie", "mimo", "qwen3.5", "qwen3-next"],
)
def test_an_mtp_block_reads_values_before_or_behind_a_norm(
    write: Callable[[Path], State], taps: tuple[Tap, ...], follows: Tap, target: tuple[Network, Weights],
    tmp_path: Path,
) -> None:  # fmt: skip
    write(tmp_path)
    head, _ = _open(tmp_path, "mtp", target)
    assert (head.taps, head.follows) == (taps, follows)


def test_the_method_of_a_folder_is_read_off_its_tensors(target: tuple[Network, Weights], tmp_path: Path) -> None:
    writers: dict[str, tuple[str, Callable[[Path], object]]] = {
        "eagle3": ("eagle3", reference.write_eagle3),
        "block": ("block", reference.write_block),
        "speculators": ("eagle3", lambda folder: reference.write_eagle3(folder, "layers.0.")),
        "eagle": ("eagle", reference.write_eagle),
        "mtp": ("mtp", lambda folder: reference.write_mtp(folder, TARGET_LAYERS, shared=True)),
        "ernie": ("mtp", reference.write_ernie_mtp),
        "mimo": ("mtp", reference.write_mimo_mtp),
        "qwen3-next": ("mtp", reference.write_qwen3_next_mtp),
        "medusa": ("medusa", reference.write_medusa),
        "hydra": ("hydra", reference.write_hydra),
        "dflash": ("dflash", reference.write_dflash),
        "dspark": ("dspark", reference.write_dspark),
        "hydra++": ("hydra", lambda folder: reference.write_hydra(folder, prefix=True)),
    }
    for name, (method, write) in writers.items():
        write(tmp_path / name)
        assert method_of(str(tmp_path / name), tmp_path) == method, name
    reference.as_vllm_names_medusa(reference.write_medusa(tmp_path / "again"), tmp_path / "vllm")
    assert method_of(str(tmp_path / "vllm"), tmp_path) == "medusa"
    assert method_of(str(target[1].folder), tmp_path) == "draft_model"
    assert method_of("own", tmp_path) == "mtp"


def test_a_reduced_vocabulary_has_the_ids_of_the_target(target: tuple[Network, Weights], tmp_path: Path) -> None:
    """The folder has the distance from each token to its id in the target, which is every second one here."""
    reference.write_eagle3(tmp_path)
    head, _ = _open(tmp_path, "eagle3", target)
    ids = target_ids(head, Weights(tmp_path), target[0].vocab_size)
    assert ids is not None and ids.tolist() == list(range(1, 2 * head.network.head.outputs, 2))


@pytest.mark.parametrize("field", ["ptd_token_id", "pard_token", "mask_token_id"])
def test_the_mask_of_a_block_drafter_has_the_embedding_of_a_token(
    field: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_block(tmp_path, **({"ptd_token_id": None} | {field: 100}))
    assert _open(tmp_path, "block", target)[0].mask == Mask(100, "mask_hidden", reference.BLOCK)
    reference.write_block(tmp_path, **({"ptd_token_id": None} | {field: VOCABULARY}))
    with pytest.raises(ModelError, match=f"{field} is {VOCABULARY}"):
        _open(tmp_path, "block", target)


def test_a_block_drafter_without_its_mask_is_refused(target: tuple[Network, Weights], tmp_path: Path) -> None:
    reference.write_eagle3(tmp_path, ptd_token_id=5)
    with pytest.raises(ModelError, match="holds a head of method eagle3 "):
        _open(tmp_path, "block", target)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("fc.weight", None, "tensor fc.weight is missing"),
        ("midlayer.self_attn.q_proj.weight", (64, 64), "q_proj.weight has shape \\(64, 64\\)"),
        ("d2t", (3,), "d2t has shape \\(3,\\)"),
    ],
)
def test_a_tensor_that_is_missing_or_wrong_is_named_before_anything_is_loaded(
    name: str, shape: tuple[int, ...] | None, said: str, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    reference.write_eagle3(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    dtype = tensors.pop(name).dtype
    if shape is not None:
        tensors[name] = torch.zeros(shape, dtype=dtype)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ModelError, match=said):
        _open(tmp_path, "eagle3", target)


def _write_short_mtp(folder: Path) -> None:
    """With a vocabulary of its own, as `specmesh train-drafter` makes them."""
    state = reference.write_mtp(folder, TARGET_LAYERS, shared=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"draft_vocab_size": DRAFT_VOCABULARY}))
    save_file(state | {"d2t": torch.arange(DRAFT_VOCABULARY)}, folder / "model.safetensors")


def _write_medusa_for_vllm(folder: Path) -> None:
    reference.as_vllm_names_medusa(reference.write_medusa(folder.parent / "authors"), folder)


# Heads with a vocabulary of their own, and the tensor that names the model's ids of it.
MAPPED: dict[str, tuple[Callable[[Path], object], str]] = {
    "eagle3": (reference.write_eagle3, "d2t"),
    "block": (reference.write_block, "d2t"),
    "mtp": (_write_short_mtp, "d2t"),
    "dflash": (lambda folder: reference.write_dflash(folder, own=True), "d2t"),
    "dspark": (reference.write_dspark, "d2t"),
    "medusa": (_write_medusa_for_vllm, "token_map"),
}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({4: 6, 7: 6, 9: 3, 12: 3}, "names the id 6 twice"),
        ({5: 2, 6: 1}, None),
        ({0: 0, 1: VOCABULARY - 1}, None),
        ({3: VOCABULARY, 5: -1}, f"names the id {VOCABULARY}, and the model's vocabulary has {VOCABULARY} tokens"),
        ({5: -1}, "names the id -1, and"),
        ({2: 2**62}, f"names the id {2**62}, and"),
    ],
)
@pytest.mark.parametrize("method", MAPPED)
def test_a_map_of_a_heads_vocabulary_names_each_of_the_models_ids_once_at_most(
    method: str, changes: dict[int, int], said: str | None, target: tuple[Network, Weights], tmp_path: Path
) -> None:
    """`changes`: by token of the head, its id, where the others are their ids behind 9. The first that is wrong is
    named."""
    write, name = MAPPED[method]
    folder = tmp_path / "head"
    write(folder)
    tensors = load_file(folder / "model.safetensors")
    count = len(tensors[name])
    ids = torch.arange(count) + 9
    for place, token in changes.items():
        ids[place] = token
    tensors[name] = ids - torch.arange(count) if name == "d2t" else ids
    save_file(tensors, folder / "model.safetensors")
    if said is None:
        opened = target_ids(read_head(method, folder, target[0]), Weights(folder), target[0].vocab_size)
        assert opened is not None and opened.tolist() == ids.tolist()
        return
    with pytest.raises(ModelError, match=f"tensor {name} {said}"):
        open_head(method, folder, target[0], target[1].folder)
