"""Folders of heads that both sides of bench/same_drafts.py read: a trained head as floats, with the rows of the model's
head that it leaves out; or random weights, from a seed, in the published layout. MTP blocks belong to families of
models: bench/mtp_folders.py.
"""

from __future__ import annotations

from pathlib import Path

from bench.declared_tensors import config_of, drawn, mostly_hidden, stored, write
from bench.mtp_folders import FAMILIES
from models.config import Fields, read_network
from models.heads.eagle import read as read_eagle
from models.heads.folder import READERS, read_head
from models.heads.head import Head
from models.heads.residual import ResidualHeads
from models.heads.weights import HeadWeights, target_ids
from models.weights import Weights


def in_floats(method: str, folder: Path, model: Path, out: Path, seed: int | None = None) -> Path:
    """A trained head, with everything that is not simply the model's; with a seed, random weights in their place."""
    network, own = read_network(model), Weights(folder)
    head = read_head(method, folder, network)
    ids = target_ids(head, own, network.vocab_size)
    weights = HeadWeights(own, Weights(model), head.shared, ids, network.vocab_size)
    tensors = stored(head, weights) if seed is None else drawn(head, seed)
    if ids is None:
        tensors = {name: tensor for name, tensor in tensors.items() if name not in head.shared}
    name = head.token_ids if isinstance(head, ResidualHeads) else head.id_offsets
    if ids is not None:
        tensors[name] = own.take_ids(name, len(ids))
    if isinstance(head, Head) and head.mask is not None:
        tensors[head.mask.features] = own.take(head.mask.features, 1, len(head.taps) * network.hidden_size)
    config = {name: value for name, value in config_of(folder).items() if name != "quantization_config"}
    return write(out, config, tensors)


def random_eagle(model: Path, out: Path, seed: int) -> Path:
    """EAGLE of the first generation, in the authors' layout."""
    config = config_of(model) | {"num_hidden_layers": 1}
    head = read_eagle(Fields(config), (), read_network(model))
    tensors = {name: tensor for name, tensor in drawn(head, seed).items() if name not in head.shared}
    mostly_hidden(tensors["fc.weight"])
    return write(out, config, tensors)


def made(
    method: str, family: str, model: Path, folder: Path | None, out: Path, seed: int, random: bool = False
) -> tuple[Path, Path]:
    """The folders of the model and of the head. `random`: with the layout of `folder`, but not with its weights."""
    if family:
        whole = FAMILIES[family](model, out / family, seed, None if random else folder)
        return whole, whole
    if folder is None:
        if method != "eagle":
            raise SystemExit(f"{method}: give --draft-model; only eagle and the families of mtp are made without one")
        return model, random_eagle(model, out / method, seed)
    if method in READERS:
        return model, in_floats(method, folder, model, out / method, seed if random else None)
    return model, folder
