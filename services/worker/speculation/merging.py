"""A text draft and one of the worker's head as one tree.

    text draft     a b c                 a ─┬─ b ─ c
    head           a x | y        ─▶        └─ x
                                         y

A token that both have is kept once, with the greater of its two chances. Of siblings the more probable comes first.
"""

from __future__ import annotations

from services.api import draft_tree as tree
from services.api.drafter import MAX_DRAFT_TOKENS, Draft
from services.worker.speculation.acceptance import buckets_of
from services.worker.speculation.prepared import HEAD, Prepared


def can_be_merged(one: Prepared, other: Prepared) -> bool:
    """What was only assumed of the text, to ask ahead, must have come true."""
    return all(each.certain <= each.at for each in (one, other))


def merge(text: Prepared, text_chances: list[float], head: Prepared, head_chances: list[float]) -> Prepared:
    """What came of the text draft so far goes on in the merged one. Each may be merged already."""
    nodes = _Nodes()
    nodes.add(head, head_chances)
    nodes.add(text, text_chances)
    tokens, parents, order = nodes.ordered()
    confidence = [nodes.confidence[node] for node in order]
    draft = Draft(tokens, text.source, text.match_length, parents, confidence)
    merged = Prepared(draft, text.way)
    merged.sources = [nodes.sources[node] for node in order]
    merged.head_source = head.head_source or head.source
    merged.buckets = buckets_of(confidence, tree.besides(parents) if parents else ())
    merged.used, merged.brought, merged.excused = text.used, text.brought, text.excused
    return merged


class _Nodes:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.chances: list[float] = []
        self.confidence: list[float] = []
        self.sources: list[str | None] = []
        self._children: dict[tuple[int, int], int] = {}

    def add(self, prepared: Prepared, chances: list[float]) -> None:
        """What is left of it."""
        begin = 0 if prepared.parents else prepared.at
        node_of = {-1: -1, begin - 1: -1} if not prepared.parents else {-1: -1}
        for place in range(begin, len(prepared.tokens)):
            parent = node_of[prepared.parents[place] if prepared.parents else place - 1]
            node_of[place] = self._add(prepared, place, parent, chances[place])

    def _add(self, prepared: Prepared, place: int, parent: int, chance: float) -> int:
        token = prepared.tokens[place]
        node = self._children.get((parent, token))
        if node is None:
            node = self._children[parent, token] = len(self.tokens)
            self.tokens.append(token)
            self.parents.append(parent)
            self.chances.append(-1.0)
            self.confidence.append(0.0)
            self.sources.append(HEAD)
        if chance > self.chances[node]:
            self.chances[node], self.confidence[node] = chance, prepared.confidence[place]
            self.sources[node] = _source(prepared, place) if prepared.of_text([place]) else HEAD
        return node

    def ordered(self) -> tuple[list[int], list[int], list[int]]:
        """Tokens and parents, the most probable ones first, and their nodes in this order."""
        reached: list[float] = []
        for chance, parent in zip(self.chances, self.parents, strict=True):
            reached.append(chance if parent < 0 else reached[parent] * chance)
        # No node is more probable than its parent, which has a lower number.
        order = sorted(range(len(self.tokens)), key=lambda node: (-reached[node], node))[:MAX_DRAFT_TOKENS]
        return *tree.chosen(self.tokens, self.parents, order), order


def _source(prepared: Prepared, place: int) -> str:
    return (prepared.sources[place] if prepared.sources else None) or prepared.source
