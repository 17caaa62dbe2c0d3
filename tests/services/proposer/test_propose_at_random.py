"""Any Propose is answered or refused: texts that go on, start again, end or make no sense, and numbers that can't be.
The slow test plays the same with loops that check every index of an array (NUMBA_BOUNDSCHECK)."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import pytest
from asking import index
from prometheus_client import CollectorRegistry

from mesh.errors import Refuse
from services.api.drafter import DraftRequest, Text
from services.api.drafts import unpack
from services.api.messages import Ended, Propose, ProposeItem
from services.api.settings import Settings
from services.proposer.actor import ProposerActor
from services.proposer.fast import compiling
from services.proposer.fast.namespaces import FastNamespaces
from services.proposer.fast.texts import FastTexts
from services.proposer.plain.texts import TextOptions
from services.proposer.suffix import SuffixDrafter
from tests.mesh_doubles.clock import FakeClock

METHODS = ("", "ngram", "suffix", "prediction", "hybrid", "auto", "naive", "unknown")
ODD = (-1, 0, 1, 2, 3, 1 << 20, (1 << 31) - 1, 1 << 31, -(1 << 31), 1 << 62, (1 << 63) - 1)
CALL: Any = None


class Worker:
    """Sends what a worker would, and now and then something else."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.texts: dict[int, list[int]] = {}
        self.sent: dict[int, int] = {}
        self.epoch = 1

    def propose(self, step: int) -> Propose:
        chance = self.chance
        ids = chance.sample(range(8), chance.randint(0, 5)) + ([1, 1] if chance.random() < 0.05 else [])
        items = [self.item(each) for each in ids]
        ended = [self.end(each) for each in chance.sample(range(8), chance.choice((0, 0, 0, 1)))]
        forget = [chance.choice((*range(8), *ODD)) for _ in range(chance.choice((0, 0, 0, 2)))]
        if chance.random() < 0.01:
            self.epoch += 1
            self.texts.clear()
        epoch = self.epoch if chance.random() < 0.98 else chance.randint(-1, self.epoch)
        return Propose(step=step, epoch=epoch, worker="t", items=items, forget=forget, ended=ended, vocabulary="v")

    def item(self, number: int) -> ProposeItem:
        chance = self.chance
        is_first, tokens, committed = self.grow(number)
        return ProposeItem(
            sequence_id=number,
            committed=committed,
            tokens=tokens,
            first=is_first,
            prompt_tokens=self.odd(chance.randint(0, 40), 0.1),
            budget=self.odd(chance.choice((0, 1, 4, 64)), 0.1),
            method=chance.choice(METHODS),
            ahead=self.some(chance.randint(0, 6)) if chance.random() < 0.4 else [],
            namespace=chance.choice(("", "a/1", "a/2", "b/1")),
            prediction=self.some(chance.choice((0, 0, 1, 2, 300))),
            corpora=chance.choice((None, [], ["c"], ["c", "unknown"])),
            learn=chance.random() < 0.8,
        )

    def end(self, number: int) -> Ended:
        is_first, tokens, committed = self.grow(number)
        self.texts.pop(number, None)
        return Ended(sequence_id=number, committed=committed, tokens=tokens, first=is_first, namespace="a/1")

    def grow(self, number: int) -> tuple[bool, list[int], int]:
        """Whether the text starts, its new tokens, and the length that is claimed."""
        chance = self.chance
        is_first = number not in self.texts or chance.random() < 0.1
        if is_first:
            self.texts[number], self.sent[number] = [], 0
        text = self.texts[number]
        text += self.some(chance.choice((0, 1, 1, 5, 40, 400)))
        new = text[self.sent[number] :]
        self.sent[number] = len(text)
        return is_first, new, self.odd(len(text), 0.05)

    def some(self, count: int) -> list[int]:
        """Tokens that repeat; seldom one that is none."""
        chance = self.chance
        period = [chance.randint(0, 9) for _ in range(chance.randint(1, 7))]
        made = (period * count)[:count]
        if made and chance.random() < 0.02:
            made[chance.randrange(count)] = chance.choice(ODD)
        return made

    def odd(self, number: int, share: float) -> int:
        return self.chance.choice(ODD) if self.chance.random() < share else number


def play(seed: int, rounds: int) -> int:
    """How many drafts there were."""
    settings = Settings.for_tests(method="auto", store_dir="none", proposer_tokens=4000)
    directory = SimpleNamespace(on_change=lambda change: None, members=lambda role: [])
    context: Any = SimpleNamespace(
        settings=settings, registry=CollectorRegistry(), clock=FakeClock(), directory=directory
    )
    actor, worker, drafts = ProposerActor(context), Worker(seed), 0
    try:
        for step in range(rounds):
            message = worker.propose(step)
            try:
                answer = actor.propose(message, CALL)
            except Refuse as refused:
                assert refused.reason in ("stale", "invalid")
                continue
            budgets = {item.sequence_id: item.budget for item in message.items}
            assert answer.step == step and set(answer.unknown) <= budgets.keys()
            for placed in unpack(answer.drafts):
                assert 0 < len(placed.draft.tokens) <= budgets[placed.sequence_id]
                drafts += 1
            actor._index.refresh()
            actor._index.work()
    finally:
        actor._index.close()
    return drafts


@pytest.mark.parametrize("seed", range(4))
def test_any_propose_is_answered_or_refused(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    compiling.start().join()
    assert play(seed, 200) > 20
    assert "out of bounds" not in caplog.text


@pytest.mark.slow
def test_no_loop_leaves_an_array() -> None:
    """In another process: it compiles the loops with checks, once, and keeps them on disk beside the others."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("no index is out of bounds\n"), done.stdout + done.stderr
    assert "out of bounds" not in done.stderr


def _play_with_checks() -> None:
    compiling.load()
    texts = FastTexts(FastNamespaces(4, 1000, most=1), TextOptions(depth=16))
    text = Text(1, array("i", [5, 6, 7, 8] * 50))
    with pytest.raises(IndexError):  # the actor refuses this message; here it shows that the loops check
        texts.draft([DraftRequest(text, 8), DraftRequest(text, 8)], SuffixDrafter(index()))
    for seed in range(4):
        assert play(seed, 100) > 10
    print("no index is out of bounds")


if __name__ == "__main__":
    _play_with_checks()
