"""Verification on a GPU beside reading the logits once: kernels/verify/fused.py in a CUDA graph, for a vocabulary of
128 256, by sequences and drafted tokens.

The calls of a graph read different logits, more than any cache holds. Graphs are replayed back to back, so the time is
the device's. Logits are float32, as a worker's. Drafts are the likeliest tokens, as a good
proposer's; every row is read, whatever stands.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from bench.gpu import stage
from bench.gpu.stage import captured
from bench.shown import Shown
from kernels.verify import fused
from kernels.verify.on_device import needs_of
from kernels.verify.questions import REJECTION, Asked, Edits, Questions, Rule, gather

HELP = "microseconds of verification on a GPU by kind, sequences and drafts, against reading the logits once"
VOCABULARY, DRY_VOCABULARY = 128256, 96
# More than any cache, and no more copies than this.
UNCACHED_BYTES, MOST_COPIES = 1 << 29, 64
_SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 20}
RULES = {
    "greedy": Rule(),
    "target_match": Rule(**_SAMPLED),
    "top_k, top_p": Rule(**_SAMPLED, top_k=50, top_p=0.95),
    "rejection": Rule(**_SAMPLED, strategy=REJECTION),
    "penalties": Rule(**_SAMPLED, repetition_penalty=1.1, presence_penalty=0.2),
}
REPLAYS = 5
SHOWN = (Shown("Verification on the GPU, µs", "us>*", say="By sequences and drafted tokens of each.", by=("dtype",)),)


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the logits")
    parser.add_argument("--sequences", default="64,1,16,256", help="of a batch, comma-separated")
    # Each size and kind is compiled anew.
    parser.add_argument("--drafts", default="4", help="tokens of a draft, comma-separated")
    stage.flags(parser)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    device = stage.device(options)
    read = stage.bandwidth(device)
    vocabulary = DRY_VOCABULARY if options.dry_run else VOCABULARY
    figures = stage.begun(options, device)
    figures |= {"dtype": options.dtype, "vocabulary": vocabulary, "read_gb_s": round(read, 1)}
    counts, lengths = (list(map(int, told.split(","))) for told in (options.sequences, options.drafts))
    sizes = [(sequences, drafts) for sequences in counts for drafts in lengths]
    if options.dry_run:
        sizes = sizes[:1]
    timed(figures, getattr(torch, options.dtype), vocabulary, sizes, options.turns, read, device)
    return figures | {"missed": []}


def timed(
    figures: dict[str, Any], dtype: torch.dtype, vocabulary: int, sizes: list[tuple[int, int]], turns: int,
    read: float, device: torch.device,
) -> None:  # fmt: skip
    """Kind -> size -> microseconds of a call, and how often the logits could have been read in that time; and the
    kernels of the first size."""
    us: dict[str, dict[str, float]] = {kind: {} for kind in RULES}
    floor: dict[str, dict[str, float]] = {kind: {} for kind in RULES}
    kernels: dict[str, Any] = {}
    figures |= {"us": us, "times_floor": floor, "kernels": kernels}
    for sequences, drafts in sizes:
        for kind, rule in RULES.items():
            copies = made(dtype, vocabulary, sequences * (drafts + 1), device)
            run = captured(calls(copies, rule, sequences, drafts), device)
            seen = stage.replayed_ms(run, REPLAYS, max(1, turns // 5), device) * 1e3 / len(copies)
            size = f"{sequences} x {drafts}"
            if kind not in kernels:
                # Of one call: microseconds and launches.
                found = stage.kernel_us(run, device, turns=2)
                kernels[kind] = {name: [round(each / len(copies), 2) for each in both] for name, both in found.items()}
            us[kind][size] = round(seen, 2)
            floor[kind][size] = round(seen / (copies[0].nbytes / read / 1e3), 2)
            # What is known when the time is up.
            print(f"-- {kind}, {size}: {us[kind][size]} us, {floor[kind][size]} reads", flush=True)


def made(dtype: torch.dtype, vocabulary: int, rows: int, device: torch.device) -> list[torch.Tensor]:
    """Logits, again and again until no cache holds them all."""
    chance = torch.Generator(device).manual_seed(0)
    size = rows * vocabulary * torch.empty(0, dtype=dtype).element_size()
    count = min(MOST_COPIES, -(-UNCACHED_BYTES // size)) if device.type == "cuda" else 1
    drawn = (torch.randn(rows, vocabulary, generator=chance, device=device) * 3 for _ in range(count))
    return [logits.to(dtype) for logits in drawn]


def calls(copies: list[torch.Tensor], rule: Rule, sequences: int, drafts: int) -> Callable[[], None]:
    """Of each of the copies once."""
    ready = list(prepared(copies, rule, sequences, drafts))

    def run() -> None:
        for logits, questions, work, needs in ready:
            fused.verify(logits, questions, work, needs)

    return run


def prepared(
    copies: list[torch.Tensor], rule: Rule, sequences: int, drafts: int
) -> Iterator[tuple[torch.Tensor, Questions, fused.Workspace, fused.Launches]]:
    work = None
    for logits in copies:
        likely = logits.view(sequences, drafts + 1, -1).argmax(-1)[:, :-1].tolist()
        seen = dict.fromkeys(range(64), 1) if rule.penalised else None
        questions = gather([Asked(rule, 300, draft, seen=seen) for draft in likely], logits.shape[1])
        # Calls of a graph run one after the other: they may share their memory.
        work = work or fused.workspace_for(logits, questions)
        yield logits, there(questions, logits.device), work, needs_of(questions)


def there(questions: Questions, device: torch.device) -> Questions:
    edits = questions.edits
    if edits is not None:
        edits = replace(edits, **{each.name: getattr(edits, each.name).to(device) for each in fields(Edits)})
    arrays = {name: getattr(questions, name).to(device) for name in ("rules", "begins", "drafted", "parents")}
    return replace(questions, **arrays, edits=edits)
