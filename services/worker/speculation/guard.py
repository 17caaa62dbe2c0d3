"""A fault in the drafting code disables drafting until the process restarts, and fails no request. The engine calls the
controller through this.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from services.api.drafter import Draft
from services.worker.running.work import DraftBudget, Drafted, Result, Size, Work
from services.worker.scheduling.planning import Plan, Planned
from services.worker.scheduling.sequence import Sequence
from services.worker.speculation.controller import Controller

log = logging.getLogger("specmesh.worker")

Args = ParamSpec("Args")
Value = TypeVar("Value")


class GuardedController:
    def __init__(self, controller: Controller) -> None:
        self.controller = controller
        self.failed = False

    def rest(self) -> bool:
        return self._guard(True, self.controller.rest)

    def draft(self, plan: Plan) -> tuple[dict[int, Draft], dict[int, DraftBudget]]:
        return self._guard(({}, {}), self.controller.draft, plan)

    def joined(self, items: list[Planned], count: int) -> None:
        self._guard(None, self.controller.joined, items, count)

    def ask_ahead(self, work: Work) -> None:
        self._guard(None, self.controller.ask_ahead, work)

    def commit(self, work: Work, result: Result) -> None:
        self._guard(None, self.controller.commit, work, result)

    def learn(self, work: Work, result: Result, size: Size) -> None:
        self._guard(None, self.controller.learn, work, result, size)

    def ask_beside(self, work: Work) -> None:
        self._guard(None, self.controller.ask_beside, work)

    def take_head(self, work: Work, drafted: Drafted) -> None:
        self._guard(None, self.controller.take_head, work, drafted)

    def lose_head(self, sequence_ids: list[int]) -> None:
        self._guard(None, self.controller.lose_head, sequence_ids)

    def forget(self, sequence: Sequence, learn: bool) -> None:
        self._guard(None, self.controller.forget, sequence, learn)

    def check_idle(self) -> None:
        self._guard(None, self.controller.check_idle)

    def move_to(self, ready: dict[str, tuple[str, int]]) -> None:
        self._guard(None, self.controller.client.move_to, ready)

    def tell(self) -> bool:
        return self._guard(False, self.controller.client.tell)

    def close(self) -> None:
        """Also after a fault: the client's socket is closed."""
        try:
            self.controller.client.close()
        except Exception:
            log.exception("the link to the proposer can't be closed")

    def _guard(self, otherwise: Value, act: Callable[Args, Value], *args: Args.args, **kwargs: Args.kwargs) -> Value:
        if self.failed:
            return otherwise
        try:
            return act(*args, **kwargs)
        # Whatever it is, requests continue without drafts.
        except Exception:
            log.exception("drafting failed: this worker goes on without drafts until it starts anew")
            self.failed = True
            return otherwise
