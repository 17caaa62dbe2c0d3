"""A head's folder beside its target's: what the head consists of, as the reader of its kind says. Tensors that the
folder lacks (embedding, head) are the target's. Reads headers only, and needs no torch.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from models.check import check_parts
from models.config import Fields, text_fields
from models.errors import ModelError
from models.folder_headers import FolderHeaders
from models.heads.head import Head
from models.heads.residual import ResidualHeads
from models.heads.sources import check_kind
from models.heads.table import HEADS
from models.quantized.format import WantedFormat
from models.sources import read_json
from models.spec import Network


def read_head(method: str, folder: Path, target: Network) -> Head | ResidualHeads:
    """Raises `ModelError` that says what of the folder is missing, wrong, or doesn't fit the target."""
    headers = FolderHeaders(folder)
    try:
        return _read(method, headers, target)
    except ModelError:
        # What is wrong may be that it is of another kind.
        check_kind(method, headers.tensors.keys(), folder)
        raise


def _read(method: str, headers: FolderHeaders, target: Network) -> Head | ResidualHeads:
    config = text_fields(Fields(read_json(headers.folder / "config.json")))
    head = HEADS[method].read(config, headers.tensors.keys(), target)
    if isinstance(head, ResidualHeads):
        check_parts(head, headers, head.shared)
        _check_ids(headers, head.token_ids, head.output.outputs)
        return head
    for each in (replace(head, more=()), *head.more):
        _check(each, headers, target)
    return head


def _check(head: Head, headers: FolderHeaders, target: Network) -> None:
    check_parts(head, headers, head.shared)
    if (network := head.network).embedding not in head.shared:
        headers.check_floats(network.embedding, network.vocab_size, network.hidden_size)
    _check_ids(headers, head.id_offsets, head.output.outputs)
    if head.markov is not None:
        headers.check_floats(head.markov.table, network.vocab_size, head.markov.linear.inputs)
    if head.mask is not None and head.mask.features:
        headers.check_floats(head.mask.features, 1, len(head.taps) * target.hidden_size)


def _check_ids(headers: FolderHeaders, name: str, count: int) -> None:
    if name:
        headers.check(WantedFormat(name, ((count,),), ("I64",)))
