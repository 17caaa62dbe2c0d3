"""`specmesh up` with tiny roles in the place of the real ones and without a model, as a child of tests. Settings by
environment.

TINY_WORKER, TINY_PROPOSER ... are the orders of each role (see tiny_role.py). The streamer's side door stands for the
HTTP door.
"""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from services.api.settings import Settings, load_settings
from services.cli import up
from services.cli.launch_plan import Process, processes_of

TINY_ROLE = str(Path(__file__).resolve().parent.parent / "runtime" / "tiny_role.py")


def tiny_processes(settings: Settings, directory: str) -> list[Process]:
    return [tiny(process) for process in processes_of(settings, directory)]


def tiny(process: Process) -> Process:
    orders = os.environ.get(f"TINY_{process.role.upper()}", "")
    env = {**process.child.env, "TINY": orders}
    return replace(process, child=replace(process.child, command=(sys.executable, TINY_ROLE, process.role), env=env))


if __name__ == "__main__":
    up.processes_of = tiny_processes
    up._fetch_model = lambda settings: Path("/nowhere")
    up._compiling = lambda settings: nullcontext()
    sys.exit(up.main(load_settings({}, os.environ)))
