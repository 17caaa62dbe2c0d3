"""The processes of ranks on this machine, which start together and end together. No torch."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from services.runtime.cpu_placement import GPUS
from services.worker.parallel.rank import Start
from specmesh import rooms


class RankProcesses:
    def __init__(self, lost: Callable[[str], Any]) -> None:
        """`lost` is told, once and in any thread, which rank has ended."""
        self._lost, self._ended = lost, False
        # The system ends a child with the thread that started it, so each has a thread that waits for it.
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, start: Start) -> None:
        begun = threading.Event()
        threading.Thread(target=self._live, args=(start, begun), name=f"rank-{start.rank}", daemon=True).start()
        begun.wait()

    def end(self) -> None:
        self._ended = True
        for process in self.running:
            process.kill()
            process.wait()

    def tell_lost(self, reason: str) -> None:
        if not self._ended:
            self._ended = True
            self._lost(reason)

    def _live(self, start: Start, begun: threading.Event) -> None:
        command = rooms.command("services.worker.parallel.rank")
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, env=_environment(start))
            self.running.append(process)
        except OSError as error:
            self.tell_lost(f"rank {start.rank} can't be started: {error}")
            return
        finally:
            begun.set()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(asdict(start)).encode() + b"\n")
            process.stdin.close()
        self.tell_lost(f"rank {start.rank} ended with {process.wait()}")


def _environment(start: Start) -> dict[str, str]:
    threads = str(start.options["threads"])
    made = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if start.gpu:
        visible = made.get(GPUS, "")
        devices = visible.split(",") if visible else [str(number) for number in range(start.device + 1)]
        made[GPUS] = devices[start.device]
    return made
