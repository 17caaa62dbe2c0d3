"""Law 3 on the GPU: the text with drafts (right, wrong, half right, trees), in a batch, in steps that are launched
before the last one has ended, and with its prompt in chunks is the text of one sequence alone without any, greedy and
with a seed. Through the worker's own runner.

SmolLM2's weights where they are here, else random ones in its shape: every promise holds for those, too.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.checkout import user_cache
from bench.gpu import in_process, stage
from bench.gpu.in_process import GpuAnswers, InProcess
from bench.shown import Shown
from services.api.sampling import Sampling

HELP = "law 3 on the GPU: the same text with right, wrong and tree drafts, in batches, in chunks"
MODEL = "smollm2-135m-instruct"
LENGTHS = (5, 40, 200, 1, 64)
SHOWN = (
    Shown("The same text on the GPU", "ways>*",
          {"accepted": "accepted", "first_difference": "first token that differs"},
          "Each way against one sequence alone without drafts; -1: no token differs."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    stage.flags(parser)
    parser.add_argument("--tokens", type=int, default=512, help="of each text")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    figures = stage.facts(stage.device(options))
    lengths = (5, 9) if options.dry_run else LENGTHS
    tokens = 4 if options.dry_run else options.tokens
    with tempfile.TemporaryDirectory(prefix="law3-") as folder:
        place, figures["weights"] = model_folder(Path(folder), options)
        loop = in_process.load(place, kv_cache_mb=1024)
        figures["path"] = loop.runner.facts.path
        figures |= compared(loop, prompts(loop.runner.facts.vocab_size, lengths), tokens)
    return figures | {"missed": missed(figures["ways"])}


def model_folder(scratch: Path, options: argparse.Namespace) -> tuple[Path, str]:
    """And what its weights are."""
    real = user_cache() / "models" / MODEL
    if real.is_dir() and not options.dry_run:
        return real, MODEL
    config = stage.SMOLLM2 | (stage.TOY if options.dry_run else {})
    return in_process.write_random(config, scratch / "random"), "random"


def prompts(vocabulary: int, lengths: tuple[int, ...]) -> list[list[int]]:
    chance = random.Random(3)
    return [[chance.randrange(3, vocabulary) for _ in range(length)] for length in lengths]


def compared(loop: InProcess, asked: list[list[int]], tokens: int) -> dict[str, Any]:
    ways: dict[str, Any] = {}
    for name, sampling in (("greedy", Sampling()), ("seeded", Sampling(temperature=0.8, seed=11))):
        rules = [sampling] * len(asked)
        alone = [loop.generate([prompt], tokens, sampling=[sampling]).texts[0] for prompt in asked]
        for way, answers in _ways(loop, asked, tokens, alone, rules):
            places = [_differs(*pair) for pair in zip(answers.texts, alone, strict=True)]
            ways[f"{name}, {way}"] = found = {
                "tokens": sum(map(len, alone)),
                "accepted": answers.accepted,
                "first_difference": min((place for place in places if place >= 0), default=-1),
            }
            print(f"-- {name}, {way}: {found}", flush=True)
    return {"ways": ways}


def _ways(
    loop: InProcess, asked: list[list[int]], tokens: int, alone: list[list[int]], rules: list[Sampling]
) -> Iterator[tuple[str, GpuAnswers]]:
    yield "in a batch", loop.generate(asked, tokens, sampling=rules)
    yield "launched ahead", loop.generate_ahead(asked, tokens, rules)
    yield "in chunks of 7", loop.generate(asked, tokens, sampling=rules, chunk=7)
    for way, drafts in (
        ("right drafts", in_process.known(alone, asked, 5)),
        ("half right", in_process.known(alone, asked, 5, wrong_after=2)),
        ("wrong drafts", in_process.known(alone, asked, 5, wrong_after=0)),
        ("trees", in_process.known_tree(alone, asked, 3)),
    ):
        yield way, loop.generate(asked, tokens, drafts, rules)


def _differs(one: list[int], other: list[int]) -> int:
    """The first place at which they do; -1: nowhere."""
    pairs = enumerate(zip(one, other, strict=False))
    assert len(one) == len(other)
    return next((place for place, (a, b) in pairs if a != b), -1)


def missed(ways: dict[str, Any]) -> list[str]:
    found = []
    for way, each in ways.items():
        if each["first_difference"] >= 0:
            found.append(f"{way}: another text from token {each['first_difference']} on")
        # Drafts that are never accepted would prove nothing.
        if way.endswith(("right drafts", "half right", "trees")) and not each["accepted"]:
            found.append(f"{way}: no draft token was accepted")
    return found
