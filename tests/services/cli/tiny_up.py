"""`specmesh up` with tiny roles in the place of the real ones, as a child of tests. Settings by environment.

TINY_WORKER, TINY_PROPOSER ... are the orders of each role (see tiny_role.py). The streamer's side door stands for the
HTTP door.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from services.api.settings import endpoint, load_settings, run_dir
from services.cli.launch_plan import Process, processes_of
from services.cli.up import Up, _locked
from services.runtime.process import configure_log, make_run_dir

TINY_ROLE = str(Path(__file__).resolve().parent.parent / "runtime" / "tiny_role.py")


def tiny(process: Process) -> Process:
    orders = os.environ.get(f"TINY_{process.role.upper()}", "")
    env = {**process.child.env, "TINY": orders}
    return replace(process, child=replace(process.child, command=(sys.executable, TINY_ROLE, process.role), env=env))


def main() -> int:
    settings = load_settings({}, os.environ)
    configure_log("info", "up")
    make_run_dir(run_dir(settings))
    with _locked(run_dir(settings)):
        processes = [tiny(process) for process in processes_of(settings, endpoint(settings, "directory"))]
        return asyncio.run(Up(settings, processes).run())


if __name__ == "__main__":
    sys.exit(main())
