"""When a process that has ended by itself is started again, and when it is given up. Knows codes and times."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

# A role whose epoch was fenced ends with this code: it is to be started again at once, and nothing is wrong
# with it. 75 is EX_TEMPFAIL, which other supervisors (systemd, compose) restart, too.
EXIT_FENCED = 75
# What a child was given (a model, a setting) is wrong, and another try would end the same: it is failed at once.
# 78 is EX_CONFIG.
EXIT_CONFIG = 78


@dataclass(frozen=True, slots=True)
class Policy:
    first_delay: float = 0.1  # s
    growth: float = 2.0
    longest_delay: float = 5.0  # s
    # A child that ran this long is forgiven its earlier crashes when it next ends.
    calm: float = 10.0  # s
    max_crashes: int = 3
    within: float = 10.0  # s
    # A failed child is tried again after this (0: never): a proposer killed often must not be gone for good.
    retry_failed_after: float = 10.0  # s
    # How long a child that was ready may be without progress before it is killed and restarted; 0: for ever.
    kill_stuck_after: float = 0.0  # s
    # How long a stage may take to end after SIGTERM before it is killed.
    drain_timeout: float = 30.0  # s


@dataclass(frozen=True, slots=True)
class Restart:
    """`delay`: None: never. `failed`: it crashed too often and is left alone for that long."""

    why: str
    delay: float | None
    failed: bool = False


class Crashes:
    """Of one child."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._times: deque[float] = deque()
        self._delay = 0.0

    def restart(self, code: int, ran: float, now: float, said: Sequence[str] = ()) -> Restart:
        """It ended with `code` (negative: by that signal) after `ran` seconds. `said`: its last lines."""
        policy = self._policy
        # The guard on `ran` keeps two processes of one name, which fence each other, from spinning.
        if code == EXIT_FENCED and ran >= 1.0:
            return Restart("was taken for lost and woke up: starting again", 0.0)
        if code == EXIT_CONFIG:
            return self._give_up("what it was given is wrong", said)
        if ran >= policy.calm:
            self._times.clear()
            self._delay = 0.0
        self._times.append(now)
        while now - self._times[0] > policy.within:
            self._times.popleft()
        if len(self._times) > policy.max_crashes:
            how = f"{describe_exit(code)}, more than {policy.max_crashes} times in {policy.within:g} s"
            return self._give_up(how, said)
        self._delay = min(max(policy.first_delay, self._delay * policy.growth), policy.longest_delay)
        why = f"{describe_exit(code)} after {ran:.1f} s: starting again in {self._delay:.1f} s"
        return Restart(why, self._delay)

    def _give_up(self, how: str, said: Sequence[str]) -> Restart:
        last = "\n".join(said[-5:]).strip()
        return Restart(f"{how}\n{last}" if last else how, self._policy.retry_failed_after or None, failed=True)


def describe_exit(code: int) -> str:
    """An exit status in words."""
    if code >= 0:
        return f"ended with code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"killed by signal {-code}"
