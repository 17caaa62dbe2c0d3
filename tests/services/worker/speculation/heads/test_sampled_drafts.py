"""Drafts that our own heads sample: their tokens are drawn from the probabilities that they report, which are those of
the reference at the request's temperature, with noise that no other token of the text had. So the text of `rejection`
and `block` is distributed as without drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from driving import request
from head_world import WRITERS, World, features_of, prompt, reference, with_shared
from reference import BLOCK, MASK_TOKEN, VOCABULARY, State

from models.batch import Stretch, make_batch
from models.config import read_network
from models.executor import Options
from models.plain import PlainExecutor
from models.weights import Weights
from services.api.drafter import Draft
from services.worker.running.head import HeadModel
from tests.laws.distribution.statistics import holm, p_value

# Of a drafter behind a text, by token of its draft, the logits of the reference over the drafter's vocabulary.
Logits = Callable[[World, State, Path, list[int], Draft], Iterator[torch.Tensor]]


class Kind(NamedTuple):
    method: str
    write: Callable[[Path], State]
    logits: Logits


def _of_a_network(layout: str) -> Kind:
    method, write, compute = WRITERS[layout]

    def logits(world: World, state: State, target: Path, text: list[int], draft: Draft) -> Iterator[torch.Tensor]:
        head = world.model.head
        assert isinstance(head, HeadModel)
        values, tokens = head.hidden(features_of(target, text[:-1], head.head.taps)), torch.tensor(text[1:])
        for token in draft.tokens:
            found, follows = compute(state, tokens, values)
            yield found[-1]
            tokens, values = torch.cat([tokens, torch.tensor([token])]), torch.cat([values, follows[-1:]])

    return Kind(method, write, logits)


def _block(world: World, state: State, target: Path, text: list[int], draft: Draft) -> Iterator[torch.Tensor]:
    head, masks = world.model.head, len(draft.tokens) - 1
    assert isinstance(head, HeadModel)
    values = head.hidden(features_of(target, text[:-1], head.head.taps))
    mask_hidden = (state["fc.weight"] @ state["mask_hidden"][0]).expand(masks, -1)
    tokens = torch.tensor([*text[1:], *[MASK_TOKEN] * masks])
    found, _ = reference.eagle3(state, tokens, torch.cat([values, mask_hidden]))
    yield from found[-len(draft.tokens) :]


def _dspark(world: World, state: State, target: Path, text: list[int], draft: Draft) -> Iterator[torch.Tensor]:
    head, before = world.model.head, [text[-1], *draft.tokens]
    assert isinstance(head, HeadModel)
    values = features_of(target, text[:-1], head.head.taps) @ state["fc.weight"].T
    tokens = torch.tensor([text[-1], *[MASK_TOKEN] * (len(draft.tokens) - 1)])
    for row, token in zip(reference.dflash(state, values, tokens), before, strict=False):
        yield reference.markov(state, row, token)


def _medusa(world: World, state: State, target: Path, text: list[int], draft: Draft) -> Iterator[torch.Tensor]:
    hidden = features_of(target, text[:-1], ("final",))[-1]
    ids = slice(None) if world.model.head.ids is None else world.model.head.ids  # type: ignore[union-attr]
    for head in range(len(draft.tokens)):
        yield reference.medusa(state, hidden, head, 2)[ids]


def _hydra(world: World, state: State, target: Path, text: list[int], draft: Draft) -> Iterator[torch.Tensor]:
    hidden = features_of(target, text[:-1], ("final",))[-1]
    for head in range(len(draft.tokens)):
        yield reference.hydra(state, hidden, head, [text[-1], *draft.tokens[:head]])


def _write_for_vllm(folder: Path) -> State:
    """Every second token, without biases."""
    state = reference.write_medusa(folder / "authors")
    state |= {name: torch.zeros_like(each) for name, each in state.items() if name.endswith("bias")}
    (folder / "model.safetensors").unlink(missing_ok=True)
    reference.as_vllm_names_medusa(state, folder / "vllm")
    for file in (folder / "vllm").iterdir():
        file.rename(folder / file.name)
    return state


KINDS = {layout: _of_a_network(layout) for layout in WRITERS} | {
    "block": Kind("block", reference.write_block, _block),
    "dspark": Kind("dspark", reference.write_dspark, _dspark),
    "medusa": Kind("medusa", reference.write_medusa, _medusa),
    "medusa, vllm": Kind("medusa", _write_for_vllm, _medusa),
    "hydra": Kind("hydra", reference.write_hydra, _hydra),
}


@pytest.mark.parametrize("temperature", [0.5, 1.3])
@pytest.mark.parametrize("executor", ["plain", "compiled"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_probabilities_of_a_draft_are_those_of_the_reference_at_its_temperature(
    kind: str, executor: str, temperature: float, target: Path, tmp_path: Path
) -> None:
    method, write, logits_of = KINDS[kind]
    state = with_shared(write(tmp_path), target)
    world = World(target, method, tmp_path, executor, max_step_tokens=16)
    ids, checked = world.model.head.ids, 0  # type: ignore[union-attr]
    world.run(
        *(
            request(prompt(length, length), max_tokens=16, temperature=temperature, seed=length, strategy="rejection")
            for length in (30, 7)
        )
    )
    for text, draft in world.kept.drafts[::3]:
        for place, logits in enumerate(logits_of(world, state, target, text, draft)):
            expected = torch.zeros(VOCABULARY)
            expected[slice(None) if ids is None else ids] = (logits / temperature).softmax(-1)
            torch.testing.assert_close(draft.probs[place], expected, rtol=2e-3, atol=1e-6)
            checked += 1
    assert checked >= BLOCK


# What is drawn --------------------------------------------------------------------------------------------------

# Chance alone gives less once in a thousand seeds; those here are fixed.
BAR, BINS = 1e-3, 16


class Places:
    """Of tokens, where they lie in the distributions that they should come from: uniform in [0, 1), each independent of
    those before it. In the order of ids, and from the most probable token on."""

    def __init__(self, seed: int = 0) -> None:
        self._chance = np.random.default_rng(seed)
        self.by_id: list[float] = []
        self.by_rank: list[float] = []

    def add(self, token: int, probs: torch.Tensor) -> None:
        values = probs.double()
        within = self._chance.random() * float(values[token])
        likelier = values > values[token]
        likelier[:token] |= values[:token] == values[token]
        self.by_id.append(float(values[:token].sum()) + within)
        self.by_rank.append(float(values[likelier].sum()) + within)


def uniform(values: list[float]) -> float:
    """The probability that uniform numbers are as uneven."""
    counts = np.histogram(np.array(values) / (1 + 1e-6), bins=BINS, range=(0, 1))[0]
    assert counts.sum() == len(values)
    return p_value(counts, np.full(BINS, 1 / BINS))


def independent(some: list[float], others: list[float]) -> float:
    """The probability that pairs of independent uniform numbers are as uneven over a table of four by four."""
    counts = np.histogram2d(some, others, bins=4, range=((0, 1 + 1e-6),) * 2)[0].reshape(-1)
    return p_value(counts, np.full(16, 1 / 16))


def drawn(world: World, temperature: float, count: int) -> list[Places]:
    """Two tokens of a first draft, then two of the draft in the next step, of many requests."""
    found = [Places(seed) for seed in range(4)]
    for begin in range(0, count, 8):
        world.kept.drafts.clear()
        texts = [prompt(9, 1000 + seed) for seed in range(begin, begin + 8)]
        world.run(
            *(
                request(text, max_tokens=8, temperature=temperature, seed=begin + at, strategy="rejection", drafts=2,
                        ignore_eos=True)
                for at, text in enumerate(texts)
            )
        )  # fmt: skip
        for text in texts:
            own = [draft for before, draft in world.kept.drafts if before[: len(text)] == text][:2]
            assert [len(draft.tokens) for draft in own] == [2, 2]
            pairs = [pair for draft in own for pair in zip(draft.tokens, draft.probs, strict=True)]
            for places, (token, probs) in zip(found, pairs, strict=True):
                places.add(token, probs)
    return found


@pytest.mark.parametrize(
    ("kind", "temperature"),
    [
        ("eagle3", 0.5), ("medusa", 1.3), ("block", 1.3),
        *(pytest.param(each, 1.3, marks=pytest.mark.slow) for each in ("eagle3", "mtp")),
    ],
)  # fmt: skip
def test_tokens_follow_the_reported_probabilities_and_no_noise_is_used_twice(
    kind: str, temperature: float, target: Path, tmp_path: Path
) -> None:
    """Not within a draft, and not in the next step's."""
    KINDS[kind].write(tmp_path)
    world = World(target, KINDS[kind].method, tmp_path, "compiled")
    places = drawn(world, temperature, 1200)
    together = {
        f"token {place}, {order}": uniform(getattr(each, order))
        for place, each in enumerate(places)
        for order in ("by_id", "by_rank")
    } | {
        f"tokens {one} and {other}, {order}": independent(getattr(places[one], order), getattr(places[other], order))
        for one in range(4)
        for other in range(one + 1, 4)
        for order in ("by_id", "by_rank")
    }
    found = dict(zip(together, holm(list(together.values())), strict=True))
    assert {name: p for name, p in found.items() if p < BAR} == {}


