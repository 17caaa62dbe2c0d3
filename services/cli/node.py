"""`specmesh up` and `specmesh run worker` with `--node-rank` 1 and up: the ranks of another machine's worker. Fetches
the model, and becomes the process that keeps them (services/worker/parallel/node_actor.py)."""

from __future__ import annotations

import os
import sys

from models.errors import ModelError
from services.api.nodes import WORKER_NODE, ranks_of
from services.api.settings import Settings
from services.cli.up import compiling, fetch_model
from services.runtime.environment import environment_of
from services.runtime.log import configure_log
from services.runtime.refusal import refuse
from specmesh import rooms


def main(settings: Settings) -> int:
    """The exit code, where it comes to nothing."""
    configure_log(settings.log_level, "up", settings.log_format)
    try:
        with compiling(settings):
            folder = fetch_model(settings, with_head=False)
        print(banner(settings), file=sys.stderr, flush=True)
        command = rooms.command("services.worker.parallel.node_actor")
        own = settings.replaced(model=str(folder.absolute()), host_directory=False)
        os.execve(command[0], command, environment_of(os.environ, WORKER_NODE, own))
    except KeyboardInterrupt:
        print("\nspecmesh: stopped", file=sys.stderr)
        return 130
    except (ModelError, OSError, ValueError) as error:
        return refuse(error)


def banner(settings: Settings) -> str:
    which = ranks_of(settings.node_rank, settings.nnodes, settings.tensor_parallel_size)
    return (
        f"specmesh: node {settings.node_rank} of {settings.nnodes}: {which} of the worker at {settings.master_addr};"
        " no API here"
    )
