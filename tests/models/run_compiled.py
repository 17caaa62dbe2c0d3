"""Run by test_cpu_features.py as a process of its own, told by NUMBA_CPU_NAME and NUMBA_CPU_FEATURES what processor
to compile for: a model's logits for a text at once, and whether they are the same bits row by row and beside others.

    python run_compiled.py FOLDER OUT.npz [--same-bits] DTYPE...
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from models.batch import Stretch, make_batch
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.executor import Options
from models.weights import Weights

PAGE = 16
TOKENS = [(7 * i * i + 3 * i + 1) % 101 for i in range(50)]


def logits_of(executor: CpuExecutor, stretches: list[Stretch]) -> torch.Tensor:
    return executor.forward(make_batch(stretches, PAGE)).logits.clone()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--same-bits", action="store_true")
    parser.add_argument("dtypes", nargs="+")
    asked = parser.parse_args()
    found = {}
    for dtype in asked.dtypes:
        options = Options(
            dtype=dtype, pages=16, page_tokens=PAGE, max_context=128, threads=2, same_bits=asked.same_bits
        )
        executor = CpuExecutor(read_network(asked.folder), Weights(asked.folder), options)
        whole = logits_of(executor, [Stretch(TOKENS, 0, [3, 1, 5, 2], 0)])
        pages, parts, start = [8, 9, 6, 7], [], 0
        for rows in (1, 1, 14, 1, 20, 1, 3, 9):
            text = Stretch(TOKENS[start : start + rows], start, pages, 0)
            beside = Stretch(TOKENS[: rows + 2], 0, [10, 11, 12], rows + 2)
            parts.append(logits_of(executor, [beside, text] if rows > 1 else [text]))
            start += rows
        assert start == len(TOKENS)
        found[dtype] = whole.numpy()
        found[f"{dtype} same bits"] = np.array(torch.equal(torch.cat(parts), whole))
        found[f"{dtype} path"] = np.array(executor.path)
        executor.close()
    np.savez(asked.out, **found)


if __name__ == "__main__":
    main()
