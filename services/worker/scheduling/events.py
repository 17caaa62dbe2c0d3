"""What a scheduler is told, and what it says is to be done. Values, nothing else."""

from __future__ import annotations

import msgspec

from services.api.drafts import DraftItem
from services.api.messages import Failed, Finished, Generate, Tokens
from services.worker.running.runner import StepWork, Verdict
from services.worker.scheduling.sequence import Sequence

# Events ------------------------------------------------------------------------------------------------


class Arrived(msgspec.Struct, frozen=True):
    """`stream` names the request from here on (a negative one is a replay); `deadline` and `at`, when it came, are
    moments on the clock of DeadlinePassed."""

    generate: Generate
    stream: int
    deadline: float | None = None
    at: float = 0.0


class Cancelled(msgspec.Struct, frozen=True):
    stream: int


class DraftsReady(msgspec.Struct, frozen=True):
    """Guesses from outside: whatever they hold, they are advice. With them comes what the question was: asked ahead or
    not, the tokens each was to follow (by sequence), whether it was answered at all, how long the step thread was
    busy with it, in seconds, when it was sent (on the clock of DeadlinePassed), and how long the proposer was at it."""

    drafts: list[DraftItem]
    ahead: bool = False
    followed: dict[int, list[int]] = {}
    answered: bool = True
    seconds: float = 0.0
    sent_at: float = 0.0
    worked: float = 0.0


class StepWanted(msgspec.Struct, frozen=True):
    """The runner is free."""


class StepDone(msgspec.Struct, frozen=True):
    """The verdicts on the work of the last RunStep, in its order, and how long the step took (0: not known).
    `listens`: a proposer would hear a question."""

    verdicts: list[Verdict | None]
    seconds: float = 0.0
    listens: bool = True


class TimeToSpare(msgspec.Struct, frozen=True):
    """The step that was wanted has been set going, or there is none: now is the time for what needn't be done before
    it. `listens`: a proposer would hear a question."""

    listens: bool = True


class Foresee(msgspec.Struct, frozen=True):
    """The step runs elsewhere, and there is still time: the next one may be thought of."""


class DraftsAwaited(msgspec.Struct, frozen=True):
    """Nothing else is to be done until they are there."""


class DeadlinePassed(msgspec.Struct, frozen=True):
    now: float


class Drain(msgspec.Struct, frozen=True):
    """Take nothing new; what is here runs on."""


class PagesLost(msgspec.Struct, frozen=True):
    """What the pages held is gone: all texts are computed again."""


class SwitchOff(msgspec.Struct, frozen=True):
    """Requests with this method get no drafts any more, those that run among them."""

    method: str


class EngineFailed(msgspec.Struct, frozen=True):
    """The runner can't be trusted any more."""

    message: str


Event = (
    Arrived
    | Cancelled
    | DraftsAwaited
    | DraftsReady
    | StepWanted
    | StepDone
    | TimeToSpare
    | Foresee
    | DeadlinePassed
    | Drain
    | PagesLost
    | SwitchOff
    | EngineFailed
)


def is_replay(stream: int) -> bool:
    """A replay of audit.py: it runs like a request, nobody hears of it, and no count of requests knows it."""
    return stream < 0


# Instructions ------------------------------------------------------------------------------------------


class CopyPage(msgspec.Struct, frozen=True, gc=False):
    """What page `source` holds, `target` holds afterwards, too. Copies are to be made in order, and before the
    RunStep behind them."""

    source: int
    target: int


class RunStep(msgspec.Struct, frozen=True):
    work: list[StepWork]


class Emit(msgspec.Struct, frozen=True, gc=False):
    stream: int
    tokens: Tokens


class Finish(msgspec.Struct, frozen=True):
    stream: int
    finished: Finished


class Fail(msgspec.Struct, frozen=True):
    stream: int
    failed: Failed


class DraftAsk(msgspec.Struct, frozen=True, gc=False):
    """A draft of at most `budget` tokens is wanted behind this sequence's text and `ahead`, as if that all stood.
    `after`: what the text is about to be given, and surely: as if it had it already."""

    sequence: Sequence
    budget: int
    ahead: list[int] = []
    after: list[int] = []

    @property
    def length(self) -> int:
        """Of the text that is asked about."""
        return len(self.sequence.token_ids) + len(self.after)


class AskDrafts(msgspec.Struct, frozen=True):
    """The next step is to wait for these, for `wait` seconds at most (0: as long as it is allowed)."""

    asks: list[DraftAsk]
    wait: float = 0.0


class AskAhead(msgspec.Struct, frozen=True):
    """To be asked while the step runs, and looked for after it. Where the step runs elsewhere, there are `wait` seconds
    to wait for the answer."""

    asks: list[DraftAsk]
    wait: float = 0.0


class Forget(msgspec.Struct, frozen=True):
    """These sequences are no more: whoever keeps notes on them may drop them. From the texts of `learned`, which are
    among them, may be learned first."""

    sequence_ids: list[int]
    learned: list[Sequence] = []


Instruction = CopyPage | RunStep | Emit | Finish | Fail | AskDrafts | AskAhead | Forget
