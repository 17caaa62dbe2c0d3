"""`specmesh up` with tiny roles in the place of the real ones, as a child of tests. Settings by environment.

TINY_TARGET, TINY_PROPOSER ... are the orders of each role (see tiny_role.py). The streamer's side door stands for the
HTTP door.
"""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

from services.config import endpoint, load_settings, run_dir
from services.placement import Process, processes_of
from services.process import configure_log, make_run_dir
from services.up import Up, _locked

TINY_ROLE = str(Path(__file__).with_name("tiny_role.py"))


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
