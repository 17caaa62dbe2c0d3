"""The name of a namespace in the index, its key: vocabulary, owner and name. The owner is the caller, who may make any
number of namespaces, and must not evict another caller's."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence

_SEPARATOR, _SLASH = "\n", "/"


def namespace_key(vocabulary: str, namespace: str) -> str:
    """Of a request's namespace; "" stays "": no namespace."""
    return f"{vocabulary}{_SEPARATOR}{namespace}" if namespace else ""


def vocabulary_of(key: str) -> str:
    return key.partition(_SEPARATOR)[0]


def owner_of(key: str) -> str:
    """The part of a namespace's name before the slash; the whole name where there is none."""
    return key.rpartition(_SEPARATOR)[2].partition(_SLASH)[0]


def names_to_drop(
    names: Sequence[str], most: int, owner: Callable[[str], str], may_go: Callable[[str], bool] = lambda name: True
) -> list[str]:
    """Names to evict until `most` are left, or none can go: each time the first name of the owner with most names."""
    counts = Counter(map(owner, names))
    waiting: dict[str, deque[str]] = {}
    for name in names:
        if may_go(name):
            waiting.setdefault(owner(name), deque()).append(name)
    gone: list[str] = []
    while waiting and len(names) - len(gone) > most:
        largest = max(waiting, key=lambda each: counts[each])
        gone.append(waiting[largest].popleft())
        counts[largest] -= 1
        if not waiting[largest]:
            del waiting[largest]
    return gone
