"""The other ranks of a worker: processes that rank 0 starts and lives with.

None is replaced: whatever ends or hangs, the whole worker ends at once, as if killed, and who started it starts it
anew. Its streams go on elsewhere, or at the new one, with the same text.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from models.executor import Executor, Options
from models.group import Group, join, meeting_place
from services.runtime.cpu_placement import GPUS
from services.worker.parallel.executor import ParallelExecutor
from services.worker.parallel.rank import Start
from specmesh import rooms

log = logging.getLogger("specmesh.worker")

# Of a worker that has lost a rank: to be started again.
EXIT_LOST = 70


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
    ) -> None:
        """Blocks until all have met. `lost` is called in any thread."""
        self._lost, self._ended = lost, False
        # The system ends a child with the thread that started it, so each has a thread that waits for it.
        self.processes: list[subprocess.Popen[bytes]] = []
        with tempfile.TemporaryDirectory(prefix="specmesh-ranks-") as place:
            store = str(Path(place) / "store")
            told = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in ("group", "taps")}
            for rank in range(1, ranks):
                start = Start(os.getpid(), rank, ranks, store, str(folder), executor, quantization, gpu, told)
                begun = threading.Event()
                threading.Thread(target=self._live, args=(start, begun), name=f"rank-{rank}", daemon=True).start()
                begun.wait()
            device = "cuda" if gpu else "cpu"
            self.group: Group = join(meeting_place(store, ranks), 0, ranks, options.strict, device)

    def executor(self, own: Executor) -> ParallelExecutor:
        return ParallelExecutor(own, self.group, self._tell_lost)

    def close(self) -> None:
        """For tests: a worker's ranks end with it."""
        self._ended = True
        for process in self.processes:
            process.kill()
            process.wait()

    def _live(self, start: Start, begun: threading.Event) -> None:
        command = rooms.command("services.worker.parallel.rank")
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=_environment(start))
        except OSError as error:
            self._tell_lost(f"rank {start.rank} can't be started: {error}")
            return
        finally:
            begun.set()
        self.processes.append(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asdict(start)).encode() + b"\n")
            process.stdin.close()
        self._tell_lost(f"rank {start.rank} ended with {process.wait()}")

    def _tell_lost(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._lost(reason)


def _environment(start: Start) -> dict[str, str]:
    threads = str(start.options["threads"])
    made = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if start.gpu:
        visible = made.get(GPUS, "")
        devices = visible.split(",") if visible else [str(number) for number in range(start.ranks)]
        made[GPUS] = devices[start.rank]
    return made
