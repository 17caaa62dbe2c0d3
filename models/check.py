"""Checks that a folder is a model that can be run: config.json, and every name, shape and type of its tensors. Reads no
values and needs no torch.

The result has the figures that `specmesh model check` prints and that `specmesh up` reads before it starts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from models.config import Fields, network_of, read_network
from models.errors import ModelError
from models.folder import check_folder, read_json
from models.folder_headers import FolderHeaders
from models.hub import fetch_config
from models.parameters import parameter_count
from models.quantized.registry import format_of
from models.spec import Attention, DeltaNet, ExpertRouter, LatentAttention, Linear, Network, Norm


@dataclass(frozen=True, slots=True)
class Checked:
    architecture: str
    network: Network
    format: str  # of the linears, in a few words
    parameters: int
    stored_bytes: int
    files: int
    headers: FolderHeaders


def check_model(folder: Path) -> Checked:
    """Raises `ModelError` that names what is missing, wrong or not computed."""
    check_folder(folder)
    network = read_network(folder)
    headers = FolderHeaders(folder)
    headers.check_floats(network.embedding, network.vocab_size, network.hidden_size)
    check_parts(network, headers)
    return Checked(
        architecture=read_json(folder / "config.json")["architectures"][0],  # type: ignore[index]
        network=network,
        format=headers.format.told,
        parameters=parameter_count(network),
        stored_bytes=sum(header.end - header.begin for header in headers.tensors.values()),
        files=len(set(headers.file_of.values())),
        headers=headers,
    )


@dataclass(frozen=True, slots=True)
class Described:
    """What config.json says of a model that isn't here."""

    architecture: str
    network: Network
    format: str


def check_described(name: str, cache: Path) -> Described:
    """Of a hub id: reads config.json alone. Raises `ModelError` that names what isn't computed."""
    values = read_json(fetch_config(name, cache))
    try:
        network, form = network_of(Fields(values)), format_of(values)
    except ModelError as error:
        raise ModelError(f"{name}: {error.what}", error.fix) from error
    return Described(values["architectures"][0], network, form.told)  # type: ignore[index]


def check_parts(declared: Any, headers: FolderHeaders, elsewhere: Collection[str] = ()) -> None:
    """Name, shape and type of all tensors of a declaration, but for those that are in another folder. Raises
    `ModelError`."""
    for item in parts_of(declared):
        named = item.parts if isinstance(item, Linear) else (item,) if isinstance(item, Norm) else ()
        if not any(f"{each.name}.weight" in elsewhere for each in named):
            _check(item, headers)


def check_context(network: Network, max_context: int) -> int:
    """The context to serve: the setting, or with 0 what the model was made for. Raises `ModelError` beyond it."""
    if max_context > network.max_context:
        raise ModelError(
            f"max_context is {max_context}, and the model was made for {network.max_context} tokens",
            f"set max_context to at most {network.max_context}, or to 0 for that",
        )
    return max_context or network.max_context


def kv_bytes_per_token(network: Network, number_bytes: int) -> int:
    """What all layers keep of a token in pages."""
    return number_bytes * sum(_kept(layer.attention) for layer in network.layers)


def _kept(attention: Attention | LatentAttention | DeltaNet) -> int:
    if isinstance(attention, DeltaNet):
        return 0
    if isinstance(attention, LatentAttention):
        return attention.latent_dim + attention.rope_dim
    return 2 * attention.kv_heads * attention.head_dim


def _check(item: Any, headers: FolderHeaders) -> None:
    if isinstance(item, Linear):
        headers.check_linear(item)
    elif isinstance(item, Norm):
        headers.check_floats(f"{item.name}.weight", item.width)
    elif isinstance(item, Attention) and item.sinks:
        headers.check_floats(item.sinks, item.heads)
    elif isinstance(item, DeltaNet):
        for name, shape in item.tensors.items():
            headers.check_floats(name, *shape)
    elif isinstance(item, ExpertRouter) and item.bias:
        headers.check_floats(item.bias, *(item.bias_shape or (item.experts,)))


def parts_of(item: Any) -> Iterator[Any]:
    """Every dataclass in a network, itself first."""
    if is_dataclass(item):
        yield item
        for field in fields(item):
            yield from parts_of(getattr(item, field.name))
    elif isinstance(item, tuple):
        for member in item:
            yield from parts_of(member)