# What is said ---------------------------------------------------------------------------------------------------


def logits_of_all_rows(target: Path) -> Callable[[list[int]], torch.Tensor]:
    executor = PlainExecutor(read_network(target), Weights(target), Options("float32", 8, 16, 128, strict=False))

    def logits(text: list[int]) -> torch.Tensor:
        return executor.forward(make_batch([Stretch(text, 0, list(range(8)), 0)], 16)).logits

    return logits


@pytest.mark.parametrize(
    ("kind", "strategy", "temperature"),
    [
        ("eagle3", "block", 1.3), ("mtp", "rejection", 0.5),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (
            ("eagle3", "rejection", 0.5), ("eagle3", "rejection", 1.3), ("eagle3", "block", 0.5),
            ("mtp", "rejection", 1.3), ("mtp", "block", 0.5), ("mtp", "block", 1.3),
        )),
    ],
)  # fmt: skip
def test_the_text_is_distributed_as_the_target_says_whatever_the_head_samples(
    kind: str, strategy: str, temperature: float, target: Path, tmp_path: Path
) -> None:
    KINDS[kind].write(tmp_path)
    world = World(target, KINDS[kind].method, tmp_path, "compiled")
    logits, places = logits_of_all_rows(target), Places()
    accepted = drafted = 0
    for begin in range(0, 400, 8):
        texts = [prompt(9, 3000 + seed) for seed in range(begin, begin + 8)]
        sampling = {"temperature": temperature, "strategy": strategy, "ignore_eos": True}
        outcomes = world.run(*(
            request(text, max_tokens=9, drafts=3, seed=begin + at, **sampling)  # type: ignore[arg-type]
            for at, text in enumerate(texts)
        ))  # fmt: skip
        for text, outcome in zip(texts, outcomes, strict=True):
            rows = logits([*text, *outcome.ids[:-1]])[len(text) - 1 :]
            for token, row in zip(outcome.ids, rows, strict=True):
                places.add(token, (row / temperature).softmax(-1))
            accepted += outcome.finished.speculation.accepted
            drafted += outcome.finished.speculation.drafted
    # Some of each: what the rules decide is seen.
    assert 50 < accepted < drafted - 50
    assert min(uniform(places.by_id), uniform(places.by_rank)) > BAR
    assert min(independent(each[:-1:2], each[1::2]) for each in (places.by_id, places.by_rank)) > BAR
