"""What both sides of a comparison read is the trained head, or a whole random one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "models" / "heads"))

import reference

from bench.oracles.draft_folders import made
from models.batch import Stretch, make_batch
from models.check import check_model
from models.config import read_network
from models.executor import Options
from models.heads.folder import read_head
from models.heads.head import Head
from models.plain import PlainExecutor
from models.taps import FINAL
from models.weights import Weights
from services.training.eight_bits import store_in_8_bits

LAYERS = 3


@pytest.fixture
def model(tmp_path: Path) -> Path:
    reference.write_target(tmp_path / "model", LAYERS)
    return tmp_path / "model"


def _logits(folder: Path) -> torch.Tensor:
    executor = PlainExecutor(read_network(folder), Weights(folder), Options("float32", 4, 16, 64))
    return executor.forward(make_batch([Stretch([5, 6, 7, 8], 0, [0], 0)], 16)).logits


def _head(method: str, folder: Path, model: Path) -> Head:
    head = read_head(method, folder, read_network(model))
    assert isinstance(head, Head)
    return head


def test_a_trained_head_in_8_bits_is_written_as_floats(model: Path, tmp_path: Path) -> None:
    reference.write_block(tmp_path / "block")
    whole = load_file(tmp_path / "block" / "model.safetensors")
    store_in_8_bits(tmp_path / "block")
    _, folder = made("block", "", model, tmp_path / "block", tmp_path / "out", 0)
    found = load_file(folder / "model.safetensors")
    assert found.keys() == whole.keys() - {"t2d"} and found["d2t"].equal(whole["d2t"])
    assert found["fc.weight"].dtype == torch.float32
    torch.testing.assert_close(found["fc.weight"], whole["fc.weight"], rtol=0, atol=0.01)
    config = json.loads((folder / "config.json").read_text())
    assert "quantization_config" not in config and config["ptd_token_id"] == reference.MASK_TOKEN
    assert _head("block", folder, model).mask is not None


def test_rows_of_the_models_head_that_a_head_leaves_out_are_written(model: Path, tmp_path: Path) -> None:
    reference.write_eagle3(tmp_path / "head")
    tensors = load_file(tmp_path / "head" / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "head" / "model.safetensors")
    _, folder = made("eagle3", "", model, tmp_path / "head", tmp_path / "out", 0)
    theirs = load_file(model / "model.safetensors")["lm_head.weight"]
    found = load_file(folder / "model.safetensors")
    # The draft vocabulary of the writer: every second token.
    assert found["lm_head.weight"].equal(theirs[1 : 2 * reference.DRAFT_VOCABULARY : 2])
    assert "embed_tokens.weight" not in found


def test_a_model_under_mimos_names_is_the_same_model_with_the_trained_block(model: Path, tmp_path: Path) -> None:
    state = reference.write_mtp(tmp_path / "mtp", LAYERS, shared=True)
    folder, same = made("mtp", "mimo", model, tmp_path / "mtp", tmp_path / "out", 0)
    assert folder == same and check_model(folder).architecture == "MiMoForCausalLM"
    torch.testing.assert_close(_logits(folder), _logits(model))
    found, name = load_file(folder / "model.safetensors"), f"model.layers.{LAYERS}."
    joined = state[f"{name}eh_proj.weight"]
    size = reference.HIDDEN
    assert found["model.mtp_layers.0.input_proj.weight"].equal(torch.cat([joined[:, size:], joined[:, :size]], 1))
    assert found["model.mtp_layers.0.mlp.up_proj.weight"].equal(state[f"{name}mlp.up_proj.weight"])
    assert _head("mtp", folder, folder).taps == (LAYERS - 1,)


@pytest.mark.parametrize(
    ("method", "family", "follows"), [("eagle", "", 0), ("mtp", "mimo", FINAL), ("mtp", "deepseek_v3", FINAL)]
)
def test_a_random_folder_is_whole_and_the_same_for_a_seed(
    method: str, family: str, follows: object, model: Path, tmp_path: Path
) -> None:
    folders = [made(method, family, model, None, tmp_path / str(place), seed) for place, seed in enumerate((1, 1, 2))]
    for target, folder in folders:
        check_model(target)
        assert _head(method, folder, target).follows == follows
    first, again, other = ((folder / "model.safetensors").read_bytes() for _, folder in folders)
    assert first == again != other


def test_random_weights_have_the_names_and_shapes_of_the_trained_ones(model: Path, tmp_path: Path) -> None:
    reference.write_block(tmp_path / "block")
    folders = [made("block", "", model, tmp_path / "block", tmp_path / str(each), 0, each)[1] for each in (False, True)]
    trained, drawn = (load_file(folder / "model.safetensors") for folder in folders)
    assert {name: each.shape for name, each in drawn.items()} == {name: each.shape for name, each in trained.items()}
    assert drawn["d2t"].equal(trained["d2t"]) and not drawn["fc.weight"].equal(trained["fc.weight"])


def test_what_is_neither_trained_nor_made_at_random_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="eagle3: give --draft-model"):
        made("eagle3", "", model, None, tmp_path / "out", 0)
    with pytest.raises(SystemExit, match="there is no trained block"):
        made("mtp", "deepseek_v3", model, tmp_path, tmp_path / "out", 0)
