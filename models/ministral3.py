"""Ministral 3: Llama's layers under yarn.

Behind the context that it was first trained on it scales queries by their position, which isn't computed: the context
ends there.
"""

from __future__ import annotations

import dataclasses

from models import mistral
from models.config import Fields
from models.spec import Network

DEFAULTS = {"head_dim": 128, "rms_norm_eps": 1e-5, "num_key_value_heads": 8}


def network(fields: Fields) -> Network:
    fields = fields.with_defaults(DEFAULTS)
    found = mistral.network(fields)
    rope = fields.rope_section()
    if not rope.given("llama_4_scaling_beta"):
        return found
    trained = rope.count("original_max_position_embeddings", found.max_context, limit=1 << 30)
    return dataclasses.replace(found, max_context=min(found.max_context, trained))
