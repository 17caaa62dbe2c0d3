"""A proposer that keeps corpora in memory and answers for them, as the real one does on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from mesh.actor import Actor, Call
from mesh.errors import Refuse
from services.api.messages import AddCorpus, Corpora, CorpusCard, ListCorpora, RemoveCorpus

Key = tuple[str, str, str]


@dataclass
class Kept:
    texts: list[list[int]] = field(default_factory=list)
    parts: int = 0
    whole: bool = False


class FakeProposer(Actor):
    handlers: ClassVar[dict[type[Any], str]] = {AddCorpus: "add", RemoveCorpus: "remove", ListCorpora: "list"}

    def __init__(self, states: tuple[str, ...] = ("ready",)) -> None:
        self.kept: dict[Key, Kept] = {}
        self.can_keep = True
        self.quota_is_used_up = False
        self.states = list(states)  # of what is whole, one a question; the last stays

    async def add(self, message: AddCorpus, call: Call) -> Corpora:
        if not self.can_keep:
            raise Refuse("unavailable", "this proposer can't keep corpora")
        if self.quota_is_used_up:
            raise Refuse("overloaded", "64 of your namespaces have corpora")
        key = (message.namespace, message.vocabulary, message.name)
        if message.part == 0:
            self.kept[key] = Kept()
        kept = self.kept.get(key)
        if kept is None or kept.parts != message.part or kept.whole:
            raise Refuse("invalid", f"part {message.part} is not the next one")
        kept.texts += message.texts
        kept.parts += 1
        kept.whole = message.last
        return self._cards(message.namespace, message.vocabulary)

    async def remove(self, message: RemoveCorpus, call: Call) -> Corpora:
        self.kept.pop((message.namespace, message.vocabulary, message.name), None)
        return self._cards(message.namespace, message.vocabulary)

    async def list(self, message: ListCorpora, call: Call) -> Corpora:
        return self._cards(message.namespace, message.vocabulary)

    def _cards(self, namespace: str, vocabulary: str) -> Corpora:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        return Corpora(
            corpora=[
                CorpusCard(
                    name=name,
                    state=state if kept.whole else "receiving",
                    texts=len(kept.texts),
                    tokens=sum(map(len, kept.texts)),
                    progress=1.0 if kept.whole and state == "ready" else 0.0,
                    message="the disk is full" if state == "failed" else "",
                )
                for (where, meaning, name), kept in sorted(self.kept.items())
                if (where, meaning) == (namespace, vocabulary)
            ]
        )
