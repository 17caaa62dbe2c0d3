"""Sends the audit's replays to a worker, one at a time, while no request is running. Decides nothing: audit.py does.

Idle means that this streamer has had no request for QUIET_S and that the directory shows a ready worker without load.
A request that arrives cancels the replay at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets

from mesh.directory.membership import Member
from mesh.errors import MeshError
from services.api.messages import Failed, Finished, Generate, ModelCard, Tokens
from services.streamer.choice.admission import Admission
from services.streamer.choice.generation import STREAM_WINDOW, Choice, is_death
from services.streamer.choice.peers import Peers
from services.streamer.extras.audit import Audit

log = logging.getLogger("specmesh.streamer")

# A closed-loop client sends its next request sooner than this: its replays would all be interrupted.
QUIET_S = 1.0
# Seconds that one attempt may take.
ATTEMPT_S = 600.0


class Replays:
    def __init__(self, audit: Audit, peers: Peers, admission: Admission, quiet: float = QUIET_S) -> None:
        """`quiet`: seconds without a request before a replay begins."""
        self.audit = audit
        self._peers = peers
        self._admission = admission
        self._quiet = quiet
        self._wanted = asyncio.Event()

    def ended(self, choice: Choice, method: str, card: ModelCard) -> None:
        self.audit.ended(choice, method, card)
        if self.audit.waiting:
            self._wanted.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await self._wanted.wait()
            worker = await self._idle_worker()
            replay = self.audit.begin(secrets.token_hex(16))
            if replay is None:
                self._wanted.clear()
            else:
                await self._until_interrupted(replay, worker)

    async def _idle_worker(self) -> Member:
        while True:
            await self._admission.idle.wait()
            try:
                async with asyncio.timeout(self._quiet):
                    await self._admission.busy.wait()
            except TimeoutError:
                if (worker := self._peers.idle_worker()) is not None:
                    return worker

    async def _until_interrupted(self, replay: Generate, worker: Member) -> None:
        compared = asyncio.create_task(self._compare(replay, worker))
        busy = asyncio.create_task(self._admission.busy.wait())
        try:
            await asyncio.wait({compared, busy}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            busy.cancel()
            compared.cancel()
            # Its stream is closed, which cancels the work at the worker, before anything else begins.
            await asyncio.wait({compared})
        if not compared.cancelled() and (error := compared.exception()) is not None:
            raise error

    async def _compare(self, replay: Generate, worker: Member) -> None:
        decided = died = False
        try:
            async with self._peers.ref(worker).stream(replay, timeout=ATTEMPT_S, window=STREAM_WINDOW) as stream:
                async for item in stream:
                    if isinstance(item, Tokens):
                        decided = self.audit.tokens(item.ids)
                    elif isinstance(item, Finished):
                        self.audit.finished(item.stop_token)
                        decided = True
                    elif isinstance(item, Failed) and not item.retryable:
                        self.audit.failed()
                        decided = True
                    elif isinstance(item, Failed):
                        died = is_death(item)
                        return
                    if decided:
                        return
        except MeshError as error:
            log.info("audit: the replay of %s broke off: %s", replay.request_id, error)
            died = is_death(error)
        finally:
            if died:
                self.audit.worker_died()
            elif not decided:
                self.audit.interrupted()
