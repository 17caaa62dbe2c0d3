"""Traces that hold lengths instead of texts: `timestamp` (milliseconds), `input_length`, `output_length`, and perhaps
`hash_ids`, one for each block of 512 tokens, equal for equal prefixes. The texts are generated with these lengths.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from loadtest.workloads.session import BadWorkload, Session, Turn
from loadtest.workloads.talk import prose

BLOCK_TOKENS = 512
# An average for the generated words; other tokenizers make longer or shorter prompts.
CHARACTERS_PER_TOKEN = 5


def has_no_text(row: Mapping[str, Any]) -> bool:
    return "input_length" in row and not {"messages", "prompt", "turns", "conversations", "body"} & set(row)


def invented(row: Mapping[str, Any], where: str) -> Session:
    lengths = [row.get("timestamp", 0), row["input_length"], row.get("output_length", 1)]
    if not all(isinstance(each, int | float) and each >= 0 for each in lengths):
        raise BadWorkload(f"{where}: timestamp, input_length and output_length must be numbers")
    milliseconds, tokens, answer = lengths
    blocks = row.get("hash_ids")
    if not isinstance(blocks, list):
        blocks = [f"{where}/{number}" for number in range(int(tokens) // BLOCK_TOKENS + 1)]
    text = "\n".join(_block(str(each)) for each in blocks)[: int(tokens) * CHARACTERS_PER_TOKEN]
    body = {"prompt": text or "Go on.", "max_tokens": max(1, int(answer))}
    return Session((Turn(body),), at=milliseconds / 1e3)


@lru_cache(maxsize=4096)
def _block(name: str) -> str:
    return prose(random.Random(f"block {name}"), 6)[: BLOCK_TOKENS * CHARACTERS_PER_TOKEN]
