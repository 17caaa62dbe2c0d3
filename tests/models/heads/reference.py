"""Heads as their papers and published code compute them, in plain float32 torch over whole texts: no pages, no batches.
And tiny random checkpoints under the published names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, silu

State = dict[str, torch.Tensor]

HIDDEN, WIDE, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY, DRAFT_VOCABULARY = 64, 96, 4, 2, 16, 101, 40
EPSILON, THETA = 1e-5, 10000.0
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN,
    "intermediate_size": WIDE, "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "max_position_embeddings": 256, "rms_norm_eps": EPSILON, "rope_theta": THETA, "hidden_act": "silu",
}  # fmt: skip


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON) * weight


def _rotated(x: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """x [T, heads, D] at positions 0.. ."""
    frequencies = THETA ** (-torch.arange(0, x.shape[-1], 2).float() / x.shape[-1])
    angles = (torch.arange(len(x))[:, None] * frequencies)[:, None]  # [T, 1, D/2]
    pairs = x.unflatten(-1, (-1, 2)) if interleaved else x.unflatten(-1, (2, -1)).transpose(-1, -2)
    first, second = pairs.unbind(-1)
    turned = torch.stack(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], -1
    )
    return turned.flatten(-2) if interleaved else turned.transpose(-1, -2).flatten(-2)


def attention(state: State, name: str, x: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    q, k, v = (
        linear(x, state[f"{name}{part}_proj.weight"], state.get(f"{name}{part}_proj.bias"))
        .unflatten(-1, (-1, HEAD_DIM))
        for part in "qkv"
    )
    q, k = _rotated(q, interleaved), _rotated(k, interleaved)
    return linear(_attended(q, k, v), state[f"{name}o_proj.weight"], state.get(f"{name}o_proj.bias"))


def _attended(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
    scores = torch.einsum("thd,shd->hts", q, k) * HEAD_DIM**-0.5
    scores += torch.full(scores.shape[1:], float("-inf")).triu(1)
    return torch.einsum("hts,shd->thd", scores.softmax(-1), v).flatten(1)


def gated_attention(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    """Qwen3.5's: a gate beside each query, norms of q and k, and a quarter of a head that turns."""
    q, k, v = (linear(x, state[f"{name}{part}_proj.weight"]) for part in "qkv")
    q, gate = q.unflatten(-1, (HEADS, 2 * HEAD_DIM)).chunk(2, -1)
    q, k = norm(q, state[f"{name}q_norm.weight"]), norm(k.unflatten(-1, (-1, HEAD_DIM)), state[f"{name}k_norm.weight"])
    width = HEAD_DIM // 4
    q, k = (torch.cat([_rotated(each[..., :width], False), each[..., width:]], -1) for each in (q, k))
    seen = _attended(q, k, v.unflatten(-1, (-1, HEAD_DIM))) * gate.flatten(1).sigmoid()
    return linear(seen, state[f"{name}o_proj.weight"])


def mlp(state: State, name: str, x: torch.Tensor) -> torch.Tensor:
    gate, up = (linear(x, state[f"{name}{part}_proj.weight"]) for part in ("gate", "up"))
    return linear(silu(gate) * up, state[f"{name}down_proj.weight"])


def eagle3(state: State, tokens: torch.Tensor, hidden: torch.Tensor, *, name: str = "midlayer.", first: bool = False
           ) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Logits and the next hidden values of all rows. `first`: the hidden value is normed before it is the residual."""
    normed = norm(hidden, state[f"{name}hidden_norm.weight"])
    embedded = norm(state["embed_tokens.weight"][tokens], state[f"{name}input_layernorm.weight"])
    x = (normed if first else hidden) + attention(state, f"{name}self_attn.", torch.cat([embedded, normed], -1))
    x = x + mlp(state, f"{name}mlp.", norm(x, state[f"{name}post_attention_layernorm.weight"]))
    return linear(norm(x, state["norm.weight"]), state["lm_head.weight"]), x


def eagle3_deep(state: State, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two layers, the second one plain."""
    _, x = eagle3(state, tokens, hidden, name="layers.0.")
    x = _block(state, "layers.1.", x)
    return linear(norm(x, state["norm.weight"]), state["lm_head.weight"]), x


