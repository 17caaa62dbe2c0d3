"""`specmesh` for a test, with a worker that one request kills: a sequence with the seed POISON ends its process as
kill -9 would, in its first step; and a tokenizer that a text kills which has POISON_TEXT in it. Each death adds a line
to the file named by POISON_DEATHS.
"""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from mesh.actor import Actor, Call
from services.api.messages import Encode, Encoded
from services.cli import up
from services.cli.launch_plan import Process, processes_of
from services.cli.main import main
from services.tokenizer.actor import TokenizerActor
from services.worker.actor import WorkerActor
from services.worker.running.mock import MockRunner, Profile
from services.worker.running.work import Work

POISON = 666
POISON_TEXT = "six hundred and sixty-six"


def die() -> None:
    with Path(os.environ["POISON_DEATHS"]).open("a") as file:
        file.write("died\n")
    os.kill(os.getpid(), signal.SIGKILL)


class PoisonedRunner(MockRunner):
    def launch(self, work: Work) -> None:
        if any(new.sampling.seed == POISON for new in work.new):
            die()
        super().launch(work)


class PoisonedWorker(WorkerActor):
    def __init__(self, context: Any) -> None:
        super().__init__(context, runner=PoisonedRunner(Profile(step_ms=5, acceptance=0.6)))


class PoisonedTokenizer(TokenizerActor):
    async def encode(self, message: Encode, call: Call) -> Encoded:
        if POISON_TEXT in (message.text or ""):
            die()
        return await super().encode(message, call)


ACTORS: dict[str, type[Actor]] = {"worker": PoisonedWorker, "tokenizer": PoisonedTokenizer}


def poisoned(process: Process) -> Process:
    if process.role not in ACTORS:
        return process
    return replace(process, child=replace(process.child, command=(sys.executable, __file__, "run", process.role)))


def run(role: str) -> int:
    from services.api.settings import load_settings
    from services.runtime.process import run_role

    return run_role(role, load_settings({}, os.environ), ACTORS[role])


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and sys.argv[2] in ACTORS:
        sys.exit(run(sys.argv[2]))
    up.processes_of = lambda *given: [poisoned(each) for each in processes_of(*given)]
    sys.exit(main())
