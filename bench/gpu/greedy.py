"""Greedy answers of an executor with random weights, in a plain loop: a runner's models are folders, and those of large
shapes would have to be written first.
"""

from __future__ import annotations

from typing import Any

import torch

from bench.gpu import stage
from bench.gpu.stage import PAGE_TOKENS
from models.batch import Stretch
from models.executor import Options
from models.passes import forward
from models.spec import Network


def make_executor(shape: Network, sequences: int, length: int, where: torch.device) -> Any:
    from models.gpu.executor import GpuExecutor

    pages = sequences * -(-length // PAGE_TOKENS)
    weights: Any = stage.RandomWeights(shape, where)
    options = Options("bfloat16", pages, PAGE_TOKENS, length, graph_rows=sequences)
    return GpuExecutor(shape, weights, options, device=where.type)


def answers(executor: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """All prompts are of one length."""
    each = -(-(len(prompts[0]) + tokens) // PAGE_TOKENS)
    tables = [range(n * each, (n + 1) * each) for n in range(len(prompts))]
    rows = [Stretch(prompt, 0, table, len(prompt) - 1) for prompt, table in zip(prompts, tables, strict=True)]
    texts: list[list[int]] = [[] for _ in prompts]
    for done in range(tokens):
        chosen = forward(executor, rows, PAGE_TOKENS).logits.argmax(-1).tolist()
        for text, token in zip(texts, chosen, strict=True):
            text.append(token)
        at = len(prompts[0]) + done
        rows = [Stretch([token], at, table, 0) for token, table in zip(chosen, tables, strict=True)]
    return texts
