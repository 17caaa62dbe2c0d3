"""Short ways of asking proposers."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from services.proposer.draft import Draft
from services.proposer.knowledge import Knowledge
from services.proposer.namespaces import Namespaces
from services.proposer.proposer import Ask, Proposer, View


def asks(views: Sequence[View], budgets: Sequence[int]) -> list[Ask]:
    return [Ask(view, budget) for view, budget in zip(views, budgets, strict=True)]


def view(number: int, tokens: list[int], prompt: int = 0, namespace: str = "", prediction: Sequence[int] = ()) -> View:
    return View(number, array("i", tokens), prompt, array("i", prediction), namespace)


def knowledge(depth: int = 64, sizes: tuple[int, int] = (2, 5), tokens: int = 10**6, **more: int | None) -> Knowledge:
    return Knowledge(Namespaces(depth, tokens, **more), depth, *sizes)  # type: ignore[arg-type]


def guess(proposer: Proposer, one: View, budget: int = 8, ahead: Sequence[int] = ()) -> Draft:
    [draft] = proposer.propose([Ask(one, budget, ahead)])
    return draft


def say(proposer: Proposer, one: View, tokens: Sequence[int], budget: int = 8) -> Draft:
    one.tokens.extend(tokens)
    return guess(proposer, one, budget)


def told(draft: Draft) -> tuple[list[int], str, int]:
    return draft.tokens, draft.source, draft.match_length
