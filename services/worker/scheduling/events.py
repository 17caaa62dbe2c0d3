"""The events a scheduler takes and the outputs it returns. Plain values."""

from __future__ import annotations

import msgspec

from services.api.messages import Failed, Finished, Generate, Tokens
from services.worker.running.work import Result
from services.worker.scheduling.sequence import Sequence

# Events ------------------------------------------------------------------------------------------------


class Arrived(msgspec.Struct, frozen=True):
    """`sequence_id` names this request in the worker, and no other ever. `deadline` and `at` (its arrival) are times
    of the same clock as DeadlinePassed.now. `cached`: prompt tokens that another worker had found in its cache before
    it handed over pages; None: none did. `lent`: this is for another worker, which gets the pages."""

    generate: Generate
    sequence_id: int
    deadline: float | None = None
    at: float = 0.0
    cached: int | None = None
    lent: bool = False


class Cancelled(msgspec.Struct, frozen=True):
    sequence_id: int


class DeadlinePassed(msgspec.Struct, frozen=True):
    now: float


class DrainBegan(msgspec.Struct, frozen=True):
    """New requests are refused; the others run to their end."""


class StepDone(msgspec.Struct, frozen=True):
    """The result of the oldest step that runs."""

    result: Result


class EngineFailed(msgspec.Struct, frozen=True):
    """The runner has failed: all requests fail."""

    message: str


Event = Arrived | Cancelled | DeadlinePassed | DrainBegan | StepDone | EngineFailed

# Outputs ----------------------------------------------------------------------------------------------


class Emit(msgspec.Struct, frozen=True, gc=False):
    sequence_id: int
    tokens: Tokens


class Finish(msgspec.Struct, frozen=True):
    sequence_id: int
    finished: Finished


class Fail(msgspec.Struct, frozen=True):
    sequence_id: int
    failed: Failed


class SequenceEnded(msgspec.Struct, frozen=True):
    """For drafters: this sequence has ended. `learn`: drafters may learn from its text."""

    sequence: Sequence
    learn: bool = False


Answer = Emit | Finish | Fail
Output = Answer | SequenceEnded
