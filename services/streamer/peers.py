"""The tokenizers and targets behind the door: finds a ready one, waits for one, learns what the model is.

Waiting is for changes of the directory, bounded by the caller's deadline. Knows no HTTP.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from mesh.errors import MeshError, NoPeer, RemoteError
from mesh.ref import Ref
from services.messages import Decode, Decoded, Describe, Encode, Encoded, ModelCard
from services.streamer.errors import ApiError

ASK_TIMEOUT = 10.0  # seconds for one answer of a tokenizer or of Describe
# How long a new request waits for a role that is missing: about the time of a worker's restart.
GRACE = 15.0
RETRY_MISSING = 5  # seconds, told to the client
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class DirectoryView(Protocol):
    """The part of the mesh's directory client that the door uses."""

    def ref(self, role: str, key: str | None = None) -> Ref: ...

    def on_change(self, callback: object) -> None: ...


class Peers:
    """Refs by role. One in a process."""

    def __init__(self, directory: DirectoryView) -> None:
        self._directory = directory
        self._changed = asyncio.Event()
        self._card: ModelCard | None = None
        directory.on_change(self._on_change)

    def _on_change(self, *_: object) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def ready(self, role: str, key: str | None, deadline: float) -> Ref:
        """A ready instance of `role`; waits for one until `deadline`, then raises NoPeer."""
        while True:
            changed = self._changed
            try:
                return self._directory.ref(role, key)
            except NoPeer:
                try:
                    async with asyncio.timeout_at(deadline):
                        await changed.wait()
                except TimeoutError:
                    raise NoPeer(role) from None

    async def pause(self, failures: int) -> None:
        """Before another try: until the directory changes, or a little longer each time."""
        longest = min(FIRST_PAUSE * 2**failures, LONGEST_PAUSE)
        try:
            async with asyncio.timeout(longest):
                await self._changed.wait()
        except TimeoutError:
            pass

    @property
    def known_card(self) -> ModelCard | None:
        return self._card

    async def card(self) -> ModelCard:
        """What the model is. Asked once: it is the same for every target of a mesh, and doesn't change."""
        if self._card is None:
            reply = await self._ask("target", Describe())
            assert isinstance(reply, ModelCard)
            self._card = reply
        return self._card

    async def encode(self, message: Encode) -> list[int]:
        reply = await self._ask("tokenizer", message)
        assert isinstance(reply, Encoded)
        return reply.token_ids

    async def decode(self, ids: list[int]) -> str:
        reply = await self._ask("tokenizer", Decode(token_ids=ids, skip_special_tokens=False))
        assert isinstance(reply, Decoded)
        return reply.text

    async def _ask(self, role: str, message: Encode | Decode | Describe) -> object:
        """One answer; another instance, or the same one restarted, is tried while the grace lasts."""
        deadline = asyncio.get_running_loop().time() + GRACE
        failures = 0
        while True:
            try:
                ref = await self.ready(role, None, deadline)
                return await ref.ask(message, timeout=ASK_TIMEOUT)
            except NoPeer:
                raise missing(role) from None
            except RemoteError:
                raise
            except MeshError as error:
                if asyncio.get_running_loop().time() >= deadline:
                    raise missing(role) from error
                await self.pause(failures)
                failures += 1


def missing(role: str) -> ApiError:
    message = f"No {role} is ready; it may be restarting. Try again"
    return ApiError(503, message, code=f"no_{role}", retry_after=RETRY_MISSING)
