"""The other ranks of a worker: processes that rank 0 starts and lives with, here and, with several nodes, there.

None is replaced: whatever ends or hangs, the whole worker ends at once, as if killed, and who started it starts it
anew. Its streams go on elsewhere, or at the new one, with the same text.
"""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.errors import ModelError
from models.executor import Executor, Options
from models.fingerprint import fingerprint
from models.group import Group, join, meeting_place, open_meeting_place
from services.worker.parallel.executor import ParallelExecutor
from services.worker.parallel.processes import RankProcesses
from services.worker.parallel.rank import NOT_TOLD, Start

if TYPE_CHECKING:
    from services.worker.parallel.nodes import Nodes

log = logging.getLogger("specmesh.worker")

# Of a worker that has lost a rank: to be started again.
EXIT_LOST = 70
LOOPBACK = "127.0.0.1"


def end_process(reason: str) -> None:
    """No orderly stop: the threads of this process wait for a rank that is gone."""
    log.error("ending this process: %s", reason)
    os._exit(EXIT_LOST)


class Ranks:
    def __init__(
        self,
        folder: Path,
        ranks: int,
        executor: str,
        quantization: str,
        options: Options,
        gpu: bool,
        lost: Callable[[str], Any] = end_process,
        nodes: Nodes | None = None,
    ) -> None:
        """Blocks until all have met, for as long as it takes the other `nodes`. `lost` is called in any
        thread. Raises `ModelError`."""
        self.processes = RankProcesses(lost)
        self._device = "cuda" if gpu else "cpu"
        told = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in NOT_TOLD}
        self._start = Start(
            os.getpid(), 0, ranks, 0, "", 0, "", LOOPBACK, str(folder), executor, quantization, gpu, told
        )
        self.group: Group = self._meet_here() if nodes is None else self._meet_others(nodes)

    def executor(self, own: Executor) -> ParallelExecutor:
        return ParallelExecutor(own, self.group, self.processes.tell_lost)

    def close(self) -> None:
        """For tests: a worker's ranks end with it."""
        self.processes.end()

    def _meet_here(self) -> Group:
        with tempfile.TemporaryDirectory(prefix="specmesh-ranks-") as place:
            store = str(Path(place) / "store")
            self._begin(self._start.ranks, store=store)
            return self._join(meeting_place(store, self._start.ranks))

    def _meet_others(self, nodes: Nodes) -> Group:
        # Messages need msgspec, which a machine that only measures the model may lack.
        from services.api.messages import RunRanks

        start = self._start
        nodes.gather(fingerprint(Path(start.folder)))
        generation = secrets.token_hex(16)
        try:
            store, port = open_meeting_place(nodes.host, generation)
        except OSError as error:
            told = f"{nodes.host}, where the ranks are to meet, can't be had: {error.strerror or error}"
            fix = "set master_addr to an address of this machine that the other nodes reach"
            raise ModelError(told, fix) from error
        run = RunRanks(
            executor=start.executor,  # type: ignore[arg-type]
            quantization=start.quantization,  # type: ignore[arg-type]
            gpu=start.gpu,
            store=nodes.host,
            port=port,
            generation=generation,
            options=start.options,
        )
        nodes.run(run, self.processes.tell_lost)
        self._begin(start.ranks // nodes.count, store=nodes.host, port=port, generation=generation, host=nodes.host)
        return self._join(store, nodes.host)

    def _begin(self, here: int, **more: Any) -> None:
        for rank in range(1, here):
            self.processes.start(replace(self._start, rank=rank, device=rank, **more))

    def _join(self, store: Any, host: str = LOOPBACK) -> Group:
        start = self._start
        return join(store, 0, start.ranks, start.options["strict"], self._device, host)
