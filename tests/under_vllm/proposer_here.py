"""A real proposer's actor behind the drafter's link, without sockets: bodies go through the mesh's own codec."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry

from mesh.errors import Refuse
from services.api.messages import Propose, Proposed
from services.api.settings import Settings
from services.proposer.actor import ProposerActor
from services.runtime.process import mesh_codec
from specmesh.vllm.drafting import Drafting
from specmesh.vllm.questions import Questions
from specmesh.vllm.wire import Answer

NAME, NAMESPACE, VOCABULARY = "vllm-here-1", "m", "words"
DEADLINE = 0.02


class Clock:
    """Moved by hand, and by waiting."""

    def __init__(self) -> None:
        self.time = 1000.0

    def now(self) -> float:
        return self.time

    def call_later(self, delay: float, callback: Any, *arguments: Any) -> None:
        """Nothing here is tidied up in the background."""


class Here:
    """Answers within `delay` of the clock; None: never."""

    def __init__(self, clock: Clock, **settings: Any) -> None:
        self.clock = clock
        self.delay: float | None = 0.0
        self.life = 1
        self.asked: list[Propose] = []
        self.reopened = 0
        self._settings = {"proposer_index": "plain", "store_dir": "none", "model_answers": False, **settings}
        self._codec = mesh_codec()
        self._answers: list[tuple[float, Answer]] = []
        self._questions = 0
        self._start()

    def restart(self) -> None:
        self.close()
        self._start()

    def close(self) -> None:
        self.actor._index.close()

    def _start(self) -> None:
        directory = SimpleNamespace(on_change=lambda told: None, members=lambda role: [])
        context: Any = SimpleNamespace(
            settings=Settings.for_tests(**self._settings), registry=CollectorRegistry(), clock=self.clock,
            directory=directory,
        )  # fmt: skip
        self.actor = ProposerActor(context)
        self.life += 1
        self._answers.clear()

    def ask(self, body: bytes, milliseconds: int) -> int:
        self._questions += 1
        if self.delay is not None:
            message = self._codec.decode("propose", body)
            self.asked.append(message)
            self._answers.append((self.clock.now() + self.delay, self._answer(message)))
        return self._questions

    def _answer(self, message: Propose) -> Answer:
        call: Any = None
        try:
            proposed = self.actor.propose(message, call)
        except Refuse as refused:
            return Answer(self._questions, None, self.life, refused.reason)
        assert isinstance(proposed, Proposed)
        _, body, _ = self._codec.encode(proposed)
        return Answer(self._questions, msgspec.msgpack.decode(body), self.life)

    def receive(self) -> Answer | None:
        if self._answers and self._answers[0][0] <= self.clock.now():
            return self._answers.pop(0)[1]
        return None

    def wait(self, milliseconds: int) -> bool:
        until = self.clock.now() + milliseconds / 1000
        due = self._answers[0][0] if self._answers else until + 1
        self.clock.time = max(self.clock.now(), min(until, due))
        return due <= until

    def reopen(self) -> None:
        self.reopened += 1
        self._answers.clear()


def drafting(link: Any, clock: Clock, *, most: int = 8, longest_text: int = 4096) -> Drafting:
    questions = Questions(NAME, 1, NAMESPACE, VOCABULARY)
    return Drafting(
        link, questions, most=most, longest_text=longest_text, deadline=DEADLINE, now=clock.now, debug=True
    )
