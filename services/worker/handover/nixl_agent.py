"""NIXL (UCX below it) as one thread: it reads pages out of other workers' memory, and lets others read this one's.

Rule 1: only this thread calls NIXL, which locks nothing.
Rule 2: each read ends once, with what became of it; until then its memory may be written to, whatever else happened.
Rule 3: NIXL's own thread stays off, as it polls all the time. This one polls while something is read or lent, and
        sleeps else: connections come about, and TCP is answered, only while both sides poll.

Knows no pages and no messages.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from services.api.page_transport import INSTALL, NoNixl

log = logging.getLogger("specmesh.worker")

# done: all bytes are here. refused: none will come. failed: it isn't known which came, nor if more will.
Outcome = Literal["done", "refused", "failed"]
# Seconds between looks while something is read or lent, and once a read has taken longer than SOON.
POLL, SLOW_POLL, SOON = 0.001, 0.02, 2.0
# Lenders whose connections are kept.
MOST_LENDERS = 64


@dataclass(frozen=True, slots=True)
class Lender:
    """Another worker's agent: its name, and what NIXL needs to reach its memory, as it said."""

    name: str
    metadata: bytes


# An address here, one there, and a size.
Block = tuple[int, int, int]


class Agent(Protocol):
    name: str
    metadata: bytes

    def read(self, lender: Lender, blocks: Sequence[Block], back: Callable[[Outcome], None]) -> None:
        """`back` is called once, from another thread, when none of these bytes will be written any more, or after a
        failure."""
        ...

    def lends(self, more: int) -> None:
        """So many loans more (or fewer): others may read."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class _Read:
    lender: Lender
    blocks: Sequence[Block]
    back: Callable[[Outcome], None]
    handle: Any = None
    began: float = field(default_factory=time.monotonic)


class NixlAgent:
    def __init__(self, regions: Sequence[Block], on_gpu: bool) -> None:
        """`regions` (address, size, device): what others may read. Raises NoNixl."""
        # Its lines go to standard output, which isn't a log.
        os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
        self._kind = "VRAM" if on_gpu else "DRAM"
        self._device = regions[0][2]
        # A start of a worker has a name of its own: nothing is read from its successor by mistake.
        self.name = f"specmesh-{secrets.token_hex(8)}"
        try:
            from nixl._api import nixl_agent, nixl_agent_config

            self._nixl = nixl_agent(self.name, nixl_agent_config(enable_prog_thread=False, backends=["UCX"]))
            self._nixl.register_memory([(*each, "") for each in regions], self._kind)
            self.metadata: bytes = self._nixl.get_agent_metadata()
        except ImportError as error:
            raise NoNixl(f"{INSTALL} ({error})") from None
        # NIXL's errors have no base of their own.
        except Exception as error:
            raise NoNixl(f"page_transport nixl: NIXL doesn't start: {_said(error)}") from error
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reads: list[_Read] = []
        self._known: OrderedDict[str, bytes] = OrderedDict()
        self._loans = 0
        self._thread = threading.Thread(target=self._run, name="nixl", daemon=True)
        self._thread.start()

    def read(self, lender: Lender, blocks: Sequence[Block], back: Callable[[Outcome], None]) -> None:
        self._jobs.put(lambda: self._begin(_Read(lender, blocks, back)))

    def lends(self, more: int) -> None:
        def change() -> None:
            self._loans += more

        self._jobs.put(change)

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join(5.0)

    # The thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=self._patience())
            except queue.Empty:
                pass
            else:
                if job is None:
                    return
                job()
            if self._reads or self._loans:
                self._look()

    def _patience(self) -> float | None:
        if not self._reads and not self._loans:
            return None
        now = time.monotonic()
        return POLL if self._loans or any(now - each.began < SOON for each in self._reads) else SLOW_POLL

    def _begin(self, read: _Read) -> None:
        try:
            self._meet(read.lender)
            here, there = (
                self._nixl.get_xfer_descs([(block[side], block[2], self._device) for block in read.blocks], self._kind)
                for side in (0, 1)
            )
            read.handle = self._nixl.initialize_xfer("READ", here, there, read.lender.name)
        except Exception as error:
            self._ended(read, "refused", error)
            return
        try:
            state = self._nixl.transfer(read.handle)
        except Exception as error:
            self._ended(read, "failed", error)
            return
        self._reads.append(read)
        self._heard(read, state)

    def _meet(self, lender: Lender) -> None:
        """Raises ValueError for a lender that isn't who it says."""
        if self._known.get(lender.name) == lender.metadata:
            self._known.move_to_end(lender.name)
            return
        if lender.name == self.name:
            raise ValueError("it has our own name")
        name = self._nixl.add_remote_agent(lender.metadata)
        if (name.decode(errors="replace") if isinstance(name, bytes) else name) != lender.name:
            raise ValueError("its metadata have another name")
        self._known[lender.name] = lender.metadata
        in_use = {each.lender.name for each in self._reads} | {lender.name}
        for old in [each for each in self._known if each not in in_use][: max(0, len(self._known) - MOST_LENDERS)]:
            self._forget(old)

    def _look(self) -> None:
        for read in list(self._reads):
            try:
                state = self._nixl.check_xfer_state(read.handle)
            except Exception as error:
                self._reads.remove(read)
                self._ended(read, "failed", error)
            else:
                self._heard(read, state)
        if self._loans:
            try:
                # Whatever others sent is dropped; asking for it is what answers those who read here.
                self._nixl.get_new_notifs()
            except Exception as error:
                log.warning("nixl: %s", _said(error))

    def _heard(self, read: _Read, state: str) -> None:
        if state == "PROC":
            return
        self._reads.remove(read)
        self._ended(read, "done" if state == "DONE" else "failed", None)

    def _ended(self, read: _Read, outcome: Outcome, error: Exception | None) -> None:
        if outcome != "done":
            log.info("nixl: %s: a read was %s: %s", read.lender.name, outcome, _said(error))
            # The next read meets it anew.
            if all(each.lender.name != read.lender.name for each in self._reads):
                self._forget(read.lender.name)
        read.back(outcome)

    def _forget(self, lender: str) -> None:
        if self._known.pop(lender, None) is not None:
            try:
                self._nixl.remove_remote_agent(lender)
            except Exception as error:
                log.info("nixl: %s: %s", lender, _said(error))


def _said(error: Exception | None) -> str:
    return "" if error is None else str(error) or type(error).__name__
