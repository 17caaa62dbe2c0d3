"""A drafter in the worker whose drafts aren't what they should be, behind the real engine and model: each is dropped
and counted, and the text is that without drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from driving import Outcome, request
from head_world import World, prompt, reference
from reference import VOCABULARY
from safetensors.torch import load_file, save_file

from services.api.drafter import Draft

Lie = Callable[[Draft], Draft]


def _last_token(token: int) -> Lie:
    """Behind tokens that are as they should be."""

    def lie(draft: Draft) -> Draft:
        return draft._replace(tokens=[*draft.tokens[:-1], token])

    return lie


def _last_row(change: Callable[[torch.Tensor, int], object]) -> Lie:
    """`change` gets the probabilities of the last token, and that token."""

    def lie(draft: Draft) -> Draft:
        probs = draft.probs.clone()
        change(probs[-1], draft.tokens[-1])
        return draft._replace(probs=probs)

    return lie


def _set(value: float) -> Callable[[torch.Tensor, int], object]:
    """Of a token that wasn't drafted."""
    return lambda row, token: row.__setitem__((token + 1) % VOCABULARY, value)


def _negative(row: torch.Tensor, token: int) -> None:
    """With a sum of 1."""
    row[(token + 1) % VOCABULARY] -= 0.25
    row[(token + 2) % VOCABULARY] += 0.25


def _impossible(row: torch.Tensor, token: int) -> None:
    """A distribution in which the token that was drafted has no chance."""
    row[(token + 1) % VOCABULARY] += float(row[token])
    row[token] = 0.0


def _shape(of: Callable[[torch.Tensor], torch.Tensor]) -> Lie:
    return lambda draft: draft._replace(probs=of(draft.probs))


LIES: dict[str, Lie] = {
    "the vocabulary's size as a token": _last_token(VOCABULARY),
    "a token far behind the vocabulary": _last_token(2**31 - 1),
    "a negative token": _last_token(-1),
    "too small": _last_row(lambda row, token: row.mul_(0.9)),
    "too large": _last_row(lambda row, token: row.mul_(1.1)),
    "slightly too small": _last_row(lambda row, token: row.mul_(0.999)),
    "zero": _last_row(lambda row, token: row.zero_()),
    "one token's mass twice": _last_row(lambda row, token: row.__setitem__(token, 2 * row[token] + 1e-3)),
    "one token's mass lost": _last_row(lambda row, token: row.__setitem__(int(row.argmax()), 0.0)),
    "no chance for the token": _last_row(_impossible),
    "negative": _last_row(_negative),
    "nan": _last_row(_set(float("nan"))),
    "all nan": _last_row(lambda row, token: row.fill_(float("nan"))),
    "nan for the token": _last_row(lambda row, token: row.__setitem__(token, float("nan"))),
    "infinite": _last_row(_set(float("inf"))),
    "infinite for the token": _last_row(lambda row, token: row.__setitem__(token, float("inf"))),
    "infinite, both ways": _last_row(lambda row, token: row[:2].copy_(torch.tensor([float("inf"), -float("inf")]))),
    "a row too few": _shape(lambda probs: probs[:-1]),
    "a row too many": _shape(lambda probs: torch.cat([probs[:1], probs])),
    "another vocabulary": _shape(lambda probs: torch.cat([probs, torch.zeros(len(probs), 1)], 1)),
    "no rows at all": _shape(lambda probs: probs[0]),
}


def ran(world: World, strategy: str, method: str) -> list[Outcome]:
    return world.run(*(
        request(prompt(9, seed), max_tokens=24, seed=seed, temperature=1.0, strategy=strategy, method=method,
                ignore_eos=True)
        for seed in range(4)
    ))  # fmt: skip


@pytest.fixture
def world(target: Path, tmp_path: Path) -> World:
    reference.write_eagle3(tmp_path)
    return World(target, "eagle3", tmp_path, "compiled")


def test_drafts_that_are_as_they_should_be_are_verified(world: World) -> None:
    for strategy in ("rejection", "block"):
        assert sum(each.finished.speculation.accepted for each in ran(world, strategy, "eagle3")) > 3
    assert world.drafts.controller.counts.refused == 0


@pytest.mark.parametrize("lie", LIES)
def test_a_draft_that_cannot_be_is_dropped_and_counted_and_the_text_is_that_without_drafts(
    lie: str, world: World
) -> None:
    drafter, lied = world.kept.drafter, 0
    honest = drafter.draft

    def draft(requests: object) -> list[Draft]:
        nonlocal lied
        found = honest(requests)  # type: ignore[arg-type]
        lied += sum(bool(each.tokens) for each in found)
        return [LIES[lie](each) if each.tokens else each for each in found]

    drafter.draft = draft  # type: ignore[method-assign, assignment]
    for strategy in ("rejection", "block"):
        naive, drafted = ran(world, strategy, "naive"), ran(world, strategy, "eagle3")
        assert [each.ids for each in drafted] == [each.ids for each in naive]
        assert all(each.finished.speculation.drafted == 0 for each in drafted)
    assert world.drafts.controller.counts.refused == lied > 100
    assert not world.drafts.failed


def test_only_one_draft_of_a_batch_is_dropped_for_its_own_fault(world: World) -> None:
    drafter = world.kept.drafter
    honest = drafter.draft

    def draft(requests: object) -> list[Draft]:
        first, *others = honest(requests)  # type: ignore[arg-type]
        return [LIES["nan"](first) if first.tokens else first, *others]

    drafter.draft = draft  # type: ignore[method-assign, assignment]
    stats = [each.finished.speculation for each in ran(world, "rejection", "eagle3")]
    assert stats[0].drafted == 0 and all(each.drafted > 20 for each in stats[1:])
    assert world.drafts.controller.counts.refused > 20


# A network whose values are no numbers -----------------------------------------------------------------------

NORMS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "eagle3": ("norm.weight", reference.write_eagle3),
    "block": ("norm.weight", reference.write_block),
    "dspark": ("norm.weight", reference.write_dspark),
    "eagle": ("layers.0.post_attention_layernorm.weight", reference.write_eagle),
    "medusa": ("", reference.write_medusa),
}


@pytest.mark.parametrize("method", NORMS)
def test_a_head_that_gives_no_numbers_drafts_nothing_and_the_text_is_that_without_drafts(
    method: str, target: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    norm, write = NORMS[method]
    write(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    norm = norm or next(name for name, each in tensors.items() if each.is_floating_point())
    tensors[norm] = torch.full_like(tensors[norm], float("nan"))
    save_file(tensors, tmp_path / "model.safetensors")
    world = World(target, method, tmp_path, "compiled")
    for strategy in ("rejection", "target_match"):
        naive, drafted = ran(world, strategy, "naive"), ran(world, strategy, method)
        assert [each.ids for each in drafted] == [each.ids for each in naive]
        assert all(each.finished.speculation.drafted == 0 for each in drafted)
    # It is no fault, after which others would have no drafts.
    assert caplog.text == "" and not world.drafts.failed
