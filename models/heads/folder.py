"""A head's folder beside its target's: which head it is. A method's reader says what the head consists of; tensors that
the folder lacks (embedding, head) are the target's. Reads headers only, and needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from importlib import import_module
from pathlib import Path

from models.check import check_parts
from models.config import Fields, read_network
from models.errors import ModelError
from models.folder_headers import FolderHeaders
from models.heads.head import DRAFT_MODEL, Head
from models.heads.residual import ResidualHeads
from models.heads.sources import check_kind
from models.quantized.format import Wanted
from models.sources import read_json
from models.spec import Network

Reader = Callable[[Fields, Collection[str], Network], Head | ResidualHeads]

# The reader of each method's folders. A draft model is any model with the target's tokenizer.
READERS: dict[str, str] = {
    "block": "models.heads.block:read",
    "eagle": "models.heads.eagle:read",
    "eagle3": "models.heads.eagle3:read",
    "hydra": "models.heads.hydra:read",
    "medusa": "models.heads.residual:read_medusa",
    "mtp": "models.heads.mtp:read",
}


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
    if method == DRAFT_MODEL:
        network = read_network(headers.folder)
        if network.vocab_size != target.vocab_size:
            sizes = f"{network.vocab_size} tokens, the model's {target.vocab_size}"
            raise ModelError(f"the draft model's vocabulary has {sizes}", "use a draft model with the same tokenizer")
        head: Head | ResidualHeads = Head(network)
    else:
        module, _, name = READERS[method].partition(":")
        read: Reader = getattr(import_module(module), name)
        head = read(Fields(read_json(headers.folder / "config.json")), headers.tensors.keys(), target)
    if isinstance(head, ResidualHeads):
        check_parts(head, headers, head.shared)
        _check_ids(headers, head.token_ids, head.heads[0].head.outputs)
        return head
    check_parts(head, headers, head.shared)
    if (network := head.network).embedding not in head.shared:
        headers.check_floats(network.embedding, network.vocab_size, network.hidden_size)
    _check_ids(headers, head.id_offsets, network.head.outputs)
    if head.mask is not None:
        headers.check_floats(head.mask.features, 1, len(head.taps) * target.hidden_size)
    return head


def _check_ids(headers: FolderHeaders, name: str, count: int) -> None:
    if name:
        headers.check(Wanted(name, ((count,),), ("I64",)))
