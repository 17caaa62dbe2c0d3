"""What segments of learned text cost: building, merging, opening, a guess, bytes; at several sizes.

The text is the Python standard library's as tokens of the default model, as far as it goes; where more is asked for,
pieces of it are put together anew, with some tokens replaced. It is built a part at a time, and the parts are merged.
Guesses are for held-out files, each at a random place: nothing is left in the processor's caches from the one before.
"""

from __future__ import annotations

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.kinds import texts_of
from bench.replay import PROMPT
from services.proposer.suffix_index.segments.loops import DRAFTED, MATCHED, guess_alone
from services.proposer.suffix_index.segments.segment import DEPTH, Segment, merge

HELP = "what segments of learned text cost (build, merge, open, guess, bytes)"
BYTES, OPEN_S, GUESS_P50_US = 20, 1.0, 20.0
# Bars are for so many tokens.
OPENED_TOKENS, GUESSED_TOKENS = 10_000_000, 100_000_000
HELD_OUT = 96
# Of text that is put together: tokens of a piece, and one of how many is replaced.
_PIECE, _REPLACED = (20, 400), 30


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tokens", type=int, nargs="+", default=[1_000_000, 10_000_000], help="sizes, each a segment")
    parser.add_argument("--part", type=int, default=1_000_000, help="tokens that are sorted at once")
    parser.add_argument("--real", type=int, default=3_000_000, help="tokens of the standard library to begin with")
    parser.add_argument("--guesses", type=int, default=5000)
    parser.add_argument("--longest", type=int, default=8, help="num_speculative_tokens")
    parser.add_argument("--folder", type=Path, default=None, help="where the files lie meanwhile")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    texts = texts_of("python", options.real, HELD_OUT)
    if texts is None:
        raise SystemExit(f"the standard library has less than {options.real} tokens and {HELD_OUT} files more")
    real, held_out = texts
    compiled()
    figures: dict[str, Any] = {"real_tokens": sum(map(len, real)), "sizes": []}
    for tokens in options.tokens:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            figures["sizes"].append(of_size(tokens, real, held_out, options, Path(folder)))
    figures["missed"] = missed(figures["sizes"])
    return figures


def missed(sizes: list[dict[str, Any]]) -> list[str]:
    found = []
    for size in sizes:
        bars = [("bytes a token", size["bytes_per_token"], BYTES)]
        if size["tokens"] <= 1.1 * OPENED_TOKENS:
            bars.append(("seconds to open", size["open_s"], OPEN_S))
        if size["tokens"] <= 1.1 * GUESSED_TOKENS:
            bars.append(("guess p50, µs", size["guess"]["p50_us"], GUESS_P50_US))
        found += [
            f"{size['tokens']} tokens, {name}: {seen:.2f}, the bar is {bar}" for name, seen, bar in bars if seen > bar
        ]
    return found


def compiled() -> None:
    with tempfile.TemporaryDirectory() as folder:
        segment = Segment.build([[1, 2, 1]], Path(folder) / "one")
        merged = merge([segment, segment], Path(folder) / "two")
        Guesses(merged, 1).ask(np.array([1], np.int32))


