"""A step of the real model by rows, and its prefill, in process, beside what the machine can do at best.

Row counts take turns in one run, so that what else the machine does falls on all alike; medians are compared.
`rows` are of one sequence, as in verification; `sequences` are rows of as many sequences, as in a batch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

from bench.shown import Shown
from models.batch import Stretch
from models.sources import ensure_model
from services.api.settings import Settings, cache_dir
from services.runtime.cpu_placement import threads_of
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.torch_model import TorchModel

HELP = "milliseconds of a step by rows, prefill tokens/s, and the machine's ceilings in the same run"
ROWS = (1, 2, 4, 8, 16, 32, 64)
PROMPT = 2048
PAGE_TOKENS = 32
READ_BYTES = 1 << 29
SHOWN = (
    Shown("A step of the model by rows, ms", "step_ms",
          say="*Rows* are of one sequence, as in verification; *sequences* have one row each.",
          by=("dtype",)),
    Shown("Prompts, and what the memory allows", "ceilings",
          {"/prefill_tokens_per_second": "prompt tokens/s", "weights_mb": "weights, MB", "read_gb_s": "read, GB/s",
           "step_of_one_row_times_floor": "one row, times reading all weights"},
          by=("dtype",)),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="smollm2-135m-instruct", help="name, folder, GGUF file or hub id")
    parser.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32", "int8"))
    parser.add_argument("--determinism", default="strict", choices=("strict", "fast"))
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--context", type=int, default=300, help="tokens before the rows of a step")
    parser.add_argument("--chunk", type=int, default=512, help="rows of a prefill chunk")
    parser.add_argument("--turns", type=int, default=40, help="steps of each row count")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    folder = ensure_model(options.model, cache_dir(Settings.for_tests()))
    strict = options.determinism == "strict"
    own = {"dtype": options.dtype, "strict": strict, "threads": options.threads, "page_tokens": PAGE_TOKENS}
    model = load_torch_model(folder, Wanted(**own, kv_cache_mb=512))
    threads = threads_of("worker", "", options.threads)
    figures: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "path": model.facts.path,
        "strict": model.facts.strict,
        "context": options.context,
        "step_ms": _steps(model, options),
        "prefill_tokens_per_second": _prefill(model, options.chunk),
        "prefill_prompt": PROMPT,
    }
    one = figures["step_ms"]["rows 1"]
    figures["times_one_row"] = {name: round(ms / one, 3) for name, ms in figures["step_ms"].items()}
    return figures | {"ceilings": _ceilings(model, options.dtype, threads, one)}


def _steps(model: TorchModel, options: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of a step, by name."""
    context = options.context
    text = [1 + (i * 7919) % 40000 for i in range(context + max(ROWS))]
    places = -(-(context + max(ROWS)) // PAGE_TOKENS)
    sequences = 16
    pages = [list(range(i * places, (i + 1) * places)) for i in range(sequences)]
    for own in pages:
        read_prompt(model, text[:context], own, options.chunk)
    work = {f"rows {n}": [Stretch(text[context : context + n], context, pages[0], 0)] for n in ROWS}
    for n in (4, sequences):
        work[f"sequences {n}"] = [Stretch([text[context]], context, own, 0) for own in pages[:n]]
    found: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(options.turns + 3):
        for name, rows in work.items():
            start = time.perf_counter()
            # Nothing of torch after it: threads of OpenMP that spin here would take a core from the next step.
            model.forward(rows)
            # The first turns compile and fill caches.
            if turn >= 3:
                found[name].append((time.perf_counter() - start) * 1e3)
    return {name: round(statistics.median(times), 3) for name, times in found.items()}


def _prefill(model: TorchModel, chunk: int) -> float:
    text = [1 + (i * 7919) % 40000 for i in range(PROMPT)]
    rates = []
    for _ in range(4):
        start = time.perf_counter()
        read_prompt(model, text, list(range(PROMPT // PAGE_TOKENS)), chunk)
        rates.append(PROMPT / (time.perf_counter() - start))
    return round(statistics.median(rates[1:]), 1)


def read_prompt(model: TorchModel, text: list[int], pages: list[int], chunk: int) -> None:
    for start in range(0, len(text), chunk):
        tokens = text[start : start + chunk]
        last = start + chunk >= len(text)
        model.forward([Stretch(tokens, start, pages, len(tokens) - int(last))])


def _ceilings(model: TorchModel, dtype: str, threads: int, step_ms: float) -> dict[str, Any]:
    gb_s = read_gb_s(threads)
    weight_bytes = model.facts.parameters * {"bfloat16": 2, "float32": 4, "int8": 1}[dtype]
    floor_ms = weight_bytes / gb_s / 1e6
    return {
        "threads": threads,
        "read_gb_s": round(gb_s, 1),
        "weights_mb": round(weight_bytes / 1e6, 1),
        "floor_ms": round(floor_ms, 2),
        "step_of_one_row_times_floor": round(step_ms / floor_ms, 2),
    }


def read_gb_s(threads: int) -> float:
    """Best of a few turns over memory that no cache holds."""
    data = np.ones(READ_BYTES // 8, np.int64)
    parts = np.array_split(data, threads)
    _sum(data[:8])
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(4):
            start = time.perf_counter()
            list(pool.map(_sum, parts))
            seconds.append(time.perf_counter() - start)
    return READ_BYTES / min(seconds) / 1e9


@numba.njit(nogil=True)
def _sum(data: np.ndarray) -> int:
    total = np.int64(0)
    for i in range(data.size):
        total ^= data[i]
    return total
