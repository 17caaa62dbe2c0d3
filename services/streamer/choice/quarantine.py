"""Which choice may be sent to which worker after a worker has died, and when a choice is given up for its deaths.

All choices that ran at a worker are lost when it dies, and one of them may be what killed it: probably one that had
not made two steps there (the first computes the prompt, the second decodes). If these are few, they are suspects and
are tried one at a time. All others are sent to other workers at once, as most deaths are no choice's fault. Those that
lose a second worker before they have made two steps there are suspects, too.

    sent ──▶ running ──the worker dies──▶ sent again ──it dies, too──▶ suspect ──▶ on trial ──two steps──▶ running
                ▲            │              │                            ▲            │
                │            └── it was new ┼────────────────────────────┘            └──it dies──▶ guilty
                └────────two steps──────────┘

Rule 1: a worker runs at most one suspect that is on trial. From the first trial there until no suspect is left it takes
        nobody else.
Rule 2: suspects are tried in the order of suspicion: by deaths, then those that had fewest tokens of the lost worker,
        then by age. While one waits an empty worker is kept for it; all other choices go to workers with work, and
        wait where there is none.
Rule 3: a choice is guilty at its second death if nothing else of this streamer ran there, else at its third.

So a choice that kills every worker in its first two steps kills two, or three if it began with many others or its
trial beside others. On a mesh of one worker another choice is never found guilty in its place: suspects go first, so
each is tried alone or among choices that are cleared.

Deaths are counted by a worker's life, which ends once: what is sent to a dead worker, because the directory still lists
it, is lost without blame. So are connections that break again and again while the worker makes no tokens.

State and decisions only: no clock, no sockets. It knows the choices of its own streamer.
"""

from __future__ import annotations

import asyncio
import itertools

# An instance at one of its lives: a restarted one is another.
Life = tuple[str, int]

# Steps with tokens after which a worker's earlier deaths are no longer laid to a choice.
CLEARED_AFTER = 2
# Choices without two steps that are suspects at their first death. More would keep each other waiting for long, such as
# those that only waited at a worker for their turn.
FEW = 4
SUSPECT = 2
GUILTY_ALONE, GUILTY = 2, 3
MAX_DEAD = 64


class Case:
    """One choice. `turn` is set when `enter` is worth another call."""

    __slots__ = ("deaths", "guilty", "life", "number", "steps", "steps_before_death", "suspect", "turn")

    def __init__(self, number: int) -> None:
        self.number = number
        self.deaths: set[Life] = set()  # of workers, since it was last cleared
        self.steps = 0  # with tokens, at the latest worker
        self.steps_before_death = 0  # at the latest worker that died
        self.life: Life | None = None  # where it runs
        self.suspect = self.guilty = False
        self.turn = asyncio.Event()

    @property
    def on_trial(self) -> bool:
        return self.life is not None and self.suspect

    @property
    def rank(self) -> tuple[int, int, int]:
        """The smallest is the most suspicious."""
        return -len(self.deaths), min(self.steps_before_death, CLEARED_AFTER), self.number


class Quarantine:
    """One in a streamer."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._running: dict[Life, set[Case]] = {}
        # Lives that have ended; the oldest are forgotten.
        self._dead: dict[Life, None] = {}
        # Suspects between two attempts.
        self._suspects: set[Case] = set()
        # Where suspects have been tried, until none is left.
        self._courts: set[Life] = set()
        # Who was refused by `enter` and will try again, in that order.
        self._waiting: dict[Case, None] = {}

    def open(self) -> Case:
        return Case(next(self._numbers))

    def enter(self, case: Case, life: Life) -> bool:
        """It is sent to this worker now; or it has to wait for its turn."""
        if not self._may_enter(case, life):
            case.turn.clear()
            self._waiting[case] = None
            return False
        self._waiting.pop(case, None)
        self._running.setdefault(life, set()).add(case)
        case.life, case.steps = life, 0
        if case.suspect:
            self._suspects.discard(case)
            self._courts.add(life)
            # Another worker may be free for the next.
            self._call_next()
        return True

    def _may_enter(self, case: Case, life: Life) -> bool:
        if any(other.on_trial for other in self._running.get(life, ())):
            return False
        if case.suspect:
            return all(case.rank <= other.rank for other in self._suspects)
        return not self._suspects or (life in self._running and life not in self._courts)

    def stepped(self, case: Case, last: bool = False) -> None:
        """Tokens of one more step have come, or (`last`) the end of the answer."""
        if case.life is None:
            # They were read after the worker's death.
            return
        # Only a connection had broken.
        self._dead.pop(case.life, None)
        case.steps += 1
        if case.deaths and (last or case.steps >= CLEARED_AFTER):
            tried = case.on_trial
            case.deaths.clear()
            case.suspect = False
            if tried:
                self._call_next()

    def died(self, case: Case) -> bool:
        """The worker of this choice has died, and all choices there are lost. False: it was dead before this choice was
        sent to it."""
        life = case.life
        if life is None:
            return True
        if life in self._dead:
            return False
        self._dead[life] = None
        if len(self._dead) > MAX_DEAD:
            del self._dead[next(iter(self._dead))]
        lost = self._running.pop(life)
        few = sum(each.steps < CLEARED_AFTER for each in lost) <= FEW
        for each in lost:
            each.life, each.steps_before_death = None, each.steps
            each.deaths.add(life)
            count = len(each.deaths)
            each.suspect = count >= SUSPECT or (few and each.steps < CLEARED_AFTER)
            each.guilty = count >= GUILTY or (count >= GUILTY_ALONE and len(lost) == 1)
        return True

    def left(self, case: Case) -> None:
        """Its attempt has ended, and another may follow."""
        self._leave(case)
        if case.suspect:
            self._suspects.add(case)
        self._call_next()

    def close(self, case: Case) -> None:
        """The choice has ended, whatever its end is."""
        self._leave(case)
        self._suspects.discard(case)
        self._waiting.pop(case, None)
        self._call_next()

    def _leave(self, case: Case) -> None:
        life, case.life = case.life, None
        if life is not None:
            there = self._running[life]
            there.discard(case)
            if not there:
                del self._running[life]

    def _call_next(self) -> None:
        """Those that may be able to enter now try again: of the suspects the first, and everyone else."""
        if not self._suspects:
            self._courts.clear()
        first = min(self._suspects, key=lambda case: case.rank, default=None)
        for case in [case for case in self._waiting if case is first or not case.suspect]:
            del self._waiting[case]
            case.turn.set()
