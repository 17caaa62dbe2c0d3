"""Proposers that no user would start, each in a proposer's real process: the node, the directory and the actor are
those of `specmesh run proposer`; only what is guessed is another.

    python guessers.py random|oracle|adversary [TEXTS]     settings come from SPECMESH_*, as for every role

TEXTS is a file of lines [prompt ids, ids that followed]: what the oracle knows, and what the adversary gets wrong
on purpose.
"""

from __future__ import annotations

import json
import os
import random
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from mesh.actor import Actor, Call
from services.api.drafts import DraftItem, packed, unpacked
from services.api.messages import Propose, Proposed
from services.api.settings import load_settings
from services.proposer.actor import ProposerActor
from services.proposer.draft import EMPTY, Draft
from services.proposer.naive import NaiveProposer
from services.proposer.proposer import Ask, Needs, Outcome, View
from services.runtime.process import run_role

VOCABULARY = 49152
TOKEN = 20000  # one like others


class _Guesser:
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def propose(self, asks: Sequence[Ask]) -> list[Draft]:
        return [self.guess(_as_if_it_stood(ask), ask.budget) for ask in asks]

    def guess(self, view: View, budget: int) -> Draft:
        raise NotImplementedError

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        pass

    def forget(self, sequence_id: int) -> None:
        pass

    def held_bytes(self) -> int:
        return 0


def _as_if_it_stood(ask: Ask) -> View:
    """The text with what is ahead of it."""
    return replaced(ask.view, tokens=ask.view.tokens + array("i", ask.ahead)) if ask.ahead else ask.view


class Random(_Guesser):
    """Any tokens, any number of them."""

    def guess(self, view: View, budget: int) -> Draft:
        chance = random.Random(len(view.tokens) * 31 + view.tokens[-1])
        return Draft([chance.randrange(VOCABULARY) for _ in range(chance.randint(0, budget))], "random")


class Oracle(_Guesser):
    """Knows what will be said, and says as much of it as it may."""

    def __init__(self, texts: Iterable[tuple[list[int], list[int]]]) -> None:
        self._answers: dict[bytes, list[array[int]]] = {}
        for prompt, answer in texts:
            self._answers.setdefault(array("i", prompt).tobytes(), []).append(array("i", answer))

    def what_follows(self, view: View, count: int) -> list[int]:
        """Nothing where the text isn't one of those known."""
        prompt, said = view.tokens[: view.prompt_tokens], view.tokens[view.prompt_tokens :]
        for answer in self._answers.get(prompt.tobytes(), []):
            if answer[: len(said)] == said:
                return answer[len(said) : len(said) + count].tolist()
        return []

    def guess(self, view: View, budget: int) -> Draft:
        following = self.what_follows(view, budget)
        return Draft(following, "oracle", len(view.tokens)) if following else EMPTY


def _other(token: int) -> int:
    return (token + 1) % VOCABULARY


class Adversary(_Guesser):
    """Each time another way to be wrong; in what is left to be right by chance or on purpose, it is right."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def guess(self, view: View, budget: int) -> Draft:
        truth = self._oracle.what_follows(view, budget) or [TOKEN]
        return self._ways[len(view.tokens) % len(self._ways)](self, truth, view, budget)

    def _right_but_for_the_last(self, truth: list[int], view: View, budget: int) -> Draft:
        return Draft([*truth[:-1], _other(truth[-1])], "adversary")

    def _wrong(self, truth: list[int], view: View, budget: int) -> Draft:
        return Draft([_other(token) for token in truth], "adversary")

    def _at_the_edge_of_the_vocabulary(self, truth: list[int], view: View, budget: int) -> Draft:
        return Draft([(0, VOCABULARY - 1)[place % 2] for place in range(budget)], "adversary")

    def _out_of_the_vocabulary(self, truth: list[int], view: View, budget: int) -> Draft:
        wrong = (VOCABULARY, -1, 2**31 - 1, -(2**31), 2**40, -(2**63))[len(view.tokens) % 6]
        return Draft([*truth[: budget // 2], wrong], "adversary")

    def _longer_than_asked(self, truth: list[int], view: View, budget: int) -> Draft:
        longer = self._oracle.what_follows(view, 4 * budget)
        return Draft(longer + [_other(TOKEN)] * 3000, "adversary")

    def _a_tree(self, truth: list[int], view: View, budget: int) -> Draft:
        tokens = [token for right in truth for token in (_other(right), right)]
        return Draft(tokens, "adversary", parents=[place // 2 * 2 - 1 for place in range(len(tokens))])

    def _a_tree_that_is_none(self, truth: list[int], view: View, budget: int) -> Draft:
        return Draft(truth, "adversary", parents=[7, -9, 2, 2**40][: len(truth)])

    _ways: ClassVar[tuple[Callable[..., Draft], ...]] = (
        _right_but_for_the_last,
        _wrong,
        _right_but_for_the_last,
        _at_the_edge_of_the_vocabulary,
        _out_of_the_vocabulary,
        _longer_than_asked,
        _a_tree,
        _a_tree_that_is_none,
    )


class GuessingActor(ProposerActor):
    """The real one with a guesser under the name of a method that targets ask for."""

    guesser: ClassVar[_Guesser]

    def __init__(self, context: Any) -> None:
        super().__init__(context, {"naive": NaiveProposer(), "ngram": self.guesser})


class LyingActor(GuessingActor):
    """Of its answers some are about another place of the text, about another text, or given twice."""

    def propose(self, message: Propose, call: Call) -> Proposed:
        answer = super().propose(message, call)
        drafts = [lie for draft in unpacked(answer.drafts) for lie in self._lies(draft)]
        random.Random(message.step).shuffle(drafts)
        return replace(answer, drafts=packed(drafts))

    def _lies(self, draft: DraftItem) -> list[DraftItem]:
        way = draft.committed % 7
        if way == 0:
            return [replace(draft, committed=draft.committed + (1, -1, 2**40, -(2**40))[draft.committed % 4])]
        if way == 1:
            return [draft, replace(draft, sequence_id=draft.sequence_id + 1), replace(draft, sequence_id=-1)]
        if way == 2:
            return [draft, replace(draft, tokens=draft.tokens[::-1]), replace(draft, tokens=[])]
        return [draft]


def actor_of(kind: str, texts: Iterable[tuple[list[int], list[int]]]) -> type[Actor]:
    if kind == "random":
        GuessingActor.guesser = Random()
    elif kind == "oracle":
        GuessingActor.guesser = Oracle(texts)
    elif kind == "adversary":
        GuessingActor.guesser = Adversary(Oracle(texts))
        return LyingActor
    else:
        raise SystemExit(f"no guesser {kind}")
    return GuessingActor


def main(kind: str, *files: str) -> int:
    lines = [line for name in files for line in Path(name).read_text().splitlines()]
    return run_role("proposer", load_settings({}, os.environ), actor_of(kind, [json.loads(line) for line in lines]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
