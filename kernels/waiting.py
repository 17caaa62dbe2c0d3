"""What the thread that launches a step does while a device runs it. Knows no device and imports nothing of torch."""

from __future__ import annotations

from collections.abc import Callable

# For when there is nothing left but to wait for the end of a step. It is told how to see whether that has come (without
# waiting), and comes back before it, or soon after.
Waiting = Callable[[Callable[[], bool]], None]
