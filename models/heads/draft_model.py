"""A draft model: any smaller model with the target's tokenizer. It reads tokens alone."""

from __future__ import annotations

from collections.abc import Collection

from models.config import Fields, network_of
from models.errors import ModelError
from models.heads.head import Head
from models.heads.row import HeadRow
from models.spec import Network


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    network = network_of(fields)
    if network.vocab_size != target.vocab_size:
        sizes = f"{network.vocab_size} tokens, the model's {target.vocab_size}"
        raise ModelError(f"the draft model's vocabulary has {sizes}", "use a draft model with the same tokenizer")
    return Head(network)


ROW = HeadRow(
    "draft_model",
    read,
    label="draft model",
    what="the draft model",
    help="A smaller model with the same tokenizer drafts, one pass for each token",
    length=5,
    aliases=("draft", "standalone", "draft-simple"),
    trained=True,
)
