"""Short ways of asking proposers."""

from __future__ import annotations

from collections.abc import Sequence

from services.proposer.proposer import Ask, View


def asks(views: Sequence[View], budgets: Sequence[int]) -> list[Ask]:
    return [Ask(view, budget) for view, budget in zip(views, budgets, strict=True)]
