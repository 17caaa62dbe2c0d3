"""Proposers that no user would start, each in a proposer's real process: the node, the directory and the actor are
those of `specmesh run proposer`; only what is guessed is another.

    python guessers.py random|oracle|adversary [TEXTS]     settings come from SPECMESH_*, as for every role

TEXTS is a file of lines [prompt ids, ids that followed]: what the oracle knows, and what the adversary gets wrong
on purpose.
"""

from __future__ import annotations

import itertools
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
from services.api.drafter import NO_DRAFT, Committed, Draft, DraftRequest, Needs, Text
from services.api.drafts import PlacedDraft, pack, unpack
from services.api.messages import Propose, Proposed
from services.api.settings import load_settings
from services.proposer.actor import ProposerActor
from services.proposer.naive import NaiveDrafter
from services.runtime.process import run_role

VOCABULARY = 49152
TOKEN = 20000  # one like others


class _Guesser:
    name: ClassVar[str] = "ngram"
    needs: ClassVar[Needs] = Needs.TOKENS
    gives_probs: ClassVar[bool] = False

    def draft(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        return [self.guess(_as_if_accepted(request), request.budget) for request in requests]

    def guess(self, text: Text, budget: int) -> Draft:
        raise NotImplementedError

    def commit(self, results: Sequence[Committed]) -> None:
        pass

    def forget(self, text_ids: Sequence[int]) -> None:
        pass


def _as_if_accepted(request: DraftRequest) -> Text:
    """The text with what is ahead of it."""
    text = request.text
    return replaced(text, tokens=text.tokens + array("i", request.ahead)) if request.ahead else text


class Random(_Guesser):
    """Any tokens, any number of them."""

    def guess(self, text: Text, budget: int) -> Draft:
        chance = random.Random(len(text.tokens) * 31 + text.tokens[-1])
        return Draft([chance.randrange(VOCABULARY) for _ in range(chance.randint(0, budget))], "random")


class Oracle(_Guesser):
    """Knows what will be said, and says as much of it as it may."""

    def __init__(self, texts: Iterable[tuple[list[int], list[int]]]) -> None:
        self._answers: dict[bytes, list[array[int]]] = {}
        for prompt, answer in texts:
            self._answers.setdefault(array("i", prompt).tobytes(), []).append(array("i", answer))

    def what_follows(self, text: Text, count: int) -> list[int]:
        """Nothing where the text isn't one of those known."""
        prompt, said = text.tokens[: text.prompt_tokens], text.tokens[text.prompt_tokens :]
        for answer in self._answers.get(prompt.tobytes(), []):
            if answer[: len(said)] == said:
                return answer[len(said) : len(said) + count].tolist()
        return []

    def guess(self, text: Text, budget: int) -> Draft:
        following = self.what_follows(text, budget)
        return Draft(following, "oracle", len(text.tokens)) if following else NO_DRAFT


def _other(token: int) -> int:
    return (token + 1) % VOCABULARY


class Adversary(_Guesser):
    """Each time another way to be wrong; in what is left to be right by chance or on purpose, it is right."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        # By its length a text that takes eight tokens a step would meet one way again and again.
        self._turns = itertools.count()

    def guess(self, text: Text, budget: int) -> Draft:
        truth = self._oracle.what_follows(text, budget) or [TOKEN]
        return self._ways[next(self._turns) % len(self._ways)](self, truth, text, budget)

    def _right_but_for_the_last(self, truth: list[int], text: Text, budget: int) -> Draft:
        return Draft([*truth[:-1], _other(truth[-1])], "adversary")

    def _wrong(self, truth: list[int], text: Text, budget: int) -> Draft:
        return Draft([_other(token) for token in truth], "adversary")

    def _at_the_edge_of_the_vocabulary(self, truth: list[int], text: Text, budget: int) -> Draft:
        return Draft([(0, VOCABULARY - 1)[place % 2] for place in range(budget)], "adversary")

    def _out_of_the_vocabulary(self, truth: list[int], text: Text, budget: int) -> Draft:
        wrong = (VOCABULARY, -1, 2**31 - 1, -(2**31), 2**40, -(2**63))[len(text.tokens) % 6]
        return Draft([*truth[: budget // 2], wrong], "adversary")

    def _longer_than_asked(self, truth: list[int], text: Text, budget: int) -> Draft:
        longer = self._oracle.what_follows(text, 4 * budget)
        return Draft(longer + [_other(TOKEN)] * 3000, "adversary")

    def _a_tree(self, truth: list[int], text: Text, budget: int) -> Draft:
        tokens = [token for right in truth for token in (_other(right), right)]
        return Draft(tokens, "adversary", parents=[place // 2 * 2 - 1 for place in range(len(tokens))])

    def _a_tree_that_is_none(self, truth: list[int], text: Text, budget: int) -> Draft:
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
        super().__init__(context, {"naive": NaiveDrafter(), "ngram": self.guesser})


class LyingActor(GuessingActor):
    """Of its answers some are about another place of the text, about another text, or given twice."""

    def propose(self, message: Propose, call: Call) -> Proposed:
        answer = super().propose(message, call)
        drafts = [lie for draft in unpack(answer.drafts) for lie in self._lies(draft)]
        random.Random(message.step).shuffle(drafts)
        return replace(answer, drafts=pack(drafts))

    def _lies(self, placed: PlacedDraft) -> list[PlacedDraft]:
        length, draft = placed.length, placed.draft
        way = length % 7
        if way == 0:
            return [placed._replace(length=length + (1, -1, 2**40, -(2**40))[length % 4])]
        if way == 1:
            return [placed, placed._replace(sequence_id=placed.sequence_id + 1), placed._replace(sequence_id=-1)]
        if way == 2:
            lies = draft._replace(tokens=draft.tokens[::-1]), draft._replace(tokens=[])
            return [placed, *(placed._replace(draft=lie) for lie in lies)]
        return [placed]


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
