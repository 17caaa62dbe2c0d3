"""vLLM's `LLM.generate`, on request: the other side of bench/oracles/offline.py.

Run by the interpreter of a virtual environment that has vllm, and imported by nothing:

    PYTHON -m bench.oracles.vllm_generate MODEL DTYPE

Reads a line of JSON {"prompts": […], "tokens": N} at a time and answers it with one: {"tokens": …, "seconds": …}. The
first line, which answers nothing, has its version.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import metadata
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ |= {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}


def main(model: str, dtype: str) -> None:
    # What it and its processes print belongs into the log.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from vllm import LLM, SamplingParams

    engine = LLM(model, dtype=dtype, max_model_len=2048)

    def told(line: Any) -> None:
        print(json.dumps(line), file=answers, flush=True)

    told({"version": metadata.version("vllm")})
    for line in sys.stdin:
        asked = json.loads(line)
        sampling = SamplingParams(temperature=0, max_tokens=asked["tokens"], ignore_eos=True)
        began = time.perf_counter()
        outputs = engine.generate(asked["prompts"], sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        told({"tokens": sum(len(each.outputs[0].token_ids) for each in outputs), "seconds": seconds})


if __name__ == "__main__":
    main(*sys.argv[1:])
