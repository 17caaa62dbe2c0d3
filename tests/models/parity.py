"""Is a family right, and an executor? Tiny random models that transformers saves, and what both make of them.

A family's test file lists its variants; every executor of `EXECUTORS` has to agree on each of them, within 1e-4 of
logits that are of ordinary size, however the tokens are cut into calls. What transformers says of a model is computed
once for all of them.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from models.batch import Stretch, make_batch
from models.config import read_network
from models.cpu.executor import CpuExecutor
from models.executor import Executor, Options
from models.plain import PlainExecutor
from models.spec import Network
from models.taps import FINAL, Tap
from models.weights import Weights

MakeExecutor = Callable[[Network, Weights, Options], Executor]



def _plain(network: Network, weights: Weights, options: Options) -> Executor:
    # Row by row is tested in test_plain.py: it would take ten times as long.
    return PlainExecutor(network, weights, replace(options, strict=False))


def _compiled(network: Network, weights: Weights, options: Options) -> Executor:
    # Not a skip, which nobody would miss: a case whose network these loops lack names the executors that it is for.
    why = CpuExecutor.why_not(network, options.dtype)
    assert not why, f"the compiled executor refuses the network: {why}"
    # The ranks of a test are threads beside each other.
    return CpuExecutor(network, weights, replace(options, threads=1 if options.group else 2))


EXECUTORS: dict[str, MakeExecutor] = {
    "plain": _plain,
    "compiled": _compiled,
}
every_executor = pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in EXECUTORS.items()])

VOCABULARY = 101
TOLERANCE = 1e-4
LENGTH = 150  # of the text: ten pages, and longer than the windows of the variants
SAID = 32  # tokens of a greedy text
PAGES, PAGE_TOKENS = 100, 16

_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
}


def save_tiny(config_class: type[PreTrainedConfig], folder: Path, **changes: Any) -> PreTrainedModel:
    """A random model and the files that a folder must have. transformers writes config and weights."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config_class(**(_SIZES | changes)), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        # Made as ones and zeros, which hide a norm or a bias that is left out.
        if "norm" in name or "bias" in name:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.3)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return model.eval()


@contextlib.contextmanager
def edited_config(folder: Path, **changes: Any) -> Iterator[None]:
    path = folder / "config.json"
    before = path.read_text()
    path.write_text(json.dumps(json.loads(before) | changes))
    yield
    path.write_text(before)


def random_tokens(count: int, seed: int, vocabulary: int = VOCABULARY) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(vocabulary) for _ in range(count)]


def logits_of(theirs: PreTrainedModel, tokens: Sequence[int]) -> torch.Tensor:
    """transformers' logits of all positions, float32 [len(tokens), vocab]."""
    with torch.inference_mode():
        return theirs(torch.tensor([list(tokens)]), use_cache=False).logits[0].float()


