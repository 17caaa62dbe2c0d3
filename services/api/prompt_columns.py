"""Log-probabilities of a prompt in columns: from a step's result (running/work.py) to the streamer, and on the wire."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PromptColumns:
    """Of prompt tokens from index `begin` on, each given those before it: `logprobs` (float32) and `ranks` (int32; 1:
    the most probable id) with an entry for each, `top_ids` (int32) and `top_logprobs` (float32) with the `count` most
    probable ids of each place. Numbers are little-endian."""

    begin: int
    count: int
    logprobs: bytes
    ranks: bytes
    top_ids: bytes = b""
    top_logprobs: bytes = b""
