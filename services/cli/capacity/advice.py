"""Settings for a machine, from what was measured on it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.cli.capacity.measure import PROMPT, Measured

# Fewer streams are as good if they give this share of the most tokens per second.
NEARLY = 0.9
# Of the rate at which it would never be idle: requests come unevenly, and queues grow near that.
LOAD = 0.8
# Memory that allocators and bursts take beyond what was seen.
SPARE = 1.1


@dataclass(frozen=True, slots=True)
class Advice:
    max_sequences: int
    memory_mb: float
    requests_per_s: float
    seconds_each: float


def advised(found: Measured, kv_mb: float, prompt_tokens: int, answer_tokens: int) -> Advice:
    """`kv_mb`: what all KV pages take of this memory, used or not."""
    fit = max(1, found.limits.kv_tokens // (prompt_tokens + answer_tokens))
    best = max(found.tokens_per_s.values())
    wanted = min(streams for streams, rate in found.tokens_per_s.items() if rate >= NEARLY * best)
    streams = min(wanted, fit)
    rate = found.tokens_per_s[max(each for each in found.tokens_per_s if each <= streams)]
    prompt_s = found.first_token_s * prompt_tokens / PROMPT
    # Prompts are computed one after the other, answers together.
    busy = prompt_s + answer_tokens / rate
    grown = max(found.memory_mb.values()) - found.at_rest_mb
    return Advice(
        max_sequences=streams,
        memory_mb=SPARE * (found.at_rest_mb + max(kv_mb, grown)),
        requests_per_s=LOAD / busy,
        seconds_each=streams * LOAD * busy,
    )


def per_stream_mb(found: Measured) -> float:
    """Of the largest number of streams."""
    most = max(found.memory_mb)
    return (found.memory_mb[most] - found.at_rest_mb) / most
