"""`specmesh` for a test, with a worker that one request kills: a sequence with the seed POISON ends its process as
kill -9 would, in its first step. Each death adds a line to the file named by POISON_DEATHS.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from services.cli import up
from services.cli.launch_plan import Process, processes_of
from services.cli.main import main
from services.worker.actor import WorkerActor
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Work

POISON = 666


class PoisonedRunner(MockRunner):
    def launch(self, work: Work) -> None:
        if any(new.sampling.seed == POISON for new in work.new):
            with Path(os.environ["POISON_DEATHS"]).open("a") as file:
                file.write("died\n")
            os.kill(os.getpid(), signal.SIGKILL)
        super().launch(work)


class PoisonedWorker(WorkerActor):
    def __init__(self, context: Any) -> None:
        super().__init__(context, runner=PoisonedRunner(Profile(step_ms=5, acceptance=0.6)))


def with_poisoned_worker(process: Process) -> Process:
    if process.role != "worker":
        return process
    return replace(process, child=replace(process.child, command=(sys.executable, __file__, "run", "worker")))


def run_worker() -> int:
    from services.api.settings import load_settings
    from services.runtime.process import run_role

    return run_role("worker", load_settings({}, os.environ), PoisonedWorker)


if __name__ == "__main__":
    if sys.argv[1:3] == ["run", "worker"]:
        sys.exit(run_worker())
    up.processes_of = lambda *given: [with_poisoned_worker(each) for each in processes_of(*given)]
    sys.exit(main())
