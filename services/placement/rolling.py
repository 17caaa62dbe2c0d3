"""Replacing workers one by one, as a function of values: each is drained once another is ready that has come for it.

    old old ──▶ old old new ──new is ready──▶ old new, and the old one drains ──it has ended──▶ old new new ──▶ …
                     └─ no machine has room for one more: the old one drains first, and the new one takes its place
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Worker(Protocol):
    """What counts of a watcher of plan.py. `homeless`: it waits for a machine with room."""

    @property
    def instance(self) -> str: ...
    @property
    def ready(self) -> bool: ...
    @property
    def load(self) -> int: ...
    @property
    def homeless(self) -> bool: ...


def is_one_more_due(active: Sequence[Worker], draining: int, count: int, old: Collection[str]) -> bool:
    """Whether the one that replaces the next is to be made. `active`: those that aren't drained."""
    fresh = [each for each in active if each.instance not in old]
    return len(fresh) < len(active) == count and not draining and all(each.ready for each in fresh)


def next_to_drain(active: Sequence[Worker], count: int, old: Collection[str]) -> str | None:
    """The instance to drain now."""
    outdated = [each for each in active if each.instance in old]
    if not outdated or len(active) <= count:
        return None
    # One that isn't ready serves nobody.
    first = min(outdated, key=lambda each: (each.ready, each.load))
    others = sum(each.ready for each in active if each is not first)
    makes_room = any(each.homeless for each in active) and others >= max(1, count - 1)
    return first.instance if others >= count or makes_room else None


def is_stuck(active: Sequence[Worker], count: int, old: Collection[str]) -> bool:
    """The only worker can't make room for the one that is to replace it: requests would have to wait."""
    return count == 1 and any(each.instance in old for each in active) and any(each.homeless for each in active)
