"""Law 3 through four processes for every family: a tiny random model of each is served on compiled loops, and its text
is the same with drafts of text, of an untrained head and of both, as without any.

What the GPU executor makes of them: test_gpu_executor.py. Preemption: tests/laws/test_law_3_of_families.py.
"""

from __future__ import annotations

import base64
import json
import sys
import threading
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from running_mesh import RunningMesh, running_mesh
from tiny_folder import _tokenizer

from models.config import read_network
from models.registry import FAMILIES
from models.weights import Weights
from services.training.nets import net_of

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
import routing
import test_gpt_oss
from test_qwen3_next import SIZES as HYBRID

WORDS = 304
WINDOWS = {"head_dim": 16, "sliding_window": 7, "layer_types": ["sliding_attention", "full_attention"]}
LATENT = {key: value for key, value in routing.DEEPSEEK.items() if key not in ("n_group", "topk_group")}
LAYERS = {"layer_types": ["linear_attention", "full_attention"]}
DENSE_HYBRID = {name: value for name, value in HYBRID.items() if "expert" not in name and not name.startswith("moe_")}
GLM = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
# By architecture: the class of its config, or of the family whose layers it has, and what makes it itself.
SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "DeepseekV3ForCausalLM": ("DeepseekV3Config", routing.DEEPSEEK),
    "Ernie4_5ForCausalLM": ("Ernie4_5Config", {"head_dim": 16}),
    "Ernie4_5_MoeForCausalLM": (
        "Ernie4_5_MoeConfig",
        {"moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 24, "moe_num_shared_experts": 1},
    ),
    "Gemma3ForCausalLM": ("Gemma3TextConfig", WINDOWS | {"pad_token_id": None}),
    "Glm4MoeForCausalLM": ("Glm4MoeConfig", GLM | {"head_dim": 16, "partial_rotary_factor": 0.5}),
    "Glm4MoeLiteForCausalLM": ("Glm4MoeLiteConfig", LATENT | {"n_routed_experts": 8}),
    "GptOssForCausalLM": (
        "GptOssConfig", WINDOWS | {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32},
    ),
    "LlamaForCausalLM": ("LlamaConfig", {}),
    "MiMoForCausalLM": ("Qwen2Config", {}),
    "Ministral3ForCausalLM": ("Ministral3Config", {"head_dim": 16}),
    "MistralForCausalLM": ("MistralConfig", {"sliding_window": 7}),
    "Qwen2ForCausalLM": ("Qwen2Config", {}),
    "Qwen3ForCausalLM": ("Qwen3Config", {"head_dim": 16}),
    "Qwen3MoeForCausalLM": (
        "Qwen3MoeConfig", {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ),
    "Qwen3NextForCausalLM": ("Qwen3NextConfig", HYBRID | LAYERS),
    "Qwen3_5ForCausalLM": ("Qwen3_5TextConfig", DENSE_HYBRID | LAYERS),
    "Qwen3_5MoeForCausalLM": ("Qwen3_5MoeTextConfig", HYBRID | LAYERS),
}  # fmt: skip
# Other forms of the same: Kimi K2 with its own kind of tokenizer, gpt-oss with experts in mxfp4.
FORMS = ("kimi_k2", "mxfp4")

# Steps take prompts in pieces, and a page holds less than a prompt.
SETTINGS: dict[str, Any] = {
    "executor": "compiled", "dtype": "bfloat16", "page_tokens": 8, "kv_cache_mb": 1, "max_step_tokens": 16,
    "max_context": 128, "draft_deadline_ms": 2000, "draft_trees": "true",
}  # fmt: skip
METHODS = ("naive", "ngram", "suffix", "medusa", "auto")
# The first two share their first pages; the third says a thing again.
PROMPTS = ([*range(5, 24)], [*range(5, 22), 90], [3, 4, 6] * 4, [200, 201])
SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0}, {"temperature": 0.9, "seed": 11, "top_p": 0.9}, {"temperature": 0},
    {"temperature": 1.0, "seed": 4, "presence_penalty": 0.3},
)  # fmt: skip
SAID = 24


def test_every_family_of_the_registry_is_among_them() -> None:
    assert set(SIZES) == set(FAMILIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*SIZES, *FORMS])
def test_drafts_change_no_text_of_a_family(name: str, tmp_path: Path) -> None:
    model = tmp_path / "tiny"
    write(name, model)
    write_head(model, tmp_path / "head")
    with running_mesh(tmp_path, model=model, draft_model=tmp_path / "head", **SETTINGS) as mesh:
        found = {method: all_at_once(mesh, method) for method in METHODS}
        sources = mesh.by_label("worker", "specmesh:draft_source_tokens_total", "source")
        seen = mesh.metrics("worker")
    assert all(texts == found["naive"] for texts in found.values()), found
    assert len(set(found["naive"])) == len(PROMPTS)
    # Drafts of text and of the head were verified, and some were right.
    assert sources["medusa"] > 20 and sum(sources.values()) - sources["medusa"] > 20, sources
    assert seen["specmesh:spec_decode_num_accepted_tokens_total"] > 0
    assert seen["specmesh:prefix_cache_hits_total"] >= 16


def write(name: str, folder: Path) -> None:
    architecture = {"kimi_k2": "DeepseekV3ForCausalLM", "mxfp4": "GptOssForCausalLM"}.get(name, name)
    config, changes = SIZES[architecture]
    changes = {"num_hidden_layers": 2, "vocab_size": WORDS, "eos_token_id": 0} | changes
    if name == "mxfp4":
        test_gpt_oss.write_coded(folder, folder.with_name("dense"), **(changes | {"intermediate_size": 64}))
    else:
        routing.save_sparse(getattr(transformers, config), folder, 0, **changes)
    about = json.loads((folder / "config.json").read_text())
    kind = {"model_type": name} if name == "kimi_k2" else {}
    (folder / "config.json").write_text(json.dumps(about | kind | {"architectures": [architecture]}))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer()))
    if name == "kimi_k2":
        (folder / "tokenizer.json").unlink()
        tokens = [*(bytes([byte]) for byte in range(256)), b" w", *(b" w%d" % number for number in range(1, 30))]
        lines = (f"{base64.b64encode(token).decode()} {rank}" for rank, token in enumerate(tokens))
        (folder / "tiktoken.model").write_text("\n".join(lines))
        kimi = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(kimi))


def write_head(model: Path, folder: Path) -> None:
    """Untrained Medusa heads: what they say of the next tokens is what the model says of the first."""
    torch.manual_seed(0)
    network, weights = read_network(model), Weights(model)
    table = weights.take(network.embedding, network.vocab_size, network.hidden_size).float()
    target = SimpleNamespace(network=network, embedding=table, head=table)
    net_of("medusa", target, torch.arange(100)).save(folder)


def all_at_once(mesh: RunningMesh, method: str) -> list[str]:
    found = [""] * len(PROMPTS)

    def ask(place: int) -> None:
        words = " ".join(f"w{number}" for number in PROMPTS[place])
        own = {"max_tokens": SAID, "ignore_eos": True, "speculation": {"method": method}}
        body = json.dumps({"model": "tiny", "prompt": words, **own, **SAMPLING[place]}).encode()
        request = urllib.request.Request(f"{mesh.url}/v1/completions", body, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            found[place] = json.load(answer)["choices"][0]["text"]

    asking = [threading.Thread(target=ask, args=(place,)) for place in range(len(PROMPTS))]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    return found
