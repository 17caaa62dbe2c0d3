"""A draft model: any smaller model with the target's tokenizer, or a similar one (models/heads/twins.py). It reads
tokens alone."""

from __future__ import annotations

from collections.abc import Collection

from models.config import Fields, network_of
from models.errors import ModelError
from models.heads.form import Form, plain_layers
from models.heads.head import Head
from models.heads.row import HeadRow
from models.spec import Network


def read(fields: Fields, names: Collection[str], target: Network) -> Head:
    network = network_of(fields)
    if network.recurrent:
        raise ModelError("the draft model has gated delta nets, which only a target has", "use another draft model")
    return Head(network)


def form(network: Network, vocabulary: int) -> Form:
    """A small Llama with the model's embedding, output head and tokenizer, of whatever vocabulary it learns. Its layers
    begin as some of the model's and learn to do without the others."""
    (part,) = network.head.parts
    config = plain_layers(network, min(2, len(network.layers))) | {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "eos_token_id": list(network.eos_token_ids),
        "tie_word_embeddings": f"{part.name}.weight" == network.embedding,
    }  # fmt: skip
    return Form(config, files=("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"))


ROW = HeadRow(
    "draft_model",
    read,
    label="draft model",
    what="the draft model",
    help="A smaller model with the same tokenizer, or a similar one, drafts, one pass for each token",
    length=5,
    aliases=("draft", "standalone", "draft-simple"),
    form=form,
)
