"""Hydra's heads, and the prefix layer of Hydra++: models/heads/residual.py has the picture.

Layouts: `hydra_mlp.I.J`, `hydra_lm_head.I` (`hydra_head_arch` mlp); with a prefix layer (prefix-mlp) also
`prefix_embeding_layer.layers.0.*` and `.norm` (spelled so), and a dropout before each block and head counts as a place:
`hydra_mlp.I.2J+1`, `hydra_lm_head.I.1`. All with or without `hydra_head.` before them. vLLM's fields of a reduced
vocabulary (`truncated_vocab_size`) and of one linear for all heads (`original_lm_head`) for Medusa are read here, too.
"""

from __future__ import annotations

from collections.abc import Collection

from models.config import Fields
from models.errors import ModelError
from models.heads.fields import FOR_ANOTHER, check_sizes, named
from models.heads.form import Form
from models.heads.head import Head
from models.heads.residual import ResidualBlock, ResidualHead, ResidualHeads, linear_named, shared_head, vocabulary_of
from models.heads.row import HeadRow
from models.layers.dense import DenseSizes, dense_layer
from models.spec import Attention, Given, Linear, Mlp, Network, Norm
from models.taps import FINAL

PREFIX_MLP = "prefix-mlp"


def read(fields: Fields, names: Collection[str], target: Network) -> ResidualHeads:
    check_sizes(fields, target)
    kind = fields.choice("hydra_head_arch", ("mlp", PREFIX_MLP), "mlp")
    fields.refuse_unless("hidden_state_offset", 0)
    grounded = fields.flag("grounded_heads", any(".res_connection." in name for name in names))
    start = named(names, "hydra_head.", "hydra_mlp.")
    start = start if start == "hydra_head." else ""
    blocks, heads = fields.count("hydra_num_layers", limit=64), fields.count("hydra_num_heads", limit=64)
    vocabulary, token_ids = vocabulary_of(fields, names, target)
    one_head = fields.flag("original_lm_head")
    dropouts = f"{start}hydra_lm_head.0.1.weight" in names
    found = []
    for head in range(heads):
        last = f"{start}hydra_lm_head.{0 if one_head else head}{'.1' if dropouts else ''}"
        places = [f"{start}hydra_mlp.{head}.{2 * j + 1 if dropouts else j}." for j in range(blocks)]
        wide = target.hidden_size * (head + 2 if grounded else 1)
        linear = linear_named(last, vocabulary, target.hidden_size, names)
        found.append(ResidualHead(_blocks(places, wide, names, target.hidden_size), linear))
    prefix = _prefix(names, target, f"{start}prefix_embeding_layer.") if kind == PREFIX_MLP else None
    return ResidualHeads(tuple(found), grounded, token_ids, shared_head(one_head, found, names, target), prefix)


def _blocks(places: list[str], wide: int, names: Collection[str], hidden: int) -> tuple[ResidualBlock, ...]:
    """The authors' blocks of one width are a single module, whose tensors may have been written once."""
    found: list[ResidualBlock] = []
    for place in places:
        inputs = hidden if found else wide
        once = bool(found) and f"{place}linear.weight" not in names and found[-1].linear.inputs == inputs
        if once:
            found.append(found[-1])
            continue
        skip = linear_named(f"{place}res_connection", hidden, inputs, names) if inputs > hidden else None
        found.append(ResidualBlock(linear_named(f"{place}linear", hidden, inputs, names), skip))
    return tuple(found)


def _prefix(names: Collection[str], target: Network, name: str) -> Head:
    """One layer in the sizes of the target's, which the heads' config doesn't repeat, with a norm behind it."""
    like = target.layers[0]
    if not isinstance(like.attention, Attention) or not isinstance(like.mlp, Mlp):
        raise ModelError("Hydra's prefix layer is like the model's first, and that one isn't dense", FOR_ANOTHER)
    one, epsilon = like.attention, like.mlp_norm.epsilon
    sizes = DenseSizes(target.hidden_size, 1, one.heads, one.kv_heads, one.head_dim, epsilon, one.rope)
    layer = f"{name}layers.0."
    biased = f"{layer}self_attn.q_proj.bias" in names
    network = Network(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        embedding=target.embedding,
        layers=(dense_layer(sizes, like.mlp.down.inputs, layer, qkv_bias=biased, window=one.window),),
        norm=Norm(f"{name}norm", target.hidden_size, epsilon),
        head=Linear((), target.hidden_size),
        max_context=target.max_context,
        eos_token_ids=target.eos_token_ids,
        stored_dtype=target.stored_dtype,
        entry=Given(),
    )
    return Head(network, taps=(FINAL,), follows=FINAL, shared={target.embedding: target.embedding})


def form(network: Network, vocabulary: int) -> Form:
    """A block for each of the next tokens, before one output head."""
    config = {
        "architectures": ["HydraModel"], "model_type": "hydra", "hidden_size": network.hidden_size,
        "hydra_num_heads": 4, "hydra_num_layers": 1, "hydra_head_arch": "mlp", "grounded_heads": True,
        "vocab_size": network.vocab_size, "truncated_vocab_size": vocabulary, "original_lm_head": True,
    }  # fmt: skip
    return Form(config, ("hydra_mlp.0.0.linear.weight", "hydra_lm_head.0.weight", "token_map"))


ROW = HeadRow(
    "hydra",
    read,
    label="Hydra",
    what="the Hydra heads",
    help="Hydra: Medusa's heads, each of which also reads the draft tokens before its own",
    length=4,
    mark=r"hydra_mlp\.",
    loop="hydra:HydraDrafter",
    form=form,
)