def of_size(
    tokens: int, real: list[array[int]], held_out: list[array[int]], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    parts: list[Segment] = []
    built = 0.0
    for number, texts in enumerate(parts_of(more_text(real, tokens), min(tokens, options.part))):
        begun = time.perf_counter()
        parts.append(Segment.build(texts, folder / f"part-{number}"))
        built += time.perf_counter() - begun
    begun, slices = time.perf_counter(), []
    before = anonymous_kb()
    whole = merge(parts, folder / "whole", lambda *_: slices.append((time.perf_counter(), anonymous_kb())))
    merged = time.perf_counter() - begun
    for part in parts:
        part.close()
        part.path.unlink()
    moments = [moment for moment, _ in slices]
    return {
        "tokens": whole.tokens,
        "texts": whole.texts,
        "parts": len(parts),
        "build_s_per_million": built / whole.tokens * 1e6,
        "merge_s": merged,
        "merge_ns_per_token": (moments[-1] - moments[0]) / whole.tokens * 1e9,
        "merge_memory_mb": max(held for _, held in slices) / 1024 - before / 1024,
        "bytes_per_token": whole.held_bytes() / whole.tokens,
        "open_s": opened_s(whole.path),
        "guess": guessed(whole, held_out, options.guesses, options.longest),
    }


# Text -----------------------------------------------------------------------------------------------------


def more_text(real: list[array[int]], tokens: int) -> Iterator[npt.NDArray[np.int32]]:
    """The real texts, then made ones, up to so many tokens."""
    for text in real:
        piece = np.array(text[:tokens], np.int32)
        tokens -= len(piece)
        yield piece
        if not tokens:
            return
    said, chance, draw = (
        np.concatenate([np.array(text, np.int32) for text in real]),
        random.Random(4),
        np.random.default_rng(4),
    )
    while tokens:
        size = min(tokens, chance.randint(500, 6000))
        pieces, length = [], 0
        while length < size:
            at, wide = chance.randrange(len(said) - _PIECE[1]), chance.randint(*_PIECE)
            pieces.append(said[at : at + wide])
            length += wide
        text = np.concatenate(pieces)[:size]
        replaced = draw.integers(0, size, size // _REPLACED)
        text[replaced] = said[draw.integers(0, len(said), len(replaced))]
        tokens -= size
        yield text


def parts_of(texts: Iterator[npt.NDArray[np.int32]], tokens: int) -> Iterator[list[npt.NDArray[np.int32]]]:
    part: list[npt.NDArray[np.int32]] = []
    length = 0
    for text in texts:
        part.append(text)
        length += len(text)
        if length >= tokens:
            yield part
            part, length = [], 0
    if part:
        yield part


# Figures --------------------------------------------------------------------------------------------------


def anonymous_kb() -> int:
    """Memory that is the process's own; pages of mapped files are the system's to take back."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def opened_s(path: Path) -> float:
    """In a process of its own, with all checks; the file is in memory already."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from services.proposer.suffix_index.segments.segment import Segment\n"
        "a = time.perf_counter(); Segment.open(Path(sys.argv[1])); print(time.perf_counter() - a)"
    )
    return float(
        subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True).stdout
    )


class Guesses:
    def __init__(self, segment: Segment, longest: int) -> None:
        self.words, self.longest = segment.words, longest
        self.draft, self.ratios = np.zeros(max(1, longest), np.int32), np.zeros(max(1, longest))
        self.told = np.zeros(3, np.int64)

    def ask(self, context: npt.NDArray[np.int32]) -> float:
        """µs, the call from Python with it."""
        begun = time.perf_counter_ns()
        guess_alone(
            self.words, context, len(context), self.longest, 1.0, 0.0, 0.1, self.draft, self.ratios, self.told
        )  # fmt: skip
        return (time.perf_counter_ns() - begun) / 1e3


def guessed(segment: Segment, held_out: list[array[int]], count: int, longest: int) -> dict[str, float]:
    chance, guesses, calls = random.Random(5), Guesses(segment, longest), Guesses(segment, 0)
    times, empty, matched, drafted, accepted = [], [], [], 0, 0
    for number in range(count + count // 10):
        text = chance.choice(held_out)
        at = chance.randrange(PROMPT, len(text) - longest)
        context = np.array(text[at - DEPTH : at], np.int32)
        took = guesses.ask(context)
        # The first ones fetch what all look at.
        if number < count // 10:
            continue
        times.append(took)
        empty.append(calls.ask(context))
        draft = guesses.draft[: guesses.told[DRAFTED]].tolist()
        matched.append(int(guesses.told[MATCHED]))
        drafted += len(draft)
        right = next((n for n, token in enumerate(draft) if token != text[at + n]), len(draft))
        accepted += right
    return {
        "p50_us": float(np.percentile(times, 50)),
        "p99_us": float(np.percentile(times, 99)),
        "call_alone_p50_us": float(np.percentile(empty, 50)),
        "matched_mean": float(np.mean(matched)),
        "drafted_per_guess": drafted / len(times),
        "accepted_per_guess": accepted / len(times),
    }
