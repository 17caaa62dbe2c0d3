"""A worker's runner in this process, without mesh and scheduler: sequences that all run to their end, with drafts from
a function. Needs torch and what computes, nothing that carries messages.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from kernels import interpreter
from services.api.draft_tree import cut_to_reach
from services.api.drafter import NO_DRAFT, Draft
from services.api.sampling import Sampling
from services.api.strategies import Verification
from services.worker.running.load_torch_model import Wanted, load_torch_model
from services.worker.running.runner import Runner
from services.worker.running.torch_runner import TorchRunner
from services.worker.running.work import NewSequence, SequenceWork, Work

# The sequence's number and its text so far -> the draft for its next step.
Drafts = Callable[[int, list[int]], Draft]
# Pages beyond a text's end that a step with a draft may write.
ROOM = 16
# Of a dry run: few pages and rows, because the interpreter runs the kernels of each size once before it is ready.
DRY = Wanted(dtype="float32", executor="triton", page_tokens=16, kv_cache_mb=1, max_step_tokens=8)


@dataclass(slots=True)
class GpuAnswers:
    texts: list[list[int]]  # what was generated
    steps: int = 0
    accepted: int = 0
    seconds: float = 0.0  # of all steps after the prompts'
    step_seconds: list[float] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """Without the first token of each, which its prompt's step gives."""
        return sum(len(text) - 1 for text in self.texts) / max(self.seconds, 1e-9)


@dataclass(slots=True)
class _Running:
    number: int
    id: int
    text: list[int]
    prompt_tokens: int
    pages: list[int]
    computed: int = 0


