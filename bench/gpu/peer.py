"""Peers on the same GPU in the same minutes: transformers' continuous batching and generate beside our runner in
process, and torch's own kernels (cuBLAS, SDPA) beside ours in the shapes of Llama 3.1 8B.

Texts are greedy and of one length, and all prompts are there at once; a rate counts whole answers, prompts included.
Ours run before and after each of theirs. A part that fails is told, and the next one begins. With `--large` answers are
of random weights in that shape, and ours come from a plain loop around the executor: a runner's models are folders.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any

import torch

from bench.gpu import greedy, in_process, law3, stage
from bench.gpu.beside_torch import ATTENTION, LINEARS, ROWS, TOY_LINEAR, attended, linear
from bench.shown import Shown
from bench.suite import LeftOut

HELP = "transformers' continuous batching beside our runner, cuBLAS and SDPA beside our kernels, by ratio"
BATCHED, GRAPHS, GENERATE = "continuous batching", "continuous batching, graphs", "generate"
AT_ONCE, TOKENS, PROMPT = (64, 1, 16), 200, 128
# Pages of transformers' cache, each of 256 tokens, and rows of its largest step.
BLOCKS, STEP_TOKENS = 256, 8192
SHOWN = (
    Shown("Beside transformers on the same GPU", "answers>*>*",
          {"ours": "ours, tokens/s", "theirs": "theirs, tokens/s", "ratio": "ours / theirs"},
          "Greedy answers of 200 tokens to prompts of 128, in process, without drafts; ours strict.", by=("large",)),
    Shown("Beside torch's kernels on the same GPU", "kernels>*>*",
          {"ours": "ours, µs", "theirs": "theirs, µs", "ratio": "ours / theirs"},
          "Device times in the shape of Llama 3.1 8B; ours strict: linears beside cuBLAS, attention beside SDPA."),
)  # fmt: skip


def flags(parser: argparse.ArgumentParser) -> None:
    stage.flags(parser)
    parser.add_argument("--large", action="store_true", help="answers in the shape of Llama 3.1 8B, and no kernels")
    parser.add_argument("--seconds", type=float, default=0.0, help="begin no part after these; 0: no limit")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    end = time.monotonic() + (options.seconds or 3600.0)
    where = stage.device(options)
    if util.find_spec("transformers") is None:
        raise LeftOut("transformers isn't here")
    figures = stage.begun(options, where)
    figures |= {"transformers": metadata.version("transformers"), "kernels": {}, "answers": {}}
    figures["missed"] = []
    with tempfile.TemporaryDirectory(prefix="peer-") as scratch:
        for name, part in parts(figures, options, Path(scratch), where):
            if time.monotonic() > end:
                figures["missed"].append(f"{name}: no time was left")
                continue
            try:
                part()
            except Exception as problem:
                figures["missed"].append(f"{name}: {type(problem).__name__}: {problem}"[:300])
                print(f"-- {figures['missed'][-1]}", flush=True)
    return figures


def parts(
    figures: dict[str, Any], options: argparse.Namespace, scratch: Path, where: torch.device
) -> Iterator[tuple[str, Callable[[], None]]]:
    """The worthiest first."""
    texts = Texts(figures, options, scratch, where)

    def answers(way: str, count: int) -> tuple[str, Callable[[], None]]:
        return f"{way}, {count}", lambda: texts.beside(way, count)

    yield "models", texts.load_large if options.large else texts.load
    most, one, some = AT_ONCE
    if options.dry_run:
        yield from (answers(way, 2) for way in (BATCHED, GRAPHS, GENERATE))
    else:
        yield from (answers(BATCHED, most), answers(BATCHED, one), answers(GRAPHS, most))
    if options.large:
        return
    rows, sizes = ((2,), ((2, 40, 1),)) if options.dry_run else (ROWS, ATTENTION)
    for name, own in LINEARS.items():
        shape = TOY_LINEAR if options.dry_run else own
        yield name, partial(linear, figures, name, shape, rows, options.turns, where)
    for size in sizes:
        yield f"attention {size}", partial(attended, figures, *size, options.turns, where)
    if options.dry_run:
        return
    yield from (answers(BATCHED, some), answers(GENERATE, one), answers(GRAPHS, one), answers(GENERATE, most))
    yield from (answers(GRAPHS, some), answers(GENERATE, some))


# Answers ------------------------------------------------------------------------------------------------


class Texts:
    """The same model twice, and who answers with it."""

    def __init__(
        self, figures: dict[str, Any], options: argparse.Namespace, scratch: Path, where: torch.device
    ) -> None:
        self._figures, self._options, self._scratch, self._where = figures, options, scratch, where
        self._tokens, self._prompt = (3, 8) if options.dry_run else (TOKENS, PROMPT)

    def load(self) -> None:
        from transformers import AutoModelForCausalLM, logging

        logging.set_verbosity_error()
        folder, self._figures["weights"] = law3.model_folder(self._scratch, self._options)
        loop = in_process.load(folder, kv_cache_mb=4096)
        self._figures["path"], self._vocabulary = loop.runner.facts.path, loop.runner.facts.vocab_size
        self._ours = lambda prompts: loop.generate_ahead(prompts, self._tokens).texts
        dtype = torch.float32 if self._options.dry_run else torch.bfloat16
        self._take(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa"))

    def load_large(self) -> None:
        from transformers import AutoModelForCausalLM, LlamaConfig, logging

        logging.set_verbosity_error()
        shape = stage.shape_of(stage.LLAMA_8B, self._options)
        executor = greedy.make_executor(shape, max(AT_ONCE), self._prompt + self._tokens, self._where)
        self._figures |= {"weights": "random", "large": True, "path": executor.path}
        self._vocabulary = shape.vocab_size
        self._ours = lambda prompts: greedy.answers(executor, prompts, self._tokens)
        fields = stage.LLAMA_8B | (stage.TOY if self._options.dry_run else {})
        fields = {name: each for name, each in fields.items() if name not in ("architectures", "torch_dtype")}
        with torch.device(self._where):
            own = AutoModelForCausalLM.from_config(
                LlamaConfig(**fields), dtype=torch.bfloat16, attn_implementation="sdpa"
            )
        self._take(own)

    def _take(self, model: Any) -> None:
        self._model: Any = model.to(self._where).eval()
        # Answers have one length.
        self._model.generation_config.eos_token_id = None
        self._model.config.eos_token_id = None

    def beside(self, way: str, count: int) -> None:
        prompts = law3.prompts(self._vocabulary, (self._prompt,) * count)
        with_graphs = partial(self._batched, graphs=True)
        ways: dict[str, Callable[..., Any]] = {
            GENERATE: self._generated, BATCHED: self._batched, GRAPHS: with_graphs,
        }  # fmt: skip
        # The first one warms up.
        before = [self._timed(lambda: self._ours(prompts))[0] for _ in range(2)][-1]
        theirs, answers = ways[way](prompts)
        after, own = self._timed(lambda: self._ours(prompts))
        found: dict[str, Any] = {"ours": round(statistics.fmean((before, after)), 1), "theirs": round(theirs, 1)}
        found["ratio"] = round(found["ours"] / found["theirs"], 3)
        if not self._options.large:
            # Theirs rounds elsewhere: a text may take another way, and none does from the beginning.
            found["same_first_token"] = sum(a[:1] == b[:1] for a, b in zip(own, answers, strict=True)) / count
        self._figures["answers"].setdefault(way, {})[f"{count} at once"] = found
        print(f"-- {way}, {count} at once: {found}", flush=True)

    def _timed(self, answer: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
        stage.wait(self._where)
        begin = time.perf_counter()
        texts = answer()
        seconds = time.perf_counter() - begin
        if wrong := {len(text) for text in texts} - {self._tokens}:
            raise ValueError(f"answers of {sorted(wrong)} tokens instead of {self._tokens}")
        return sum(map(len, texts)) / seconds, texts

    def _generated(self, prompts: list[list[int]]) -> tuple[float, list[list[int]]]:
        asked = torch.tensor(prompts, device=self._where)
        fields = {"attention_mask": torch.ones_like(asked), "max_new_tokens": self._tokens}

        def answer() -> list[list[int]]:
            told = self._model.generate(asked, **fields, do_sample=False, pad_token_id=0)
            texts: list[list[int]] = told[:, asked.shape[1] :].tolist()
            return texts

        return self._timed(answer)

    def _batched(self, prompts: list[list[int]], graphs: bool | None = None) -> tuple[float, list[list[int]]]:
        """`graphs` None: as it chooses by itself."""
        from transformers import GenerationConfig
        from transformers.generation.configuration_utils import ContinuousBatchingConfig

        asked = GenerationConfig(max_new_tokens=self._tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
        sizes = ContinuousBatchingConfig(
            num_blocks=BLOCKS, max_batch_tokens=STEP_TOKENS, max_requests_per_batch=len(prompts), use_cuda_graph=graphs
        )
        session = self._model.continuous_batching_context_manager(
            generation_config=asked, continuous_batching_config=sizes, block=True, timeout=5
        )
        with session as manager:
            # Makes its cache and warms up.
            _collected(manager, prompts[:1], 4)
            return self._timed(lambda: _collected(manager, prompts, self._tokens))


def _collected(manager: Any, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    names = manager.add_requests(inputs=prompts, max_new_tokens=tokens)
    found: dict[str, list[int]] = {}
    while len(found) < len(names):
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("its thread has ended")
        elif result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            found[result.request_id] = list(result.generated_tokens)
    return [found[name] for name in names]