def eagle(state: State, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    pair = torch.cat([state["embed_tokens.weight"][tokens], hidden], -1)
    x = linear(pair, state["fc.weight"], state.get("fc.bias"))
    x = x + attention(state, "layers.0.self_attn.", x)
    x = x + mlp(state, "layers.0.mlp.", norm(x, state["layers.0.post_attention_layernorm.weight"]))
    return linear(x, state["lm_head.weight"]), x


def mtp(state: State, tokens: torch.Tensor, hidden: torch.Tensor, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """DeepSeek-V3's way in and out, around a dense layer."""
    embedded = norm(state[f"{name}embed_tokens.weight"][tokens], state[f"{name}enorm.weight"])
    pair = torch.cat([embedded, norm(hidden, state[f"{name}hnorm.weight"])], -1)
    x = _block(state, name, linear(pair, state[f"{name}eh_proj.weight"]))
    return linear(norm(x, state[f"{name}shared_head.norm.weight"]), state[f"{name}shared_head.head.weight"]), x


def mtp_blocks(state: State, tokens: torch.Tensor, hidden: torch.Tensor, first: int, count: int) -> list[int]:
    """A draft behind `tokens` [T + 1]: block k reads token i + k beside what the block before it, or the model
    (`hidden` [T, H]), made of row i."""
    draft: list[int] = []
    for depth in range(count):
        read = torch.cat([tokens[1 + depth :], torch.tensor(draft, dtype=torch.long)])
        logits, hidden = mtp(state, read, hidden, f"model.layers.{first + depth}.")
        draft.append(int(logits[-1].argmax()))
    return draft


def ernie_mtp(state: State, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The norm before the head is the model's, and what the next pass reads is normed."""
    embedded = norm(state["model.embed_tokens.weight"][tokens], state["model.mtp_emb_norm.0.weight"])
    pair = torch.cat([embedded, norm(hidden, state["model.mtp_hidden_norm.0.weight"])], -1)
    x = _block(state, "model.mtp_block.0.", linear(pair, state["model.mtp_linear_proj.0.weight"]), interleaved=True)
    x = norm(x, state["model.norm.weight"])
    return linear(x, state["lm_head.weight"]), x


def mimo_mtp(state: State, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The hidden value comes first, and what the next pass reads is normed."""
    name = "model.mtp_layers.0."
    embedded = norm(state["model.embed_tokens.weight"][tokens], state[f"{name}token_layernorm.weight"])
    pair = torch.cat([norm(hidden, state[f"{name}hidden_layernorm.weight"]), embedded], -1)
    x = _block(state, name, linear(pair, state[f"{name}input_proj.weight"]))
    x = norm(x, state[f"{name}final_layernorm.weight"])
    return linear(x, state["lm_head.weight"]), x


def dflash(state: State, mixed: torch.Tensor, tokens: torch.Tensor, layers: int = 2) -> torch.Tensor:
    """Logits of a block of tokens behind a text, of which the layers read `mixed` [T, hidden] alone."""
    text, x = norm(mixed, state["hidden_norm.weight"]), state["embed_tokens.weight"][tokens]
    for layer in range(layers):
        name = f"layers.{layer}."
        x = x + _attention_to_all(state, f"{name}self_attn.", text, norm(x, state[f"{name}input_layernorm.weight"]))
        x = x + mlp(state, f"{name}mlp.", norm(x, state[f"{name}post_attention_layernorm.weight"]))
    return linear(norm(x, state["norm.weight"]), state["lm_head.weight"])


def _attention_to_all(state: State, name: str, text: torch.Tensor, block: torch.Tensor) -> torch.Tensor:
    """Of the block's rows, each of which sees the text and the whole block."""
    whole = torch.cat([text, block])
    q, k, v = (linear(whole, state[f"{name}{part}_proj.weight"]).unflatten(-1, (-1, HEAD_DIM)) for part in "qkv")
    q, k = (_rotated(norm(x, state[f"{name}{part}_norm.weight"]), False) for x, part in ((q, "q"), (k, "k")))
    k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
    weights = (torch.einsum("thd,shd->hts", q[len(text) :], k) * HEAD_DIM**-0.5).softmax(-1)
    return linear(torch.einsum("hts,shd->thd", weights, v).flatten(1), state[f"{name}o_proj.weight"])


def markov(state: State, logits: torch.Tensor, before: int) -> torch.Tensor:
    """DSpark's: of one row, behind the token `before` of the target's vocabulary."""
    return logits + state["markov_head.markov_w2.weight"] @ state["markov_head.markov_w1.weight"][before]


def qwen3_5_mtp(state: State, tokens: torch.Tensor, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights of norms are stored less one, and what the next pass reads is normed."""
    name = "mtp.layers.0."
    own = {key: value + ("norm" in key) for key, value in state.items() if key.startswith("mtp.")}
    embedded = norm(state["model.embed_tokens.weight"][tokens], own["mtp.pre_fc_norm_embedding.weight"])
    pair = torch.cat([embedded, norm(hidden, own["mtp.pre_fc_norm_hidden.weight"])], -1)
    x = linear(pair, own["mtp.fc.weight"])
    x = x + gated_attention(own, f"{name}self_attn.", norm(x, own[f"{name}input_layernorm.weight"]))
    x = x + mlp(own, f"{name}mlp.", norm(x, own[f"{name}post_attention_layernorm.weight"]))
    x = norm(x, own["mtp.norm.weight"])
    return linear(x, state["lm_head.weight"]), x


def medusa(state: State, hidden: torch.Tensor, head: int, blocks: int) -> torch.Tensor:
    x = hidden
    for block in range(blocks):
        name = f"medusa_head.{head}.{block}.linear"
        x = x + silu(linear(x, state[f"{name}.weight"], state[f"{name}.bias"]))
    return linear(x, state[f"medusa_head.{head}.{blocks}.weight"])


def hydra_prefix(state: State, hidden: torch.Tensor) -> torch.Tensor:
    """What the heads of Hydra++ read, of all rows: a decoder over hidden values in place of embeddings."""
    name = "prefix_embeding_layer."
    return norm(_block(state, f"{name}layers.0.", hidden), state[f"{name}norm.weight"])


def hydra(state: State, hidden: torch.Tensor, head: int, before: list[int], dropouts: bool = False) -> torch.Tensor:
    """`before`: the text's last token, and those of the heads before. `dropouts`: they count as places in names."""
    x = torch.cat([hidden, *(state["model.embed_tokens.weight"][token] for token in before)])
    for block in range(2):
        name = f"hydra_mlp.{head}.{2 * block + 1 if dropouts else block}."
        changed = silu(linear(x, state[f"{name}linear.weight"], state[f"{name}linear.bias"]))
        skip = f"{name}res_connection"
        x = changed + (linear(x, state[f"{skip}.weight"], state[f"{skip}.bias"]) if block == 0 else x)
    last = f"hydra_lm_head.{head}{'.1' if dropouts else ''}"
    return linear(x, state[f"{last}.weight"], state[f"{last}.bias"])


def _block(state: State, name: str, x: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    x = x + attention(state, f"{name}self_attn.", norm(x, state[f"{name}input_layernorm.weight"]), interleaved)
    return x + mlp(state, f"{name}mlp.", norm(x, state[f"{name}post_attention_layernorm.weight"]))


# Checkpoints ----------------------------------------------------------------------------------------------------


def layer_shapes(name: str, inputs: int = HIDDEN) -> dict[str, tuple[int, ...]]:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return {
        f"{name}input_layernorm.weight": (HIDDEN,), f"{name}post_attention_layernorm.weight": (HIDDEN,),
        f"{name}self_attn.q_proj.weight": (q, inputs), f"{name}self_attn.k_proj.weight": (kv, inputs),
        f"{name}self_attn.v_proj.weight": (kv, inputs), f"{name}self_attn.o_proj.weight": (HIDDEN, q),
        f"{name}mlp.gate_proj.weight": (WIDE, HIDDEN), f"{name}mlp.up_proj.weight": (WIDE, HIDDEN),
        f"{name}mlp.down_proj.weight": (HIDDEN, WIDE),
    }  # fmt: skip


def write(folder: Path, shapes: dict[str, tuple[int, ...]], config: dict[str, Any], **more: torch.Tensor) -> State:
    """A random checkpoint; `more` are tensors of its own values."""
    source = torch.Generator().manual_seed(len(shapes))
    state = {
        name: torch.randn(shape, generator=source) * (0.3 if len(shape) == 1 else 0.15) + ("norm" in name) * 1.0
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    (folder / "tokenizer.json").write_text("{}")
    save_file(state | more, folder / "model.safetensors")
    return state


def write_target(folder: Path, layers: int) -> State:
    """The model that heads are for."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN), "model.norm.weight": (HIDDEN,),
        "lm_head.weight": (VOCABULARY, HIDDEN),
    }  # fmt: skip
    for layer in range(layers):
        shapes |= layer_shapes(f"model.layers.{layer}.")
    return write(folder, shapes, {"num_hidden_layers": layers, "tie_word_embeddings": False, "eos_token_id": 0})


def write_eagle3(
    folder: Path, name: str = "midlayer.", more: dict[str, tuple[int, ...]] | None = None, **config: Any
) -> State:
    """`more` are shapes of further tensors."""
    shapes = layer_shapes(name, 2 * HIDDEN) | (more or {}) | {
        f"{name}hidden_norm.weight": (HIDDEN,), "fc.weight": (HIDDEN, 3 * HIDDEN), "norm.weight": (HIDDEN,),
        "lm_head.weight": (DRAFT_VOCABULARY, HIDDEN),
    }  # fmt: skip
    ids = torch.arange(DRAFT_VOCABULARY) * 2 + 1
    used = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, ids, True)
    config = {"draft_vocab_size": DRAFT_VOCABULARY, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]} | config
    return write(folder, shapes, config, d2t=ids - torch.arange(DRAFT_VOCABULARY), t2d=used)


MASK_TOKEN, BLOCK = 7, 4


def write_block(folder: Path, **config: Any) -> State:
    """P-EAGLE's layout."""
    said = {"parallel_drafting": True, "ptd_token_id": MASK_TOKEN, "block_size": BLOCK} | config
    return write_eagle3(folder, more={"mask_hidden": (1, 3 * HIDDEN)}, **said)


def write_dflash(
    folder: Path, more: dict[str, tuple[int, ...]] | None = None, own: bool = False, **config: Any
) -> State:
    """The authors' layout; `own`: with a vocabulary of its own. A block has BLOCK masks."""
    shapes: dict[str, tuple[int, ...]] = {"fc.weight": (HIDDEN, 2 * HIDDEN), **(more or {})}
    shapes |= {"norm.weight": (HIDDEN,), "hidden_norm.weight": (HIDDEN,)}
    for layer in range(2):
        shapes |= layer_shapes(f"layers.{layer}.")
        shapes |= {f"layers.{layer}.self_attn.{part}_norm.weight": (HEAD_DIM,) for part in "qk"}
    said = {
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 2, "head_dim": HEAD_DIM,
        "block_size": BLOCK + 1, "dflash_config": {"mask_token_id": MASK_TOKEN, "target_layer_ids": [0, 2]},
    } | config  # fmt: skip
    if not own:
        return write(folder, shapes, said)
    shapes["lm_head.weight"] = (DRAFT_VOCABULARY, HIDDEN)
    return write(folder, shapes, said | {"draft_vocab_size": DRAFT_VOCABULARY}, d2t=torch.arange(DRAFT_VOCABULARY) + 1)


def write_dspark(folder: Path, **config: Any) -> State:
    """With a vocabulary of its own. The row of the text's last token gives the first of BLOCK draft tokens."""
    more: dict[str, tuple[int, ...]] = {"markov_head.markov_w1.weight": (VOCABULARY, 8)}
    more["markov_head.markov_w2.weight"] = (DRAFT_VOCABULARY, 8)
    return write_dflash(folder, more, own=True, **({"block_size": BLOCK, "markov_rank": 8} | config))


def write_eagle(folder: Path, bias: bool = True) -> State:
    shapes = layer_shapes("layers.0.") | {"fc.weight": (HIDDEN, 2 * HIDDEN)} | ({"fc.bias": (HIDDEN,)} if bias else {})
    del shapes["layers.0.input_layernorm.weight"]
    return write(folder, shapes, {})


def write_mtp(folder: Path, layers: int, shared: bool) -> State:
    name = f"model.layers.{layers}."
    shapes = layer_shapes(name) | {f"{name}{part}.weight": (HIDDEN,) for part in ("enorm", "hnorm", "shared_head.norm")}
    shapes[f"{name}eh_proj.weight"] = (HIDDEN, 2 * HIDDEN)
    if not shared:
        own = ("embed_tokens", "shared_head.head")
        shapes |= {f"{name}{part}.weight": (VOCABULARY, HIDDEN) for part in own}
    return write(folder, shapes, {"num_nextn_predict_layers": 1})


def write_mtp_blocks(folder: Path, layers: int, count: int) -> State:
    state: State = {}
    for block in range(count):
        state |= write_mtp(folder, layers + block, shared=False)
        # Written alike, and as different as rows in another order are.
        own = [name for name in state if f".{layers + block}." in name]
        state |= {name: state[name].roll(block, 0).contiguous() for name in own}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": count}))
    save_file(state, folder / "model.safetensors")
    return state


def write_deepseek_mtp(folder: Path, layers: int) -> State:
    """Names and shapes alone of a block as published: latent attention and experts."""
    name = f"model.layers.{layers}."
    attention = f"{name}self_attn."
    shapes: dict[str, tuple[int, ...]] = {
        f"{attention}q_a_proj.weight": (24, HIDDEN), f"{attention}q_a_layernorm.weight": (24,),
        f"{attention}q_b_proj.weight": (HEADS * 16, 24), f"{attention}kv_a_proj_with_mqa.weight": (40, HIDDEN),
        f"{attention}kv_a_layernorm.weight": (32,), f"{attention}kv_b_proj.weight": (HEADS * 16, 32),
        f"{attention}o_proj.weight": (HIDDEN, HEADS * 8), f"{name}eh_proj.weight": (HIDDEN, 2 * HIDDEN),
    }  # fmt: skip
    parts = ("enorm", "hnorm", "shared_head.norm", "input_layernorm", "post_attention_layernorm")
    shapes |= {f"{name}{part}.weight": (HIDDEN,) for part in parts} | expert_shapes(f"{name}mlp.")
    return write(folder, shapes, {
        "num_key_value_heads": HEADS, "q_lora_rank": 24, "kv_lora_rank": 32, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8, "v_head_dim": 8,
        "n_routed_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": WIDE, "routed_scaling_factor": 1.0,
        "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    })  # fmt: skip


def write_glm_mtp(folder: Path, layers: int) -> State:
    """Names and shapes alone of GLM-4.5's block: Llama's attention with biases, half of a head rotated, and experts."""
    name = f"model.layers.{layers}."
    shapes = {each: shape for each, shape in layer_shapes(name).items() if ".mlp." not in each}
    shapes |= {f"{name}self_attn.q_proj.bias": (HEADS * HEAD_DIM,), f"{name}eh_proj.weight": (HIDDEN, 2 * HIDDEN)}
    shapes |= {f"{name}self_attn.{part}_proj.bias": (KV_HEADS * HEAD_DIM,) for part in "kv"}
    shapes |= {f"{name}{part}.weight": (HIDDEN,) for part in ("enorm", "hnorm", "shared_head.norm")}
    shapes |= expert_shapes(f"{name}mlp.")
    return write(folder, shapes, {
        "attention_bias": True, "partial_rotary_factor": 0.5, "use_qk_norm": False, "n_routed_experts": 2,
        "num_experts_per_tok": 1, "n_shared_experts": 0, "moe_intermediate_size": WIDE, "routed_scaling_factor": 1.0,
    })  # fmt: skip


def expert_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Of two experts and their router."""
    shapes: dict[str, tuple[int, ...]] = {f"{name}gate.weight": (2, HIDDEN)}
    shapes[f"{name}gate.e_score_correction_bias"] = (2,)
    for expert in range(2):
        own = f"{name}experts.{expert}."
        shapes |= {f"{own}gate_proj.weight": (WIDE, HIDDEN), f"{own}up_proj.weight": (WIDE, HIDDEN)}
        shapes |= {f"{own}down_proj.weight": (HIDDEN, WIDE)}
    return shapes


def write_ernie_mtp(folder: Path) -> State:
    shapes = layer_shapes("model.mtp_block.0.")
    shapes |= {f"model.mtp_{part}_norm.0.weight": (HIDDEN,) for part in ("emb", "hidden")}
    shapes["model.mtp_linear_proj.0.weight"] = (HIDDEN, 2 * HIDDEN)
    return write(folder, shapes, {"head_dim": HEAD_DIM, "num_nextn_predict_layers": 1})


def write_mimo_mtp(folder: Path) -> State:
    name = "model.mtp_layers.0."
    shapes = layer_shapes(name)
    parts = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    shapes |= {f"{name}{part}.weight": (HIDDEN,) for part in parts}
    shapes |= {f"{name}self_attn.q_proj.bias": (HEADS * HEAD_DIM,)}
    shapes |= {f"{name}self_attn.{part}_proj.bias": (KV_HEADS * HEAD_DIM,) for part in "kv"}
    shapes[f"{name}input_proj.weight"] = (HIDDEN, 2 * HIDDEN)
    return write(folder, shapes, {"num_nextn_predict_layers": 1})


def write_qwen3_5_mtp(folder: Path) -> State:
    name = "mtp.layers.0."
    shapes = layer_shapes(name) | {"mtp.fc.weight": (HIDDEN, 2 * HIDDEN), "mtp.norm.weight": (HIDDEN,)}
    shapes |= {f"mtp.pre_fc_norm_{part}.weight": (HIDDEN,) for part in ("embedding", "hidden")}
    shapes |= {f"{name}self_attn.{part}_norm.weight": (HEAD_DIM,) for part in "qk"}
    shapes[f"{name}self_attn.q_proj.weight"] = (2 * HEADS * HEAD_DIM, HIDDEN)
    return write(folder, shapes, {"head_dim": HEAD_DIM})


def write_qwen3_next_mtp(folder: Path) -> State:
    """Names and shapes alone: experts beside one with a gate."""
    name = "mtp.layers.0.mlp."
    written = write_qwen3_5_mtp(folder)
    shapes: dict[str, tuple[int, ...]] = {each: tuple(value.shape) for each, value in written.items()}
    shapes = {each: shape for each, shape in shapes.items() if ".mlp." not in each} | expert_shapes(name)
    del shapes[f"{name}gate.e_score_correction_bias"]
    shapes |= {f"{name}shared_expert.{part}_proj.weight": (WIDE, HIDDEN) for part in ("gate", "up")}
    shapes |= {f"{name}shared_expert.down_proj.weight": (HIDDEN, WIDE), f"{name}shared_expert_gate.weight": (1, HIDDEN)}
    return write(folder, shapes, {
        "head_dim": HEAD_DIM, "num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": WIDE,
        "shared_expert_intermediate_size": WIDE,
    })  # fmt: skip


def write_medusa(folder: Path, heads: int = 3, blocks: int = 2) -> State:
    """As the authors name them."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        for block in range(blocks):
            name = f"medusa_head.{head}.{block}.linear"
            shapes |= {f"{name}.weight": (HIDDEN, HIDDEN), f"{name}.bias": (HIDDEN,)}
        shapes[f"medusa_head.{head}.{blocks}.weight"] = (VOCABULARY, HIDDEN)
    return write(folder, shapes, {"medusa_num_heads": heads, "medusa_num_layers": blocks})


def as_vllm_names_medusa(state: State, folder: Path, heads: int = 3, blocks: int = 2) -> None:
    """The same heads, over every second token, without the biases, which that layout sets to zero."""
    ids = torch.arange(0, VOCABULARY, 2)
    found = {"token_map": ids}
    for head in range(heads):
        for block in range(blocks):
            found[f"blocks.{head}.layers.{block}.weight"] = state[f"medusa_head.{head}.{block}.linear.weight"]
        found[f"lm_heads.{head}.weight"] = state[f"medusa_head.{head}.{blocks}.weight"][ids].contiguous()
    folder.mkdir()
    config = {"num_heads": heads, "num_hidden_layers": blocks, "truncated_vocab_size": len(ids)}
    (folder / "config.json").write_text(json.dumps(CONFIG | config))
    save_file(found, folder / "model.safetensors")


def write_hydra(folder: Path, heads: int = 3, prefix: bool = False) -> State:
    """`prefix`: Hydra++, whose config repeats no sizes; its modules for training leave gaps in the names."""
    shapes: dict[str, tuple[int, ...]] = {}
    for head in range(heads):
        wide = HIDDEN * (head + 2)
        for block, inputs in ((0, wide), (1, HIDDEN)):
            name = f"hydra_mlp.{head}.{2 * block + 1 if prefix else block}."
            for part in ("linear", "res_connection") if block == 0 else ("linear",):
                shapes |= {f"{name}{part}.weight": (HIDDEN, inputs), f"{name}{part}.bias": (HIDDEN,)}
        last = f"hydra_lm_head.{head}{'.1' if prefix else ''}"
        shapes |= {f"{last}.weight": (VOCABULARY, HIDDEN), f"{last}.bias": (VOCABULARY,)}
    config: dict[str, Any] = {"hydra_num_heads": heads, "hydra_num_layers": 2, "grounded_heads": True}
    if not prefix:
        return write(folder, shapes, config)
    name = "prefix_embeding_layer."
    shapes |= layer_shapes(f"{name}layers.0.")
    shapes |= {f"{name}norm.weight": (HIDDEN,), f"{name}embed_tokens.weight": (VOCABULARY, HIDDEN)}
    state = write(folder, shapes, {})
    (folder / "config.json").write_text(json.dumps(config | {"hydra_head_arch": "prefix-mlp"}))
    return state