class InProcess:
    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._last_id = 0
        self._ended: list[int] = []

    def generate(
        self, prompts: Sequence[list[int]], tokens: int, drafts: Drafts = lambda _number, _text: NO_DRAFT,
        sampling: Sequence[Sampling] = (), chunk: int = 1 << 20,
    ) -> GpuAnswers:  # fmt: skip
        """`tokens` for each prompt; prompts are computed in chunks of that size. `sampling`: of each; (): greedy."""
        running = self._admitted(prompts, tokens)
        new = [self._new(each, sampling[each.number] if sampling else Sampling()) for each in running]
        texts: list[list[int]] = [[] for _ in prompts]
        answers = GpuAnswers(texts)
        while running:
            items = [self._item(each, drafts, chunk, tokens) for each in running]
            prompts_left = any(each.computed < each.prompt_tokens for each in running)
            began = time.perf_counter()
            self.runner.launch(Work(items, new, self._ended))
            result = self.runner.finish()
            seconds = time.perf_counter() - began
            self.runner.draft()
            new, self._ended = [], []
            if not prompts_left:
                answers.steps, answers.seconds = answers.steps + 1, answers.seconds + seconds
                answers.step_seconds.append(seconds)
            for each, item, verdict in zip(list(running), items, result.verdicts, strict=True):
                if verdict is None:
                    each.computed += len(item.tokens)
                    continue
                assert not verdict.failure, verdict.failure
                each.text += verdict.tokens
                each.computed = len(each.text) - 1
                answers.accepted += verdict.accepted
                if len(each.text) - each.prompt_tokens >= tokens:
                    texts[each.number] = each.text[each.prompt_tokens :][:tokens]
                    running.remove(each)
                    self._ended.append(each.id)
        return answers

    def generate_ahead(
        self, prompts: Sequence[list[int]], tokens: int, sampling: Sequence[Sampling] = ()
    ) -> GpuAnswers:
        """Without drafts: each step is launched before the one in front of it has ended, and reads its tokens on the
        device. The order of the rows is reversed in each step, so that places differ."""
        running = self._admitted(prompts, tokens)
        new = [self._new(each, sampling[each.number] if sampling else Sampling()) for each in running]
        items = [self._item(each, lambda _number, _text: NO_DRAFT, 1 << 20, tokens) for each in running]
        self.runner.launch(Work(items, new, self._ended))
        self._ended = [each.id for each in running]
        order, following = list(running), list(reversed(running))
        answers, began = GpuAnswers([]), 0.0
        for step in range(tokens):
            if step + 1 < tokens:
                assert self.runner.feeds
                rows = [SequenceWork(each.id, [0], each.prompt_tokens + step, each.pages, True) for each in following]
                self.runner.launch(Work(rows, fed=list(range(len(rows) - 1, -1, -1))))
            for each, verdict in zip(order, self.runner.finish().verdicts, strict=True):
                assert verdict is not None and not verdict.failure
                each.text += verdict.tokens
            self.runner.draft()
            order, following = following, order
            # The first step is the prompts'.
            answers.steps, began = step, began or time.perf_counter()
        answers.seconds = time.perf_counter() - began
        answers.step_seconds = [answers.seconds / max(answers.steps, 1)]
        answers.texts = [each.text[each.prompt_tokens :] for each in running]
        return answers

    def _admitted(self, prompts: Sequence[list[int]], tokens: int) -> list[_Running]:
        size, first, running = self.runner.facts.page_tokens, 0, []
        for number, prompt in enumerate(prompts):
            count = -(-(len(prompt) + tokens + ROOM) // size)
            self._last_id += 1
            running.append(_Running(number, self._last_id, prompt[:], len(prompt), list(range(first, first + count))))
            first += count
        if first > self.runner.facts.pages:
            raise SystemExit(f"{len(prompts)} sequences need {first} pages, there are {self.runner.facts.pages}")
        return running

    @staticmethod
    def _new(each: _Running, sampling: Sampling) -> NewSequence:
        strategy = "target_match" if sampling.temperature else "greedy"
        return NewSequence(each.id, sampling, Verification(strategy), each.prompt_tokens, each.text[:], trees=True)

    @staticmethod
    def _item(each: _Running, drafts: Drafts, chunk: int, tokens: int) -> SequenceWork:
        fresh = each.text[each.computed : each.computed + chunk]
        verify = each.computed + len(fresh) == len(each.text)
        room = each.prompt_tokens + tokens - len(each.text) - 1
        draft = drafts(each.number, each.text) if verify and len(fresh) == 1 else NO_DRAFT
        return SequenceWork(each.id, fresh, each.computed, each.pages, verify, cut_to_reach(draft, room))


# Drafts -------------------------------------------------------------------------------------------------


def known(answers: Sequence[list[int]], prompts: Sequence[list[int]], length: int, wrong_after: int = 64) -> Drafts:
    """The text that is known to come, with wrong tokens from the given one on."""

    def drafts(number: int, text: list[int]) -> Draft:
        at = len(text) - len(prompts[number])
        right = answers[number][at : at + length]
        return Draft([token if place < wrong_after else token ^ 1 for place, token in enumerate(right)], "bench")

    return drafts


def known_tree(answers: Sequence[list[int]], prompts: Sequence[list[int]], length: int) -> Drafts:
    """As `known`, behind a wrong token at each place: the right path is the second child everywhere."""

    def drafts(number: int, text: list[int]) -> Draft:
        at, tokens, parents, parent = len(text) - len(prompts[number]), [], [], -1
        for token in answers[number][at : at + length]:
            tokens += [token ^ 1, token]
            parents += [parent, parent]
            parent = len(tokens) - 1
        return Draft(tokens, "bench", parents=parents)

    return drafts


def looked_up(length: int, match: int = 3) -> Drafts:
    """What followed the last occurrence of the text's last tokens: prompt lookup."""

    def drafts(_number: int, text: list[int]) -> Draft:
        end = text[-match:]
        for at in range(len(text) - match - 1, -1, -1):
            if text[at : at + match] == end:
                return Draft(text[at + match : at + match + length], "bench")
        return NO_DRAFT

    return drafts


# Models -------------------------------------------------------------------------------------------------


def load(folder: Path, kv_cache_mb: int) -> InProcess:
    """On the GPU, as a worker does; in the interpreter where that was chosen, for a dry run."""
    wanted = Wanted(dtype="bfloat16", executor="triton", kv_cache_mb=kv_cache_mb, rows_a_sequence=8)
    if interpreter.in_use():
        wanted = DRY
    return InProcess(TorchRunner(load_torch_model(folder, wanted)))


def write_random(config: dict[str, Any], folder: Path, seed: int = 0) -> Path:
    """A Llama's folder with random weights, and no tokenizer to speak of."""
    chance, tensors = torch.Generator().manual_seed(seed), {}
    for name, shape in shapes_of(config):
        matrix = len(shape) == 2
        made = torch.randn(shape, generator=chance) * shape[-1] ** -0.5 if matrix else torch.ones(shape)
        tensors[name] = made.bfloat16()
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    return folder


def shapes_of(config: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    hidden, wide, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    key = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    layer = {
        "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,), "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (key, hidden), "self_attn.v_proj": (key, hidden), "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide),
    }  # fmt: skip
    found: list[tuple[str, tuple[int, ...]]] = [("model.embed_tokens.weight", (vocabulary, hidden))]
    for number in range(config["num_hidden_layers"]):
        found += [(f"model.layers.{number}.{name}.weight", shape) for name, shape in layer.items()]
    return [*found, ("model.norm.weight", (hidden,))]
