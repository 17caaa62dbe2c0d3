"""What a head drafts inside vLLM, token by token, with the answers: the other side of bench/oracles/same_drafts.py.

Run by the interpreter of a virtual environment that has vllm, and imported by nothing:

    PYTHON -m bench.oracles.vllm_drafts JOB ANSWER        both are files of JSON
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module, metadata
from pathlib import Path
from types import ModuleType
from typing import Any

# In one process, whose proposers can be watched; no more memory and no other network than it needs.
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
PROPOSERS = (("vllm.v1.spec_decode.llm_base_proposer", "SpecDecodeBaseProposer"),
             ("vllm.v1.spec_decode.medusa", "MedusaProposer"))  # fmt: skip
# Their blocks read zeros in place of the embedding at position 0.
BLOCKS = tuple(f"vllm.model_executor.models.{name}_mtp" for name in ("mimo", "deepseek", "glm4_moe"))


def watch(drafts: list[list[int]]) -> None:
    """Have every proposer add its drafts, of the one running sequence, to the list."""
    for module, name in PROPOSERS:
        kind: Any = getattr(import_module(module), name)
        propose = kind.propose

        def watched(self: Any, *given: Any, _propose: Any = propose, **more: Any) -> Any:
            found = _propose(self, *given, **more)
            drafts.append([int(token) for token in found[0]])
            return found

        kind.propose = watched


def with_all_positions(block: str) -> None:
    """Give a module of MTP blocks a torch whose `where`, used for nothing else there, keeps the embeddings."""
    torch, own = import_module("torch"), ModuleType("torch")
    vars(own).update(vars(torch), where=lambda _condition, _zeros, embeddings: embeddings)
    vars(import_module(block)).update(torch=own)


def main(job_file: str, answer_file: str) -> None:
    from vllm import LLM, SamplingParams

    job = json.loads(Path(job_file).read_text(encoding="utf-8"))
    drafts: list[list[int]] = []
    watch(drafts)
    if job["all_positions"]:
        # Nothing that was compiled for blocks as they are.
        os.environ["VLLM_DISABLE_COMPILE_CACHE"] = "1"
        for name in BLOCKS:
            with_all_positions(name)
    engine = LLM(
        job["model"], dtype="float32", max_model_len=job["context"], max_num_seqs=1, enable_prefix_caching=False,
        speculative_config=job["speculative"], enforce_eager=job["eager"],
    )  # fmt: skip
    answers = []
    for prompt in job["prompts"]:
        drafts.clear()
        sampling = SamplingParams(temperature=0, max_tokens=job["tokens"])
        began = time.perf_counter()
        [done] = engine.generate({"prompt_token_ids": prompt}, sampling, use_tqdm=False)
        seconds = time.perf_counter() - began
        answers.append({"ids": list(done.outputs[0].token_ids), "drafts": list(drafts), "seconds": seconds})
    said = json.dumps({"version": metadata.version("vllm"), "answers": answers})
    Path(answer_file).write_text(said, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
