"""Law 2 inside a target: a draft is advice, and so is all that is done for the sake of one. What goes wrong there, and
be it a fault of our own code, ends drafting until the process starts anew, and no request.

The scheduler calls drafting.py, and the step loop the proposer's line, through one `Advice` that both share. Knows
neither of them: after a fault nothing they hold is looked at any more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from services.worker.scheduling.events import DraftAsk, DraftsReady
from services.worker.scheduling.sequence import Sequence

if TYPE_CHECKING:
    from services.worker.engine import Drafts

log = logging.getLogger("specmesh.worker")

NO_DRAFTS_ANY_MORE = "drafting failed: this target goes on without drafts until it starts anew"
Args = ParamSpec("Args")
Result = TypeVar("Result")


class Advice:
    """`given_up` is called once, by the first fault: to see to it that nobody has a draft or wants one. `told` is what
    the log says then: rehearsals (rehearsal.py) end the same way, and drafting goes on."""

    def __init__(self, given_up: Callable[[], None], told: str = NO_DRAFTS_ANY_MORE) -> None:
        self._given_up = given_up
        self._told = told
        self.failed = False

    def __call__(self, act: Callable[Args, Result], *args: Args.args, **kwargs: Args.kwargs) -> Result | None:
        """What `act` says; None if it fails, and ever after."""
        if self.failed:
            return None
        try:
            return act(*args, **kwargs)
        # Whatever it is, requests go on without it.
        except Exception:
            log.exception(self._told)
            self.failed = True
            self._given_up()
            return None


class AdvisedBy:
    """The proposer's line (step_loop.py, `Drafts`), of which a fault is one of drafting's."""

    def __init__(self, advice: Advice, drafts: Drafts) -> None:
        self._advice = advice
        self.line = drafts

    def move_to(self, endpoint: str) -> None:
        self._advice(self.line.move_to, endpoint)

    def try_out(self, endpoint: str) -> None:
        self._advice(self.line.try_out, endpoint)

    def forget(self, sequence_ids: list[int], learned: list[Sequence]) -> None:
        self._advice(self.line.forget, sequence_ids, learned)

    def listens(self) -> bool:
        return bool(self._advice(self.line.listens))

    def ask_ahead(self, asks: list[DraftAsk]) -> None:
        self._advice(self.line.ask_ahead, asks)

    def hurry(self, asks: list[DraftAsk]) -> None:
        self._advice(self.line.hurry, asks)

    def look(self) -> DraftsReady | None:
        return self._advice(self.line.look)

    def wait_ahead(self, seconds: float) -> DraftsReady | None:
        return self._advice(self.line.wait_ahead, seconds)

    def ask(self, asks: list[DraftAsk], wait: float) -> None:
        self._advice(self.line.ask, asks, wait)

    def collect(self, within: float | None = None) -> DraftsReady | None:
        return self._advice(self.line.collect, within)

    def expects(self) -> bool:
        return bool(self._advice(self.line.expects))

    def rehearse(self) -> None:
        self._advice(self.line.rehearse)

    def rehearsed(self) -> bool:
        return self._advice(self.line.rehearsed) is not False

    def rest(self) -> bool:
        return bool(self._advice(self.line.rest))

    def close(self) -> None:
        """Also after a fault: what it holds of the system is given back."""
        try:
            self.line.close()
        except Exception:
            log.exception("the line to the proposer can't be closed")