class Pages:
    """Hands out pages in no order, each once."""

    def __init__(self, count: int = PAGES) -> None:
        self._free = list(range(count))
        random.Random(7).shuffle(self._free)

    def take(self, tokens: int) -> list[int]:
        return [self._free.pop() for _ in range(-(-tokens // PAGE_TOKENS))]


def load(folder: Path, make: MakeExecutor, dtype: str = "float32", **changes: Any) -> Executor:
    network = read_network(folder)
    sizes = {"pages": PAGES, "page_tokens": PAGE_TOKENS, "max_context": 256, "states": PAGES}
    return make(network, Weights(folder), Options(**({"dtype": dtype} | sizes | changes)))


def features_of(theirs: PreTrainedModel, tokens: Sequence[int], taps: Sequence[Tap]) -> torch.Tensor:
    """What transformers' modules give at the taps, float32 [len(tokens), taps · hidden]."""
    found: dict[Any, torch.Tensor] = {}
    modules = {FINAL: theirs.model.norm, **dict(enumerate(theirs.model.layers))}

    def keep(tap: Tap) -> Callable[..., None]:
        return lambda module, given, out: found.update({tap: out[0] if isinstance(out, tuple) else out})

    hooks = [modules[tap].register_forward_hook(keep(tap)) for tap in taps]
    logits_of(theirs, tokens)
    for hook in hooks:
        hook.remove()
    return torch.cat([found[tap].view(len(tokens), -1) for tap in taps], dim=1)


def run(executor: Executor, stretches: Iterable[Stretch]) -> torch.Tensor:
    """One call, or as many as the executor's row limit asks for: a sequence may go on in the next one."""
    calls: list[list[Stretch]] = []
    room = 0
    for stretch in stretches:
        first = 0
        while first < len(stretch.tokens):
            if room == 0:
                calls.append([])
                room = executor.max_rows
            tokens = stretch.tokens[first : first + room]
            wanted = min(max(stretch.logits_from - first, 0), len(tokens))
            # A sequence's first page stands for its state, too.
            calls[-1].append(
                Stretch(
                    tokens, stretch.start + first, stretch.pages, wanted, state=stretch.pages[0],
                    settled=stretch.settled,
                )
            )
            first, room = first + len(tokens), room - len(tokens)
    # A call's result may live in a buffer of the next one.
    return torch.cat([executor.forward(make_batch(call, PAGE_TOKENS)).logits.clone().cpu() for call in calls])


class Truth:
    """What transformers makes of a model, each text once."""

    def __init__(self, theirs: PreTrainedModel) -> None:
        self._theirs, self.vocabulary = theirs, int(theirs.config.vocab_size)
        self._logits: dict[tuple[int, ...], torch.Tensor] = {}
        self._texts: dict[tuple[int, ...], list[int]] = {}

    def logits(self, tokens: Sequence[int]) -> torch.Tensor:
        key = tuple(tokens)
        if key not in self._logits:
            self._logits[key] = logits_of(self._theirs, tokens)
        return self._logits[key]

    def greedy(self, prompt: Sequence[int]) -> list[int]:
        key = tuple(prompt)
        if key not in self._texts:
            self._texts[key] = self._generated(prompt)
        return self._texts[key]

    def _generated(self, prompt: Sequence[int]) -> list[int]:
        self._theirs.generation_config.eos_token_id = None
        with torch.inference_mode():
            said = self._theirs.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=SAID,
                do_sample=False,
                pad_token_id=0,
            )
        return said[0, len(prompt) :].tolist()


def check_parity(theirs: PreTrainedModel, folder: Path, executors: Mapping[str, MakeExecutor] = EXECUTORS) -> None:
    """All ways of cutting a text give transformers' logits, and greedy text is transformers' own."""
    truth = Truth(theirs)
    # States aren't copied with pages.
    copied = not read_network(folder).recurrent
    for name, make in executors.items():
        try:
            _check_executor(load(folder, make), truth, copied)
        except AssertionError as error:
            error.add_note(f"executor: {name}")
            raise


def _check_executor(executor: Executor, truth: Truth, copied: bool) -> None:
    pages, tokens = Pages(), random_tokens(LENGTH, 1, truth.vocabulary)
    expected = truth.logits(tokens)
    assert 1 <= expected.abs().max() <= 30, "the model's logits are of no ordinary size: choose another range"
    _check_whole(executor, pages.take(LENGTH), tokens, expected)
    _check_chunks(executor, pages.take(LENGTH), tokens, expected)
    _check_steps(executor, pages.take(LENGTH), tokens, expected)
    _check_rejected_draft(executor, pages.take(LENGTH), tokens, truth)
    _check_mixed_batch(executor, pages, truth)
    if copied:
        _check_copied_page(executor, pages, tokens, expected)
    assert greedy(executor, pages.take(LENGTH), tokens[:20], SAID) == truth.greedy(tokens[:20])


def assert_close(logits: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert logits.shape == expected.shape and logits.dtype == torch.float32
    worst = (logits - expected).abs().max().item()
    assert worst <= TOLERANCE, f"{what}: logits are {worst:.2g} off"  # NaN is off, too


def _check_whole(executor: Executor, pages: list[int], tokens: list[int], expected: torch.Tensor) -> None:
    assert_close(run(executor, [Stretch(tokens, 0, pages, 0)]), expected, "whole prefill")


def _check_chunks(executor: Executor, pages: list[int], tokens: list[int], expected: torch.Tensor) -> None:
    start = 0
    for size in (1, 7, 16, 40, len(tokens)):
        chunk = tokens[start : start + size]
        logits = run(executor, [Stretch(chunk, start, pages, 0)])
        assert_close(logits, expected[start : start + len(chunk)], f"chunk of {len(chunk)} at {start}")
        start += len(chunk)


def _check_steps(executor: Executor, pages: list[int], tokens: list[int], expected: torch.Tensor) -> None:
    run(executor, [Stretch(tokens[:100], 0, pages, 99)])
    for at in range(100, 120):
        assert_close(run(executor, [Stretch([tokens[at]], at, pages, 0)]), expected[at : at + 1], f"step at {at}")


def _check_rejected_draft(executor: Executor, pages: list[int], tokens: list[int], truth: Truth) -> None:
    """Two of five drafted tokens are right; what the others left behind is overwritten by the next step."""
    at = 61
    wrong = [(token + 1) % truth.vocabulary for token in tokens[at + 3 : at + 6]]
    drafted = [*tokens[: at + 3], *wrong]
    run(executor, [Stretch(tokens[:at], 0, pages, at - 1)])
    logits = run(executor, [Stretch(drafted[at:], at, pages, 0, settled=at + 1)])
    assert_close(logits, truth.logits(drafted)[at:], "rows of a draft")
    again = run(executor, [Stretch(tokens[at + 3 : at + 5], at + 3, pages, 0)])
    assert_close(again, truth.logits(tokens[: at + 5])[at + 3 :], "rows after a rejected draft")


def _check_mixed_batch(executor: Executor, pages: Pages, truth: Truth) -> None:
    """A chunk in the middle, a step, a draft, a prompt of one token and one of many, side by side."""
    shapes = [(30, 40, 10), (149, 1, 0), (77, 6, 0), (0, 1, 0), (0, 33, 32), (16, 16, 0)]  # start, rows, logits_from
    texts = [random_tokens(start + rows, 20 + start + rows, truth.vocabulary) for start, rows, _ in shapes]
    tables = [pages.take(len(text)) for text in texts]
    for (start, _, _), text, table in zip(shapes, texts, tables, strict=True):
        if start:
            run(executor, [Stretch(text[:start], 0, table, start - 1)])
    logits = run(
        executor,
        [
            Stretch(text[start:], start, table, wanted)
            for (start, _, wanted), text, table in zip(shapes, texts, tables, strict=True)
        ],
    )
    expected = [
        truth.logits(text)[start + wanted :] for (start, _, wanted), text in zip(shapes, texts, strict=True)
    ]
    assert_close(logits, torch.cat(expected), "a mixed batch")


def _check_copied_page(executor: Executor, pages: Pages, tokens: list[int], expected: torch.Tensor) -> None:
    """Two sequences share a page until one writes on: it writes into a copy, and the other doesn't see it."""
    first, copy = pages.take(40), pages.take(1)
    run(executor, [Stretch(tokens[:38], 0, first, 37)])
    executor.copy_page(first[2], copy[0])
    run(executor, [Stretch([tokens[0]] * 2, 38, [*first[:2], *copy], 0)])
    logits = run(executor, [Stretch(tokens[38:40], 38, first, 0)])
    assert_close(logits, expected[38:40], "beside a copied page")
    logits = run(executor, [Stretch(tokens[38:40], 38, [*first[:2], *copy], 0)])
    assert_close(logits, expected[38:40], "on a copied page")


def greedy(executor: Executor, pages: list[int], prompt: list[int], count: int) -> list[int]:
    text: list[int] = []
    fresh, start = prompt, 0
    while len(text) < count:
        logits = run(executor, [Stretch(fresh, start, pages, len(fresh) - 1)])
        start += len(fresh)
        fresh = [int(logits[0].argmax())]
        text += fresh
    return text


def check_bfloat16(theirs: PreTrainedModel, folder: Path, make: MakeExecutor) -> None:
    """Near transformers' float32: rounding to 8 bits, and nothing else, lies between."""
    executor, pages = load(folder, make, "bfloat16"), Pages()
    tokens = random_tokens(60, 3, theirs.config.vocab_size)
    expected = logits_of(theirs, tokens)
    logits = run(executor, [Stretch(tokens, 0, pages.take(60), 0)])
    assert (logits - expected).abs().mean() <= 0.03 * expected.abs().mean()
