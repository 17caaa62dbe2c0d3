"""What other threads post to the engine: events for the scheduler, and these."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from services.worker.scheduling.events import Event


class ProposersMoved(msgspec.Struct, frozen=True):
    """The ready proposers from now on: their endpoints and epochs by instance."""

    ready: dict[str, tuple[str, int]]


class CallBack(msgspec.Struct, frozen=True):
    """To be called in the engine's thread: shows that it still takes its mail, or does what only that thread may."""

    function: Callable[[], None]


Mail = Event | ProposersMoved | CallBack
