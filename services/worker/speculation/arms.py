"""Whether drafting pays at this load, measured against steps without drafts. For the method auto.

The draft lengths weigh what a row adds to a step. What drafting costs besides (choosing, asking, verifying, Python
between two steps) is in no row, and on a fast device it can exceed what drafts bring. So blocks of steps with and
without drafts are compared by the time between steps, one class of loads at a time:

    speed = Σ tokens a sequence / Σ (time between steps / predicted time of a step without drafts)

Both arms are divided by the same prediction, so blocks of different contexts and batch sizes can be compared.
Drafting is off in a class while it is slower by more than a little and the standard error: a drafter that is hardly
ever asked costs that little, and is soon noticed when it becomes useful. Where drafting clearly pays no step is given
up: the other arm is tried only if its speed could be near. Knows no clock.
"""

from __future__ import annotations

from math import sqrt

# Counted steps of a block; and the first steps after a change of arm, which aren't counted.
BLOCK, SETTLING = 16, 2
# Window of an arm's speed, in blocks; blocks of each arm that a decision needs; and how often the other arm is tried
# until then, in blocks.
WINDOW, LEAST, FIRST_TRIES = 32, 4, 2
# Speed of drafting from which it surely pays: without drafts it can't be much above 1.
CLEAR = 1.15
STANDARD_ERRORS = 1.0
# The share of speed that drafting may cost.
TOLERATED = 0.02
# The share of time that trying the slower arm may cost, and the least that it counts for, as a share of its time.
SHARE, LEAST_LOSS = 0.005, 0.1


class Arm:
    """Decayed sums over blocks of steps: of tokens a sequence, of time, and what their spread is computed from."""

    __slots__ = ("blocks", "_products", "_squares", "_time", "_time_squares", "_tokens")  # noqa: RUF023

    def __init__(self) -> None:
        self.blocks = 0
        self._tokens = self._time = 0.0
        self._squares = self._products = self._time_squares = 0.0

    @property
    def known(self) -> bool:
        return self.blocks >= LEAST

    @property
    def speed(self) -> float:
        return self._tokens / self._time if self._time else 0.0

    @property
    def variance(self) -> float:
        """Of `speed`, as that of a ratio of two means."""
        speed, count = self.speed, min(self.blocks, WINDOW)
        if count < 2:
            return 0.0
        spread = self._squares - 2 * speed * self._products + speed * speed * self._time_squares
        return max(0.0, spread) / self._time**2 * count / (count - 1)

    def learn(self, tokens: float, time: float) -> None:
        self.blocks += 1
        keep = 1.0 - 1.0 / WINDOW if self.blocks > WINDOW else 1.0
        self._tokens = keep * self._tokens + tokens
        self._time = keep * self._time + time
        # Weights of the variance of a weighted mean are squares of its weights.
        keep *= keep
        self._squares = keep * self._squares + tokens * tokens
        self._products = keep * self._products + tokens * time
        self._time_squares = keep * self._time_squares + time * time


class _Load:
    """Both arms at one class of loads, and the block that is being measured."""

    __slots__ = ("_steps", "_time", "_tokens", "_wait", "drafts", "off", "on", "pays")

    def __init__(self) -> None:
        self.on, self.off = Arm(), Arm()
        self.pays = True
        # Whether the steps of this block have drafts.
        self.drafts = True
        self._steps = 0
        self._tokens = self._time = 0.0
        # Time, in steps without drafts, until the other arm is tried again.
        self._wait = float(FIRST_TRIES * BLOCK)

    def add(self, tokens: float, time: float) -> None:
        """Add a step; at the end of a block learn from it, and choose the arm of the next one."""
        self._steps += 1
        self._tokens += tokens
        self._time += time
        if self._steps == BLOCK:
            self._learn()
            self.drafts = self._next()
            self._steps = 0
            self._tokens = self._time = 0.0

    def _learn(self) -> None:
        on, off = self.on, self.off
        (on if self.drafts else off).learn(self._tokens, self._time)
        self._wait -= self._time
        if on.known and off.known:
            upper = on.speed + STANDARD_ERRORS * sqrt(on.variance + off.variance)
            self.pays = upper >= (1 - TOLERATED) * off.speed

    def _next(self) -> bool:
        on, off = self.on, self.off
        if not on.known or (self.pays and on.speed > CLEAR) or self._wait > 0:
            return self.pays
        self._wait = float(FIRST_TRIES * BLOCK)
        if off.known:
            slow, fast = sorted((on.speed, off.speed))
            self._wait = BLOCK / fast * max(LEAST_LOSS, 1 - slow / fast) / SHARE
        return not self.pays


class Arms:
    def __init__(self) -> None:
        # By number of sequences, in powers of two.
        self._loads: dict[int, _Load] = {}
        self._load = _Load()
        self._drafts = True
        self._settling = SETTLING
        self._plain, self._streams = 0.0, 0

    def drafts(self, streams: int, plain: float) -> bool:
        """Whether the next step has drafts. `streams`: its sequences that give tokens; `plain`: its predicted time
        without drafts, in seconds; 0: not known."""
        size = streams.bit_length()
        load = self._loads.get(size)
        if load is None:
            load = self._loads[size] = _Load()
        if load.drafts != self._drafts:
            self._settling = SETTLING
        self._load, self._drafts = load, load.drafts
        self._streams, self._plain = streams, plain
        return load.drafts

    def stepped(self, tokens: int, seconds: float) -> None:
        """The step gave so many tokens, `seconds` after the last one; 0: it can't be compared."""
        if seconds <= 0 or self._plain <= 0 or not self._streams:
            return
        if self._settling:
            self._settling -= 1
            return
        self._load.add(tokens / self._streams, seconds / self._plain)
